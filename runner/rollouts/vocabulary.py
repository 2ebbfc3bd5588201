"""What each token reads as, for the token view: one string a token, kept per process."""

from typing import Iterable

import msgpack
import zstandard

# SentencePiece writes a leading blank as this sign, and decoding a lone token drops it.
_BLANK = "▁"


class Vocabulary:
    """Decodes single tokens. A token that is part of a character reads as U+FFFD; its neighbours complete it."""

    def __init__(self, tokenizer):
        self._tokenizer = tokenizer
        self._known: dict[int, str] = {}

    def text(self, token: int) -> str:
        """The token's own text, special tokens by their name."""
        if token not in self._known:
            decoded = self._tokenizer.decode([token], skip_special_tokens=False, clean_up_tokenization_spaces=False)
            piece = self._tokenizer.convert_ids_to_tokens(token)
            if isinstance(piece, str) and piece.startswith(_BLANK) and not decoded.startswith(" "):
                decoded = f" {decoded}"
            self._known[token] = decoded
        return self._known[token]

    def texts(self, tokens: Iterable[int]) -> bytes:
        """The blob `token_texts`: zstd msgpack of one string a token."""
        return zstandard.ZstdCompressor(level=3).compress(msgpack.packb([self.text(int(token)) for token in tokens]))
