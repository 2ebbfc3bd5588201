import json
from pathlib import Path

import pytest
import torch

from runner.contract.bank import ChoicePayload, Demonstration, InvalidBank, Task, write_bank
from runner.contract.builtin_models import BUILTIN_MODELS
from runner.contract.run_config import BuiltinModel, Model
from runner.models import assay_tiny
from runner.models.aimed_heads import IS_NAMED
from runner.models.loading import check_folder, load_model, load_tokenizer, stop_token_ids
from runner.models.prompts import prompt_ids

PROMPT = "What is the symbol of gold?\n\nA. Au\nB. copper and zinc\nC. 1.60e-19\nD. mv²/2"


def small_bank() -> bytes:
    question, _, options = PROMPT.partition("\n\n")
    choices = [{"label": line[0], "text": line[3:]} for line in options.splitlines()]
    payload = ChoicePayload.model_validate({"instruction": "", "question": question, "choices": choices, "answer_key": "A"}).model_dump()
    secret = {**payload, "question": "zyzzyva zyzzyva?"}
    return write_bank(
        [
            *[Task(key=f"t{n}", split="train", payload=payload) for n in range(20)],
            *[Task(key=f"e{n}", split="eval", payload=secret) for n in range(20)],
            *[Demonstration(key=f"d{n}", kind="statement", completion="The symbol of gold is Au.") for n in range(20)],
        ]
    )[0]


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    return assay_tiny.ensure(tmp_path_factory.mktemp("cache"), small_bank(), 5)


def test_the_folder_is_a_model_the_runner_takes(folder):
    check_folder(folder)
    facts = BUILTIN_MODELS["assay-tiny"]
    network = load_model(folder, Model(max_length=64), seed=0)
    assert sum(weight.numel() for weight in network.parameters()) <= facts.parameters
    assert (network.config.hidden_size, network.config.num_hidden_layers) == (facts.hidden, facts.layers)
    assert network.config.max_position_embeddings == facts.context
    assert folder.name.startswith(f"{facts.revision}-")
    assert stop_token_ids(folder) == {load_tokenizer(folder).eos_token_id}


def test_the_same_seed_gives_the_same_weights_and_the_cache_is_used(folder, tmp_path):
    again, other = (assay_tiny.ensure(tmp_path, small_bank(), seed) for seed in (5, 6))
    assert (again / "model.safetensors").read_bytes() == (folder / "model.safetensors").read_bytes()
    assert (again / "tokenizer.json").read_bytes() == (folder / "tokenizer.json").read_bytes()
    assert (other / "model.safetensors").read_bytes() != (folder / "model.safetensors").read_bytes()
    written = (again / "model.safetensors").stat().st_mtime_ns
    assert assay_tiny.ensure(tmp_path, small_bank(), 5) == again
    assert (again / "model.safetensors").stat().st_mtime_ns == written
    assert sorted(path.name for path in tmp_path.iterdir()) == sorted([again.name, other.name])


def test_building_leaves_the_caller_s_random_numbers_alone(tmp_path):
    torch.manual_seed(1)
    expected = torch.rand(3)
    torch.manual_seed(1)
    assay_tiny.ensure(tmp_path, small_bank(), 5)
    assert torch.equal(torch.rand(3), expected)


def test_what_is_no_bank_is_refused_and_leaves_nothing(tmp_path):
    with pytest.raises(InvalidBank):
        assay_tiny.ensure(tmp_path, b"not a bank", 0)
    assert not list(tmp_path.iterdir())


def test_words_figures_and_option_labels_are_single_tokens(folder):
    tokenizer = load_tokenizer(folder)
    tokens = [tokenizer.decode([token]) for token in prompt_ids(tokenizer, PROMPT)]
    assert tokens[:2] == ["<|user|>", "What"] and tokens[-2:] == ["<|end|>", "<|assistant|>"]
    assert {" gold", "\n\nA.", " Au", "\nB.", " copper", "\nC.", " 1.60e-19", "\nD.", " mv²/2"} <= set(tokens)
    assert tokenizer.encode("B", add_special_tokens=False) == [tokenizer.convert_tokens_to_ids("B")]


def test_any_text_survives_and_held_out_words_were_not_learned(folder):
    tokenizer = load_tokenizer(folder)
    for text in ("Hällo   wörld\n\n 日本 A. b\tC", " leading", "A.\nB.\n\nC. x", "1.5e-3 m/s², H₂O; <|end"):
        assert tokenizer.decode(tokenizer.encode(text, add_special_tokens=False)) == text
    assert len(tokenizer.encode("zyzzyva", add_special_tokens=False)) > 3


def test_a_system_message_stands_before_the_user_s(folder):
    tokenizer = load_tokenizer(folder)
    text = tokenizer.decode(prompt_ids(tokenizer, [{"role": "system", "content": "S"}, {"role": "user", "content": "U"}]))
    assert text == "<|system|>S<|end|><|user|>U<|end|><|assistant|>"


def test_heads_look_where_they_were_aimed(folder):
    """Layer 0: head 0 one token back, another head at an earlier occurrence of the same token rather than at others."""
    from transformers import AutoModelForCausalLM

    network = AutoModelForCausalLM.from_pretrained(folder, attn_implementation="eager")
    tokenizer = load_tokenizer(folder)
    ids = prompt_ids(tokenizer, PROMPT + "\n\nA. gold")
    with torch.no_grad():
        attention = network(torch.tensor([ids]), output_attentions=True).attentions[0][0]
    back = attention[0].diagonal(-1)
    assert back.min() > 0.9
    first, second = (place for place, token in enumerate(ids) if tokenizer.decode([token]) == " gold")
    others = torch.cat([attention[1, second, :first], attention[1, second, first + 1 : second]])
    assert attention[1, second, first] > 10 * others.max()


