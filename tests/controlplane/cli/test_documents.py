"""Files and --set become the document that is sent."""

import json

import pytest

from controlplane.cli.client import ClientError
from controlplane.cli.documents import as_pointer, from_preset, read_changes, read_file, read_value, sendable, with_changes
from runner.contract.canonical import canonical_bytes
from runner.contract.parse import parse
from runner.contract.presets import PRESETS

TOML = """
name = "x"
seed = 7
[model]
dtype = "bfloat16"
[[stages]]
type = "grpo"
[stages.optimizer]
learning_rate = 1e-4
"""
YAML = """
name: x
seed: 7
model: {dtype: bfloat16}
stages:
  - type: grpo
    optimizer: {learning_rate: 1.0e-4}
"""
JSON = '{"name": "x", "seed": 7, "model": {"dtype": "bfloat16"}, "stages": [{"type": "grpo", "optimizer": {"learning_rate": 1e-4}}]}'


@pytest.fixture
def written(tmp_path):
    def write(name, text):
        (tmp_path / name).write_text(text)
        return str(tmp_path / name)

    return write


def test_the_three_formats_give_the_same_bytes(written):
    files = [written("a.toml", TOML), written("a.yaml", YAML), written("a.yml", YAML), written("a.json", JSON)]
    assert len({canonical_bytes(parse(sendable(read_file(file), file))) for file in files}) == 1


@pytest.mark.parametrize(
    "name, text, words",
    [
        ("a.txt", "x", "name it .toml"),
        ("a.toml", "name = ", "Invalid value"),
        ("a.yaml", "a: [", "line"),
        ("a.json", "[1]", "a mapping, got list"),
        ("a.json", '{"a": NaN}', "not a finite number"),
    ],
)
def test_an_unreadable_file_is_named_with_the_reason(written, name, text, words):
    file = written(name, text)
    with pytest.raises(ClientError) as caught:
        read_file(file)
    assert caught.value.lines[0].startswith(f"{file}: ") and words in caught.value.lines[0]


def test_a_missing_file_is_named():
    with pytest.raises(ClientError, match="nowhere.toml: No such file"):
        read_file("nowhere.toml")


@pytest.mark.parametrize("name, text", [("a.toml", "d = 2026-01-01"), ("a.yaml", "d: .inf"), ("a.yaml", "d: 2026-01-01")])
def test_what_json_does_not_know_is_refused(written, name, text):
    file = written(name, text)
    with pytest.raises(ClientError, match="finite numbers"):
        sendable(read_file(file), file)


@pytest.mark.parametrize("name", PRESETS)
def test_every_preset_can_be_sent(name):
    assert parse(sendable(from_preset(name), name)).preset == PRESETS[name].label


def test_an_unknown_preset_names_the_known_ones():
    with pytest.raises(ClientError, match="sample"):
        from_preset("nothing")


@pytest.mark.parametrize(
    "key, pointer",
    [
        ("/stages/1/optimizer/learning_rate", "/stages/1/optimizer/learning_rate"),
        ("stages[1].optimizer.learning_rate", "/stages/1/optimizer/learning_rate"),
        ("seed", "/seed"),
        ("tags[0]", "/tags/0"),
        ("model.source", "/model/source"),
    ],
)
def test_keys_are_pointers_or_dotted(key, pointer):
    assert as_pointer(key) == pointer


@pytest.mark.parametrize("key", ["a..b", "a[x]", "a[1", "a]"])
def test_a_malformed_key_is_refused(key):
    with pytest.raises(ClientError, match="--set"):
        as_pointer(key)


@pytest.mark.parametrize(
    "text, value",
    [
        ("1e-4", 1e-4),
        ("8", 8),
        ("true", True),
        ("null", None),
        ('["a"]', ["a"]),
        ('"8"', "8"),
        ("cosine", "cosine"),
        ("", ""),
        ("NaN", "NaN"),
        ("a=b", "a=b"),
    ],
)
def test_values_are_json_or_text(text, value):
    found = read_value(text)
    assert found == value and type(found) is type(value)


def test_changes_set_values_and_make_tables():
    document = {"name": "x", "stages": [{"type": "sft"}, {"type": "grpo"}], "tags": ["a", "b"]}
    changes = read_changes(["stages[1].optimizer.learning_rate=1e-4", "/seed=3", "tags[1]=c", "name=y=z"])
    assert with_changes(document, changes) == {
        "name": "y=z",
        "seed": 3,
        "stages": [{"type": "sft"}, {"type": "grpo", "optimizer": {"learning_rate": 1e-4}}],
        "tags": ["a", "c"],
    }


@pytest.mark.parametrize("change", ["stages[5].steps=1", "name.first=x", "tags[9]=x", "stages.last=1"])
def test_a_change_without_a_place_is_refused(change):
    with pytest.raises(ClientError, match="no such place"):
        with_changes({"name": "x", "stages": [{"type": "sft"}], "tags": ["a"]}, read_changes([change]))


@pytest.mark.parametrize("change", ["seed", "=3"])
def test_a_change_is_key_equals_value(change):
    with pytest.raises(ClientError, match="KEY=VALUE"):
        read_changes([change])


def test_the_command_line_imports_no_django_and_no_torch():
    import subprocess
    import sys

    code = "import sys, json, controlplane.cli; print(json.dumps([name for name in ('django', 'torch', 'ray', 'numpy') if name in sys.modules]))"
    assert json.loads(subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout) == []
