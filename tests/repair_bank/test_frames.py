"""The validator accepts rounding and refuses everything else, on frames made here."""

import pytest

FRAMES = ["frame000.txt", "frame001.txt", "frame002.txt"]
RUBRIC = {"output_contract": {"frames": {"d1": FRAMES}}, "tolerances": {"atol": 1e-9, "rtol": 1e-9}}
VALUES = [[1.0, -2.5, 0.0], [1e6, 3e-4, 7.0]]


def write(folder, number, values=VALUES, step=None, time=None, rows=2, columns=3):
    step, time = number * 10 if step is None else step, number * 0.5 if time is None else time
    head = f"# frame {number} step {step} time {time: .16e} dt  5.0000000000000003E-02\n# rows {rows} columns {columns}\n"
    (folder / f"frame{number:03d}.txt").write_text(head + "".join("".join(f"{value:24.16e}" for value in row) + "\n" for row in values))


def perturbed(row, column, factor=1.0, shift=0.0):
    return [[value * factor + shift if (r, c) == (row, column) else value for c, value in enumerate(line)] for r, line in enumerate(VALUES)]


@pytest.fixture
def verdict(frames, tmp_path):
    """Verdict on a candidate that `change(folder)` makes of the reference."""

    def of(change=None):
        folders = tmp_path / "reference", tmp_path / "candidate"
        for folder in folders:
            folder.mkdir()
            for number in range(3):
                write(folder, number)
        if change:
            change(folders[1])
        return frames.validate_frames(RUBRIC, {"d1": folders[0]}, {"d1": folders[1]})

    return of


ACCEPT = {
    "identical": None,
    "rounding of a large value": lambda folder: write(folder, 1, perturbed(1, 0, factor=1 + 1e-12)),
    "rounding about zero": lambda folder: write(folder, 2, perturbed(0, 2, shift=1e-12)),
    "rounding of the time": lambda folder: write(folder, 2, time=1.0 + 1e-12),
}
REJECT = {
    "a value beyond tolerance": ("diverged", 1, lambda folder: write(folder, 1, perturbed(0, 1, factor=1 + 1e-7))),
    "a value about zero": ("diverged", 1, lambda folder: write(folder, 2, perturbed(0, 2, shift=2e-9))),
    "a sign": ("diverged", 1, lambda folder: write(folder, 2, perturbed(1, 2, factor=-1))),
    "another step count": ("time_base", 2, lambda folder: write(folder, 2, step=21)),
    "another time": ("time_base", 2, lambda folder: write(folder, 1, time=0.51)),
    "nan": ("nonconforming", 0, lambda folder: write(folder, 1, perturbed(0, 0, factor=float("nan")))),
    "infinity": ("nonconforming", 0, lambda folder: write(folder, 1, perturbed(0, 0, factor=float("inf")))),
    "a missing frame": ("missing_output", 0, lambda folder: (folder / "frame002.txt").unlink()),
    "an extra frame": ("nonconforming", 0, lambda folder: write(folder, 3)),
    "an empty frame": ("nonconforming", 0, lambda folder: (folder / "frame001.txt").write_text("")),
    "a ragged frame": ("nonconforming", 0, lambda folder: write(folder, 1, [VALUES[0], VALUES[1][:2]])),
    "another shape": ("wrong_shape", 0, lambda folder: write(folder, 1, [row[:2] for row in VALUES], columns=2)),
    "words": ("nonconforming", 0, lambda folder: (folder / "frame001.txt").write_text("passed\n")),
    "no output at all": ("no_output", 0, lambda folder: [path.unlink() for path in folder.iterdir()]),
}


@pytest.mark.parametrize("change", ACCEPT.values(), ids=ACCEPT)
def test_accepts(verdict, change):
    got = verdict(change)
    assert (got["passed"], got["outcome"], got["frames_ok"], got["frames_scored"]) == (True, "passed", 2, 2)


@pytest.mark.parametrize("outcome, frames_ok, change", REJECT.values(), ids=REJECT)
def test_rejects(verdict, outcome, frames_ok, change):
    got = verdict(change)
    assert (got["passed"], got["outcome"], got["frames_ok"]) == (False, outcome, frames_ok)


def test_one_disagreeing_frame_of_two_keeps_the_other(verdict):
    got = verdict(REJECT["a sign"][2])
    assert (got["frames_ok"], got["frames_scored"], got["time_base_ok"]) == (1, 2, True)
    assert got["value"] > 1.0
