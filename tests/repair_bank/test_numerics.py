"""The two codes do true numerics: they converge at their order, conserve what they should, and give the same bytes twice."""

import math
import subprocess

import pytest

from runner.environments.repair_bank.factory.catalogue import Catalogue

BUILDS = [(env, check) for env in ("advdiff", "nbody") for check in Catalogue(env).checks]


class Runs:
    """Runs decks of a clean build, each once."""

    def __init__(self, benches, folder):
        self.benches, self.folder, self.done = benches, folder, {}

    def frames(self, env, deck_path):
        if deck_path not in self.done:
            out = self.folder / f"{len(self.done)}"
            out.mkdir()
            program = Catalogue(env).target(Catalogue(env).tree_of(deck_path.parent.name))
            bench = self.benches[env].clean
            subprocess.run([bench / "build" / program, deck_path, out], cwd=bench, check=True, timeout=60)
            self.done[deck_path] = out
        return self.done[deck_path]

    def diagnostics(self, env, check, deck):
        path = next((Catalogue(env).folder / "env" / "cases" / check).glob(f"{deck}.*"))
        lines = (self.frames(env, path) / "diagnostics.txt").read_text().splitlines()
        return {name: float(value) for name, value in (line.split() for line in lines)}


@pytest.fixture(scope="module")
def runs(benches, tmp_path_factory):
    return Runs(benches, tmp_path_factory.mktemp("runs"))


def order(runs, env, check, quantity, coarse, fine):
    return math.log2(runs.diagnostics(env, check, coarse)[quantity] / runs.diagnostics(env, check, fine)[quantity])


@pytest.mark.parametrize(
    "env, check, quantity, coarse, fine, expected",
    [
        ("advdiff", "wave-order", "error_l2", "n16", "n32", 3),
        ("advdiff", "fisher-front", "error_l2", "n64", "n128", 2),
        ("nbody", "kepler-order", "position_error", "n64", "n128", 4),
        ("nbody", "kepler-hermite", "position_error", "n256", "n512", 4),
    ],
)
def test_converges_at_its_order(runs, env, check, quantity, coarse, fine, expected):
    assert order(runs, env, check, quantity, coarse, fine) == pytest.approx(expected, abs=0.15)


@pytest.mark.parametrize("check", ["blob-rotation", "grayscott-closed"])
def test_flux_form_conserves_the_total_to_rounding(runs, check):
    deck = {"blob-rotation": "n32", "grayscott-closed": "n40"}[check]
    assert abs(runs.diagnostics("advdiff", check, deck)["total_change"]) < 1e-13


@pytest.mark.parametrize("check, deck", [("plummer-leapfrog", "n48"), ("eight-closure", "n800")])
def test_symplectic_steps_conserve_momenta_to_rounding(runs, check, deck):
    measured = runs.diagnostics("nbody", check, deck)
    assert measured["momentum"] < 1e-14 and measured["angular_momentum_change"] < 1e-13


def test_node_moves_at_the_secular_rate(runs):
    assert runs.diagnostics("nbody", "oblate-node", "n2000")["node_rate_ratio"] == pytest.approx(1.0, abs=0.02)


def test_composition_weights_are_those_of_the_formulas():
    table = (Catalogue("nbody").source / "data" / "compositions.dat").read_text().splitlines()
    rows = {line.split()[0]: [float(word) for word in line.split()[3:]] for line in table if not line.startswith("#")}
    jump, fractal = 1 / (2 - 2 ** (1 / 3)), 1 / (4 - 4 ** (1 / 3))
    assert rows["yoshida4"] == pytest.approx([jump, 1 - 2 * jump, jump], abs=1e-15)
    assert rows["suzuki4"] == pytest.approx([fractal, fractal, 1 - 4 * fractal, fractal, fractal], abs=1e-15)
    assert all(sum(weights) == pytest.approx(1.0, abs=1e-15) for weights in rows.values())


@pytest.mark.parametrize("env, check", BUILDS, ids=[check for _, check in BUILDS])
def test_frames_are_the_same_bytes_twice_and_diagnostics_within_theory(runs, env, check, tmp_path):
    catalogue = Catalogue(env)
    for deck in catalogue.checks[check]["decks"]:
        path = catalogue.folder / "env" / "cases" / check / deck
        first = {frame.name: frame.read_bytes() for frame in runs.frames(env, path).iterdir()}
        again = Runs(runs.benches, tmp_path).frames(env, path)
        assert {frame.name: frame.read_bytes() for frame in again.iterdir()} == first
        for frame in again.iterdir():
            frame.unlink()
        again.rmdir()
    for expected in catalogue.checks[check]["diagnostics"]:
        if len(expected["decks"]) == 1:
            value = runs.diagnostics(env, check, expected["decks"][0])[expected["quantity"]]
            assert expected.get("at_least", -math.inf) <= value <= expected.get("at_most", math.inf)


@pytest.mark.parametrize(
    "env, file, rebuilt",
    [
        ("advdiff", "src/advection.f90", {"advection.o", "transport.o", "transport"}),
        ("nbody", "src/hermite.c", {"hermite.o", "hermite"}),
    ],
)
def test_a_changed_file_rebuilds_only_what_depends_on_it(benches, env, file, rebuilt):
    tree = benches[env].tree([])
    before = {path.name: path.stat().st_mtime_ns for path in (tree / "build").iterdir()}
    (tree / file).write_text((tree / file).read_text() + "\n")
    subprocess.run(["make", "--silent", "transport" if env == "advdiff" else "hermite"], cwd=tree, check=True, timeout=120)
    after = {path.name: path.stat().st_mtime_ns for path in (tree / "build").iterdir() if path.suffix in (".o", "")}
    assert {name for name, when in after.items() if when != before[name]} == rebuilt
