"""The parts of a page that are computed: icons, navigation, states, sparklines, the map of script modules."""

import json
import uuid
from dataclasses import dataclass
from functools import cache

from django import template
from django.conf import settings
from django.contrib.staticfiles.storage import staticfiles_storage
from django.templatetags.static import static
from django.urls import NoReverseMatch, reverse
from django.utils.html import format_html
from django.utils.safestring import mark_safe

from controlplane.templatetags.format import MISSING, fixed

register = template.Library()

COLOURS = 10
SPARK_WIDTH, SPARK_HEIGHT = 72, 20
RATE_WIDTH = 110
EVENT_ICONS = {
    "run_state": "runs",
    "attempt_state": "retry",
    "checkpoint": "checkpoint",
    "evaluation": "scale",
    "stage_started": "launch",
    "stop_requested": "stop",
    "contact_lost": "warn",
}


@dataclass(frozen=True)
class NavItem:
    """An entry of the rail; `pages` are the URL names under which it is current."""

    label: str
    name: str
    icon: str
    key: str
    pages: frozenset[str]


NAV = (
    NavItem("Runs", "runs", "runs", "g r", frozenset({"runs", "run"})),
    NavItem("Launch", "launch", "launch", "g l", frozenset({"launch"})),
    NavItem("Compare", "compare", "compare", "g m", frozenset({"compare"})),
    NavItem("Evaluate", "evaluate", "scale", "g v", frozenset({"evaluate"})),
    NavItem("Task banks", "banks", "bank", "g t", frozenset({"banks", "bank", "bank-import"})),
    NavItem("Cluster", "cluster", "cluster", "g n", frozenset({"cluster"})),
)


@register.simple_tag
def icon(name: str, classes: str = "") -> str:
    sheet = static("icons.svg") if settings.DEBUG else _cached_sheet()
    return format_html('<svg class="icon {}" aria-hidden="true"><use href="{}#{}"></use></svg>', classes, sheet, name)


_cached_sheet = cache(lambda: static("icons.svg"))


@register.simple_tag
def form_token() -> str:
    """Makes a form act once however often it is sent; `controlplane.accounts.idempotency` reads it."""
    return format_html('<input type="hidden" name="token" value="{}" autocomplete="off">', uuid.uuid4().hex)


@register.simple_tag(takes_context=True)
def navigation(context) -> list[dict]:
    """The entries of the rail whose pages this installation has."""
    match = getattr(context.get("request"), "resolver_match", None)
    here = (match.url_name or "") if match else ""
    return [
        {"item": item, "url": url, "current": here in item.pages or here.split("-")[0] in item.pages}
        for item in NAV
        if (url := _url(item.name))
    ]


def _url(name: str) -> str | None:
    try:
        return reverse(name)
    except NoReverseMatch:
        return None


@register.filter
def event_icon(kind: str) -> str:
    return EVENT_ICONS.get(kind, "info")


@register.simple_tag
def state(value: str, word: str = "") -> str:
    """A state as shape, colour and word."""
    return format_html('<span class="state state-{}">{}</span>', value, word or str(value).capitalize())


@register.simple_tag
def count_of_state(value: str, n: int) -> str:
    """How many are in a state, beside its shape; the word is for those who do not see it, and on hover."""
    return format_html('<span class="state state-{}" title="{} {}">{}<span class="visually-hidden"> {}</span></span>', value, n, value, n, value)


@register.simple_tag
def mean_of(found, decimals: int = 3) -> str:
    """A mean with half of its interval: 0.612 ± 0.031; a single value stands alone, a missing one is a dash."""
    if found.estimate is None:
        return MISSING
    if found.low is None:
        return fixed(found.estimate, decimals)
    half = fixed((found.high - found.low) / 2, decimals)
    return format_html('{} <span class="interval">± {}</span>', fixed(found.estimate, decimals), half)


@register.filter
def colour(identifier) -> str:
    """The chart colour class that belongs to a run for ever."""
    return f"c{colour_index(identifier)}"


