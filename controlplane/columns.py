"""Answers that are mostly numbers: numpy columns straight to JSON, NaN and infinities in them as null."""

from typing import Any

import orjson
from django.http import HttpResponse


def dump(document: Any) -> bytes:
    """JSON bytes; numpy arrays are lists, UUIDs text."""
    return orjson.dumps(document, option=orjson.OPT_SERIALIZE_NUMPY | orjson.OPT_NON_STR_KEYS)


def column_response(document: Any) -> HttpResponse:
    """An answer made without a model: one for tens of thousands of numbers would take longer than reading them."""
    return HttpResponse(dump(document), content_type="application/json")
