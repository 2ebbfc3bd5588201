"""The ticks of a chart are distinct and readable on every range, as Plotly draws them."""

import re

import pytest

pytestmark = [pytest.mark.slow, pytest.mark.browser]

DRAW = """async ([steps, values, axis]) => {
  const { Chart } = await import("assay/chart.js");
  const { Series, emptyColumns } = await import("assay/series.js");
  const place = document.createElement("div");
  place.style.cssText = "position: fixed; inset: 0; width: 300px; height: 200px;";
  document.body.append(place);
  const series = new Series(emptyColumns(), 1, 1);
  steps.forEach((step, at) => series.merge(1, step, values[at], 1e9 + step));
  series.columns.tokens = steps;
  const chart = new Chart(place, () => {});
  await chart.draw({ lines: [{ label: "line", colour: 0, series }], stacked: false, smoothing: 0, axis, attempts: [], marks: [] });
  const texts = (kind) => [...place.querySelectorAll(`.${kind}tick text`)].map((text) => text.textContent);
  const clipped = [...place.querySelectorAll(".ytick text")].filter((text) => text.getBoundingClientRect().left < 0).length;
  const answer = { across: texts("x"), up: texts("y"), clipped };
  place.remove();
  return answer;
}"""
VALUES = {
    "equal ones": [1.0, 1.0, 1.0],
    "equal large numbers": [1_000_000.0] * 3,
    "equal zeros": [0.0, 0.0, 0.0],
    "equal negative numbers": [-2.5, -2.5, -2.5],
    "nearly equal": [1.0, 1.0000003, 1.0000001],
    "almost one": [0.9999, 0.99992, 0.99996],
    "neighbours": [123_456.0, 123_457.0, 123_458.0],
    "tiny": [1e-9, 3e-9, 2e-9],
    "small whole numbers": [1.0, 2.0, 3.0],
    "from nothing to much": [0.0, 5e7, 9e9],
}
STEPS = {
    "one step": [7],
    "three steps": [1, 2, 3],
    "nine steps": list(range(1, 10)),
    "neighbours far out": [1_000_000, 1_000_001, 1_000_003],
    "fifty far out": list(range(2_000_000, 2_000_050)),
    "a long run": list(range(0, 100_000, 1000)),
}


@pytest.fixture(scope="module")
def chart_page(contexts, site):
    page = contexts("olga").new_page()
    page.goto(f"/runs/{site.world.runs['full']}")
    yield page
    page.close()


@pytest.mark.parametrize("values", VALUES.values(), ids=VALUES)
def test_heights_are_told_apart(chart_page, values):
    found = chart_page.evaluate(DRAW, [[1, 2, 3], values, "step"])
    assert len(found["up"]) >= 2 and len(set(found["up"])) == len(found["up"]), found
    assert not found["clipped"], found


@pytest.mark.parametrize("axis", ["step", "tokens"])
@pytest.mark.parametrize("steps", STEPS.values(), ids=STEPS)
def test_steps_are_whole_and_told_apart(chart_page, steps, axis):
    across = chart_page.evaluate(DRAW, [steps, [float(step % 5) for step in steps], axis])["across"]
    assert across and len(set(across)) == len(across), across
    assert all(re.fullmatch(r"\d[\d,]*|\d+(\.\d+)?[kM]", text) for text in across), across
