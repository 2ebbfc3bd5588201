"""Small blobs of a batch, kept together: the store gets one file a batch, and a row a blob says where in it that blob lies.

A training step brings a thousand traces of a few hundred bytes. A file each would cost a sync each, seconds a step on a busy disk.
"""

from dataclasses import dataclass

from django.db import connection

from controlplane import storage
from controlplane.telemetry.models import PackedBlob

LARGEST_PACKED = 256 << 10

_INSERT = """
    WITH pack AS (
        INSERT INTO telemetry_pack (run_id, name) VALUES (%(run)s, %(name)s) RETURNING id
    )
    INSERT INTO telemetry_packedblob (run_id, digest, pack_id, first, length)
    SELECT %(run)s, blob.digest, pack.id, blob.first, blob.length
    FROM pack, unnest(%(digests)s::bytea[], %(firsts)s::int[], %(lengths)s::int[]) AS blob(digest, first, length)
    ON CONFLICT DO NOTHING
"""


@dataclass(frozen=True)
class Placed:
    """Where blobs lie in the stored file `name`: digest → (first byte, length)."""

    name: str
    places: dict[str, tuple[int, int]]


def put(blobs: dict[str, bytes]) -> Placed | None:
    """Store the blobs durably, the small ones together. What it returns must be recorded in the transaction that names them."""
    small = {name: content for name, content in blobs.items() if len(content) <= LARGEST_PACKED}
    storage.put_many({name: content for name, content in blobs.items() if name not in small})
    if not small:
        return None
    places, end = {}, 0
    for name, content in small.items():
        places[name] = (end, len(content))
        end += len(content)
    return Placed(storage.put(b"".join(small.values())), places)


def record(run_id, placed: Placed | None) -> None:
    """Remember where the run's blobs lie; one that it has already stays where it is."""
    if placed is None:
        return
    firsts, lengths = zip(*placed.places.values(), strict=True)
    values = {
        "run": run_id,
        "name": placed.name,
        "digests": [bytes.fromhex(name) for name in placed.places],
        "firsts": list(firsts),
        "lengths": list(lengths),
    }
    with connection.cursor() as cursor:
        cursor.execute(_INSERT, values)


def open_blob(run_id, name: str) -> memoryview:
    """A blob of the run, memory-mapped, whether it lies alone or in a pack. Raises storage.BlobMissing."""
    try:
        return storage.open_blob(name)
    except storage.BlobMissing:
        found = PackedBlob.objects.filter(run=run_id, digest=bytes.fromhex(name)).select_related("pack").first()
        if found is None:
            raise
    return storage.open_blob(found.pack.name)[found.first : found.first + found.length]
