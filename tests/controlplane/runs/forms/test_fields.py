"""The field tree: what the form shows."""

import pytest

from controlplane.runs.forms import build_form, flatten, read_post, subtree
from controlplane.runs.forms.schema import root
from runner.contract.presets import PRESETS
from runner.contract.run_config import RunConfig
from tests.controlplane.runs.forms.browser import post

DOCUMENT = {
    "name": "first",
    "stages": [
        {"type": "sft", "steps": 5},
        {"type": "grpo", "batch_size": 32, "loss": {"type": "masked", "drift_tau": 0.25}, "optimizer": {"learning_rate": 1e-4}},
    ],
}


def test_sections_follow_the_schema():
    titles = [section.title for section in build_form(DOCUMENT).sections]
    assert titles == ["Run", "Model", "Tasks", "Rollouts", "Method", "Evaluation", "Checkpoints", "Resources"]


def test_every_field_of_the_contract_is_on_the_form():
    on_form = {field.pointer for field in build_form(DOCUMENT).walk()}
    assert {"/" + name for name in RunConfig.model_fields} - on_form == {"/schema_version"}
    assert "/stages/1/loss/drift_tau" in on_form
    assert "/stages/1/loss/clip_low" not in on_form


def test_a_field_says_what_it_is_in_which_unit_and_within_which_limits():
    field = build_form(DOCUMENT).field("/model/max_length")
    assert (field.kind, field.label, field.unit, field.level) == ("integer", "Max length", "tokens", "basic")
    assert field.hint == "at least 16, at most 1048576"
    assert field.help == "Prompt plus response; longer samples are refused."
    assert (field.text, field.default, field.required) == ("", "512", False)
    assert build_form(DOCUMENT).field("/name").required


def test_every_leaf_has_a_help_and_a_default_or_is_required():
    for field in build_form(DOCUMENT).walk():
        if field.kind not in ("items",) and field.index is None:
            assert field.help, field.pointer
    lora = subtree("/model/adapter", "lora", {})
    assert {f.pointer: f.default for f in lora.children}["/model/adapter/rank"] == "16"


def test_an_enclosing_default_is_the_default_shown():
    form = build_form(DOCUMENT)
    assert form.field("/stages/0/optimizer/learning_rate").default == "0.001"
    assert form.field("/stages/1/optimizer/learning_rate").default == "1e-05"


def test_a_key_left_out_of_a_given_object_shows_the_objects_own_default():
    document = {"name": "x", "stages": [{"type": "sft", "optimizer": {"schedule": "linear"}}]}
    field = build_form(document).field("/stages/0/optimizer/learning_rate")
    assert (field.text, field.default) == ("1e-05", "0.001")


def test_filling_one_field_of_an_object_leaves_its_blank_ones_as_shown():
    posted = read_post({"/name": ["x"], "/stages/0/type": ["sft"], "/stages/0/optimizer/warmup_steps": ["3"]})
    config, errors = posted.check()
    assert errors == []
    assert config.stages[0].optimizer.learning_rate == 1e-3
    assert config.stages[0].optimizer.warmup_steps == 3


def test_a_union_shows_its_variants_with_their_docstrings():
    loss = build_form(DOCUMENT).field("/stages/1/loss")
    assert [(choice.value, choice.selected) for choice in loss.choices] == [("clipped", False), ("masked", True)]
    assert loss.choices[0].help == "Clipped policy gradient (PPO), optionally with the dual clip."
    assert loss.type_name == "/stages/1/loss/type"


def test_a_nullable_field_with_a_default_can_be_switched_off():
    field = build_form(DOCUMENT | {"stages": [{"type": "grpo"}]}).field("/stages/0/loss/dual_clip")
    assert (field.optional, field.null_name, field.is_null, field.default) == (True, "/stages/0/loss/dual_clip#null", False, "3.0")
    document = {"name": "x", "stages": [{"type": "grpo", "loss": {"type": "clipped", "dual_clip": None}}]}
    form = build_form(document)
    assert form.field("/stages/0/loss/dual_clip").is_null
    assert read_post(post(form)).check()[0].stages[0].loss.dual_clip is None


def test_stages_are_numbered_and_offer_the_methods():
    stages = build_form(DOCUMENT).field("/stages")
    assert [(stage.index, stage.label, stage.selected.value) for stage in stages.children] == [
        (0, "Stages 0", "sft"),
        (1, "Stages 1", "grpo"),
    ]
    assert [choice.value for choice in stages.choices] == list(root().properties["stages"].item.variants)


# ---------------------------------------------------------------- changing a union
def test_changing_a_union_keeps_values_of_the_same_name():
    values = post(build_form(DOCUMENT))
    values["/stages/1/steps"] = ["7"]
    stage = subtree("/stages/1", "sft", values)
    shown = {field.pointer: field.text for field in stage.walk()}
    assert shown["/stages/1/steps"] == "7"
    assert shown["/stages/1/batch_size"] == "32"
    assert shown["/stages/1/optimizer/learning_rate"] == "0.0001"
    assert "/stages/1/group_size" not in shown
    assert (stage.index, stage.label, stage.selected.value) == (1, "Stages 1", "sft")


def test_a_value_nobody_typed_does_not_follow_to_the_other_variant():
    stage = subtree("/stages/0", "grpo", post(build_form(DOCUMENT)))
    rate = next(field for field in stage.walk() if field.pointer == "/stages/0/optimizer/learning_rate")
    assert (rate.text, rate.default) == ("", "1e-05")


def test_an_unreadable_entry_survives_a_change_of_union():
    stage = subtree("/stages/1", "sft", post(build_form(DOCUMENT)) | {"/stages/1/steps": ["many"]})
    assert {field.pointer: field.text for field in stage.walk()}["/stages/1/steps"] == "many"


def test_an_option_the_new_variant_does_not_know_is_dropped():
    source = subtree("/model/source", "builtin", {"/model/source/name": ["something-else"], "/model/source/type": ["hub"]})
    assert next(f for f in source.walk() if f.pointer == "/model/source/name").selected.value == "assay-tiny"


@pytest.mark.parametrize(
    "pointer, tag", [("/stages/1", "ppo"), ("/nowhere", "sft"), ("/name", "sft"), ("/model/nothing", "x"), ("/stages/9/loss", "clippy"), ("/stages/²", "sft")]
)
def test_an_unknown_union_or_type_is_a_key_error(pointer, tag):
    with pytest.raises(KeyError):
        subtree(pointer, tag, post(build_form(DOCUMENT)))


def test_a_preset_shows_only_what_it_chose():
    document = PRESETS["sample"].start()
    form = build_form(document)
    assert form.field("/priority").text == ""
    chosen = set(flatten(document)) & {field.pointer for field in form.walk()}
    assert chosen and {field.pointer for field in form.walk() if field.text} == chosen
