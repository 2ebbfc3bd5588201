"""frontend → controlplane → runner.contract ← runner: enforced by the imports themselves."""

import ast
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[1]
HEAVY = ("torch", "transformers", "vllm", "ray")


def imports(path: Path):
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            yield node.module


def offenders(folder: str, forbidden) -> list[str]:
    files = (ROOT / folder).rglob("*.py")
    return [f"{path.relative_to(ROOT)}: {name}" for path in files for name in imports(path) if forbidden(name)]


def within(name: str, *packages: str) -> bool:
    return any(name == package or name.startswith(package + ".") for package in packages)


def test_the_control_plane_knows_only_the_contract():
    assert not offenders("controlplane", lambda name: within(name, "runner") and not within(name, "runner.contract"))


def test_the_runner_knows_nothing_of_django():
    assert not offenders("runner", lambda name: within(name, "controlplane", "django", "channels", "celery", "ninja"))


def test_the_contract_knows_only_itself():
    outside = lambda name: within(name, "runner") and not within(name, "runner.contract") or within(name, *HEAVY, "django", "httpx")  # noqa: E731
    assert not offenders("runner/contract", outside)


def test_web_and_worker_import_nothing_heavy():
    code = "import controlplane.asgi, controlplane.celery, sys; from controlplane.celery import app; app.loader.import_default_modules();"
    code += f"print([name for name in {HEAVY} if name in sys.modules])"
    printed = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, timeout=120)
    assert printed.stdout.strip() == "[]", printed.stderr
