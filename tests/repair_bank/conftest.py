"""The sample bank: clean builds made once, and the bank compiled once, for all tests of this folder."""

import importlib.util
from pathlib import Path

import pytest

from runner.environments.repair_bank import BANK
from runner.environments.repair_bank.factory.catalogue import Catalogue
from runner.environments.repair_bank.factory.workbench import Workbench, missing_tools
from runner.repair.compile import compile_bank

ENVS = ("advdiff", "nbody")


@pytest.fixture(scope="session", params=ENVS)
def catalogue(request) -> Catalogue:
    return Catalogue(request.param)


@pytest.fixture(scope="session")
def compilers() -> None:
    if missing := missing_tools():
        pytest.skip(f"{', '.join(missing)} not found; install with: apt-get install make gcc gfortran")


@pytest.fixture(scope="session")
def benches(compilers):
    with Workbench(Catalogue("advdiff").source) as advdiff, Workbench(Catalogue("nbody").source) as nbody:
        yield {"advdiff": advdiff, "nbody": nbody}


@pytest.fixture(scope="session")
def dense(tmp_path_factory) -> Path:
    """The whole bank, compiled."""
    out = tmp_path_factory.mktemp("bank") / "dense"
    compile_bank(BANK, out)
    return out


@pytest.fixture(scope="session")
def frames():
    """shared/checks/frames.py, which runs inside task images and imports nothing of ours."""
    spec = importlib.util.spec_from_file_location("bank_frames", BANK / "shared" / "checks" / "frames.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module
