"""What a Hugging Face folder's headers say, read without any tensor: parameters, width, depth, context, content hash."""

import json
import math
import struct
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from runner.contract.canonical import canonical_bytes, digest

TOKENIZER_FILES = ("tokenizer.json", "tokenizer.model", "vocab.json", "spiece.model")
MAX_HEADER = 100 << 20
MAX_CONFIG = 1 << 20


class BadModelFolder(ValueError):
    """The folder cannot be trained; the message says what is missing and what to do."""


@dataclass(frozen=True)
class ModelFacts:
    """`revision` pins the content. Sizes that are unknown (a hub model that was not read) are None."""

    revision: str
    parameters: int | None = None
    hidden: int | None = None
    layers: int | None = None
    context: int | None = None
    linears: Mapping[str, int] = field(default_factory=dict)
    """Of each kind of linear layer outside embeddings and head, by module name: inputs and outputs added up over all layers."""


def read_folder(path: Path) -> ModelFacts:
    """Facts of a folder with config.json, tokenizer and safetensors weights. Raises BadModelFolder."""
    if not path.is_dir():
        raise BadModelFolder(f"{str(path)!r} is no folder that the control plane can read; copy the model onto the shared storage or correct the path")
    config = _read_config(path / "config.json")
    if not any((path / name).is_file() for name in TOKENIZER_FILES):
        raise BadModelFolder(f"{str(path)!r} has no tokenizer ({' or '.join(TOKENIZER_FILES)}); save the tokenizer beside the weights")
    weights = sorted(path.glob("*.safetensors"))
    if not weights:
        raise BadModelFolder(f"{str(path)!r} has no *.safetensors weights; convert the model with save_pretrained")
    headers = {file.name: read_header(file) for file in weights}
    sizes = {file.name: file.stat().st_size for file in weights}
    return ModelFacts(
        revision=digest(canonical_bytes({"config": config, "headers": headers, "sizes": sizes})),
        parameters=sum(_elements(header) for header in headers.values()),
        hidden=_number(config, "hidden_size", "n_embd", "d_model"),
        layers=_number(config, "num_hidden_layers", "n_layer"),
        context=_number(config, "max_position_embeddings", "n_positions"),
        linears=_linears(headers.values()),
    )


def _read_config(path: Path) -> dict:
    try:
        with path.open("rb") as file:
            config = json.loads(file.read(MAX_CONFIG))
    except FileNotFoundError:
        raise BadModelFolder(f"{str(path.parent)!r} has no config.json; point at a Hugging Face model folder") from None
    except (OSError, ValueError) as error:
        raise BadModelFolder(f"{str(path)!r} cannot be read as JSON ({error}); copy the folder again") from None
    if not isinstance(config, dict):
        raise BadModelFolder(f"{str(path)!r} holds no JSON object; copy the folder again")
    return json.loads(json.dumps(config), parse_constant=str)


def read_header(path: Path) -> dict:
    """The JSON header of a safetensors file: tensor name → dtype, shape, offsets. Raises BadModelFolder on a damaged one."""
    try:
        with path.open("rb") as file:
            (length,) = struct.unpack("<Q", file.read(8))
            if length > min(MAX_HEADER, path.stat().st_size - 8):
                raise ValueError(f"its header claims {length} bytes")
            header = json.loads(file.read(length))
        end = max((entry["data_offsets"][1] for name, entry in header.items() if name != "__metadata__"), default=0)
        if 8 + length + end != path.stat().st_size:
            raise ValueError(f"it has {path.stat().st_size} bytes where its header says {8 + length + end}")
    except (OSError, struct.error, ValueError, KeyError, TypeError, AttributeError) as error:
        raise BadModelFolder(f"{str(path)!r} is not a whole safetensors file ({error}); copy it again") from None
    return header


def _elements(header: dict) -> int:
    return sum(math.prod(entry["shape"]) for name, entry in header.items() if name != "__metadata__")


def _linears(headers: Iterable[dict]) -> dict[str, int]:
    found = Counter()
    for name, entry in (item for header in headers for item in header.items() if item[0] != "__metadata__"):
        *path, module, kind = ("", "", *name.split("."))
        # The matrices of the blocks, which are numbered; embeddings and head are not.
        if kind == "weight" and len(entry["shape"]) == 2 and any(part.isdigit() for part in path):
            found[module] += sum(entry["shape"])
    return dict(found)


def _number(config: dict, *names: str) -> int | None:
    return next((config[name] for name in names if isinstance(config.get(name), int)), None)
