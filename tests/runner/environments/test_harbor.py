"""Container episodes end to end on a toy repair, in sandboxes of processes and in real containers."""

import asyncio
import json
import secrets
import shutil
from types import SimpleNamespace

import pytest

from runner.agents.anchors import Nop, Oracle
from runner.contract.atif import read_trajectory
from runner.contract.run_config import HarborEnvironment as Settings
from runner.contract.run_config import MenuAgent, TerminalAgent
from runner.contract.termination import Termination
from runner.environments.base import EnvironmentFailure
from runner.environments.harbor import is_drilled
from runner.policies.base import SamplingParams
from runner.policies.scripted import ScriptedPolicy
from runner.rollouts.episodes import Job
from runner.rollouts.groups import training_orders
from runner.rollouts.turns import TurnLoop
from runner.rollouts.workflow import GroupWorkflow
from runner.sandbox.task import load_task
from tests.runner.environments.toy_repair import FIX, Toy, numbered
from tests.runner.sandbox.test_process_backend import why_not
from tests.runner.tiny_models import tiny_tokenizer

PROCESS = pytest.param("process", marks=pytest.mark.skipif(why_not() is not None, reason=str(why_not())))
DOCKER = pytest.param("docker", marks=pytest.mark.docker)


@pytest.fixture(params=[PROCESS, DOCKER])
def backend(request):
    if request.param == "docker":
        request.getfixturevalue("scratch_image")
    return request.param


@pytest.fixture
def toy(tmp_path, backend, monkeypatch):
    """toy(**settings) with a site of its own."""
    monkeypatch.setenv("ASSAY_NODE_FOLDER", str(tmp_path))

    def make(task=None, **settings):
        settings = Settings(backend=backend, **{"agent": MenuAgent(), **settings})
        return Toy(tmp_path, settings, f"test-{secrets.token_hex(4)}", **(task or {}))

    return make


def pick(text, *wanted):
    """The number of the first wanted option that is offered."""
    options = numbered(text)
    return next(options[option] for option in wanted if option in options)


async def play(toy, *wanted, seed=1):
    """One episode that chooses by preference; its grade and environment."""
    async with toy.site.open():
        environment = toy.environment()
        try:
            step = SimpleNamespace(observation=await environment.start(toy.task, seed), done=False)
            while not step.done:
                step = await environment.step(pick(step.observation.messages[-1]["content"], *wanted))
            grade = await environment.grade()
        finally:
            await environment.close()
    return grade, environment, step


async def test_the_repair_is_worth_everything_and_is_told_whole(toy, backend):
    toy = toy(hint_level="L2")
    grade, environment, _ = await play(toy, FIX["file"], FIX["label"], "keep the edit")
    assert (grade.score, grade.termination, grade.checks) == (1.0, None, {"check_heat_32": 1.0})
    assert grade.evidence["floor"] == 0.35 and "+a + b" in grade.evidence["patch"] and "graded" in grade.evidence["verifier_output"]
    facts = environment.facts
    assert facts["delivered"] and not facts["regraded"] and facts["isolation"] == {"process": "weak", "docker": "strong"}[backend]
    assert {"admit", "env_setup", "agent_setup", "agent_execution", "collect", "verifier", "teardown"} <= set(facts["phases"])
    assert [event.phase for event in toy.events if event.finished][-1] == "release"
    trajectory = read_trajectory(json.loads((environment._episode.folder / "agent" / "trajectory.json").read_text()))
    assert [call for turn in trajectory.turns for call, _ in turn.calls] == ["choose_file", "apply_edit", "keep_edit"]
    assert "repair of heat\n\nIn src/flux.txt.\n\nWhich file" in trajectory.prompt
    assert "heat-32 energy: ok" in trajectory.turns[1].observation


async def test_another_edit_is_worth_the_floor_and_shows_in_the_checks(toy):
    grade, environment, _ = await play(toy(), FIX["file"], "c is four", "keep the edit")
    assert (grade.score, grade.evidence["rewards"]["reward"]) == (0.0, 0.35)
    assert "heat-32 energy: WRONG" in environment._agent.actions[1].observation


