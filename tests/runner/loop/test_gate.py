"""What the driver decides between steps and stages, without processes: save before evaluating, and whether a warm start was enough."""

from types import SimpleNamespace

import pytest

from runner.assignment import Refused
from runner.contract.parse import parse
from runner.loop import Loop


class Told:
    def __init__(self):
        self.logs, self.events = [], []

    def log(self, level, message, **_):
        self.logs.append((level, message))

    def event(self, kind, step, data):
        self.events.append((kind, step, data))


def loop_of(gate="warn", stages=None, resume=None, **document):
    stages = stages or [{"type": "sft", "steps": 3, "gate": gate}, {"type": "grpo", "steps": 12}]
    loop = Loop.__new__(Loop)
    loop.config = parse({"name": "x", "stages": stages, **document})
    loop.assignment = SimpleNamespace(resume=resume)
    loop.emitter, loop.step = Told(), 3
    return loop


def test_a_warm_start_without_any_success_is_told_before_rewards_are_learned_from():
    loop = loop_of()
    loop._pass_gate(0, {"val/success_rate": 0.0})
    assert loop.emitter.logs[0][0] == "warning" and "no held-out task succeeded after stage 0" in loop.emitter.logs[0][1]
    assert loop.emitter.events[0][0] == "note"


def test_it_stops_the_run_where_that_was_asked_for_until_somebody_resumes_it():
    with pytest.raises(Refused, match="resume the run to go on all the same") as refused:
        loop_of("stop")._pass_gate(0, {"val/success_rate": 0.0})
    assert refused.value.pointer == "/stages/0/gate"
    loop_of("stop", resume=SimpleNamespace(step=3))._pass_gate(0, {"val/success_rate": 0.0})
    with pytest.raises(Refused):
        loop_of("stop", resume=SimpleNamespace(step=2))._pass_gate(0, {"val/success_rate": 0.0})


@pytest.mark.parametrize(
    ("gate", "stages", "values"),
    [
        ("stop", None, {"val/success_rate": 1 / 140}),
        ("stop", None, {"val/accuracy": 0.2, "val/forced_choice": 0.0}),
        ("stop", None, {"val/forced_choice": 0.0}),
        ("stop", [{"type": "sft", "gate": "stop"}], {"val/success_rate": 0.0}),
        ("off", None, {"val/success_rate": 0.0}),
    ],
)
def test_success_an_unknown_success_the_last_stage_and_an_open_gate_let_it_pass(gate, stages, values):
    loop = loop_of(gate, stages)
    loop._pass_gate(0, values)
    assert loop.emitter.logs == [] == loop.emitter.events


@pytest.mark.parametrize(
    ("checkpoints", "evaluate", "expected"),
    [
        ({}, 4, {4: "save evaluate", 8: "save evaluate"}),
        ({"every_steps": 2}, 4, {2: "save", 4: "save evaluate", 6: "save", 8: "save evaluate"}),
        ({"every_steps": 3}, None, {3: "save", 6: "save"}),
    ],
)
def test_what_is_evaluated_is_saved_first(checkpoints, evaluate, expected):
    loop = loop_of(stages=[{"type": "grpo", "steps": 9}], checkpoints=checkpoints, evaluation={"type": "held_out", "every_steps": evaluate})
    did, loop.evaluator = {}, object()
    for step in range(1, 10):
        order = []
        loop._save = lambda stage, order=order: order.append("save") or "checkpoint"
        loop._evaluate = lambda label, stage, checkpoint, order=order: order.append(f"evaluate{'' if checkpoint else ' nothing'}")
        loop._after_step(0, step, 9)
        if order:
            did[step] = " ".join(order)
    assert did == expected
