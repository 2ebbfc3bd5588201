"""How numbers, times and small drawings are written."""

from datetime import UTC, datetime, timedelta
from types import SimpleNamespace

import pytest
from django.utils import timezone

from controlplane.templatetags import format as form
from controlplane.templatetags import ui


@pytest.mark.parametrize(
    ("value", "text"),
    [(None, "–"), (0, "0"), (12345, "12\u2009345"), (0.123456, "0.1235"), (1e-7, "1e−07"), (-0.5, "−0.5"), (float("nan"), "NaN"), (float("-inf"), "−∞"), ("NaN", "NaN"), (3.0, "3")],
)
def test_numbers(value, text):
    assert form.number(value) == text


@pytest.mark.parametrize(("value", "text"), [(0.5, "0.500"), (None, "–"), (float("inf"), "∞"), ("NaN", "NaN"), (-1, "−1.000")])
def test_columns_line_up(value, text):
    assert form.fixed(value) == text


@pytest.mark.parametrize(("value", "text"), [(0.123, "12.3 %"), (0, "0.0 %"), (None, "–"), ("NaN", "–"), (float("nan"), "–")])
def test_percentages(value, text):
    assert form.percent(value) == text


@pytest.mark.parametrize(("value", "text"), [(0, "0 B"), (1023, "1023 B"), (1536, "1.5 KiB"), (5 << 40, "5.0 TiB"), (None, "–")])
def test_sizes(value, text):
    assert form.size(value) == text


@pytest.mark.parametrize(("seconds", "text"), [(0, "0 s"), (59.6, "1 min 00 s"), (3725, "1 h 02 min"), (90_000, "1 d 01 h"), (None, "–"), (-3, "0 s")])
def test_durations(seconds, text):
    assert form.duration(seconds) == text


@pytest.mark.parametrize(("value", "limit", "text"), [(0.5, "≤ 90%", "50.0 %"), (61.0, "≤ 5 min", "1 min 01 s"), (0.1234, "≤ 0.05", "0.123"), (None, "≤ 30 s", "–"), ("NaN", "finite", "NaN")])
def test_a_tile_is_written_in_the_unit_of_its_limit(value, limit, text):
    assert form.unit_of(value, limit) == text


def test_an_age_keeps_its_moment():
    html = form.age(timezone.now() - timedelta(hours=3, minutes=5))
    assert ">3 h ago<" in html and "data-age" in html and form.age(None) == "–"
    assert form.unix_clock(datetime(2026, 1, 2, 3, 4, 5, 678_000, tzinfo=UTC).timestamp()) == "03:04:05.678"


def test_facts_leave_out_what_is_missing_and_show_moves():
    assert form.facts({"a": 1, "b": None, "c": "", "d": "x"}) == "a: 1, d: x"
    assert form.facts({"config_hash": "88d70fb7" * 8, "parent": "7913b428-d2e7-4bad-98d9-3d6a2ba1bba0"}) == "config hash: 88d70fb7, parent: 7913b428"
    assert form.event_facts({"from": "queued", "to": "active", "reason": ""}) == "queued → active"
    assert form.event_facts({"from": None, "to": "granted"}) == "nothing → granted"


def test_a_missing_value_breaks_the_sparkline():
    assert ui.sparkline([0.0, 1.0, None, 0.5]).count("M") == 2
    assert "<path" not in ui.sparkline([1.0]) and "<path" not in ui.sparkline(None)
    assert "nan" not in ui.sparkline([1.0, 1.0])
    assert 'd="M1.0 17.0L35.0 3.0L69.0 10.0"' in ui.sparkline([0.0, 1.0, 0.5])


def test_a_rate_is_drawn_with_its_interval():
    rate = SimpleNamespace(rate=0.5, low=0.25, high=0.75, n=12)
    html = ui.interval(rate, 0.25)
    assert 'cx="55.0"' in html and "M27.5 8H82.5" in html and "n = 12" in html and 'class="tick"' in html
    assert ui.interval(SimpleNamespace(rate=None, low=None, high=None, n=0)) == "" == ui.interval(None)
    assert ui.interval_mark(None) == ""


def test_a_run_keeps_its_colour():
    assert ui.colour("00000003-0000-0000-0000-000000000000") == "c3" == ui.colour("00000003-0000-0000-0000-ffffffffffff")


def test_the_map_names_every_module():
    assert {"assay/app.js", "assay/live.js", "assay/dashboard.js"} <= ui._modules().keys()
