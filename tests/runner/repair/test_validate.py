"""Every finding that the files of a task can show: a sound task has none, and each spoiling shows exactly its own."""

import json
import shutil

import pytest

from runner.repair.bank import read_bank
from runner.repair.layouts import discover
from tests.runner.repair import toy

NAME = "demo/toy-repair-sign-a"


def entries(root):
    return {entry.record.key: entry for entry in read_bank(discover(root)).entries}


def codes(root, key=NAME):
    return entries(root)[key].record.flags


def edit(path, *pairs):
    text = path.read_text()
    for old, new in pairs:
        assert old in text, f"{path.name} has no {old!r}"
        text = text.replace(old, new, 1)
    path.write_text(text)


def edit_json(path, change):
    document = json.loads(path.read_text())
    change(document)
    path.write_text(json.dumps(document))


def test_a_sound_bank_has_no_findings(compiled):
    assert {key: entry.record.flags for key, entry in entries(compiled).items()} == dict.fromkeys(
        ("demo/toy-repair-bounds-a", "demo/toy-repair-coef-a", "demo/toy-repair-sign-a", "demo/toy-repair-sign-b"), []
    )


def manifest(*pairs):
    return lambda task: edit(task / "task.toml", *pairs)


def provenance(change):
    return lambda task: edit_json(task / "authoring" / "provenance.json", change)


def two_edits(task):
    twice = {"file": "sim.py", "old": "value", "new": "x"}
    edit_json(task / "environment" / "defect" / "defect.json", lambda it: it["edits"].append(twice))
    edit_json(task / "solution" / "defect_fix.json", lambda it: it["edits"].insert(0, twice | {"old": "x", "new": "value"}))


def other_source(task):
    edit_json(task / "authoring" / "provenance.json", lambda it: it.update(source={"archive_sha256": "0" * 64}))


def unrated(task):
    edit(task / "task.toml", ('difficulty = "easy"', 'difficulty = "unrated"'))


def slow_row(task):
    edit_json(
        task / "environment" / "cases" / "sum-8" / "row.json", lambda it: it["reference_calibration"].update(wall_times_sec=[5.0, 4.1])
    )


def leaked_by_context(task):
    edit(task / "environment" / "Dockerfile", ("COPY cases/ /app/cases/", "COPY . /app/"))
    toy.write(task / "environment" / "extra" / "fix.json", "{}")


SPOILINGS = {
    "E03 missing": ("E03", lambda task: (task / "instruction.md").unlink()),
    "E03 only a canary": ("E03", lambda task: (task / "instruction.md").write_text("<!-- canary x -->\n\n")),
    "E03 unfilled token": ("E03", lambda task: (task / "instruction.md").write_text("Mend @CODE_NAME@ please")),
    "E04": ("E04", lambda task: (task / "environment" / "Dockerfile").unlink()),
    "E05": ("E05", lambda task: [(task / "tests" / name).unlink() for name in ("Dockerfile", "test.sh")]),
    "E05 shared": (
        "E05",
        lambda task: (edit(task / "task.toml", ("[verifier.environment]", "[x]")), (task / "tests" / "test.sh").unlink()),
    ),
    "E06": ("E06", manifest(('category = "repair"', 'category = "implementation"'))),
    "E08 no allowlist": ("E08", manifest(("memory_mb = 256", 'memory_mb = 256\nallowed_hosts = ["a.org"]'))),
    "E08 a URL": ("E08", manifest(('network_mode = "no-network"', 'network_mode = "allowlist"\nallowed_hosts = ["https://a.org"]'))),
    "E09": ("E09", provenance(lambda it: it["candidate"].update(note="x" * 400))),
    "E10": ("E10", two_edits),
    "E10 broken": ("E10", lambda task: (task / "environment" / "defect" / "defect.json").write_text("{")),
    "E11 another text": ("E11", lambda task: edit(task / "solution" / "defect_fix.json", ("value += number", "value += 1 * number"))),
    "E11 no fix": ("E11", lambda task: (task / "solution" / "defect_fix.json").unlink()),
    "E12": ("E12", other_source),
    "E14": ("E14", lambda task: (task / "task.toml").write_text((task / "task.toml").read_text() + '[[steps]]\nname = "a"\n')),
    "E15 copies tests": (
        "E15",
        lambda task: edit(task / "environment" / "Dockerfile", ("COPY cases/", "COPY --chown=1 tests/grade.py cases/")),
    ),
    "E15 copies reference": (
        "E15",
        lambda task: edit(task / "environment" / "Dockerfile", ("COPY cases/ /app/", 'COPY ["reference", "/app/"]\nCOPY cases/ /app/')),
    ),
    "E15 by its context": ("E15", leaked_by_context),
    "E15 another stage": ("E15", lambda task: edit(task / "environment" / "Dockerfile", ("/app/toy /app/toy", "/solution /app/toy"))),
    "E16": ("E16", lambda task: edit(task / "environment" / "Dockerfile", *[("assay-sandbox-base:test", "debian:12")] * 2)),
    "W01": ("W01", unrated),
    "W02": ("W02", provenance(lambda it: it["funnel"].update(floor=0.7))),
    "W03": ("W03", manifest(("[environment]", "[metadata.difficulty_facts]\ncontainer_floor = 0.0\n[environment]"))),
    "W04": ("W04", slow_row),
    "W05": ("W05", manifest(('network_mode = "no-network"', 'network_mode = "public"'))),
    "W09": ("W09", manifest(("timeout_sec = 60\n", "timeout_sec = 901\n"))),
}


