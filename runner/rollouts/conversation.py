"""An episode's messages as one growing token sequence.

What was shown or sampled is never tokenised again: a turn adds the reply's own tokens, then the tokens that the chat template puts
between that reply and the next one. A template accumulates when the text it renders for a longer conversation begins with the text
it rendered for the shorter one, the reply included. Where it does not (one that drops earlier thinking, say), the conversation
forks: the next prompt is rendered from its messages as a sequence of its own, and `forked` says so.
"""

from collections.abc import Mapping, Sequence

from runner.contract.episode import Author
from runner.models.prompts import prompt_ids
from runner.policies.base import Generation
from runner.rollouts.types import SampleBuilder

Message = dict[str, str]
KNOWN_PROMPTS = 1024


class Prompts:
    """Rendered prompts with an author for each token. The members of a group are shown the same, so it is rendered once."""

    def __init__(self, tokenizer):
        self.tokenizer = tokenizer
        self._special = set(tokenizer.all_special_ids)
        self._known: dict[tuple, tuple[list[int], list[int]]] = {}

    def render(self, messages: Sequence[Message], template: Mapping[str, object]) -> tuple[list[int], list[int]]:
        """Tokens of the whole conversation up to where the assistant begins, and their authors."""
        key = (*((message["role"], message["content"]) for message in messages), *sorted(template.items()))
        if key not in self._known:
            if len(self._known) >= KNOWN_PROMPTS:
                self._known.clear()
            self._known[key] = self.authored(prompt_ids(self.tokenizer, messages, template))
        return self._known[key]

    def authored(self, tokens: list[int]) -> tuple[list[int], list[int]]:
        """Tokens of the chat template itself are the template's, the others the environment's."""
        return tokens, [int(Author.TEMPLATE if token in self._special else Author.ENVIRONMENT) for token in tokens]


class Conversation:
    """`template` holds further variables of the chat template, such as enable_thinking; `prompts` may be shared by conversations."""

    def __init__(self, tokenizer, template: Mapping[str, object] | None = None, prompts: Prompts | None = None):
        self.tokenizer, self.template = tokenizer, dict(template or {})
        self.prompts = prompts or Prompts(tokenizer)
        self.builder = SampleBuilder()
        self.messages: list[Message] = []
        self.forked = 0
        self._special = set(tokenizer.all_special_ids)
        self._reply: Generation | None = None

    def show(self, messages: Sequence[Message]) -> None:
        """Append what the environment says, up to where the assistant begins."""
        bridge = self._bridge(messages) if self._reply else None
        self.messages += messages
        if bridge is not None:
            self.builder.append(*self.prompts.authored(bridge))
        else:
            if self._reply:
                self.forked += 1
                self.builder.fork()
            self.builder.append(*self.prompts.render(self.messages, self.template))
        self._reply = None

    def length(self, messages: Sequence[Message]) -> int:
        """Tokens of a prompt made of `messages` alone."""
        return len(self.prompts.render(messages, self.template)[0])

    def restart(self, messages: Sequence[Message]) -> None:
        """Begin a sequence of its own with `messages` as the whole history."""
        self.builder.fork()
        self.messages, self._reply = [], None
        self.show(messages)

    def reply(self, generation: Generation) -> str:
        """Append what the policy wrote; returns its text."""
        text = self.tokenizer.decode(generation.token_ids.tolist(), skip_special_tokens=True)
        self.builder.append(generation.token_ids, Author.STUDENT, generation.logprobs)
        self.messages.append({"role": "assistant", "content": text})
        self._reply = generation
        return text

    def _bridge(self, messages: Sequence[Message]) -> list[int] | None:
        """Tokens between the last reply and the next; None where the template does not accumulate."""
        if not self.tokenizer.chat_template:
            text = "".join("\n" + message["content"] for message in messages)
            return list(self.tokenizer.encode(text, add_special_tokens=False))
        *before, said = self.messages
        shorter, longer = self._render(before), self._render([*self.messages, *messages])
        # A template may trim a message; the tokens that were sampled stay as they are.
        for text in (said["content"], said["content"].strip()):
            if longer.startswith(shorter + text):
                bridge = longer[len(shorter) + len(text) :].removeprefix(self._stop_text())
                return list(self.tokenizer.encode(bridge, add_special_tokens=False))
        return None

    def _render(self, messages: Sequence[Message]) -> str:
        return self.tokenizer.apply_chat_template(list(messages), add_generation_prompt=True, tokenize=False, **self.template)

    def _stop_text(self) -> str:
        """The text of the reply's end-of-sequence token, which the template would write a second time."""
        ended = len(self._reply.token_ids) > 0 and int(self._reply.token_ids[-1]) in self._special
        return self.tokenizer.decode([int(self._reply.token_ids[-1])]) if ended else ""
