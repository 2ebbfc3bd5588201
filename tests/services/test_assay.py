"""The one command: bootstrap and dispatch, tried in a copy of the checkout whose requirements are empty."""

import os
import shutil
import subprocess
import sys

import pytest

from controlplane.env import CHECKOUT

# Notes how it was called; `uv venv --quiet --python PYTHON FOLDER` makes the folder.
FAKE_UV = """#!/bin/sh
echo "uv $1 links=$UV_FIND_LINKS" >> "$UV_NOTES"
[ "$1" = pip ] || python3 -m venv --without-pip "$5"
"""


@pytest.fixture
def checkout(tmp_path):
    shutil.copy(CHECKOUT / "assay", tmp_path / "assay")
    for name in ("requirements.txt", "requirements-runner.txt", "requirements-dev.txt", "requirements-weights.txt"):
        (tmp_path / name).write_text("")
    package = tmp_path / "controlplane" / "services"
    package.mkdir(parents=True)
    for folder in (package.parent, package):  # regular packages, so that no other checkout on the import path stands in
        (folder / "__init__.py").write_text("")
    (package / "commands.py").write_text("import sys; print('ran', sys.prefix, *sys.argv[1:])")
    return tmp_path


def assay(checkout, *arguments, python=sys.executable, **environment):
    command = [python, str(checkout / "assay"), *arguments]
    return subprocess.run(command, cwd="/", capture_output=True, text=True, env={**os.environ, **environment})


def test_the_first_start_installs_the_second_does_not_and_changed_requirements_do_again(checkout):
    first = assay(checkout, "up", "--port", "8001")
    assert first.returncode == 0, first.stderr
    assert "Installing" in first.stdout and f"ran {checkout / '.venv'} up --port 8001" in first.stdout
    assert assay(checkout, "up").stdout == f"ran {checkout / '.venv'} up\n"

    (checkout / "requirements-runner.txt").write_text("./no-such-package\n")
    for _ in range(2):  # a failed install is not taken for done
        failed = assay(checkout, "up")
        assert failed.returncode == 1 and "Installing" in failed.stdout and "continues where it stopped" in failed.stderr


def test_status_and_down_install_nothing(checkout):
    done = assay(checkout, "status", "--json")
    assert done.returncode == 0 and done.stdout.endswith("status --json\n") and not (checkout / ".venv").exists()


def test_unknown_command_prints_the_usage(checkout):
    done = assay(checkout, "serve")
    assert done.returncode == 2 and "usage: ./assay COMMAND" in done.stderr


def test_uv_is_used_where_found_with_the_same_extra_links(checkout, tmp_path):
    folder = tmp_path / "bin"
    folder.mkdir()
    (folder / "uv").write_text(FAKE_UV)
    (folder / "uv").chmod(0o755)
    notes = tmp_path / "notes"
    done = assay(checkout, "up", PATH=f"{folder}:{os.environ['PATH']}", PIP_FIND_LINKS="/some/wheels", UV_NOTES=str(notes))
    assert done.returncode == 0, done.stderr
    assert notes.read_text().splitlines() == ["uv venv links=/some/wheels"] + ["uv pip links=/some/wheels"] * 2
