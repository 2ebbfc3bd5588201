"""Columns cross to Postgres and back bit for bit."""

import numpy as np
import pytest
from django.db import DataError

from controlplane.telemetry.arrays import fetch_columns

pytestmark = pytest.mark.django_db

FLOATS = np.array([0.0, -0.0, 1.5, np.nan, np.inf, -np.inf, 5e-324, 1.7e308])


def test_floats_come_back_bit_for_bit():
    back, count = fetch_columns("SELECT %s::float8[], cardinality(%s)", [FLOATS, FLOATS])
    assert back.tobytes() == FLOATS.tobytes() and count == len(FLOATS)


@pytest.mark.parametrize("kind", ["int64", "int16"])
def test_integers_come_back(kind):
    given = np.array([np.iinfo(kind).min, -1, 0, np.iinfo(kind).max], kind)
    (back,) = fetch_columns("SELECT %s", [given])
    assert back.dtype == given.dtype and (back == given).all()


def test_two_kinds_in_one_statement():
    floats, integers = fetch_columns(
        "SELECT array_agg(f), array_agg(i) FROM unnest(%s, %s) AS t(f, i)", [np.array([0.5, 2.0]), np.array([7, 8])]
    )
    assert floats.tolist() == [0.5, 2.0] and integers.tolist() == [7, 8]


def test_an_empty_column_is_an_empty_array():
    (back,) = fetch_columns("SELECT %s", [np.empty(0)])
    assert back.tolist() == []


def test_a_column_with_nulls_is_refused():
    with pytest.raises(DataError, match="coalesce"):
        fetch_columns("SELECT ARRAY[1.0::float8, NULL]", [])