def colour_index(identifier) -> int:
    return int(str(identifier).replace("-", "")[:8], 16) % COLOURS


@register.simple_tag
def sparkline(values: list[float | None] | None, label: str = "") -> str:
    """An SVG line over `values`; a missing value breaks the line."""
    known = [value for value in values or [] if value is not None]
    if len(known) < 2:
        return mark_safe('<svg class="spark" aria-hidden="true"></svg>')
    places = _places(values, min(known), max(known))
    last_x, last_y = next(place for place in reversed(places) if place).split()
    return format_html(
        '<svg class="spark" viewBox="0 0 {} {}" role="img" aria-label="{}"><path d="{}"></path><circle cx="{}" cy="{}" r="1.8"></circle></svg>',
        *(SPARK_WIDTH, SPARK_HEIGHT, label or f"from {known[0]:.3g} to {known[-1]:.3g}", _path(places), last_x, last_y),
    )


def _places(values: list[float | None], low: float, high: float) -> list[str | None]:
    """Where each value lies in a sparkline, as "x y"; None where it is missing."""
    across, up = (SPARK_WIDTH - 4) / (len(values) - 1), (SPARK_HEIGHT - 6) / ((high - low) or 1)
    bottom = SPARK_HEIGHT - 3
    return [None if value is None else f"{1 + index * across:.1f} {bottom - (value - low) * up:.1f}" for index, value in enumerate(values)]


def _path(places: list[str | None]) -> str:
    """A line through each row of places without a gap."""
    if None not in places:
        return f"M{'L'.join(places)}"
    pieces, drawing = [], False
    for place in places:
        if place:
            pieces.append(f"{'L' if drawing else 'M'}{place}")
        drawing = place is not None
    return "".join(pieces)


@register.simple_tag
def interval(rate, baseline: float | None = None) -> str:
    """A rate and its interval on a line from 0 to 1, with a dashed tick at `baseline`."""
    if rate is None or rate.rate is None:
        return ""
    label = f"{rate.rate:.3f}, 95 % interval {rate.low:.3f} to {rate.high:.3f}, n = {rate.n}"
    tick = _tick(baseline) if baseline is not None else ""
    x, low, high = (round(RATE_WIDTH * value, 1) for value in (rate.rate, rate.low, rate.high))
    return format_html(
        '<svg class="rate" viewBox="0 0 {} 16" role="img" aria-label="{}"><title>{}</title><path class="axis" d="M0 8H{}"></path>{}'
        '<path class="span" d="M{} 8H{}"></path><circle cx="{}" cy="8" r="3.2"></circle></svg>',
        *(RATE_WIDTH, label, label, RATE_WIDTH, tick, low, high, x),
    )


@register.simple_tag
def interval_mark(value: float) -> str:
    """The tick of a baseline alone, on the same line."""
    if not isinstance(value, (int, float)):
        return ""
    return format_html(
        '<svg class="rate" viewBox="0 0 {} 16" aria-hidden="true"><path class="axis" d="M0 8H{}"></path>{}</svg>',
        RATE_WIDTH,
        RATE_WIDTH,
        _tick(value),
    )


def _tick(value: float) -> str:
    return format_html('<path class="tick" d="M{} 1V15"></path>', round(RATE_WIDTH * value, 1))


@register.simple_tag(takes_context=True)
def importmap(context) -> str:
    """Names every script module `assay/<file>`, so that modules import each other under hashed, cacheable addresses."""
    modules = _modules() if settings.DEBUG else _cached_modules()
    return format_html(
        '<script type="importmap" nonce="{}">{}</script>',
        context["CSP_NONCE"],
        mark_safe(json.dumps({"imports": modules}).replace("<", "\\u003c")),
    )


def _modules() -> dict[str, str]:
    folder = next(path for path in settings.STATICFILES_DIRS) / "js"
    return {f"assay/{path.name}": staticfiles_storage.url(f"js/{path.name}") for path in sorted(folder.glob("*.js"))}


_cached_modules = cache(_modules)
