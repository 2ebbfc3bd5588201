class Conflict(Exception):
    """The run's state forbids what was asked; the message says why and what to do instead."""
