"""Buckets that grew in the browser are the buckets that the server would cut."""

import json
import shutil
import subprocess
from pathlib import Path

import numpy as np
import pytest

from controlplane.telemetry import aggregates, buckets
from controlplane.telemetry.text import json_number

MODULE = Path(__file__).parents[2] / "frontend/static/js/series.js"
pytestmark = pytest.mark.skipif(not shutil.which("node"), reason="Node is not installed; it runs the browser's modules outside of one")

SCRIPT = """
import { Series, smoothed } from "MODULE";
const { columns, width, attempt, points, values, weight } = JSON.parse(await new Promise((resolve) => {
  let text = ""; process.stdin.on("data", (piece) => (text += piece)); process.stdin.on("end", () => resolve(text));
}));
const series = new Series(columns, width, attempt);
const merged = points.map(([attempt, step, value, wall]) => series.merge(attempt, step, value, wall));
console.log(JSON.stringify({ columns: series.columns, merged, latest: series.latest, smoothed: smoothed(values ?? [], weight ?? 0) }));
"""


def grown(columns, width, points, attempt=1, **more):
    question = {"columns": columns, "width": width, "attempt": attempt, "points": points, **more}
    done = subprocess.run(
        ["node", "--input-type=module", "-e", SCRIPT.replace("MODULE", MODULE.as_uri())],
        input=json.dumps(question),
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )
    return json.loads(done.stdout)


def columns_of(steps, values, width):
    """The server's buckets as REST gives them."""
    steps, values = np.array(steps, "int64"), np.array(values, "float64")
    parts = aggregates.of_points(steps, values, steps.astype("float64"))
    found = buckets.cut(np.zeros(len(steps), "int64"), steps, parts, width, 1)[0]
    named = {
        "min": found.parts.minimum,
        "max": found.parts.maximum,
        "mean": found.mean,
        "last": found.parts.last_value,
        "wall": found.parts.last_wall,
    }
    plain = {name: [None if np.isnan(value) else value for value in column.tolist()] for name, column in named.items()}
    counts = {name: getattr(found.parts, name).tolist() for name in ("count", "nan", "positive_infinite", "negative_infinite")}
    return {"start": found.start.tolist(), "last_step": found.parts.last_step.tolist(), **plain, **counts}


def as_points(steps, values, attempt=1):
    return [[attempt, int(step), json_number(float(value)), float(step)] for step, value in zip(steps, values, strict=True)]


@pytest.mark.parametrize("width", [1, 2, 5, 100])
@pytest.mark.parametrize("split", [0, 1, 137, 400])
def test_points_that_arrive_grow_the_same_buckets(width, split):
    random = np.random.default_rng(width * 1000 + split)
    steps = np.sort(random.choice(900, 400, replace=False))
    values = random.normal(size=400)
    values[random.choice(400, 30, replace=False)] = random.choice([np.nan, np.inf, -np.inf], 30)
    answer = grown(columns_of(steps[:split], values[:split], width) if split else empty(), width, as_points(steps[split:], values[split:]))
    assert all(answer["merged"])
    expected = columns_of(steps, values, width)
    for name in ("start", "count", "nan", "positive_infinite", "negative_infinite", "min", "max", "last", "wall"):
        assert answer["columns"][name] == expected[name], name
    means = [(a, b) for a, b in zip(answer["columns"]["mean"], expected["mean"], strict=True)]
    assert all(a is b is None or a == pytest.approx(b, rel=1e-12) for a, b in means)


def empty():
    return {name: [] for name in ("start", "min", "max", "mean", "last", "count", "nan", "positive_infinite", "negative_infinite", "wall")}


def test_a_row_that_comes_twice_counts_once():
    answer = grown(empty(), 5, as_points([0, 1, 2, 1, 2], [1, 2, 3, 2, 3]))
    assert answer["columns"]["count"] == [3] and all(answer["merged"])


def test_a_row_of_the_snapshot_that_comes_again_changes_nothing():
    answer = grown(columns_of([0, 1], [1.0, 2.0], 1), 1, as_points([0, 1], [1.0, 2.0]))
    assert answer["columns"]["count"] == [1, 1] and all(answer["merged"])


def test_what_cannot_be_merged_exactly_is_refused():
    columns = columns_of([0, 1, 2, 3, 9], [1.0, 2.0, 3.0, 4.0, 5.0], 5)
    late = grown(columns, 5, as_points([4], [1.0]))
    other_attempt = grown(columns, 5, as_points([10], [1.0], attempt=2))
    assert late["merged"] == [False] and other_attempt["merged"] == [False]
    assert late["columns"]["count"] == other_attempt["columns"]["count"] == [4, 1]


def test_smoothing_starts_at_the_first_value_and_leaves_gaps():
    values = [1.0, 3.0, None, 5.0]
    assert grown(empty(), 1, [], values=values, weight=0)["smoothed"] == values
    first, second, gap, last = grown(empty(), 1, [], values=values, weight=0.5)["smoothed"]
    # 0.5·(0.5·1) + 0.5·3 over 0.5·0.5 + 0.5, and so on.
    assert (first, second, gap) == (1.0, pytest.approx(7 / 3), None) and last == pytest.approx(3.375 / 0.875)