@pytest.mark.parametrize("name", SPOILINGS)
def test_a_spoiled_task_shows_its_finding(name, compiled, dense):
    code, spoil = SPOILINGS[name]
    spoil(dense)
    assert codes(compiled) == [code]
    assert codes(compiled, "demo/toy-repair-coef-a") == []
    blocks = code[0] == "E" and code != "E16"
    assert (entries(compiled)[NAME].record.split == "blocked") is blocks
    assert all(finding.detail for finding in entries(compiled)[NAME].payload.findings)


def test_a_category_that_is_none_has_no_reward(compiled, dense):
    edit(dense / "task.toml", ('category = "repair"', 'category = "poetry"'))
    assert codes(compiled) == ["E06", "E07"]


def test_a_manifest_that_cannot_be_read_is_kept_under_its_path(compiled, dense):
    (dense / "task.toml").write_text("[task")
    found = entries(compiled)["invalid:toy/repair/easy/toy-repair-sign-a"]
    assert (found.record.flags, found.record.split) == (["E01"], "blocked")
    assert "not TOML" in found.payload.findings[0].detail
    (dense / "task.toml").unlink()
    assert "missing" in entries(compiled)["invalid:toy/repair/easy/toy-repair-sign-a"].payload.findings[0].detail


def test_a_name_that_is_used_twice_or_is_none(compiled, dense):
    edit(dense / "task.toml", (NAME, "demo/toy-repair-coef-a"))
    found = entries(compiled)
    twice = [key for key, entry in found.items() if entry.record.flags == ["E02"]]
    assert twice == ["invalid:toy/repair/easy/toy-repair-coef-a", "invalid:toy/repair/easy/toy-repair-sign-a"]
    edit(dense / "task.toml", ("demo/toy-repair-coef-a", "../etc"))
    assert entries(compiled)["invalid:toy/repair/easy/toy-repair-sign-a"].record.flags == ["E02"]


def test_near_duplicates_are_named_when_both_are_there(compiled):
    for name in ("toy-repair-sign-a", "toy-repair-sign-b"):
        path = compiled / "toy" / "repair" / "easy" / name / "task.toml"
        edit(path, ("[environment]", '[metadata.difficulty_facts]\nnear_duplicate_cluster = "s1"\n[environment]'))
    found = entries(compiled)
    assert found[NAME].record.flags == ["W08"] and found[NAME].payload.near_duplicate == "s1"
    shutil.rmtree(compiled / "toy" / "repair" / "easy" / "toy-repair-sign-b")
    assert codes(compiled) == []


