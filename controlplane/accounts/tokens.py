"""The one form of every secret we hand out: 256 bits behind a recognisable prefix, kept only as a hash."""

import hashlib
import re
import secrets

PREFIX = "assay_"
SHOWN = len(PREFIX) + 6
SECRET = re.compile(PREFIX + r"[A-Za-z0-9_-]{43}")


def new_token() -> tuple[str, str]:
    """A fresh secret and its hash. The text is shown once; a scanner recognises leaked ones by the prefix."""
    text = PREFIX + secrets.token_urlsafe(32)
    return text, hash_token(text)


def hash_token(text: str) -> str:
    """SHA-256 as hexadecimal. No salt and no stretching: 256 random bits cannot be guessed from their hash."""
    return hashlib.sha256(text.encode()).hexdigest()


def redact(text: str) -> str:
    """`text` with each secret cut to what is shown of it in lists."""
    return SECRET.sub(lambda found: found[0][:SHOWN] + "…", text)