async def test_a_revised_edit_replaces_the_first(toy):
    grade, environment, _ = await play(toy(), FIX["file"], "c is four", "revise: choose another edit", f"{FIX['file']}: {FIX['label']}")
    assert grade.score == 1.0 and len(environment._agent.actions) == 4
    (delivered,) = environment._episode.folder.rglob("flux.txt")
    assert delivered.read_text() == "a + b\nc = 3\nd = 1\n"


async def test_what_names_no_option_costs_a_turn_and_delivers_nothing(toy):
    toy = toy(agent=MenuAgent(max_turns=2))
    async with toy.site.open():
        environment = toy.environment()
        await environment.start(toy.task, 1)
        step = await environment.step("the first")
        assert "one number from 1 to 2" in step.observation.messages[0]["content"]
        step = await environment.step("7")
        assert step.done and step.termination is Termination.MAX_TURNS_EXCEEDED
        grade = await environment.grade()
        await environment.close()
    assert (grade.score, grade.termination) == (0.0, Termination.MAX_TURNS_EXCEEDED) and not environment.facts["delivered"]


async def test_options_are_shuffled_by_seed_and_the_repair_is_always_offered(toy):
    toy = toy(agent=MenuAgent(max_edits=2))
    first = [(await toy.environment().preview(toy.task, seed))[0]["content"] for seed in (1, 1, 2, 3, 4)]
    assert first[0] == first[1] and len(set(first)) == 2, "two files have two orders"
    for seed in range(6):
        grade, *_ = await play(toy, FIX["file"], FIX["label"], "keep the edit", seed=seed)
        assert grade.score == 1.0


async def test_a_verifier_that_fails_is_asked_again_and_then_a_missing_reward(toy):
    """12.3: no score, verifier_error, the episode's turns stand."""
    grade, environment, _ = await play(toy(task={"test": "#!/bin/sh\nexit 1\n"}), FIX["file"], FIX["label"], "keep the edit")
    assert grade.score is None and grade.termination is Termination.VERIFIER_ERROR
    assert environment.facts["regraded"] and grade.evidence["sandbox_reason"] == "reward_missing"


async def test_a_spent_clock_ends_the_episode_and_what_was_done_is_graded(toy):
    toy = toy(task_timeout_sec=3)
    async with toy.site.open():
        environment = toy.environment()
        observation = await environment.start(toy.task, 1)
        step = await environment.step(pick(observation.messages[0]["content"], FIX["file"]))
        step = await environment.step(pick(step.observation.messages[0]["content"], FIX["label"]))
        await asyncio.sleep(3.5)
        step = await environment.step("1")
        assert step.done and step.termination is Termination.AGENT_TIMEOUT
        grade = await environment.grade()
        await environment.close()
    assert (grade.score, grade.termination) == (1.0, Termination.AGENT_TIMEOUT)


async def test_files_that_are_gone_are_a_bad_task(toy):
    toy = toy(task={"task_digest": "f" * 64})
    async with toy.site.open():
        environment = toy.environment()
        with pytest.raises(EnvironmentFailure, match="E13") as caught:
            await environment.start(toy.task, 1)
        await environment.close()
    assert caught.value.termination is Termination.ENV_BAD_TASK


async def test_a_task_without_a_menu_cannot_be_answered(toy):
    toy = toy(task={"menu": []})
    async with toy.site.open():
        environment = toy.environment()
        with pytest.raises(EnvironmentFailure, match="menu") as caught:
            await environment.start(toy.task, 1)
        await environment.close()
    assert caught.value.termination is Termination.ROLLOUT_ERROR


async def test_the_oracle_is_worth_everything_and_nop_nothing(toy):
    """12.2"""
    toy = toy()
    async with toy.site.open():
        task = load_task(toy.site.tasks.folder(toy.task.payload["task_digest"]), "reward_repair")
        results = [await toy.site.runner.run(task, agent(), episode=agent.name) for agent in (Oracle, Nop)]
    assert [(result.score, result.detail) for result in results] == [(1.0, ""), (0.0, "")]
    assert [result.rewards["reward"] for result in results] == [1.0, 0.0]
    assert (results[0].folder / "agent" / "oracle.txt").exists()


