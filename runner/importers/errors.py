"""Why nothing was imported."""


class ImportRefused(ValueError):
    """The source cannot be imported; the message names the source, what is wrong and the remedy."""
