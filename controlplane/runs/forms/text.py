"""A document in the words of each other door: YAML for a file, a command line, Python against the REST API."""

import io
import json
import pprint

from ruamel.yaml import YAML

FILE = "run.yaml"


def as_yaml(document: dict) -> str:
    yaml = YAML(typ="safe", pure=True)
    yaml.default_flow_style = False
    yaml.sort_base_mapping_type_on_output = False
    out = io.StringIO()
    yaml.dump(json.loads(json.dumps(document)), out)
    return out.getvalue()


def as_cli(document: dict) -> str:
    """A shell command that needs no other file."""
    return f"cat > {FILE} <<'END'\n{as_yaml(document)}END\n./assay launch {FILE}\n"


def as_python(document: dict) -> str:
    literal = pprint.pformat(document, width=110, sort_dicts=False)
    return (
        "import os\n\nimport httpx\n\n"
        f"document = {literal}\n\n"
        "answer = httpx.post(\n"
        '    os.environ["ASSAY_URL"] + "/api/v1/runs",\n'
        '    json=document,\n'
        '    headers={"Authorization": "Bearer " + os.environ["ASSAY_TOKEN"], "Idempotency-Key": os.urandom(16).hex()},\n'
        ")\n"
        "answer.raise_for_status()\n"
        'print(answer.json()["id"])\n'
    )
