"""The scaling benchmark: that it measures nothing where it cannot, and its smallest run."""

import json

import pytest

from benchmarks import scaling


@pytest.mark.parametrize(("gpus", "asked"), [(1, []), (4, ["--processes", "8"])])
def test_a_machine_with_too_few_gpus_is_told_so_and_keeps_no_record(monkeypatch, gpus, asked):
    monkeypatch.setattr(scaling, "gpus_here", lambda: gpus)
    monkeypatch.setattr(scaling, "publish", lambda found: pytest.fail("a record was written"))
    with pytest.raises(SystemExit) as ended:
        scaling.main(asked)
    assert f"torch finds {gpus}" in ended.value.code and "no record" in ended.value.code


def test_the_smallest_run_measures_one_process_and_two_and_keeps_nothing(monkeypatch, capsys):
    monkeypatch.setattr(scaling, "publish", lambda found: pytest.fail("a record was written"))
    scaling.main(["--tiny"])
    found = json.loads(capsys.readouterr().out)
    assert found["name"] == "scaling" and found["settings"]["processes"] == 2 and found["ours"] > 0
    also = found["also"]
    assert found["peer"] == 2 * also["one"]["tokens_per_s"]
    assert found["ours"] == also["as_many_tokens_each"]["tokens_per_s"] and also["as_many_tokens_in_all"]["mfu"] >= 0
