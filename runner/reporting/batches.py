"""From spooled records to the batch that goes over the wire.

Records: ["p", step, wall, {name: value}] points · ["s", wall, {name: value}] samples · ["l", log] · ["e", episode event] ·
["v", run event] · ["b", bytes] blob.
"""

from pathlib import Path

import numpy as np

from runner.contract.canonical import digest
from runner.contract.events import Batch, Points, Samples
from runner.reporting.spool import Sealed, SpoolReader


def build_batch(sealed: Sealed) -> Batch:
    """The batch of a sealed stretch of records, in their order."""
    of = {kind: [record[1:] for record in sealed.records if record[0] == kind] for kind in "pslevb"}
    return Batch(
        emitter=sealed.emitter,
        sequence=sealed.sequence,
        points=_points(of["p"]),
        samples=_samples(of["s"]),
        logs=[record for (record,) in of["l"]],
        episodes=[record for (record,) in of["e"]],
        events=[record for (record,) in of["v"]],
        blobs={digest(data): data for (data,) in of["b"]},
    )


def _points(records: list[list]) -> Points:
    names: dict[str, int] = {}
    rows = [(names.setdefault(name, len(names)), step, value, wall) for step, wall, values in records for name, value in values.items()]
    series, step, value, wall = zip(*rows, strict=True) if rows else ((), (), (), ())
    return Points(list(names), np.array(series, "int32"), np.array(step, "int64"), np.array(value, "float64"), np.array(wall, "float64"))


def _samples(records: list[list]) -> Samples:
    names: dict[str, int] = {}
    rows = [(names.setdefault(name, len(names)), wall, value) for wall, values in records for name, value in values.items()]
    series, wall, value = zip(*rows, strict=True) if rows else ((), (), ())
    return Samples(list(names), np.array(series, "int32"), np.array(wall, "float64"), np.array(value, "float64"))


def read_batches(folder: Path) -> list[Batch]:
    """Every undelivered sealed batch under `folder` (one subfolder an emitter), in order of emission. For local runs and tests."""
    return [build_batch(sealed) for spool in sorted(folder.iterdir()) if spool.is_dir() for sealed in SpoolReader(spool).batches()]
