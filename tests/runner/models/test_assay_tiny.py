import json
from pathlib import Path

import pytest
import torch

from runner.contract.bank import ChoicePayload, Demonstration, InvalidBank, Task, write_bank
from runner.contract.builtin_models import BUILTIN_MODELS
from runner.contract.run_config import Model
from runner.models import assay_tiny
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
    assert assay_tiny.REVISION == facts.revision
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
