"""The sample run learns what its control does not: three seeds and a run whose rewards are shuffled, on questions held out.

    ./assay prove learning [SEED ...]      seeds 0, 1 and 2 by default; about five minutes a run on two processors

    ./assay prove learning --runs RUN ...  the same record from sample runs that the running house has finished

Each gain is the paired difference of forced choice over the held-out questions, after GRPO minus after the warm start, with its 95 %
interval. A seed holds when 0.95 of its answers parse before GRPO and its gain is at least 0.15 with an interval above 0; the control
holds when it gains less than 0.05, and the options alone must not be worth more than 0.30.
"""

import argparse
import time
from datetime import datetime

from benchmarks.record import publish, record
from benchmarks.server import serving
from controlplane.cli.client import Client, connect
from runner.contract import presets

BEFORE, AFTER = "after stage 0", "after stage 1"
PARSED, GAIN, CONTROL_GAIN, OPTIONS_ALONE = 0.95, 0.15, 0.05, 0.30
RUN_S = 3600


def main(arguments: list[str]) -> None:
    parser = argparse.ArgumentParser(prog="assay prove learning")
    parser.add_argument("seeds", type=int, nargs="*", default=[0, 1, 2])
    parser.add_argument("--runs", nargs="+", default=[], help="finished sample runs and controls to read instead of training")
    options = parser.parse_args(arguments)
    found = publish(summary([outcome(connect(), run) for run in options.runs] if options.runs else train(options.seeds)))
    if broken := found["also"]["broken"]:
        raise SystemExit(f"assay: the claim does not hold: {'; '.join(broken)}")


def train(seeds: list[int]) -> list[dict]:
    """Outcomes of a sample run a seed and of one control, one after the other on a house of their own."""
    with serving(background=True, ray=True) as server:
        client = Client(server.url, (server.house.home / "token").read_text().strip())
        documents = [{**presets.find("sample").start(), "seed": seed} for seed in seeds]
        documents.append(presets.find("sample-shuffled").start())
        for document in documents:
            document["evaluation"] = {**document["evaluation"], "without_question": True}
        return [outcome(client, finished(client, client.post("/runs", document)["id"])) for document in documents]


def finished(client: Client, run: str) -> str:
    """The run, once it has succeeded."""
    deadline = time.monotonic() + RUN_S
    while (state := client.get(f"/runs/{run}")["state"]) != "succeeded":
        if state in ("failed", "stopped", "lost") or time.monotonic() > deadline:
            raise SystemExit(f"assay: run {run} is {state}, expected it to succeed within {RUN_S} s")
        time.sleep(2)
    return run


def outcome(client: Client, run: str) -> dict:
    """Held-out figures of a finished run; every rate is over the evaluation's `n` questions."""
    row, config = client.get(f"/runs/{run}"), client.get(f"/runs/{run}/config")
    found = {evaluation["label"]: evaluation for evaluation in client.get(f"/runs/{run}/evaluations")}
    before, after = found[BEFORE], found[AFTER]
    paired = client.get(f"/evaluations/{before['id']}/compare/{after['id']}", column="forced")
    return {
        "control": config["stages"][1]["reward_control"] != "none",
        "seed": config["seed"],
        "config_hash": row["config_hash"],
        "seconds": round((moment(row["ended_at"]) - moment(row["started_at"])).total_seconds()),
        "n": paired["n"],
        "parsed_before_grpo": before["parsed"]["rate"],
        "forced": {label: rate(evaluation["forced"]) for label, evaluation in found.items()},
        "generated": {label: rate(evaluation["generated"]) for label, evaluation in found.items()},
        "gain": [round(paired[name], 4) for name in ("difference", "low", "high")],
        "options_alone": {label: evaluation["summary"].get("without_question") for label, evaluation in found.items()},
        "chance": after["baselines"],
    }


def moment(text: str) -> datetime:
    return datetime.fromisoformat(text)


def rate(found: dict) -> list[float]:
    """[rate, low, high] of a 95 % Wilson interval."""
    return [round(found[name], 4) for name in ("rate", "low", "high")]


def summary(outcomes: list[dict]) -> dict:
    """The record: ours is the smallest gain of a seed, the peer's figure the control's gain."""
    seeds, controls = [one for one in outcomes if not one["control"]], [one for one in outcomes if one["control"]]
    gains = [one["gain"][0] for one in seeds]
    found = {"seeds": seeds, "controls": controls, "broken": [fault for one in outcomes for fault in faults(one)]}
    settings = {"preset": presets.find("sample").label, "seeds": [one["seed"] for one in seeds]}
    return record("learning", min(gains), controls[0]["gain"][0] if controls else None, "gain in held-out forced choice", settings, found)


def faults(one: dict) -> list[str]:
    """What does not hold of an outcome, in words."""
    name = "control" if one["control"] else f"seed {one['seed']}"
    gain, low, _ = one["gain"]
    told = []
    if one["parsed_before_grpo"] < PARSED:
        told.append(f"{name}: {one['parsed_before_grpo']:.3f} of the answers parse before GRPO, expected {PARSED}")
    if one["control"] and gain >= CONTROL_GAIN:
        told.append(f"{name}: shuffled rewards gain {gain:.3f}, expected less than {CONTROL_GAIN}")
    if not one["control"] and (gain < GAIN or low <= 0):
        told.append(f"{name}: gains {gain:.3f} with a lower bound of {low:.3f}, expected {GAIN} and above 0")
    alone = [value for value in one["options_alone"].values() if value is not None and value > OPTIONS_ALONE]
    return [*told, *(f"{name}: options alone are worth {value:.3f}, expected at most {OPTIONS_ALONE}" for value in alone)]