def test_a_line_that_nobody_recorded_is_found_in_the_source(compiled):
    hint = entries(compiled)["demo/toy-repair-sign-b"].payload.hints["L1"]
    assert "sim.py, line 7" in hint, "the fourth line of the function, seventh of the file"


def test_without_a_source_the_line_is_lost(compiled):
    shutil.rmtree(compiled / "toy" / "repair" / "easy" / "toy-repair-sign-b" / "environment" / "source")
    found = entries(compiled)["demo/toy-repair-sign-b"]
    assert found.record.flags == ["W07"] and found.payload.hint_degraded
    assert found.payload.hints["L1"] == found.payload.hints["L2"]


def test_no_canary_anywhere(compiled, dense):
    edit(dense / "task.toml", ("canary = ", "was = "))
    edit_json(dense / "authoring" / "provenance.json", lambda it: it.pop("canary"))
    assert codes(compiled) == ["W10"]


def test_a_menu_must_fit_the_defective_tree(compiled, dense):
    good = {"file": "sim.py", "old": "value -= number", "new": "value += number", "label": "the sign of the sum"}
    toy.write(dense / "authoring" / "menu.json", json.dumps([good]))
    assert codes(compiled) == []
    assert [edit.label for edit in entries(compiled)[NAME].payload.menu] == ["the sign of the sum"]
    toy.write(dense / "authoring" / "menu.json", json.dumps({"edits": [good | {"old": "value += number"}]}))
    found = entries(compiled)[NAME].payload
    assert [finding.code for finding in found.findings] == ["E10"] and "menu edit 1 (the sign of the sum)" in found.findings[0].detail
    toy.write(dense / "authoring" / "menu.json", json.dumps([good, {"file": "sim.py"}, good | {"label": "x" * 121}]))
    details = [finding.detail for finding in entries(compiled)[NAME].payload.findings]
    assert [detail.partition(": ")[0] for detail in details] == ["menu edit 2", "menu edit 3"]


def test_the_record_says_what_the_task_is(compiled):
    task = entries(compiled)[NAME].payload
    assert (task.env, task.category, task.family, task.tree, task.tier, task.mode) == (
        "toy",
        "repair",
        "sign",
        "squares",
        "easy",
        "injected",
    )
    assert (task.reward_key, task.floor, task.floor_native, task.floor_container) == ("reward_repair", 0.2, 0.2, None)
    assert (task.timeout_sec, task.verifier_timeout_sec, task.network_mode, task.verifier_mode) == (600.0, 60.0, "no-network", "separate")
    assert task.instruction == "# Mend the sum\n\nThe sum of squares is wrong. Repair it.\n"
    assert task.canary and task.canary not in "".join([task.instruction, *task.hints.values()])
    assert task.checks == ["sum-8", "sum-16"] and task.files == 20 and task.bytes > 0


def test_the_floor_of_each_check_is_kept_where_the_container_agrees(compiled, dense):
    assert "floor_per_check" not in entries(compiled)[NAME].payload.facts
    told = {"sum-8": 0.3, "sum-16": 0.1, "odd": "high", "beyond": 1.5}
    edit_json(dense / "authoring" / "provenance.json", lambda it: it["funnel"].update(floor_per_check=told))
    assert entries(compiled)[NAME].payload.facts["floor_per_check"] == {"sum_8": 0.3, "sum_16": 0.1}
    edit(dense / "task.toml", ("[environment]", "[metadata.difficulty_facts]\ncontainer_floor = 0.0\n[environment]"))
    assert "floor_per_check" not in entries(compiled)[NAME].payload.facts, (
        "the container's straw crashed: the native floors say nothing there"
    )


def test_the_container_floor_counts_where_both_are_known(compiled, dense):
    edit(dense / "task.toml", ("[environment]", "[metadata.difficulty_facts]\ncontainer_floor = 0.0\n[environment]"))
    task = entries(compiled)[NAME].payload
    assert (task.floor, task.floor_native, task.floor_container) == (0.0, 0.2, 0.0)
