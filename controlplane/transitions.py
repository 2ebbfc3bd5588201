"""Compare-and-set over the transition tables: the only way a state changes."""

from django.db import models

from runner.contract.states import is_allowed


class IllegalTransition(Exception):
    """The table forbids the move, whatever the row holds."""


def transition(obj: models.Model, source, target, **changes) -> bool:
    """Move `obj` from `source` to `target` if its row still says `source`; write `changes` with it.

    Returns False when another writer was first: the caller re-reads and carries on. Call it inside the
    transaction that appends the event telling of it.
    """
    if not is_allowed(source, target):
        raise IllegalTransition(f"{type(obj).__name__} {obj.pk}: {source} → {target} is not in the table")
    changes = {"state": target, **changes}
    if not type(obj)._base_manager.filter(pk=obj.pk, state=source).update(**changes):
        return False
    for name, value in changes.items():
        if not hasattr(value, "resolve_expression"):
            setattr(obj, name, value)
    return True
