"""The rows of the list of runs, a function a column: in a template its branches would take longer than the database."""

from collections.abc import Callable
from urllib.parse import urlencode

from django import template
from django.urls import reverse
from django.utils.html import format_html, format_html_join
from django.utils.safestring import mark_safe
from django.utils.text import Truncator

from controlplane.runs.columns import Column
from controlplane.runs.models import Run
from controlplane.templatetags.format import MISSING, age, fixed, number, percent
from controlplane.templatetags.ui import colour, icon, sparkline, state

register = template.Library()

VERIFIER_ERRORS_BEAR = 0.05


@register.simple_tag
def row_of_run(run: Run, cells: list[tuple[Column, float | None]], spark: list[float | None] | None) -> str:
    """A <tr>; `cells` are its columns, each with the newest value where it is measured, `spark` the curve of the trend."""
    return format_html(
        '<tr id="run-{0}" data-run="{0}"><td class="pick"><input type="checkbox" data-pick value="{0}" aria-label="Pick {1}"></td>'
        '<td>{2}</td><th scope="row" class="run-name"><span class="swatch {3}"></span>'
        '<a data-open class="clip" href="{4}" title="{1}">{1}</a>{5}</th>{6}</tr>',
        *(run.pk, run.name, state(run.state), colour(run.pk), reverse("run", args=[run.pk]), _belongs(run)),
        mark_safe("".join(_cell(run, column, value, spark) for column, value in cells)),
    )


def _belongs(run: Run) -> str:
    """The experiment, or else the first tag."""
    if run.experiment:
        short = Truncator(run.experiment).chars(18)
        query = urlencode({"experiment": run.experiment})
        return format_html('<a class="tag" href="?{}" title="Experiment {}">{}</a>', query, run.experiment, short)
    if run.tags:
        tag = run.tags[0]
        return format_html('<a class="tag" href="?{}" title="{}">#{}</a>', urlencode({"tag": tag}), ", ".join(run.tags), Truncator(tag).chars(14))
    return ""


def _cell(run: Run, column: Column, value, spark: list[float | None] | None) -> str:
    if column.key == "trend":
        return format_html("<td>{}</td>", sparkline(spark))
    if column.key == "verifier_error":
        return _verifier_error(value)
    return _measured(run, column, value) if column.is_measured else _CELLS[column.key](run)


def _measured(run: Run, column: Column, value) -> str:
    if value is None:
        return format_html('<td class="num">{}</td>', MISSING)
    step = number(run.latest[column.key]["step"])
    return format_html('<td class="num" title="over {}, at step {}">{}</td>', column.metric.population, step, fixed(value, column.decimals))


def _verifier_error(value) -> str:
    if value is not None and value > VERIFIER_ERRORS_BEAR:
        return format_html('<td class="num bad">{} {}</td>', icon("warn", "s"), percent(value))
    return format_html('<td class="num">{}</td>', percent(value))


def _step(run: Run) -> str:
    done = "done" if run.state == "succeeded" else ""
    bar = format_html('<progress class="{}" value="{}" max="{}" aria-label="Steps done"></progress>', done, run.step, run.total_steps)
    told = format_html('<span>{}<span class="muted"> / {}</span></span>', number(run.step), number(run.total_steps))
    return format_html('<td class="step">{}{}</td>', told, bar)


def _tags(run: Run) -> str:
    links = format_html_join(" ", '<a class="tag" href="?{}">#{}</a>', ((urlencode({"tag": tag}), tag) for tag in run.tags))
    links = links or format_html('<span class="muted">{}</span>', MISSING)
    return format_html('<td class="clip" title="{}">{}</td>', ", ".join(run.tags), links)


def _clipped(name: str) -> Callable[[Run], str]:
    return lambda run: format_html('<td class="clip" title="{}">{}</td>', getattr(run, name), getattr(run, name))


_CELLS: dict[str, Callable[[Run], str]] = {
    "step": _step,
    "method": _clipped("method"),
    "environment": _clipped("environment"),
    "model": _clipped("model"),
    "seed": lambda run: format_html('<td class="num">{}</td>', run.seed),
    "tags": _tags,
    "project": lambda run: format_html('<td class="clip">{}</td>', run.project.name),
    "owner": lambda run: format_html('<td class="muted clip">{}</td>', run.owner.username if run.owner else MISSING),
    "age": lambda run: format_html('<td class="muted">{}</td>', age(run.created_at)),
}
