"""The run document: strict, canonical, and precise about what is wrong."""

import json

import pytest

from runner.contract.canonical import canonical_bytes, digest
from runner.contract.parse import InvalidDocument, load_text, parse
from runner.contract.run_config import RunConfig

MINIMAL = {"name": "first", "stages": [{"type": "sft"}, {"type": "grpo"}]}

YAML = """
name: first
stages:
  - {type: sft}
  - type: grpo
"""
TOML = """
name = "first"
[[stages]]
type = "sft"
[[stages]]
type = "grpo"
"""
JSON = '{"stages":[{"type":"sft"},{"type":"grpo"}],"name":"first"}'


def refused(document: dict) -> dict[str, str]:
    with pytest.raises(InvalidDocument) as caught:
        parse(document)
    return {error.pointer: error.message for error in caught.value.errors}


@pytest.mark.parametrize(("text", "format"), [(YAML, "yaml"), (TOML, "toml"), (JSON, "json")])
def test_each_door_gives_the_same_bytes(text, format):
    assert canonical_bytes(parse(load_text(text, format))) == canonical_bytes(parse(MINIMAL))


def test_defaults_are_materialised_and_nulls_explicit():
    text = canonical_bytes(parse(MINIMAL)).decode()
    assert '"experiment":null' in text and '"group_size":8' in text


def test_whole_numbers_and_floats_of_one_value_are_the_same_document():
    a = parse({**MINIMAL, "sampling": {"temperature": 1}})
    b = parse({**MINIMAL, "sampling": {"temperature": 1.0}})
    assert digest(canonical_bytes(a)) == digest(canonical_bytes(b))


def test_the_canonical_form_parses_back_to_itself():
    once = canonical_bytes(parse(MINIMAL))
    assert canonical_bytes(parse(load_text(once.decode(), "json"))) == once


def test_yaml_no_is_a_word():
    assert load_text("name: no\n", "yaml") == {"name": "no"}


@pytest.mark.parametrize(("text", "format"), [("{", "json"), ("a = ", "toml"), ("a: [", "yaml"), ("[1]", "json"), ('{"a": NaN}', "json")])
def test_unreadable_text_is_refused(text, format):
    with pytest.raises(InvalidDocument):
        load_text(text, format)


@pytest.mark.parametrize(
    ("change", "pointer", "words"),
    [
        ({"colour": "red"}, "/colour", "unknown key"),
        ({"seed": "7"}, "/seed", "integer"),
        ({"seed": True}, "/seed", "integer"),
        ({"stages": []}, "/stages", "at least 1"),
        ({"stages": [{"type": "grpo", "batch_size": 64, "group_size": 7}]}, "/stages/0/group_size", "try batch_size 63"),
        ({"stages": [{"type": "ppo"}]}, "/stages/0", "'grpo'"),
        ({"stages": [{}]}, "/stages/0", "type"),
        ({"stages": [{"type": "grpo", "loss": {"type": "masked", "mask_low": 2.0}}]}, "/stages/0/loss/mask_low", "less than"),
        ({"model": {"source": {"type": "path", "path": "models/x"}}}, "/model/source/path", "absolute"),
        ({"model": {"max_length": 64}, "sampling": {"max_new_tokens": 64}}, "/sampling/max_new_tokens", "no room"),
        ({"sampling": {"temperature": float("nan")}}, "/sampling/temperature", ""),
        ({"schema_version": 9}, "/schema_version", "1"),
        ({"project": "No Slug"}, "/project", "pattern"),
    ],
)
def test_bad_input_names_the_field(change, pointer, words):
    errors = refused({**MINIMAL, **change})
    assert pointer in errors, errors
    assert words in errors[pointer]


def test_every_error_is_reported_at_once():
    assert len(refused({"stages": [{"type": "sft", "steps": 0}], "seed": -1})) == 3


def test_schema_says_help_and_level_of_every_field():
    schema = RunConfig.model_json_schema()
    for name, model in [("RunConfig", schema), *schema["$defs"].items()]:
        for field, shape in model["properties"].items():
            if field != "type":
                help = shape.get("description") or schema["$defs"][shape["$ref"].split("/")[-1]]["description"]
                assert help and shape.get("level"), f"{name}.{field}"


def test_a_resource_gang_adds_up():
    assert (
        parse({**MINIMAL, "resources": {"rollout_workers": 3, "worker_cpus": 0.5, "learner_cpus": 1.0, "driver_cpus": 0.1}}).resources.cpus
        == 2.6
    )


# ---------------------------------------------------------------- engine
def test_a_document_without_an_engine_keeps_the_bytes_it_had_before_there_was_a_choice():
    before = "2b7e56c3af62925f1e14d3cac9325280d6288b889a3d0a542ff6516ea305a330"
    for document in (MINIMAL, {**MINIMAL, "engine": {"type": "transformers"}}):
        assert digest(canonical_bytes(parse(document))) == before
    assert parse(MINIMAL).engine.type == "transformers"