async def test_the_drill_hits_a_fixed_share_of_episodes(toy):
    assert 0.07 < sum(is_drilled(f"episode-{number}", 0.1) for number in range(2000)) / 2000 < 0.13
    toy = toy(verifier_fault_rate=1.0)
    grade, *_ = await play(toy, FIX["file"], FIX["label"], "keep the edit")
    assert grade.score is None and grade.termination is Termination.VERIFIER_ERROR and "drill" in grade.reason


# ---------------------------------------------------------------- token by token
TOKENIZER = tiny_tokenizer()


def scripted(*wanted):
    """A policy that reads the last question in its prompt and answers by preference."""

    def script(prompt, seed):
        asked = TOKENIZER.decode(prompt, skip_special_tokens=True)
        question = asked[max(asked.rfind(words) for words in ("Which", "build: ok", "Answer with")) :]
        return [*TOKENIZER.encode(pick(question, *wanted), add_special_tokens=False), TOKENIZER.eos_token_id]

    return ScriptedPolicy(script, stop_tokens=[TOKENIZER.eos_token_id])


def test_episodes_of_a_group_act_at_their_own_pace_under_a_limit(toy):
    toy = toy(max_concurrent_episodes=2)
    orders = training_orders(GroupWorkflow([toy.task.key], 3, 3, 1, 1).episodes(1), attempt="1", stage=0, run_seed=1)
    policy = scripted(FIX["file"], FIX["label"], "keep the edit")
    loop = TurnLoop(policy, TOKENIZER, {toy.task.key: toy.task}, toy.environment, max_length=2048, worker="worker-0", limit=2)

    async def run():
        async with toy.site.open():
            return await loop.run(Job(tuple(orders), SamplingParams(max_new_tokens=4)), 7)

    outcomes = asyncio.run(run()).outcomes
    for outcome in outcomes:
        sample = outcome.sample
        assert (outcome.termination, sample.reward, sample.turns, sample.forks) == (Termination.FINISHED, 1.0, 3, ()), outcome.error
        assert [turn.role for turn in outcome.turns] == ["user", "assistant"] * 3
        assert sample.response_length == 6 and sample.loss_mask.sum() == 6
        assert outcome.facts["delivered"] and outcome.facts["phases"]["verifier"] > 0
    under_way = most = 0
    for event in sorted((event for event in toy.events if event.phase in ("env_setup", "release")), key=lambda event: event.at):
        under_way += (event.phase == "env_setup" and not event.finished) - (event.phase == "release" and event.finished)
        most = max(most, under_way)
    assert most == 2 and under_way == 0


@pytest.mark.skipif(not shutil.which("tmux"), reason="this machine has no tmux")
async def test_the_terminal_agent_repairs_through_keystrokes(toy, backend):
    if backend == "docker":
        pytest.skip("the scratch image has no tmux; the sample bank's images have (test_sample_bank)")
    toy = toy(agent=TerminalAgent(max_turns=6), hint_level="L1")
    replies = [
        {"analysis": "", "plan": "", "commands": [{"keystrokes": "sed -i 's/a - b/a + b/' /app/heat/src/flux.txt\n", "duration": 0.5}]},
        {
            "analysis": "",
            "plan": "",
            "commands": [{"keystrokes": "/app/tools/check; /app/tools/deliver\n", "duration": 0.8}],
            "task_complete": True,
        },
        {"analysis": "", "plan": "", "commands": [], "task_complete": True},
    ]
    async with toy.site.open():
        environment = toy.environment()
        observation = await environment.start(toy.task, 1)
        assert "Mend the sign.\n\nIn src/flux.txt, line 1." in observation.messages[0]["content"]
        steps = [await environment.step(json.dumps(reply)) for reply in replies]
        grade = await environment.grade()
        await environment.close()
    assert steps[-1].done and grade.score == 1.0, grade
