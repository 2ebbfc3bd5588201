"""The benchmarks of the weights' way and of an asynchronous run: nothing where they cannot measure, and the smallest of the first."""

import json

import pytest

from benchmarks import asynchronous, weight_transfer


@pytest.mark.parametrize(("bench", "asked"), [(weight_transfer, []), (asynchronous, ["--bank", "bank.zst", "--out", "out"])])
@pytest.mark.parametrize("gpus", [0, 1])
def test_nothing_is_measured_without_two_gpus(monkeypatch, bench, asked, gpus):
    monkeypatch.setattr(bench, "gpus_here", lambda: gpus)
    monkeypatch.setattr(bench, "publish", lambda found: pytest.fail("a record was written"))
    with pytest.raises(SystemExit, match=f"torch finds {gpus}; nothing was measured"):
        bench.main(asked)


@pytest.mark.slow
def test_the_smallest_push_arrives_both_ways(monkeypatch, capsys):
    monkeypatch.setattr(weight_transfer, "publish", lambda found: pytest.fail("a record was written"))
    weight_transfer.main(["--tiny"])
    found = json.loads(capsys.readouterr().out.strip().splitlines()[-1])
    assert found["name"] == "weight_transfer" and found["ours"] > 0 and found["peer"] > 0
    assert found["also"]["arrived"] == {"broadcast": True, "object_store": True} and found["also"]["bytes"] > 0