def test_another_engine_is_written_with_its_settings_and_reads_back():
    config = parse({**MINIMAL, "engine": {"type": "vllm", "max_sequences": 64}})
    stored = load_text(canonical_bytes(config).decode(), "json")
    assert stored["engine"] == {
        "type": "vllm",
        "memory_fraction": 0.4,
        "max_sequences": 64,
        "max_batched_tokens": None,
        "sleep_while_learning": False,
    }
    assert parse(stored) == config and canonical_bytes(parse(stored)) == canonical_bytes(config)
    fixed = parse({**MINIMAL, "engine": {"type": "vllm", "cache_gib": 4.0}})
    assert parse(json.loads(canonical_bytes(fixed))).engine.cache_gib == 4.0


SLEEPS = {"type": "vllm", "sleep_while_learning": True}


@pytest.mark.parametrize(
    ("change", "pointer", "words"),
    [
        ({"engine": {"type": "vllm"}, "model": {"adapter": {"type": "lora"}}}, "/engine/type", "no lora adapter"),
        ({"engine": {"type": "vllm", "max_batched_tokens": 100}}, "/engine/max_batched_tokens", "max_sequences 256"),
        ({"engine": SLEEPS}, "/engine/sleep_while_learning", "resources.gpus is 0"),
        (
            {"engine": SLEEPS, "resources": {"gpus": 1}, "stages": [{"type": "sft"}, {"type": "grpo", "max_staleness": 2}]},
            "/engine/sleep_while_learning",
            "stages.1.max_staleness 2",
        ),
        ({"engine": {"type": "vllm", "memory_fraction": 1.5}}, "/engine/memory_fraction", "less than or equal"),
        ({"engine": {"type": "sglang"}}, "/engine", "'vllm'"),
    ],
)
def test_an_engine_that_does_not_fit_the_run_is_refused_at_its_field(change, pointer, words):
    errors = refused({**MINIMAL, **change})
    assert words in errors[pointer], errors


def test_an_engine_may_sleep_beside_a_learner_on_its_gpu():
    assert parse({**MINIMAL, "engine": SLEEPS, "resources": {"gpus": 1}}).engine.sleep_while_learning


# ---------------------------------------------------------------- learner
def test_how_the_learner_computes_is_written_only_where_it_is_chosen():
    assert canonical_bytes(parse({**MINIMAL, "learner": {"compile": False}})) == canonical_bytes(parse(MINIMAL))
    config = parse({**MINIMAL, "learner": {"checkpoint_activations": True}})
    stored = load_text(canonical_bytes(config).decode(), "json")
    assert stored["learner"] == {"checkpoint_activations": True, "compile": False}
    assert parse(stored) == config


def test_layers_are_compiled_for_a_gpu_only():
    assert "resources.gpus is 0" in refused({**MINIMAL, "learner": {"compile": True}})["/learner/compile"]
    assert parse({**MINIMAL, "learner": {"compile": True}, "resources": {"gpus": 1}}).learner.compile


def test_sharing_gpus_stays_unwritten_where_it_is_off():
    assert canonical_bytes(parse({**MINIMAL, "resources": {"share_gpus": False}})) == canonical_bytes(parse(MINIMAL))
    assert json.loads(canonical_bytes(parse({**MINIMAL, "resources": {"share_gpus": True}})))["resources"]["share_gpus"] is True


def test_learner_processes_stay_unwritten_where_there_is_one_and_need_a_gpu_each():
    assert canonical_bytes(parse({**MINIMAL, "resources": {"learner_processes": 1}})) == canonical_bytes(parse(MINIMAL))
    stored = json.loads(canonical_bytes(parse({**MINIMAL, "resources": {"learner_processes": 2}})))
    assert stored["resources"]["learner_processes"] == 2 and parse(stored).resources.learners == ["learner", "learner-1"]
    few = {"learner_processes": 2, "rollout_workers": 2, "gpus": 3}
    assert "ask for 4" in refused({**MINIMAL, "resources": few})["/resources/gpus"]
    assert parse({**MINIMAL, "resources": {**few, "gpus": 4}}).resources.gpus == 4


def test_checkpoints_in_the_background_stay_unwritten_where_they_are_not():
    assert canonical_bytes(parse({**MINIMAL, "checkpoints": {"in_background": False}})) == canonical_bytes(parse(MINIMAL))
    stored = json.loads(canonical_bytes(parse({**MINIMAL, "checkpoints": {"in_background": True}})))
    assert stored["checkpoints"]["in_background"] is True and parse(stored).checkpoints.in_background
