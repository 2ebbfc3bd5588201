"""A served model behind an OpenAI-compatible address: messages in, one reply out, every failure with a name."""

from collections.abc import Sequence
from dataclasses import dataclass

import httpx

from runner.contract.taxonomy import is_overflow
from runner.environments.base import Message

CALL_SECONDS = 900.0


class ContextOverflow(Exception):
    """The prompt does not fit the model's context. The same prompt will never fit."""


class ChatFailed(Exception):
    """The server did not answer, or not with a reply; another try may."""


@dataclass(frozen=True)
class Reply:
    """What the model said. Tokens are the server's count, None where it gave none."""

    text: str
    finish_reason: str
    prompt_tokens: int | None = None
    completion_tokens: int | None = None
    reasoning: str = ""


class Chat:
    """`url` ends in /v1. The number of new tokens is left to the server: what is left of its context."""

    def __init__(self, url: str, model: str, *, temperature: float = 1.0, key: str = "EMPTY", seconds: float = CALL_SECONDS):
        self.url, self.model, self.temperature = f"{url.rstrip('/')}/chat/completions", model, temperature
        self._client = httpx.AsyncClient(timeout=seconds, headers={"Authorization": f"Bearer {key}"})

    async def complete(self, messages: Sequence[Message]) -> Reply:
        """Raises ContextOverflow, ChatFailed."""
        body = {"model": self.model, "messages": list(messages), "temperature": self.temperature}
        try:
            answer = await self._client.post(self.url, json=body)
        except httpx.HTTPError as error:
            raise ChatFailed(f"{self.url} did not answer: {type(error).__name__}: {error}") from error
        if answer.status_code != 200:
            told = answer.text[:2000]
            raise (ContextOverflow if is_overflow(told) else ChatFailed)(f"{self.url} answered {answer.status_code}: {told}")
        return self._read(answer)

    def _read(self, answer: httpx.Response) -> Reply:
        try:
            document = answer.json()
            choice = document["choices"][0]
            usage = document.get("usage") or {}
            said = choice["message"]
            reasoning = said.get("reasoning_content") or said.get("reasoning") or ""
            counts = usage.get("prompt_tokens"), usage.get("completion_tokens")
            return Reply(said.get("content") or "", choice.get("finish_reason") or "stop", *counts, reasoning)
        except (ValueError, KeyError, IndexError, TypeError, AttributeError) as error:
            raise ChatFailed(f"{self.url} answered with something else than a completion: {answer.text[:200]!r}") from error

    async def close(self) -> None:
        await self._client.aclose()
