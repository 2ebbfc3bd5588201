"""Every edit that a menu offers builds, by real compilers."""

import json

import pytest

from runner.environments.repair_bank import BANK
from runner.environments.repair_bank.factory.catalogue import Catalogue

MENUS = sorted(BANK.glob("envs/*/tasks/*/*/*/menu.json"))


def documents(env):
    for path in MENUS:
        if path.parents[4].name == env:
            yield path.parent.name, json.loads(path.read_text())["edits"], json.loads((path.parent / "defect.json").read_text())["edits"]


@pytest.mark.slow
@pytest.mark.parametrize("env", ["advdiff", "nbody"])
def test_every_menu_edit_compiles_in_its_broken_tree(benches, env):
    catalogue = Catalogue(env)
    targets = {task: catalogue.target(tree) for task, tree in _trees(catalogue)}
    failed = [
        (task, edit["label"])
        for task, edits, defect in documents(env)
        for edit in edits
        if not benches[env].compiles([*defect, edit], targets[task])
    ]
    assert failed == []


def _trees(catalogue):
    for path in catalogue.folder.glob("tasks/*/*/*/authoring/provenance.json"):
        candidate = json.loads(path.read_text())["candidate"]
        yield candidate["id"], candidate["tree"]


def test_workbench_tells_an_edit_that_does_not_compile(benches):
    edit = {"file": "src/kepler.c", "old": "out[2] = 0.0;", "new": "out[2] = ;"}
    assert not benches["nbody"].compiles([edit], "symplectic")
    assert benches["nbody"].compiles([edit | {"new": "out[2] = 1.0;"}], "symplectic")
