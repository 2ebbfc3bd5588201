import json
import os
import subprocess
import sys

import pytest

from controlplane.runs.forms.text import as_cli, as_python, as_yaml
from runner.contract.parse import load_text
from runner.contract.presets import PRESETS

TRICKY = {"no": "no", "quoted": "it's: \"x\" # y", "number": "1e3", "list": [], "none": None, "float": 1e-05, "lines": "a\nEND\nb", "on": True, "nested": [{"a": [1, 2.0]}]}
DOCUMENTS = [preset.start() for preset in (PRESETS.values() if isinstance(PRESETS, dict) else PRESETS)] + [TRICKY]


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda document: document.get("preset") or document.get("name") or "tricky")
def test_yaml_reads_back_as_the_same_document(document):
    assert load_text(as_yaml(document), "yaml") == document


def test_the_shell_command_writes_the_same_document(tmp_path):
    (tmp_path / "assay").write_text("#!/bin/sh\nexit 0\n")
    (tmp_path / "assay").chmod(0o755)
    subprocess.run(["sh", "-e", "-c", as_cli(TRICKY)], cwd=tmp_path, check=True)
    assert load_text((tmp_path / "run.yaml").read_text(), "yaml") == TRICKY


def test_the_python_snippet_posts_the_same_document(tmp_path):
    (tmp_path / "httpx.py").write_text(
        "import json\nclass A:\n    def raise_for_status(self): pass\n    def json(self): return {'id': 1}\n"
        "def post(url, json, headers):\n    open('sent', 'w').write(__import__('json').dumps(json)); return A()\n"
    )
    (tmp_path / "snippet.py").write_text(as_python(TRICKY))
    environment = {**os.environ, "ASSAY_URL": "http://x", "ASSAY_TOKEN": "t"}
    subprocess.run([sys.executable, "snippet.py"], cwd=tmp_path, check=True, env=environment)
    assert json.loads((tmp_path / "sent").read_text()) == TRICKY
