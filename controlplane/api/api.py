"""The one API: routers of every app under /api/v1, one authentication, one form of error."""

import json
from typing import Any

from ninja import NinjaAPI
from ninja.parser import Parser
from ninja.renderers import JSONRenderer

from controlplane.api.auth import Bearer, Session
from controlplane.api.problems import CONTENT_TYPE, Problem, problem_of, respond
from controlplane.api.words import message
from runner.contract.evaluation_config import EvaluationConfig
from runner.contract.parse import FieldError, pointer
from runner.contract.run_config import RunConfig

PROBLEM_SCHEMA = {
    "title": "Problem",
    "type": "object",
    "description": "RFC 9457 problem document.",
    "required": ["type", "title", "status", "detail", "errors", "request"],
    "properties": {
        "type": {"type": "string"},
        "title": {"type": "string"},
        "status": {"type": "integer"},
        "detail": {"type": "string"},
        "request": {"type": "string", "description": "X-Request-ID of the refused request."},
        "errors": {
            "type": "array",
            "items": {
                "type": "object",
                "required": ["pointer", "message", "value"],
                "properties": {"pointer": {"type": "string"}, "message": {"type": "string"}, "value": {}},
            },
        },
    },
}
PROBLEM_RESPONSE = {"description": "Refused", "content": {CONTENT_TYPE: {"schema": {"$ref": "#/components/schemas/Problem"}}}}


class StrictParser(Parser):
    """JSON only as the standard has it: no NaN, and no null characters and half surrogates, which Postgres cannot hold."""

    def parse_body(self, request):
        try:
            text = request.body.decode()
            if "\\u0000" in text or "\0" in text:
                raise ValueError("a null character; remove it")
            return _storable(text, json.loads(text, parse_constant=_refuse_constant, parse_float=_finite))
        except (ValueError, RecursionError) as error:
            raise Problem(400, "Unreadable body", f"the body is not JSON: {error}") from None


def run_document_schemas() -> dict[str, Any]:
    """The schemas of both kinds of run document, and those that they refer to; routes name them in `openapi_extra`."""
    found = {}
    for model in (RunConfig, EvaluationConfig):
        document = model.model_json_schema(ref_template="#/components/schemas/{model}")
        found |= {**document.pop("$defs"), model.__name__: document}
    return found


def _as_sent(location: tuple, sent: dict[tuple, tuple]) -> tuple:
    """Where the caller wrote it: `sent` maps the place of a parameter among ours to its own name; what lies below it stays."""
    for length in range(len(location), 0, -1):
        if location[:length] in sent:
            return (*sent[location[:length]], *location[length:])
    return location


def _storable(text: str, value: Any) -> Any:
    """`value`, read from `text`, when all of its texts can be written as UTF-8. Raises ValueError."""
    if "\\ud" in text.lower():
        try:
            json.dumps(value, ensure_ascii=False).encode()
        except UnicodeEncodeError:
            raise ValueError("half of a surrogate pair (\\ud800 to \\udfff alone); remove it") from None
    return value


def _finite(text: str) -> float:
    """As `_refuse_constant`: what is too large for a float would be read as an infinity."""
    value = float(text)
    if value - value != 0:
        raise ValueError(f"{text[:40]} is too large; a number is at most 1.7e308")
    return value


def _refuse_constant(name: str):
    raise ValueError(f"{name} is not a finite number")


class StrictRenderer(JSONRenderer):
    json_dumps_params = {"allow_nan": False, "ensure_ascii": False, "separators": (",", ":")}


class AssayAPI(NinjaAPI):
    """NinjaAPI whose errors, also those of parameters, are problem documents, in the answers and in the schema."""

    def on_exception(self, request, exc):
        return respond(request, problem_of(exc))

    def validation_error_from_error_contexts(self, error_contexts) -> Problem:
        errors = []
        for context in error_contexts:
            single = getattr(context.model, "__read_from_single_attr__", None)
            for item in context.pydantic_validation_error.errors(include_url=False):
                path = _as_sent(item["loc"], context.model.__ninja_flatten_map_reverse__)
                # A body of one parameter is that parameter: its name is no part of the document.
                path = path[1:] if single and path[:1] == (single,) else path
                value = item.get("input")
                shown = value if value is None or isinstance(value, str | int | float) else None
                errors.append(FieldError(pointer(list(path)), message(item), shown))
        return Problem(422, "Invalid request", "; ".join(map(str, errors[:5])), errors)

    def get_openapi_schema(self, **options) -> dict[str, Any]:
        schema = super().get_openapi_schema(**options)
        schema["components"].setdefault("schemas", {}).update(Problem=PROBLEM_SCHEMA, **run_document_schemas())
        for methods in schema["paths"].values():
            for operation in methods.values():
                operation["responses"] |= {"4XX": PROBLEM_RESPONSE, "503": PROBLEM_RESPONSE}
        return schema


api = AssayAPI(
    title="Assay",
    version="1",
    description="Experiment control plane for post-training LLM agents. Every list is paged by cursor; every error is a problem document.",
    docs_url=None,
    auth=[Bearer(), Session()],
    parser=StrictParser(),
    renderer=StrictRenderer(),
)
