"""Each test gets its own toy bank, sparse and compiled."""

import pytest

from runner.repair.compile import compile_bank
from tests.runner.repair import toy


@pytest.fixture
def authored(tmp_path):
    return toy.write_authored(tmp_path / "bank")


@pytest.fixture
def compiled(authored, tmp_path):
    compile_bank(authored, tmp_path / "build")
    return tmp_path / "build"


@pytest.fixture
def dense(compiled):
    """One dense task's folder, to be spoiled."""
    return compiled / "toy" / "repair" / "easy" / "toy-repair-sign-a"
