"""Operations of an update, counted by hand for small shapes."""

import torch
from peft import LoraConfig, get_peft_model
from transformers import Qwen3Config, Qwen3ForCausalLM

from runner.learning import utilisation
from runner.learning.utilisation import Work, peak_flops

LAYER = 8 * (4 + 2 + 2) * 2 + 8 * 4 * 2 + 3 * 8 * 16  # queries of 4 heads, keys and values of 2, of size 2; output; gated block


def network(**config):
    size = {"hidden_size": 8, "intermediate_size": 16, "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 2}
    return Qwen3ForCausalLM(Qwen3Config(vocab_size=10, num_hidden_layers=3, **size, **config))


def test_the_output_layer_counts_and_the_embedding_does_not_whether_they_are_one_or_two():
    for tied in (True, False):
        work = Work.of(network(tie_word_embeddings=tied))
        assert work.parameters == work.trained == 3 * LAYER + 8 * 10
        assert work.attention == 3 * 4 * 2


def test_a_frozen_weight_needs_no_gradient_of_its_own():
    adapted = get_peft_model(network(), LoraConfig(r=2, target_modules=["q_proj"]))
    work = Work.of(adapted)
    assert work.trained == 3 * 2 * (8 + 8) and work.parameters == 3 * LAYER + 8 * 10 + work.trained
    assert work.flops([5]) == (4 * work.parameters + 2 * work.trained) * 5 + 6 * 24 * 25


def test_attention_grows_with_the_square_of_each_length():
    work = Work(100, 100, 7)
    assert work.flops([3, 4]) == 600 * 7 + 6 * 7 * (9 + 16)


def test_the_peak_is_known_by_name_and_in_bfloat16_only(monkeypatch):
    monkeypatch.setattr(utilisation.torch.cuda, "get_device_name", lambda device: "NVIDIA H100 PCIe")
    card = torch.device("cuda")
    assert peak_flops(card, torch.bfloat16) == 756e12
    assert peak_flops(card, torch.float32) is None is peak_flops(torch.device("cpu"), torch.bfloat16)
    monkeypatch.setattr(utilisation.torch.cuda, "get_device_name", lambda device: "Something new")
    assert peak_flops(card, torch.bfloat16) is None
