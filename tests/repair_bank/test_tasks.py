"""The tasks as they lie in the bank: complete, consistent, and each fix the inverse of its defect. No compiler is needed."""

import json
import re
import subprocess
import uuid
from collections import Counter
from pathlib import Path

import pytest

from runner.contract.harbor import read_manifest
from runner.environments.repair_bank import BANK
from runner.environments.repair_bank.factory.catalogue import LABEL_LIMIT, Catalogue
from runner.repair.apply_defect import Refused, changed_files
from runner.repair.task import strip_canary

TASKS = sorted(path.parent for path in BANK.glob("envs/*/tasks/*/*/*/task.toml"))
LABELS = (lambda site: site.right, lambda site: site.wrong)
each_task = pytest.mark.parametrize("task", TASKS, ids=[task.name for task in TASKS])


def document(task: Path, name: str) -> dict:
    return json.loads((task / name).read_text())


def env_of(task: Path) -> str:
    return task.parents[3].name


def clean_reader(task: Path):
    source = BANK / "envs" / env_of(task) / "env" / "source" / env_of(task)
    return lambda path: (source / path).read_text() if (source / path).is_file() else None


def broken_texts(task: Path) -> dict[str, str]:
    return changed_files(document(task, "defect.json"), clean_reader(task))


def broken_reader(task: Path):
    broken, clean = broken_texts(task), clean_reader(task)
    return lambda path: broken.get(path) or clean(path)


def test_bank_covers_what_it_promises():
    kinds = [read_manifest((task / "task.toml").read_text()).taxonomy for task in TASKS]
    assert len(TASKS) >= 16
    assert {"sign", "coef", "dropterm", "bounds", "norm", "rkorder", "sem-data", "multi2"} <= {kind.family for kind in kinds}
    assert {kind.difficulty for kind in kinds} == {"easy", "medium", "hard"}
    assert Counter(kind.category for kind in kinds)["implementation"] >= 2
    assert Counter(kind.category for kind in kinds)["acceleration"] == 1
    assert len({(env_of(task), kind.tree) for task, kind in zip(TASKS, kinds, strict=True)}) >= 4


def test_bank_is_small():
    assert sum(path.stat().st_size for path in BANK.rglob("*") if path.is_file() and "__pycache__" not in path.parts) < 1_500_000


def test_task_images_start_from_the_base_that_the_script_makes():
    script = Path(__file__).resolve().parents[2] / "docker" / "sandbox-base.sh"
    tag = subprocess.run([script, "--tag"], check=True, capture_output=True, text=True).stdout.strip()
    assert {Catalogue(env).env_file.base.image for env in ("advdiff", "nbody")} == {tag}


@each_task
def test_defect_applies_to_the_clean_source_and_fix_undoes_it(task):
    broken, clean = broken_texts(task), clean_reader(task)
    assert all(text != clean(path) for path, text in broken.items())
    assert changed_files(document(task, "fix.json"), broken_reader(task)) == {path: clean(path) for path in broken}


@each_task
def test_defect_does_not_apply_twice(task):
    with pytest.raises(Refused):
        changed_files(document(task, "defect.json"), broken_reader(task))


@each_task
def test_manifest_agrees_with_folder_and_provenance(task):
    manifest, provenance = read_manifest((task / "task.toml").read_text()), document(task, "authoring/provenance.json")
    kind, candidate, funnel = manifest.taxonomy, provenance["candidate"], provenance["funnel"]
    assert (manifest.name, kind.difficulty, kind.category) == (f"assay/{task.name}", task.parent.name, task.parents[1].name)
    assert kind.affected_checks == Catalogue(env_of(task)).env_file.trees[kind.tree].checks
    assert (kind.family, kind.tree, kind.floor_native_estimate) == (candidate["family"], candidate["tree"], funnel["floor"])
    assert list(funnel["floor_per_check"]) == kind.affected_checks
    assert candidate["break"]["edits"] == document(task, "defect.json")["edits"]
    assert candidate["fix"]["edits"] == document(task, "fix.json")["edits"]
    assert str(uuid.uuid5(uuid.NAMESPACE_URL, manifest.name)) == provenance["canary"]


@each_task
def test_floor_follows_from_the_measured_checks(task):
    funnel = document(task, "authoring/provenance.json")["funnel"]
    if task.parents[1].name == "acceleration":
        assert (funnel["floor"], set(funnel["floor_per_check"].values())) == (0.0, {1.0})
    else:
        assert funnel["floor"] == pytest.approx(sum(funnel["floor_per_check"].values()) / len(funnel["floor_per_check"]), abs=1e-6)
    assert funnel["floor"] <= 0.65 and not funnel["crashed"]


@each_task
def test_recorded_line_is_where_the_text_changes(task):
    meta = document(task, "authoring/provenance.json")["candidate"]["meta"]
    edit = document(task, "defect.json")["edits"][0]
    clean = clean_reader(task)(edit["file"])
    line, changed = clean.splitlines()[meta["line"] - 1], clean.replace(edit["old"], edit["new"]).splitlines()[meta["line"] - 1]
    assert line != changed


@each_task
def test_instruction_tells_what_counts_and_gives_nothing_away(task):
    text = strip_canary((task / "instruction.md").read_text())
    provenance = document(task, "authoring/provenance.json")
    assert "canary" not in text.lower() and provenance["canary"] not in text
    assert "/app/tools/deliver" in text and not re.search(r"@[A-Z_]+@|\{[a-z]+\}", text)
    if task.parents[1].name == "repair":
        assert provenance["candidate"]["note"] not in text and provenance["candidate"]["meta"]["file"] not in text


@each_task
def test_menu_offers_the_fix_among_edits_of_other_families(task):
    if task.parents[1].name != "repair":
        assert not (task / "menu.json").exists()
        return
    menu, fix = document(task, "menu.json")["edits"], document(task, "fix.json")["edits"]
    bare = [{key: edit[key] for key in ("file", "old", "new")} for edit in menu]
    assert all(edit in bare for edit in fix)
    assert len(menu) >= len(fix) + 8 and len({edit["file"] for edit in menu}) >= 3
    assert len({edit["label"] for edit in menu}) == len(menu) and max(len(edit["label"]) for edit in menu) <= LABEL_LIMIT
    assert menu == sorted(menu, key=lambda edit: (edit["file"], edit["label"]))


@each_task
def test_every_menu_edit_fits_the_broken_source_and_only_the_fix_restores_it(task):
    if not (task / "menu.json").exists():
        return
    broken, clean = broken_reader(task), clean_reader(task)
    for edit in document(task, "menu.json")["edits"]:
        ((path, text),) = changed_files({"edits": [edit]}, broken).items()
        assert text != broken(path)
        if {key: edit[key] for key in ("file", "old", "new")} not in document(task, "fix.json")["edits"]:
            assert text != clean(path)


@pytest.mark.parametrize("env", ["advdiff", "nbody"])
def test_no_word_alone_tells_a_right_label_from_a_wrong_one(env):
    """A word that stands in several labels of one kind and none of the other would let a menu be solved without reading code."""
    catalogue = Catalogue(env)
    sites = {site for tree in catalogue.env_file.trees for site in catalogue.offered(tree)}
    right, wrong = (Counter(word for site in sites for word in set(re.findall(r"[a-z]+", label(site)))) for label in LABELS)
    assert [word for word in right if right[word] >= 3 and word not in wrong] == []
    assert [word for word in wrong if wrong[word] >= 3 and word not in right] == []
