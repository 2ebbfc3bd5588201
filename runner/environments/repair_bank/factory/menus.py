"""The menu of a task: the edit that mends each broken site among edits of other sites. Every one is built before it is offered."""

from typing import Any

from runner.environments.repair_bank.factory.catalogue import Catalogue, Plan, Site
from runner.environments.repair_bank.factory.workbench import Workbench


def menu_of(catalogue: Catalogue, bench: Workbench, plan: Plan) -> list[dict[str, Any]]:
    """[{file, old, new, label}], sorted by file and label, so that nothing tells which edit mends.

    Every `old` stands exactly once in the broken tree, and the tree builds after any one of the edits.
    """
    breaking = [site.breaking for site in plan.sites]
    edits = [{**site.mending, "label": site.right} for site in plan.sites]
    edits += [{**site.breaking, "label": site.wrong} for site in catalogue.offered(plan.tree) if _fits(catalogue, plan, site)]
    target = catalogue.target(plan.tree)
    kept = [edit for edit in edits if bench.compiles([*breaking, edit], target)]
    if missing := [site.id for site in plan.sites if site.mending not in [_bare(edit) for edit in kept]]:
        raise ValueError(f"{missing}: undoing the defect does not build; correct the catalogue")
    return sorted(kept, key=lambda edit: (edit["file"], edit["label"]))


def _bare(edit: dict[str, str]) -> dict[str, str]:
    return {key: edit[key] for key in ("file", "old", "new")}


def _fits(catalogue: Catalogue, plan: Plan, site: Site) -> bool:
    """Whether the site's clean text still stands once in the broken tree and is none of the broken sites."""
    if site in plan.sites:
        return False
    text = catalogue.clean_text(site.file)
    for broken in plan.sites:
        if broken.file == site.file:
            text = text.replace(broken.clean, broken.broken)
    return text.count(site.clean) == 1
