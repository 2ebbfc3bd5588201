"""One growing token sequence: what was sampled stays, what was shown is never trained, a template that rewrites history forks."""

import numpy as np
import pytest

from runner.contract.episode import Author
from runner.policies.base import Generation
from runner.rollouts.conversation import Conversation
from tests.runner.tiny_models import TEMPLATE, tiny_tokenizer

ROLES = (
    "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
TRIMS = ROLES.replace("m.content", "m.content | trim")
# As Qwen3's: what was thought in earlier turns is left out of the history.
FORGETS = ROLES.replace("m.content", "m.content.split('</think>')[-1]")


def conversation(template):
    return Conversation(tiny_tokenizer(template))


def said(talk, text, end=True):
    tokens = talk.tokenizer.encode(text, add_special_tokens=False) + ([talk.tokenizer.eos_token_id] if end else [])
    generation = Generation(np.array(tokens, np.int32), np.full(len(tokens), -1.0, np.float32), "stop" if end else "length", 0)
    assert talk.reply(generation) == text
    return tokens


def user(text):
    return [{"role": "user", "content": text}]


@pytest.mark.parametrize("template", [TEMPLATE, ROLES, TRIMS])
@pytest.mark.parametrize("end", [True, False])
def test_a_turn_adds_exactly_what_the_template_puts_between_two_replies(template, end):
    talk = conversation(template)
    talk.show(user("which planet is largest?"))
    before = list(talk.builder.context)
    reply = said(talk, " Jupiter", end)
    talk.show(user("the answer is B"))
    assert talk.builder.context[: len(before) + len(reply)] == before + reply and talk.forked == 0
    whole = [*user("which planet is largest?"), {"role": "assistant", "content": " Jupiter"}, *user("the answer is B")]
    rendered = talk.tokenizer.apply_chat_template(whole, add_generation_prompt=True, tokenize=False)
    spaced = rendered.replace("Jupiter", " Jupiter") if template is TRIMS else rendered
    assert talk.tokenizer.decode(talk.builder.context) == spaced


def test_sampled_tokens_are_kept_even_where_the_tokenizer_would_join_them():
    talk = conversation(ROLES)
    talk.show(user("A"))
    letters = [talk.tokenizer.encode(letter, add_special_tokens=False)[0] for letter in "water"]
    assert letters != talk.tokenizer.encode("water", add_special_tokens=False), "one token when written at once"
    talk.reply(Generation(np.array(letters, np.int32), np.zeros(5, np.float32), "length", 0))
    talk.show(user("B"))
    assert np.array_equal(np.array(talk.builder.token_ids)[np.array(talk.builder._author) == Author.STUDENT], letters)


def test_only_the_students_tokens_are_trained():
    talk = conversation(ROLES)
    talk.show(user("A"))
    first = said(talk, "one")
    talk.show(user("B"))
    second = said(talk, "two")
    sample = talk.builder.build(episode="e", task="t", group=0, index=0, reward=1.0, termination="finished", policy_version=0)
    student = sample.author == Author.STUDENT
    assert (sample.loss_mask == student).all() and sample.token_ids[student].tolist() == first + second
    assert np.isnan(sample.logprobs[~student]).all() and sample.forks == () and sample.spans == [slice(0, sample.total_length)]


def test_a_template_that_does_not_accumulate_forks_and_says_so():
    talk = conversation(FORGETS)
    talk.show(user("A"))
    first = list(talk.builder.context)
    reply = said(talk, "<think>iron</think>B")
    talk.show(user("again"))
    assert talk.forked == 1
    assert talk.builder.context == talk.tokenizer.encode(
        "<|im_start|>user\nA<|im_end|>\n<|im_start|>assistant\nB<|im_end|>\n<|im_start|>user\nagain<|im_end|>\n<|im_start|>assistant\n"
    )
    second = list(talk.builder.context)
    said(talk, "C")
    sample = talk.builder.build(episode="e", task="t", group=0, index=0, reward=1.0, termination="finished", policy_version=0)
    assert sample.forks == (len(first) + len(reply),)
    assert [sample.token_ids[span].tolist()[: len(prompt)] for span, prompt in zip(sample.spans, (first, second), strict=True)] == [
        first,
        second,
    ]
    assert sample.longest_sequence < sample.total_length


def test_without_a_chat_template_texts_follow_each_other():
    talk = conversation(None)
    talk.show(user("A"))
    said(talk, " B")
    talk.show(user("C"))
    assert talk.tokenizer.decode(talk.builder.context) == "A B<|im_end|>\nC"


def test_a_restart_is_a_sequence_of_its_own():
    talk = conversation(ROLES)
    talk.show(user("A"))
    said(talk, "B")
    length = len(talk.builder.token_ids)
    talk.restart(user("what was done so far"))
    assert talk.builder.token_ids[length:] == talk.builder.context and talk.messages == user("what was done so far") and talk.forked == 0
