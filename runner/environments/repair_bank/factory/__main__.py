"""python -m runner.environments.repair_bank.factory [ENV ...]: write checks and tasks of the sample bank again, from its catalogues.

Everything but measured wall times comes out the same as long as sources, decks, catalogues and compilers stay.
--pin first records the last commit that touched each environment's source. --floors keeps the tasks and menus that are on file and only
measures the floors again, for when the grader changed.
"""

import argparse
import json
import re
import shutil
import subprocess
import tempfile
from pathlib import Path

from runner.environments.repair_bank import BANK
from runner.environments.repair_bank.factory.authoring import FLOOR_MAX, MARGIN_MIN, Draft
from runner.environments.repair_bank.factory.catalogue import Catalogue
from runner.environments.repair_bank.factory.checks import write_checks
from runner.environments.repair_bank.factory.measure import Measurer, require_fit
from runner.environments.repair_bank.factory.menus import menu_of
from runner.environments.repair_bank.factory.workbench import Workbench, missing_tools
from runner.repair.layouts import discover
from runner.repair.lines import write_lines

ENVS = ("advdiff", "nbody")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("envs", nargs="*", default=ENVS, metavar="ENV")
    parser.add_argument("--pin", action="store_true")
    parser.add_argument("--floors", action="store_true")
    given = parser.parse_args()
    if missing := missing_tools():
        parser.exit(2, f"{', '.join(missing)} not found: apt-get install make gcc gfortran\n")
    for env in given.envs:
        if given.pin:
            pin(env)
        catalogue = Catalogue(env)
        measure(on_file(catalogue) if given.floors else author(catalogue))
    for path, document in write_lines(discover(BANK)):
        print(path.relative_to(BANK), document["cross_check"])


def pin(env: str) -> None:
    """Write the last commit of the environment's source into its env.toml."""
    folder = BANK / "envs" / env
    argv = ["git", "log", "-1", "--format=%H", "--", str(folder / "env" / "source" / env)]
    commit = subprocess.run(argv, cwd=BANK, check=True, capture_output=True, text=True).stdout.strip()
    path = folder / "env.toml"
    path.write_text(re.sub(r'^commit = ".*"$', f'commit = "{commit}"', path.read_text(), flags=re.MULTILINE))


def author(catalogue: Catalogue) -> list[Draft]:
    """Write every check and task of one environment, the tasks without their floors."""
    with Workbench(catalogue.source) as bench:
        write_checks(catalogue, bench)
        shutil.rmtree(catalogue.folder / "tasks", ignore_errors=True)
        drafts = [Draft(catalogue, plan, _menu(catalogue, bench, plan)) for plan in catalogue.plans]
    for draft in drafts:
        draft.write(None)
    return drafts


def on_file(catalogue: Catalogue) -> list[Draft]:
    """The tasks as they lie in the bank, with their menus."""
    drafts = [Draft(catalogue, plan, []) for plan in catalogue.plans]
    for draft in drafts:
        if (path := draft.folder / "menu.json").is_file():
            draft.menu = json.loads(path.read_text())["edits"]
    return drafts


def measure(drafts: list[Draft]) -> None:
    """Write each task again with the floor that its broken code earns."""
    with tempfile.TemporaryDirectory() as scratch:
        measurer = Measurer(Path(scratch))
        for draft in drafts:
            straw = measurer.straw(draft.catalogue.env, draft.plan.tree, draft.short_name)
            require_fit(draft.name, straw, FLOOR_MAX, MARGIN_MIN)
            draft.write(straw)
            print(
                f"{draft.plan.category}/{draft.plan.tier}/{draft.short_name}: floor {straw['floor']}, {len(draft.menu)} edits", flush=True
            )


def _menu(catalogue: Catalogue, bench: Workbench, plan) -> list:
    return menu_of(catalogue, bench, plan) if plan.category == "repair" else []


if __name__ == "__main__":
    main()
