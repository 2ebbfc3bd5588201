"""Text becomes tokens in one way, for warm start, rollouts and evaluation alike."""

import numpy as np
import pytest

from runner.models.prompts import completion_ids, encode_demonstration, prompt_ids
from tests.runner.tiny_models import tiny_tokenizer

CHAT, PLAIN = tiny_tokenizer(), tiny_tokenizer(template=None)


def test_a_chat_prompt_ends_where_the_assistant_begins():
    assert CHAT.decode(prompt_ids(CHAT, "iron?")) == "<|im_start|>iron?<|im_end|><|im_start|>"


def test_several_messages_go_through_the_template():
    messages = [{"role": "system", "content": "be short"}, {"role": "user", "content": "iron?"}]
    assert CHAT.decode(prompt_ids(CHAT, messages)) == "<|im_start|>be short<|im_end|><|im_start|>iron?<|im_end|><|im_start|>"


def test_without_a_template_the_text_is_the_prompt():
    assert PLAIN.decode(prompt_ids(PLAIN, "iron is a metal")) == "iron is a metal"


@pytest.mark.parametrize("tokenizer", [CHAT, PLAIN])
def test_a_demonstration_begins_with_exactly_the_rollout_s_prompt(tokenizer):
    tokens, mask = encode_demonstration(tokenizer, "which planet?", "Jupiter", 64)
    prompt = prompt_ids(tokenizer, "which planet?")
    assert tokens[: len(prompt)].tolist() == prompt
    assert tokens[mask].tolist() == completion_ids(tokenizer, "Jupiter") + [tokenizer.eos_token_id]
    assert mask.dtype == np.bool_ and tokens.dtype == np.int32


def test_completions_carry_no_special_token():
    assert not set(completion_ids(CHAT, "A B C D")) & set(CHAT.all_special_ids)


def test_a_statement_trains_all_but_its_first_token():
    tokens, mask = encode_demonstration(CHAT, None, "iron is a metal", 64)
    assert mask.tolist() == [False] + [True] * (len(tokens) - 1) and tokens[-1] == CHAT.eos_token_id
