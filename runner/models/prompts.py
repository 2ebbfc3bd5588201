"""The one place where text becomes tokens, so that warm start, rollouts and evaluation agree."""

from collections.abc import Mapping, Sequence

import numpy as np


def prompt_ids(tokenizer, messages: Sequence[dict[str, str]] | str, template: Mapping[str, object] | None = None) -> list[int]:
    """Tokens of a prompt up to where the assistant begins.

    With a chat template a string counts as one user message, and `template` holds further variables of the template; without
    one the messages' texts are joined by newlines and encoded as they are.
    """
    messages = [{"role": "user", "content": messages}] if isinstance(messages, str) else list(messages)
    if tokenizer.chat_template:
        return list(
            tokenizer.apply_chat_template(messages, add_generation_prompt=True, tokenize=True, return_dict=False, **(template or {}))
        )
    return list(tokenizer.encode("\n".join(message["content"] for message in messages)))


def completion_ids(tokenizer, text: str) -> list[int]:
    """Tokens of what the assistant says, without any special token."""
    return list(tokenizer.encode(text, add_special_tokens=False))


def alternating(texts: Sequence[str]) -> list[dict[str, str]]:
    """Messages by user and assistant in turn."""
    return [{"role": ("user", "assistant")[number % 2], "content": text} for number, text in enumerate(texts)]


def encode_demonstration(
    tokenizer, prompt: str | None, completion: str, max_length: int, history: Sequence[str] = ()
) -> tuple[np.ndarray, np.ndarray]:
    """(token_ids int32[T], loss_mask bool[T]) of a demonstration, closed by the end-of-sequence token.

    Without a prompt every token but the first is trained: nothing predicts the first one.
    Raises ValueError when it exceeds `max_length` tokens.
    """
    prefix = prompt_ids(tokenizer, alternating([*history, prompt])) if prompt is not None else []
    tokens = prefix + completion_ids(tokenizer, completion) + [tokenizer.eos_token_id]
    if len(tokens) > max_length:
        raise ValueError(
            f"model.max_length: a demonstration has {len(tokens)} tokens, the limit is {max_length}; raise it or shorten the text"
        )
    mask = np.arange(len(tokens)) >= max(len(prefix), 1)
    return np.array(tokens, np.int32), mask
