"""Images from a Dockerfile. A build that fails leaves no tag and none of the layers it made."""

import json
import re
import threading
import time
from collections.abc import Mapping
from contextlib import suppress
from datetime import datetime
from http import HTTPStatus
from typing import Any, BinaryIO

from docker.errors import APIError

from runner.sandbox.base import Network
from runner.sandbox.engine import ENGINE_ERRORS, Engine, Stopped, failure
from runner.sandbox.reasons import Reason, SandboxFailure
from runner.sandbox.streams import HeadTail

LOG_KEPT = 16 << 10
LOG_SHOWN = 2000
LAYER_PAUSES = (0.1, 0.4, 1.0, 2.0, 4.0, 8.0)
_LAYER = re.compile(r" ---> ([0-9a-f]{12})\n?$")


def build(
    engine: Engine,
    context: BinaryIO,
    tag: str,
    labels: Mapping[str, str],
    timeout: float,
    network: Network,
    args: Mapping[str, str],
    cancelled: threading.Event,
) -> str:
    """Returns the image's id. Raises SandboxFailure with BUILD_FAILED, BUILD_TIMEOUT, or what is wrong with the engine."""
    started, log = time.time(), HeadTail(LOG_KEPT)
    made: list[str] = []
    try:
        image = _follow(engine, context, _parameters(labels, network, args), timeout, cancelled, log, made)
        repository, _, version = tag.rpartition(":")
        engine.tag(image, repository, version)
        return engine.inspect_image(image)["Id"]
    except Stopped:
        _remove_layers(engine, made, started)
        raise SandboxFailure(Reason.BUILD_TIMEOUT, f"build {tag}: not ready after {timeout:.0f} s{_shown(log)}") from None
    except SandboxFailure as error:
        _remove_layers(engine, made, started)
        raise SandboxFailure(error.reason, f"build {tag}: {error}{_shown(log)}") from None
    except ENGINE_ERRORS as error:
        _remove_layers(engine, made, started)
        raise failure(error, Reason.BUILD_FAILED, f"build {tag}") from error


def _parameters(labels: Mapping[str, str], network: Network, args: Mapping[str, str]) -> dict:
    parameters = {"rm": True, "forcerm": True, "labels": json.dumps(dict(labels)), "buildargs": json.dumps(dict(args))}
    return parameters if network is Network.PUBLIC else {**parameters, "networkmode": "none"}


def _follow(engine: Engine, context: BinaryIO, parameters: dict, timeout: float, cancelled, log: HeadTail, made: list[str]) -> str:
    deadline, image = time.monotonic() + timeout, None
    for event in engine.build_events(context, parameters, timeout, lambda: cancelled.is_set() or time.monotonic() > deadline):
        if "error" in event:
            raise SandboxFailure(Reason.BUILD_FAILED, event["error"].strip())
        text = event.get("stream", "")
        log.add(text.encode())
        if layer := _LAYER.search(text):
            made.append(layer[1])
        image = event.get("aux", {}).get("ID", image)
    if image is None:
        raise EOFError("the engine ended the build without an image")
    return image


def _shown(log: HeadTail) -> str:
    return f"\n{log.value()[-LOG_SHOWN:].decode(errors='replace')}" if log.total else ""


def _remove_layers(engine: Engine, layers: list[str], since: float) -> None:
    """Newest first, and only those of this build: layers found in the cache belong to others too, and what has a name is a base."""
    with suppress(*ENGINE_ERRORS):
        for layer in reversed(layers):
            image = engine.inspect_image(layer)
            if not image["RepoTags"] and _created(image) >= since - 1:
                _remove_layer(engine, layer)


def _remove_layer(engine: Engine, layer: str) -> None:
    """A build that was cut off ends its step's container a moment later; until then its layer is in use."""
    for pause in LAYER_PAUSES:
        try:
            engine.remove_image(layer, noprune=True)
            return
        except APIError as error:
            if error.status_code != HTTPStatus.CONFLICT or "being used" not in str(error):
                return
        time.sleep(pause)


def _created(image: Mapping[str, Any]) -> float:
    return datetime.fromisoformat(re.sub(r"\.\d+", "", image["Created"])).timestamp()
