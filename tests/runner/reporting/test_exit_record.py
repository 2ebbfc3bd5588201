"""How a driver tells the way it ended."""

import json
import os

from runner.assignment import Refused
from runner.reporting.exit_record import exit_record, write_exit_record


def test_the_exit_record_is_whole_or_absent(tmp_path):
    try:
        raise Refused("too long", "/model/max_length", 40)
    except Refused as error:
        record = exit_record("failed", 3, "refused", error)
    write_exit_record(tmp_path / "a", record)
    read = json.loads((tmp_path / "a" / "exit.json").read_text())
    assert read["error"]["pointer"] == "/model/max_length" and read["error"]["value"] == 40 and "Traceback" in read["error"]["traceback"]
    assert os.listdir(tmp_path / "a") == ["exit.json"]
