"""How the pages write numbers, times and sizes. A missing value is an en dash, never 0."""

import json
import math
import re
from datetime import datetime

from django import template
from django.utils import timezone
from django.utils.html import format_html

from controlplane.runs.forms.schema import ABSENT
from runner.contract.metrics import lookup

register = template.Library()

MISSING = "–"
IDENTIFIER = re.compile(r"\b[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}\b|\b[0-9a-f]{40,64}\b")
SIZES = ("B", "KiB", "MiB", "GiB", "TiB")


@register.filter
def number(value, digits: int = 4) -> str:
    """`value` to `digits` significant digits; whole numbers in full with thin spaces."""
    if value is None or value == "":
        return MISSING
    if isinstance(value, str):
        return value
    if isinstance(value, int) or float(value).is_integer() and abs(value) < 1e15:
        return f"{int(value):,}".replace(",", "\u2009")
    if not math.isfinite(value):
        return "NaN" if math.isnan(value) else "∞" if value > 0 else "−∞"
    return f"{value:.{digits}g}".replace("-", "−")


@register.filter
def fixed(value, decimals: int = 3) -> str:
    """`value` with a fixed number of decimals, so that a column lines up."""
    return f"{value:.{decimals}f}".replace("-", "−") if isinstance(value, (int, float)) and math.isfinite(value) else number(value)


@register.filter
def percent(value, decimals: int = 1) -> str:
    """A fraction in percent."""
    return f"{100 * value:.{decimals}f} %" if isinstance(value, (int, float)) and math.isfinite(value) else MISSING


@register.filter
def signed(value, decimals: int = 3) -> str:
    return MISSING if value is None else f"{value:+.{decimals}f}".replace("-", "−")


@register.filter
def size(value) -> str:
    """Bytes in binary units."""
    if value is None:
        return MISSING
    power = min(int(math.log(max(value, 1), 1024)), len(SIZES) - 1)
    return f"{value / 1024**power:.{0 if power == 0 else 1}f} {SIZES[power]}"


@register.filter
def duration(seconds) -> str:
    """Seconds in the two largest units that matter."""
    if seconds is None:
        return MISSING
    seconds = max(0, round(seconds))
    for unit, length, next_unit, next_length in (("d", 86_400, "h", 3600), ("h", 3600, "min", 60), ("min", 60, "s", 1)):
        if seconds >= length:
            return f"{seconds // length} {unit} {seconds % length // next_length:02d} {next_unit}"
    return f"{seconds} s"


@register.filter
def age(moment: datetime | None) -> str:
    """A <time> that says how long ago; the page keeps it up to date."""
    if moment is None:
        return MISSING
    stamp = moment.strftime("%Y-%m-%d %H:%M:%S UTC")
    return format_html('<time datetime="{}" title="{}" data-age>{}</time>', moment.isoformat(), stamp, ago(moment))


@register.filter
def clock(moment: datetime | None) -> str:
    """Date and time to the second, in UTC."""
    return MISSING if moment is None else format_html('<time datetime="{}">{}</time>', moment.isoformat(), moment.strftime("%Y-%m-%d %H:%M:%S"))


def ago(moment: datetime) -> str:
    seconds = max(0, (timezone.now() - moment).total_seconds())
    for unit, length in (("d", 86_400), ("h", 3600), ("min", 60)):
        if seconds >= length:
            return f"{int(seconds // length)} {unit} ago"
    return "just now"


@register.filter
def unix_clock(seconds: float) -> str:
    """Time of day with milliseconds of Unix `seconds`, in UTC."""
    return datetime.fromtimestamp(seconds, tz=timezone.get_default_timezone()).strftime("%H:%M:%S.%f")[:-3]


@register.filter
def item(mapping: dict, key):
    """The value under a key that a template cannot spell, such as a metric path."""
    return (mapping or {}).get(key)


@register.filter
def unit_of(value, limit: str) -> str:
    """A health tile's value in the unit of its limit: percent, a duration, or a plain number."""
    if isinstance(value, (int, float)) and limit.endswith("%"):
        return percent(value)
    if isinstance(value, (int, float)) and limit.endswith((" s", " min", " h")):
        return duration(value)
    return number(value, 3)


@register.filter
def words(name: str) -> str:
    """An identifier as a person reads it."""
    return str(name).replace("_", " ").capitalize()


@register.filter
def jsonish(value) -> str:
    """A configuration value as its JSON, so that null, true and "text" stay apart."""
    return MISSING if value is ABSENT else json.dumps(value, ensure_ascii=False)


@register.filter
def facts(data: dict) -> str:
    """A small map on one line; blank and missing values are left out, identifiers and digests are shortened."""
    return ", ".join(f"{key.replace('_', ' ')}: {_spoken(value)}" for key, value in data.items() if value not in (None, "", {}, []))


def _spoken(value) -> str:
    text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
    return IDENTIFIER.sub(lambda found: found[0][:8], text)


@register.filter
def metric_title(name: str) -> str:
    """The dictionary's title of a metric path; the path itself where it has none."""
    found = lookup(name)
    return found.title if found else name


@register.filter
def event_facts(data: dict) -> str:
    """What an event says, a move of state as an arrow; identifiers stay in the REST answer."""
    moved = f"{data['from'] or 'nothing'} → {data['to']}" if {"from", "to"} <= data.keys() else ""
    rest = {key: value for key, value in data.items() if key not in ("from", "to", "checkpoint", "evaluation", "protocol", "summary", "baselines")}
    return ", ".join(text for text in (moved, facts(rest)) if text)
