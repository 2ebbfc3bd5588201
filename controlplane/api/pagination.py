"""Keyset paging: `{items, next}`, where `next` is an opaque cursor that stays right while rows come and go."""

import base64
import json
from typing import Any, Generic, TypeVar

from django.core.exceptions import ValidationError
from django.db.models import Q, QuerySet
from ninja import Field, Schema

from controlplane.api.problems import Problem
from runner.contract.parse import FieldError

T = TypeVar("T")
MAX_LIMIT = 200


class Page(Schema, Generic[T]):
    items: list[T]
    next: str | None = None


class Paging(Schema):
    """Query parameters of every list."""

    cursor: str | None = Field(None, description="`next` of the previous page.", max_length=2000)
    limit: int = Field(50, description="Rows a page.", ge=1, le=MAX_LIMIT)

    def page(self, rows: QuerySet, *order: str) -> dict[str, Any]:
        """One page of `rows` by `order`: columns of the model without nulls, the last one unique. Raises Problem 400."""
        if self.cursor:
            rows = rows.filter(_after(rows.model, order, _decode(rows.model, order, self.cursor)))
        found = list(rows.order_by(*order)[: self.limit + 1])
        items = found[: self.limit]
        return {"items": items, "next": _encode(order, items[-1]) if len(found) > self.limit else None}


def _after(model, order: tuple[str, ...], values: list[Any]) -> Q:
    """Rows behind `values`: the first column decides, equal ones are told apart by the rest."""
    name, value = order[0].lstrip("-"), values[0]
    side = "lt" if order[0].startswith("-") else "gt"
    if len(order) == 1:
        return Q(**{f"{name}__{side}": value})
    # The first condition is implied by the second; it lets Postgres begin in the middle of an index.
    beyond = Q(**{f"{name}__{side}": value}) | (Q(**{name: value}) & _after(model, order[1:], values[1:]))
    return Q(**{f"{name}__{side}e": value}) & beyond


def _encode(order: tuple[str, ...], row: Any) -> str:
    values = [row[name] if isinstance(row, dict) else getattr(row, name) for name in (column.lstrip("-") for column in order)]
    text = json.dumps([",".join(order), *values], default=_plain)
    return base64.urlsafe_b64encode(text.encode()).decode().rstrip("=")


def _plain(value: Any) -> str:
    return value.isoformat() if hasattr(value, "isoformat") else str(value)


def _decode(model, order: tuple[str, ...], cursor: str) -> list[Any]:
    try:
        given, *values = json.loads(base64.b64decode(cursor + "=" * (-len(cursor) % 4), altchars=b"-_", validate=True))
        fields = [model._meta.get_field(column.lstrip("-")) for column in order]
        if given != ",".join(order):
            raise ValueError("it belongs to another list")
        read = [field.to_python(value) for field, value in zip(fields, values, strict=True)]
        if None in read:
            raise ValueError("it has an empty value")
        return read
    except (ValueError, TypeError, AttributeError, OverflowError, RecursionError, ValidationError):
        raise Problem(
            400,
            "Malformed cursor",
            "take it from `next` of the previous page",
            [FieldError("/cursor", "not a cursor of this list", cursor)],
        ) from None
