"""The browser's files: what is vendored is what was pinned, what is named exists, and types hold."""

import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

FRONTEND = Path(__file__).parents[2] / "frontend"
STATIC = FRONTEND / "static"
TEMPLATES = [path for path in (FRONTEND / "templates").rglob("*") if path.suffix in (".html", ".txt")]
MODULES = sorted((STATIC / "js").glob("*.js"))


def run(*command, **options):
    return subprocess.run(command, capture_output=True, text=True, timeout=120, **options)


def test_vendored_files_are_the_pinned_ones():
    assert run(sys.executable, FRONTEND / "vendor.py", "--check").returncode == 0


def test_a_changed_vendored_file_is_refused(tmp_path):
    shutil.copytree(STATIC / "vendor", tmp_path / "static" / "vendor")
    shutil.copy(FRONTEND / "vendor.py", tmp_path)
    (tmp_path / "static/vendor/htmx.min.js").write_text("changed")
    done = run(sys.executable, tmp_path / "vendor.py", "--check")
    assert done.returncode != 0 and "htmx.min.js is not the pinned file" in done.stderr


def test_each_vendored_library_keeps_its_licence():
    for name in ("htmx", "plotly", "inter", "jetbrains-mono"):
        assert len((STATIC / "vendor" / f"{name}.LICENSE").read_text()) > 300


def test_every_static_file_that_a_template_names_exists():
    named = {name for path in TEMPLATES for name in re.findall(r"""\{% static ['"]([^'"]+)['"] %\}""", path.read_text())}
    assert named and not [name for name in named if not (STATIC / name).exists()]


def test_every_icon_is_in_the_sprite():
    drawn = set(re.findall(r'<symbol id="([\w-]+)"', (STATIC / "icons.svg").read_text()))
    asked = {name for path in TEMPLATES for name in re.findall(r'\{% icon "([\w-]+)"', path.read_text())}
    asked |= {name for path in TEMPLATES for name in re.findall(r'glyph="([\w-]+)"', path.read_text())}
    assert asked and asked <= drawn


def test_modules_import_only_modules_of_ours():
    names = {path.name for path in MODULES}
    for path in MODULES:
        for imported in re.findall(r'(?:from|import) "([^"]+)"', path.read_text()):
            assert imported.removeprefix("assay/") in names, f"{path.name} imports {imported}"


def test_only_the_tokens_name_colours():
    for path in (STATIC / "css").glob("*.css"):
        if path.name != "tokens.css":
            assert not re.findall(r"#[0-9a-f]{6}\b", path.read_text()), path.name


def contrast(one: str, other: str) -> float:
    """WCAG 2 contrast ratio of two #rrggbb colours."""
    low, high = sorted(luminance(colour) for colour in (one, other))
    return (high + 0.05) / (low + 0.05)


def luminance(colour: str) -> float:
    channels = [int(colour[at : at + 2], 16) / 255 for at in (1, 3, 5)]
    linear = [value / 12.92 if value <= 0.04045 else ((value + 0.055) / 1.055) ** 2.4 for value in channels]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


def tokens() -> dict[str, list[str]]:
    """Token to its colours: [light, dark], or one for both."""
    found = re.findall(r"--([\w-]+): (?:light-dark\((#\w{6}), (#\w{6})\)|(#\w{6}));", (STATIC / "css/tokens.css").read_text())
    return {name: [light or both, dark or both] for name, light, dark, both in found}


@pytest.mark.parametrize("theme", [0, 1], ids=["light", "dark"])
def test_chart_colours_stand_out_from_every_ground(theme):
    colours = tokens()
    for index in range(10):
        for ground in ("ground", "panel"):
            assert contrast(colours[f"c{index}"][theme], colours[ground][theme]) >= 3


@pytest.mark.parametrize("theme", [0, 1], ids=["light", "dark"])
@pytest.mark.parametrize("text", ["text", "muted", "accent", "good", "bad", "warn"])
def test_text_is_readable_on_every_ground(text, theme):
    colours = tokens()
    for ground in ("ground", "panel", "raised", "hover", "accent-soft" if text == "accent" else "panel"):
        assert contrast(colours[text][theme], colours[ground][theme]) >= 4.5
    if f"{text}-soft" in colours:
        assert contrast(colours[text][theme], colours[f"{text}-soft"][theme]) >= 4.5


NO_COMPILER = "the TypeScript compiler is not here: python frontend/check_types.py fetches it with npm"


@pytest.mark.skipif(not shutil.which("node") or not list(FRONTEND.parent.glob(".assay/typescript/*/lib/tsc.js")), reason=NO_COMPILER)
def test_types_hold():
    done = run(sys.executable, FRONTEND / "check_types.py")
    assert done.returncode == 0, done.stdout + done.stderr
