"""What the factory works from: factory/checks.toml, factory/defects.toml and env.toml of one environment, checked against the clean source."""

import tomllib
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from runner.environments.repair_bank import BANK
from runner.repair.env_file import EnvFile, read_env_file

LABEL_LIMIT = 60
NEVER_OFFERED = {"excise", "accel"}  # families whose broken text is no plausible edit of another task


class BadCatalogue(ValueError):
    """A catalogue entry does not fit the source; the message names the entry and the remedy."""


@dataclass(frozen=True)
class Site:
    """One place in the clean source and one way to break it. `right` and `wrong` are what a menu says of the two texts."""

    id: str
    family: str
    file: str
    clean: str
    broken: str
    note: str
    right: str
    wrong: str

    @property
    def breaking(self) -> dict[str, str]:
        return {"file": self.file, "old": self.clean, "new": self.broken}

    @property
    def mending(self) -> dict[str, str]:
        return {"file": self.file, "old": self.broken, "new": self.clean}


@dataclass(frozen=True)
class Plan:
    """One task to derive: the sites it breaks, in the order in which they are broken."""

    tree: str
    tier: str
    category: str
    sites: tuple[Site, ...]

    @property
    def family(self) -> str:
        families = {site.family for site in self.sites}
        return families.pop() if len(families) == 1 else f"multi{len(self.sites)}"

    @property
    def files(self) -> list[str]:
        return list(dict.fromkeys(site.file for site in self.sites))


class Catalogue:
    """Everything authored by hand for one environment."""

    def __init__(self, env: str):
        self.env = env
        self.folder = BANK / "envs" / env
        self.source = self.folder / "env" / "source" / env
        self.checks_file = self._read("checks.toml")
        self.defects_file = self._read("defects.toml")

    def _read(self, name: str) -> dict[str, Any]:
        return tomllib.loads((self.folder / "factory" / name).read_text())

    @cached_property
    def env_file(self) -> EnvFile:
        return read_env_file(self.folder)

    @cached_property
    def checks(self) -> dict[str, dict[str, Any]]:
        return {check["name"]: check for check in self.checks_file["check"]}

    @cached_property
    def sites(self) -> dict[str, Site]:
        sites = {entry["id"]: Site(**entry) for entry in self.defects_file["site"]}
        for site in sites.values():
            self._verify(site)
        return sites

    @cached_property
    def plans(self) -> list[Plan]:
        return [
            Plan(entry["tree"], entry["tier"], entry.get("category", "repair"), tuple(self.sites[name] for name in entry["sites"]))
            for entry in self.defects_file["task"]
        ]

    def clean_text(self, file: str) -> str:
        return (self.source / file).read_text()

    def target(self, tree: str) -> str:
        """The program that a tree's checks run."""
        return self.env_file.trees[tree].tokens["TARGET"]

    def tree_of(self, check: str) -> str:
        return next(name for name, tree in self.env_file.trees.items() if check in tree.checks)

    def offered(self, tree: str) -> list[Site]:
        """The sites that a menu of this tree may offer."""
        unused = self.checks_file["unused"][tree]
        return [site for site in self.sites.values() if site.file not in unused and site.family not in NEVER_OFFERED]

    def line_of(self, site: Site) -> int:
        """The line of the clean file at which the two texts begin to differ, from 1."""
        text = self.clean_text(site.file)
        same = next((n for n, (a, b) in enumerate(zip(site.clean, site.broken, strict=False)) if a != b), len(site.broken))
        start = site.clean.rfind("\n", 0, same) + 1
        return 1 + text.count("\n", 0, text.index(site.clean) + start)

    def _verify(self, site: Site) -> None:
        text = self.clean_text(site.file)
        if (count := text.count(site.clean)) != 1:
            raise BadCatalogue(f"{site.id}: `clean` stands {count} times in {site.file}; give it more context")
        if (count := text.replace(site.clean, site.broken).count(site.broken)) != 1:
            raise BadCatalogue(f"{site.id}: `broken` would stand {count} times in {site.file}; give it more context")
        for label in (site.right, site.wrong):
            if len(label) > LABEL_LIMIT:
                raise BadCatalogue(f"{site.id}: the label {label!r} has {len(label)} characters; use at most {LABEL_LIMIT}")
