"""Numpy columns to and from Postgres arrays in the binary protocol, without a Python object per value.

A one-dimensional array without nulls is a header and then, for each element, its length and its big-endian bytes: a record type that
numpy writes and reads in one go.
"""

import struct
from collections.abc import Sequence

import numpy as np
import psycopg
from django.db import connection
from psycopg.adapt import Buffer, Dumper, Loader, PyFormat
from psycopg.pq import Format

_HEADER = struct.Struct(">iiIii")
_OIDS = {np.dtype("float64"): 701, np.dtype("int64"): 20, np.dtype("int16"): 21}
_ARRAY_OIDS = {701: 1022, 20: 1016, 21: 1005}
_EMPTY = struct.Struct(">iiI")


def _record(kind: np.dtype) -> np.dtype:
    return np.dtype([("length", ">i4"), ("value", kind.newbyteorder(">"))])


class _ColumnDumper(Dumper):
    format = Format.BINARY

    def __init__(self, cls: type, context=None, oid: int = 0):
        super().__init__(cls, context)
        self.oid = oid

    # The array's type decides its oid, so that each needs a dumper of its own.
    def get_key(self, array: np.ndarray, format: PyFormat):
        return (self.cls, array.dtype)

    def upgrade(self, array: np.ndarray, format: PyFormat) -> "_ColumnDumper":
        return type(self)(self.cls, None, _ARRAY_OIDS[_OIDS[array.dtype]])

    def dump(self, array: np.ndarray) -> Buffer:
        element = _OIDS[array.dtype]
        if not len(array):
            return _EMPTY.pack(0, 0, element)
        rows = np.empty(len(array), _record(array.dtype))
        rows["length"] = array.dtype.itemsize
        rows["value"] = array
        return _HEADER.pack(1, 0, element, len(array), 1) + rows.tobytes()


class _ColumnLoader(Loader):
    format = Format.BINARY
    kind = np.dtype("float64")

    def load(self, data: Buffer) -> np.ndarray:
        dimensions, has_null, _ = _EMPTY.unpack_from(data)
        if has_null:
            raise psycopg.DataError("a column with nulls cannot be read as an array; coalesce it in the query")
        if not dimensions:
            return np.empty(0, self.kind)
        return np.frombuffer(data, _record(self.kind), offset=_HEADER.size)["value"].astype(self.kind)


def _loader(kind: np.dtype) -> type[_ColumnLoader]:
    return type(f"_{kind}Loader", (_ColumnLoader,), {"kind": kind})


_LOADERS = {_ARRAY_OIDS[oid]: _loader(kind) for kind, oid in _OIDS.items()}


def column_cursor() -> psycopg.Cursor:
    """A cursor on Django's connection, inside its transaction, that takes and returns numpy columns. Parameters are bound by the server."""
    connection.ensure_connection()
    cursor = psycopg.Cursor(connection.connection)
    cursor.adapters.register_dumper(np.ndarray, _ColumnDumper)
    for oid, loader in _LOADERS.items():
        cursor.adapters.register_loader(oid, loader)
    cursor.format = Format.BINARY
    return cursor


def fetch_columns(sql: str, parameters: Sequence) -> tuple:
    """The one row of `sql`, whose array columns come as numpy arrays. Raises Django's database errors."""
    with connection.wrap_database_errors, column_cursor() as cursor:
        return cursor.execute(sql, parameters).fetchone()