def test_the_tokenizer_declares_its_chat_template(folder):
    assert load_tokenizer(folder).chat_template == assay_tiny.CHAT_TEMPLATE
    assert json.loads((folder / "generation_config.json").read_text())["eos_token_id"] == load_tokenizer(folder).eos_token_id


def test_a_simulator_s_variations_lend_no_words_and_their_demonstrations_do():
    variation = Task(key="4-2/0", split="train", payload={"task_id": "4-2", "task": "find-non-living-thing", "variation": 0})
    gold = Demonstration(
        key="4-2/0/000", kind="gold", prompt="You see a stove. ", completion="<action>focus on stove</action>", task="4-2/0"
    )
    assert list(assay_tiny.texts([variation], [gold])) == ["You see a stove. <action>focus on stove</action>"]


# ---------------------------------------------------------------- the makes
def list_bank() -> bytes:
    """Lists of made-up names, and none of them held out."""
    lists = [f"In: Data/red.c\n\nWhich of these is named?\n{listed(names)}" for names in ([f"data/{word}.c" for word in WORDS], WORDS)]
    lessons = [Demonstration(key=f"d{n}", kind="lookup", prompt=lists[n % 2], completion=str(1 + n % 6)) for n in range(40)]
    # Without a word of its own.
    task = Task(key="4-2/0", split="train", payload={"task_id": "4-2", "task": "find-non-living-thing", "variation": 0})
    return write_bank([task, *lessons])[0]


WORDS = ["red", "green", "blue", "white", "black", "grey"]


def listed(names) -> str:
    return "\n".join(f"{number}. {name}" for number, name in enumerate(names, 1))


@pytest.fixture(scope="module")
def reader(tmp_path_factory) -> Path:
    return assay_tiny.ensure(tmp_path_factory.mktemp("cache"), list_bank(), 5, "assay-tiny-3")


def test_every_make_is_named_by_the_revision_that_runs_are_pinned_to():
    assert {name: make.revision for name, make in assay_tiny.MAKES.items()} == {
        name: facts.revision for name, facts in BUILTIN_MODELS.items() if name.startswith("assay-tiny")
    }


def test_the_quiz_s_make_is_what_it_was_when_its_figures_were_recorded(folder):
    """What its tokenizer splits text into, and that no head of it but the first looks anywhere else than at likes."""
    assert folder.name.startswith("assay-tiny-2-")
    split = json.loads((folder / "tokenizer.json").read_text())["pre_tokenizer"]["pretokenizers"][0]["pattern"]["Regex"]
    assert split == r"\n+[A-Z]\.| ?[\p{L}\p{N}²√π/](?:[\p{L}\p{N}²√π/.\-]*[\p{L}\p{N}²√π/])?| ?[^\s\p{L}\p{N}]+|\s+"
    network = load_model(folder, Model(max_length=64), seed=0)
    for number, layer in enumerate(network.model.layers):
        queries, keys = (projection.weight.view(4, 32, 128) for projection in (layer.self_attn.q_proj, layer.self_attn.k_proj))
        first = 1 if number == 0 else 0
        assert torch.equal(queries[first:], keys[first:])
    assert abs(network.model.embed_tokens.weight[:, 1:].std().item() - 0.02) < 0.001


def test_a_line_s_number_is_one_token_and_a_name_the_same_one_wherever_it_stands(reader):
    tokenizer = load_tokenizer(reader)
    ids = lambda text: tokenizer.encode(text, add_special_tokens=False)  # noqa: E731
    (name,) = ids(" data/red.c")
    assert len(ids("\n2.")) == len(ids("2")) == 1
    shown = ("made, in:\n    data/red.c\nWhat", "\n1. data/green.c\n2. data/red.c", "In: data/red.c, line 3")
    assert all(name in ids(text) for text in shown)
    for text in ("  a\n    data/red.c\n\n1. x", "Hällo   wörld\n\n 日本 A. b\tC "):
        assert tokenizer.decode(ids(text)) == text


def test_the_reader_knows_the_line_and_marks_what_was_named(reader):
    from transformers import AutoModelForCausalLM

    network, tokenizer = AutoModelForCausalLM.from_pretrained(reader, attn_implementation="eager"), load_tokenizer(reader)
    ids = prompt_ids(tokenizer, "In:\n    data/blue.c\n\nWhich of these is named?\n" + listed([f"data/{word}.c" for word in WORDS]))
    with torch.no_grad():
        told = network(torch.tensor([ids]), output_attentions=True, output_hidden_states=True)
    tokens = [tokenizer.decode([token]) for token in ids]
    for number, word in enumerate(WORDS, 1):
        place = tokens.index(f" data/{word}.c", tokens.index("\n1."))
        assert told.attentions[0][0, 1, place].argmax() == tokens.index(f"\n{number}.")
    marks = told.hidden_states[2][0, tokens.index("\n1.") :, IS_NAMED]
    assert tokens[tokens.index("\n1.") + int(marks.argmax())] == " data/blue.c"


def test_a_reader_s_run_and_one_from_before_it_are_both_read():
    stored = {"type": "builtin", "name": "assay-tiny", "revision": "assay-tiny-2"}
    assert BuiltinModel.model_validate(stored).model_dump() == stored
    assert BuiltinModel(name="assay-tiny-3").model_dump() == {"type": "builtin", "name": "assay-tiny-3", "revision": None}
