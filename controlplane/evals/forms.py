"""The evaluate form: what was typed becomes the document that REST takes, and a document becomes what is typed."""

from typing import Any

from django.http import QueryDict

from runner.contract.evaluation_config import KIND, source_of, source_text
from runner.contract.parse import FieldError

BY_MODEL = ("terminal", "menu")
# Name of an input → where its value stands in the document.
WHOLE = {
    "per_family": ("selection", "per_family"),
    "limit": ("selection", "limit"),
    "samples": ("selection", "samples"),
    "concurrency": ("environment", "max_concurrent_episodes"),
    "max_turns": ("environment", "agent", "max_turns"),
    "max_length": ("model", "max_length"),
    "max_new_tokens": ("sampling", "max_new_tokens"),
    "seed": ("seed",),
}
TEXTS = {
    "bank": ("environment", "bank"),
    "hint_level": ("environment", "hint_level"),
    "backend": ("environment", "backend"),
    "unproven_reason": ("environment", "unproven_reason"),
    "tasks": ("selection", "task_glob"),
}
MODEL_ONLY = ("max_turns", "max_length", "max_new_tokens", "hint_level", "unproven_reason")


def read(typed: QueryDict) -> tuple[dict[str, Any], list[FieldError]]:
    """The document, and what could not be read as a number. An input that was left empty keeps its default."""
    agent, errors = typed.get("agent", "oracle"), []
    by_model = agent in BY_MODEL
    document: dict[str, Any] = {"kind": KIND, "agent": "model" if by_model else agent, "environment": {"type": "harbor"}}
    document["name"] = typed.get("name", "").strip() or f"{agent} on {typed.get('bank', '')}"
    if by_model:
        document["environment"]["agent"] = {"type": agent}
        try:
            document["model"] = {"source": source_of(typed.get("model", "").strip(), typed.get("url", "").strip())}
        except ValueError as error:
            errors.append(FieldError("/model/source", str(error), typed.get("model", "")[:200]))
    for names, convert in ((WHOLE, int), (TEXTS, str)):
        for name, path in names.items():
            text = typed.get(name, "").strip()
            if not text or (name in MODEL_ONLY and not by_model):
                continue
            try:
                _put(document, path, convert(text))
            except ValueError:
                errors.append(FieldError("/" + "/".join(path), "must be a whole number", text[:60]))
    if by_model and (text := typed.get("temperature", "").strip()):
        try:
            _put(document, ("sampling", "temperature"), float(text))
        except ValueError:
            errors.append(FieldError("/sampling/temperature", "must be a number", text[:60]))
    if splits := [split for split in typed.getlist("split") if split]:
        _put(document, ("selection", "splits"), splits)
    return document, errors


def _put(document: dict[str, Any], path: tuple[str, ...], value: Any) -> None:
    for part in path[:-1]:
        document = document.setdefault(part, {})
    document[path[-1]] = value


def typed_of(config: dict[str, Any]) -> dict[str, Any]:
    """What the form shows for an evaluation that ran: its resolved config, to be run again."""
    model = config["model"]
    shown: dict[str, Any] = {"name": config["name"], "split": (config["selection"]["splits"] or [""])[0]}
    shown["agent"] = config["environment"]["agent"]["type"] if config["agent"] == "model" else config["agent"]
    for name, path in (WHOLE | TEXTS).items():
        shown[name] = _look(config, path)
    if model:
        shown |= {"model": source_text(model["source"]), "url": model["source"].get("url", "")}
        shown["temperature"] = config["sampling"]["temperature"]
    return shown


def _look(config: dict[str, Any], path: tuple[str, ...]) -> Any:
    value: Any = config
    for part in path:
        value = value.get(part) if isinstance(value, dict) else None
    return "" if value is None else value
