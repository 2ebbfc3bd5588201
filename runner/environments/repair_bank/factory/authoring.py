"""Writes the folder of one task: manifest, instruction, defect, fix, menu and provenance."""

import json
from pathlib import Path
from typing import Any

from runner.contract.canonical import digest
from runner.environments.repair_bank.factory.catalogue import Catalogue, Plan
from runner.repair.compile import canary_of
from runner.repair.sources import pack_source

TEMPLATES = Path(__file__).resolve().parent / "instructions"
VERBS = {"repair": "repair", "implementation": "restore", "acceleration": "accel"}
# How a family of defects came into the code, in the words of the format.
MODES = {"excise": ("excised", "excise"), "accel": ("deoptimised", "deoptimised"), "sem-data": ("injected", "semantic")}
FLOOR_MAX = 0.65
MARGIN_MIN = 1e-8
TASK_TOML = """schema_version = "1.4"
artifacts = []

[task]
name = {name}
description = {description}

[metadata.provenance]
upstream_repo = {origin}
upstream_commit = {commit}
upstream_license = "as this project"
source_archive_sha256 = {sha256}

[metadata.taxonomy]
category = {category}
mode = {mode}
family = {family}
tree = {tree}
affected_checks = {checks}
defect_file = {defect_file}
floor_native_estimate = {floor}
canary = {canary}
difficulty = {tier}
difficulty_basis = "design"
difficulty_design = {tier}
straw_timeout_sec = 120

[metadata.difficulty_facts]
k_sites = {k_sites}
checks_count = {checks_count}
verification_cost = "V0"

[environment]
cpus = 1
memory_mb = 1024
build_timeout_sec = 300.0
network_mode = "no-network"

[agent]
timeout_sec = 900.0

[verifier]
timeout_sec = 180.0
environment_mode = "separate"

[verifier.environment]
cpus = 1
memory_mb = 1024
build_timeout_sec = 600.0
network_mode = "no-network"
"""


class Draft:
    """One task about to be written. `menu` is offered by the menu agent; `straw` is what grading the broken code gave, None before that."""

    def __init__(self, catalogue: Catalogue, plan: Plan, menu: list[dict[str, Any]]):
        self.catalogue, self.plan, self.menu = catalogue, plan, menu
        family, source = MODES.get(plan.family, ("injected", "inject"))
        self.mode = family if len(plan.sites) == 1 or plan.family in MODES else "injected-multi"
        self.candidate_source = source

    @property
    def short_name(self) -> str:
        first = self.plan.sites[0]
        parts = [self.catalogue.env, VERBS[self.plan.category], self.plan.family, self.plan.tree, first.id]
        return "-".join([*parts, f"l{self.catalogue.line_of(first)}"])

    @property
    def name(self) -> str:
        return f"assay/{self.short_name}"

    @property
    def canary(self) -> str:
        return f"assay-sample-bank canary GUID {canary_of(self.name)}"

    @property
    def folder(self) -> Path:
        return self.catalogue.folder / "tasks" / self.plan.category / self.plan.tier / self.short_name

    @property
    def checks(self) -> list[str]:
        return self.catalogue.env_file.trees[self.plan.tree].checks

    def write(self, straw: dict[str, Any] | None) -> None:
        """Write all files of the task."""
        (self.folder / "authoring").mkdir(parents=True, exist_ok=True)
        (self.folder / "task.toml").write_text(self._manifest(straw["floor"] if straw else 0.0))
        (self.folder / "instruction.md").write_text(self._instruction())
        self._json("defect.json", {"_canary": canary_of(self.name), "edits": [site.breaking for site in self.plan.sites]})
        self._json("fix.json", {"_canary": canary_of(self.name), "edits": [site.mending for site in reversed(self.plan.sites)]})
        self._json("authoring/provenance.json", self._provenance(straw))
        if self.menu:
            self._json("menu.json", {"edits": self.menu})

    def _json(self, name: str, document: dict[str, Any]) -> None:
        (self.folder / name).write_text(json.dumps(document, indent=1) + "\n")

    def _manifest(self, floor: float) -> str:
        plan, source = self.plan, self.catalogue.env_file.source
        values = {
            "name": self.name,
            "description": f"{plan.category} of {self.catalogue.env}: {plan.family}, {plan.tree}",
            "origin": f"this project: runner/environments/repair_bank/envs/{self.catalogue.env}/env/source",
            "commit": source.commit,
            "sha256": digest(pack_source(self.catalogue.source)),
            "category": plan.category,
            "mode": self.mode,
            "family": plan.family,
            "tree": plan.tree,
            "checks": self.checks,
            "defect_file": plan.files[0],
            "floor": floor,
            "canary": self.canary,
            "tier": plan.tier,
            "k_sites": len(plan.sites),
            "checks_count": len(self.checks),
        }
        return TASK_TOML.format(**{key: json.dumps(value) for key, value in values.items()})

    def _instruction(self) -> str:
        plan = self.plan
        cases = "\n".join(f"- `{check}`: {self.catalogue.checks[check]['about']}" for check in self.checks)
        return (
            (TEMPLATES / f"{plan.category}.md")
            .read_text()
            .format(
                canary=self.canary,
                title=f"{plan.category.capitalize()} of {self.catalogue.env}",
                env=self.catalogue.env,
                about=self.catalogue.checks_file["about"],
                sites="one place in it is broken" if len(plan.sites) == 1 else f"{len(plan.sites)} places in it are broken",
                missing=" and ".join(f"`{site.file}`, {site.note.removeprefix('removed ')}" for site in plan.sites),
                target=self.catalogue.target(plan.tree),
                cases=cases,
            )
        )

    def _provenance(self, straw: dict[str, Any] | None) -> dict[str, Any]:
        plan, lines = self.plan, [self.catalogue.line_of(site) for site in self.plan.sites]
        candidate = {
            "id": self.short_name,
            "family": plan.family,
            "tree": plan.tree,
            "source": self.candidate_source,
            "note": " and ".join(site.note for site in plan.sites),
            "meta": {"file": plan.files[0], "files": plan.files, "line": lines[0], "sites": [site.id for site in plan.sites]},
            "break": {"edits": [site.breaking for site in plan.sites]},
            "fix": {"edits": [site.mending for site in reversed(plan.sites)]},
        }
        return {
            "canary": canary_of(self.name),
            "candidate": candidate,
            "funnel": straw and {"status": "survivor", **straw},
            "thresholds": {"FLOOR_MAX": FLOOR_MAX, "MARGIN_MIN": MARGIN_MIN},
            "source": {"commit": self.catalogue.env_file.source.commit, "archive_sha256": digest(pack_source(self.catalogue.source))},
        }
