"""The evaluation tab of a run: every held-out pass with its intervals, and the first against the last, task by task."""

from dataclasses import dataclass
from itertools import groupby

from django.contrib.auth.decorators import login_required
from django.http import HttpRequest, HttpResponse
from django.shortcuts import render
from django.views.decorators.http import require_safe

from controlplane.evals import selectors
from controlplane.evals.evaluate_views import containers
from controlplane.evals.models import Evaluation, Protocol
from controlplane.evals.selectors import COLUMNS, Comparison
from controlplane.runs.run_views import find_run, page_context


@dataclass(frozen=True)
class ProtocolReport:
    """The evaluations made under one protocol, oldest first. `comparisons` set the last against the first."""

    protocol: Protocol
    evaluations: list[Evaluation]
    comparisons: list[Comparison]
    domains: list[tuple]

    @property
    def baselines(self) -> dict:
        return self.evaluations[0].baselines


@login_required
@require_safe
def evaluation(request: HttpRequest, pk) -> HttpResponse:
    run = find_run(request, pk)
    if run.is_evaluation:
        return containers(request, run)
    found = sorted(selectors.for_run(run), key=lambda one: (one.protocol_id, one.step, one.created_at))
    reports = [report(list(same)) for _, same in groupby(found, key=lambda one: one.protocol_id)]
    return render(request, "runs/run/evaluation.html", page_context(request, run, "evaluation") | {"reports": reports})


def report(evaluations: list[Evaluation]) -> ProtocolReport:
    """Numbers of one protocol. With a single evaluation there is nothing to compare."""
    first, last = evaluations[0], evaluations[-1]
    # The whole run, and its last stage alone: what a warm start gained must not pass for what learning from rewards gained.
    begun = [one for one in evaluations if one.stage < last.stage and one is not first]
    pairs = [(first, last), *([(begun[-1], last)] if begun else [])] if first is not last else []
    comparisons = [selectors.paired(before, after, column) for before, after in pairs for column in reversed(COLUMNS)]
    before = {rates.domain: rates for rates in first.domains}
    domains = [(rates.domain, before.get(rates.domain) if first is not last else None, rates) for rates in last.domains]
    return ProtocolReport(last.protocol, evaluations, [comparison for comparison in comparisons if comparison.n], domains)
