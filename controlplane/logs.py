"""Log lines that name no secret, whoever put one into a path or a message."""

import logging

from controlplane.accounts.tokens import redact


class LineFormatter(logging.Formatter):
    """Tokens and login links are cut to the part that their owner sees in a list, in tracebacks too."""

    def format(self, record: logging.LogRecord) -> str:
        return redact(super().format(record))
