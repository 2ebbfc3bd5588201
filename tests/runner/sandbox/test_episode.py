"""Whole episodes in real containers. The `node` fixture fails every test that leaves a container or network; `gone` looks for images and files."""

import asyncio
import json

import pytest

from runner.contract.termination import Termination
from runner.sandbox.base import ArchiveLimits, Network
from runner.sandbox.episode import Budgets, EpisodeRunner
from runner.sandbox.images import tag_of
from runner.sandbox.labels import ATTEMPT, EPISODE, HOUSE, NODE, ROLE
from runner.sandbox.reasons import Reason, SandboxFailure
from runner.sandbox.results import Phase
from tests.runner.sandbox.tasks import BASE, Nop, Shell, rewards, write_task

pytestmark = pytest.mark.docker


async def gone(node, task, folder):
    """No image tag, no half-written file, no slot or episode held."""
    for role in ("agent", "verifier"):
        assert await node.backend.image(tag_of(task, role)) is None
    assert [path for path in folder.rglob("*") if ".part" in path.name] == []
    assert not list((node.folder / "live").iterdir())
    slots = [await node.gate.enter(0) for _ in range(node.gate.slots)]
    for slot in slots:
        slot.release()


class Unique:
    """Tasks of one test differ from all others', so that no image is shared."""

    def __init__(self, folder, house):
        self.folder, self.house = folder, house

    def __call__(self, test=None, **options):
        extra = {"instruction.md": self.house, **options.pop("extra", {})}
        arguments = {"extra": extra, **options}
        return write_task(self.folder / "task", test, **arguments) if test else write_task(self.folder / "task", **arguments)


@pytest.fixture
def task_of(tmp_path, house):
    return Unique(tmp_path, house)


async def test_a_right_answer_passes_through_every_phase(node, runner, task_of, tmp_path):
    events = []
    runner.on_phase = events.append
    task = task_of()
    result = await runner.run(task, Shell(), episode="e", attempt="a")
    assert (result.termination, result.score, result.graded, result.reason) == (Termination.FINISHED, 1.0, True, None)
    assert result.delivered == ("/logs/artifacts/answer",) and result.isolation == "strong" and not result.regraded
    expected = [
        Phase.ADMIT,
        Phase.ENV_SETUP,
        Phase.AGENT_SETUP,
        Phase.AGENT_EXECUTION,
        Phase.COLLECT,
        Phase.VERIFIER,
        Phase.PARSE_REWARD,
        Phase.TEARDOWN,
        Phase.RELEASE,
    ]
    assert [event.phase for event in events if not event.finished] == expected
    assert {event.phase for event in events if event.finished} == set(expected)
    assert all(event.episode == "e" and event.attempt == "a" for event in events)
    assert [event.at for event in events] == sorted(event.at for event in events)
    assert "graded" in result.verifier_output and "graded" in (result.folder / "verifier" / "test-stdout.txt").read_text()
    await gone(node, task, tmp_path)


async def test_nothing_delivered_is_a_true_zero(node, runner, task_of):
    result = await runner.run(task_of(), Nop(), episode="e")
    assert (result.termination, result.score, result.graded, result.delivered) == (Termination.FINISHED, 0.0, True, ())


async def test_tests_are_never_in_the_agents_container_and_artifacts_never_writable_by_the_verifier(node, runner, task_of):
    check = "#!/bin/sh\necho tampered > /logs/artifacts/answer\ncat /logs/artifacts/answer\nls /sys/class/net\necho 1 > /logs/verifier/reward.txt\n"
    agent = Shell("ls -a / /tests /solution /logs/verifier; echo 42 > /logs/artifacts/answer")
    result = await runner.run(task_of(check), agent, episode="e")
    assert "test.sh" not in agent.result.output and b"No such file" in agent.result.stderr
    assert "42" in result.verifier_output.split() and "Read-only" in result.verifier_output
    assert result.verifier_output.split()[-1] != "eth0" and "lo" in result.verifier_output.split()
    assert (result.artifacts / "logs/artifacts/answer").read_text() == "42\n"


async def test_mounted_tests_are_read_only(node, runner, task_of):
    check = "#!/bin/sh\necho x > /tests/test.sh || echo 0.5 > /logs/verifier/reward.txt\n"
    result = await runner.run(task_of(check, tests_dockerfile=None), Nop(), episode="e")
    assert result.score == 0.5


async def test_a_shared_verifier_meets_no_process_of_the_agents(node, runner, task_of):
    script = "(while true; do rm -rf /logs/verifier /tests; done) > /dev/null 2>&1 & echo 42 > /logs/artifacts/answer; mkdir /tests; echo 'exit' > /tests/test.sh"
    result = await runner.run(task_of(verifier=None, tests_dockerfile=None), Shell(script), episode="e")
    assert (result.termination, result.score, result.verifier_mode) == (Termination.FINISHED, 1.0, "shared")


async def test_everything_carries_its_owners_labels(node, runner, task_of, house):
    async with runner.open(task_of(environment='network_mode = "public"'), episode="e", attempt="a") as episode:
        assert episode.container.spec.network is Network.PUBLIC
        for labels in await node.backend.attached({}):
            assert {HOUSE: house, NODE: "here", EPISODE: "e", ATTEMPT: "a"}.items() <= labels.items()
        assert (await node.backend.attached({ROLE: "agent"}))[0][EPISODE] == "e"


async def test_an_environment_can_act_step_by_step(node, runner, task_of):
    async with runner.open(task_of(), episode="e") as episode:
        await episode.container.exec(["sh", "-c", "echo 42 > /logs/artifacts/answer"], timeout=10)
        result = await episode.grade(Termination.MAX_TURNS_EXCEEDED)
    assert (result.termination, result.score) == (Termination.MAX_TURNS_EXCEEDED, 1.0)


async def test_what_was_delivered_when_the_time_was_up_is_graded(node, runner, task_of):
    task = task_of(agent_timeout=1)
    result = await runner.run(task, Shell("echo 42 > /logs/artifacts/answer; sleep 60"), episode="e")
    assert (result.termination, result.reason, result.score) == (Termination.AGENT_TIMEOUT, Reason.AGENT_TIMEOUT, 1.0)


class Broken(Nop):
    name = "broken"

    def __init__(self, setup=None, run=None):
        self.fails = {"setup": setup, "run": run}

    async def setup(self, container, task):
        if self.fails["setup"]:
            raise self.fails["setup"]

    async def run(self, container, task, budget):
        await container.exec(["sh", "-c", "echo 42 > /logs/artifacts/answer"], timeout=10)
        raise self.fails["run"]


async def test_a_setup_that_fails_is_no_episode(node, runner, task_of, tmp_path):
    failure = SandboxFailure(Reason.AGENT_SETUP_FAILED, "tmux: not in the image")
    task = task_of()
    result = await runner.run(task, Broken(setup=failure), episode="e")
    assert (result.termination, result.reason, result.score) == (Termination.ROLLOUT_ERROR, Reason.AGENT_SETUP_FAILED, None)
    assert "tmux" in result.detail
    await gone(node, task, tmp_path)


async def test_a_setup_that_hangs_has_its_budget(node, runner, task_of):
    class Hanging(Nop):
        async def setup(self, container, task):
            await asyncio.sleep(60)

    runner.budgets = Budgets(agent_setup=0.5)
    result = await runner.run(task_of(), Hanging(), episode="e")
    assert (result.termination, result.reason) == (Termination.ROLLOUT_ERROR, Reason.AGENT_SETUP_TIMEOUT)


async def test_an_agent_that_crashes_leaves_its_artifacts_for_a_regrade(node, task_of, tmp_path):
    runner = EpisodeRunner(node, tmp_path / "jobs")
    task = task_of()
    result = await runner.run(task, Broken(run=KeyError("x")), episode="e")
    assert (result.termination, result.reason, result.score) == (Termination.UNKNOWN, Reason.UNCLASSIFIED, None)
    assert "KeyError" in result.detail
    again = await runner.regrade(task, result.artifacts, episode="e")
    assert (again.score, again.regraded, again.termination) == (1.0, True, Termination.FINISHED)
    assert again.delivered == result.delivered == ("/logs/artifacts/answer",)
    missing = await runner.regrade(task, tmp_path / "nowhere", episode="e")
    assert (missing.termination, missing.reason, missing.score) == (Termination.VERIFIER_ERROR, Reason.PATH_MISSING, None)
    for role in ("agent", "verifier"):
        await node.backend.remove_image(tag_of(task, role))


async def test_a_verifier_that_fails_once_is_asked_once_more(node, runner, task_of, tmp_path):
    """The second container tells itself from the first by what only the first could have left: nothing. So the file is the judge's clock."""
    task = task_of("#!/bin/sh\n[ -e /tests/mended ] && echo 0.75 > /logs/verifier/reward.txt\n", tests_dockerfile=None)

    def mend(event):
        if event.phase is Phase.REGRADE and not event.finished:
            (task.tests / "mended").touch()

    runner.on_phase = mend
    result = await runner.run(task, Nop(), episode="e")
    assert (result.termination, result.score, result.regraded) == (Termination.FINISHED, 0.75, True)
    assert result.verifier_reason is Reason.REWARD_MISSING


HOG = "#!/bin/sh\ntail /dev/zero\n"
BAD_VERIFIERS = {
    "hangs": ("#!/bin/sh\nsleep 600\n", Reason.VERIFIER_TIMEOUT, Termination.VERIFIER_TIMEOUT),
    "prints a gigabyte": ("#!/bin/sh\nyes | head -c 1000000000\n", Reason.VERIFIER_OUTPUT_FLOOD, Termination.VERIFIER_ERROR),
    "is killed by memory": (HOG, Reason.VERIFIER_OUT_OF_MEMORY, Termination.VERIFIER_ERROR),
    "hangs on a solver killed by memory": (HOG + "sleep 600\n", Reason.VERIFIER_OUT_OF_MEMORY, Termination.VERIFIER_ERROR),
    "kills its container": ("#!/bin/sh\nkill -9 -1\nsleep 60\n", Reason.VERIFIER_DIED, Termination.VERIFIER_ERROR),
    "writes nothing": ("#!/bin/sh\nexit 0\n", Reason.REWARD_MISSING, Termination.VERIFIER_ERROR),
    "writes an empty file": ("#!/bin/sh\n: > /logs/verifier/reward.json\n", Reason.REWARD_EMPTY, Termination.VERIFIER_ERROR),
    "writes NaN": (rewards('{"reward": NaN}'), Reason.REWARD_NOT_FINITE, Termination.VERIFIER_ERROR),
    "writes text": (rewards({"reward": "very good"}), Reason.REWARD_NOT_NUMERIC, Termination.VERIFIER_ERROR),
    "writes half a file": (rewards('{"reward": 1.0'), Reason.REWARD_UNPARSABLE, Termination.VERIFIER_ERROR),
    "writes too much": (
        "#!/bin/sh\nhead -c 9000000 /dev/zero > /logs/verifier/reward.json\n",
        Reason.REWARD_TOO_LARGE,
        Termination.VERIFIER_ERROR,
    ),
    "writes a link": ("#!/bin/sh\nln -s /etc/passwd /logs/verifier/reward.json\n", Reason.REWARD_UNPARSABLE, Termination.VERIFIER_ERROR),
    "says it crashed": (rewards({"reward": 0, "grader_error": 1}), Reason.GRADER_ERROR, Termination.VERIFIER_ERROR),
    "forgets the key": (rewards({"other": 1}), Reason.REWARD_KEY_MISSING, Termination.VERIFIER_ERROR),
}


@pytest.mark.parametrize("name", BAD_VERIFIERS)
async def test_a_verifier_that(node, runner, task_of, tmp_path, name):
    script, reason, termination = BAD_VERIFIERS[name]
    runner.regrade_once = False
    task = task_of(script, verifier_timeout=3 if "hangs" in name else 60)
    result = await runner.run(task, Shell(), episode="e")
    assert (result.termination, result.reason, result.verifier_reason) == (termination, reason, reason), result.detail
    assert result.score is None and not result.graded and result.agent_termination is Termination.FINISHED
    assert (result.artifacts / "logs/artifacts/answer").read_text() == "42\n"
    assert len(result.verifier_output) < 1 << 20
    await gone(node, task, tmp_path)


async def test_how_the_agent_ended_outranks_a_failed_verifier(node, runner, task_of):
    runner.regrade_once = False
    result = await runner.run(task_of("#!/bin/sh\n"), Shell(ends=Termination.MAX_TURNS_EXCEEDED), episode="e")
    assert (result.termination, result.verifier_reason, result.score) == (Termination.MAX_TURNS_EXCEEDED, Reason.REWARD_MISSING, None)


BAD_DELIVERIES = {
    "a link out of its folder": ("ln -s /etc/shadow /logs/artifacts/answer", Reason.ARCHIVE_UNSAFE_PATH),
    "five gigabytes": ("truncate -s 5G /logs/artifacts/answer", Reason.ARCHIVE_TOO_LARGE),
    "a pipe": ("mkfifo /logs/artifacts/answer", Reason.ARCHIVE_SPECIAL_FILE),
    "a thousand files": ("i=0; while [ $i -lt 1000 ]; do : > /logs/artifacts/$i; i=$((i+1)); done", Reason.ARCHIVE_TOO_MANY_FILES),
}


@pytest.mark.parametrize("name", BAD_DELIVERIES)
async def test_an_agent_that_delivers(node, runner, task_of, tmp_path, name):
    script, reason = BAD_DELIVERIES[name]
    runner.budgets = Budgets(artifacts=ArchiveLimits(total_bytes=1 << 30, entries=500))
    task = task_of(environment='network_mode = "no-network"\nmemory_mb = 128\nstorage_mb = 8192')
    result = await runner.run(task, Shell(script), episode="e")
    assert (result.termination, result.reason, result.score) == (Termination.VERIFIER_ERROR, reason, None), result.detail
    assert json.loads((result.artifacts / "manifest.json").read_text())[0]["status"] == "failed"
    assert [path.name for path in result.artifacts.rglob("*") if path.name != "logs"] == ["manifest.json"]
    await gone(node, task, tmp_path)


BAD_TASKS = {
    "whose build fails": ({"dockerfile": f"FROM {BASE}\nRUN exit 9\n"}, Reason.BUILD_FAILED, Termination.ROLLOUT_ERROR),
    "whose image is missing": ({"environment": 'docker_image = "assay/never-built:1"'}, Reason.IMAGE_MISSING, Termination.ROLLOUT_ERROR),
    "that is never healthy": (
        {"environment": 'network_mode = "no-network"\nhealthcheck = {command = "exit 1", interval_sec = 0.1}'},
        Reason.HEALTHCHECK_FAILED,
        Termination.ROLLOUT_ERROR,
    ),
}


@pytest.mark.parametrize("name", BAD_TASKS)
async def test_a_task(node, runner, task_of, tmp_path, name):
    options, reason, termination = BAD_TASKS[name]
    task = task_of(**options)
    result = await runner.run(task, Nop(), episode="e")
    assert (result.termination, result.reason, result.score, result.agent_termination) == (termination, reason, None, None), result.detail
    await gone(node, task, tmp_path)


async def test_a_task_with_a_link_out_of_its_context(node, runner, task_of, tmp_path):
    task = task_of()
    (tmp_path / "task" / "environment" / "link").symlink_to("/etc/passwd")
    result = await runner.run(task, Nop(), episode="e")
    assert (result.termination, result.reason) == (Termination.ENV_BAD_TASK, Reason.CONTEXT_UNSAFE)
    await gone(node, task, tmp_path)


async def test_a_verifier_that_cannot_be_built_keeps_the_agents_work(node, runner, task_of, tmp_path):
    task = task_of(tests_dockerfile=f"FROM {BASE}\nRUN exit 1\n")
    result = await runner.run(task, Shell(), episode="e")
    assert (result.termination, result.verifier_reason, result.score) == (Termination.VERIFIER_ERROR, Reason.VERIFIER_BUILD_FAILED, None)
    assert (result.artifacts / "logs/artifacts/answer").read_text() == "42\n"
    await gone(node, task, tmp_path)


async def test_a_container_that_ran_out_of_memory_as_a_whole_is_named(node, runner, task_of):
    class Killer(Nop):
        async def run(self, container, task, budget):
            await container.kill()
            await container.exec(["true"], timeout=5)

    result = await runner.run(task_of(), Killer(), episode="e")
    assert (result.termination, result.reason, result.score) == (Termination.ENV_CRASH, Reason.CONTAINER_DIED, None)


async def test_the_backstop_ends_an_agent_without_a_limit_of_its_own(node, runner, task_of):
    runner.budgets = Budgets(backstop=-58.0)
    result = await runner.run(task_of(agent_timeout=60, verifier_timeout=1), Shell("sleep 50"), episode="e")
    assert (result.termination, result.reason) == (Termination.AGENT_TIMEOUT, Reason.BACKSTOP)


@pytest.mark.parametrize("phase", [Phase.ENV_SETUP, Phase.AGENT_EXECUTION, Phase.COLLECT, Phase.VERIFIER, Phase.PARSE_REWARD])
async def test_a_cancelled_episode_is_torn_down_whatever_it_was_doing(node, runner, task_of, tmp_path, phase):
    begun = asyncio.Event()
    runner.on_phase = lambda event: begun.set() if event.phase is phase else None
    task = task_of("#!/bin/sh\nsleep 1\necho 1 > /logs/verifier/reward.txt\n")
    running = asyncio.create_task(runner.run(task, Shell("sleep 1"), episode="e"))
    await begun.wait()
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running
    await gone(node, task, tmp_path)


async def test_a_slot_is_free_only_after_teardown(node, runner, task_of):
    order = []
    runner.on_phase = lambda event: order.append((event.episode, event.phase, event.finished))
    node.gate.slots = 1
    task = task_of()
    await asyncio.gather(*(runner.run(task, Nop(), episode=name) for name in ("one", "two")))
    first = next(episode for episode, phase, finished in order if phase is Phase.ADMIT and finished)
    second = "two" if first == "one" else "one"
    assert (
        order.index((first, Phase.TEARDOWN, True))
        < order.index((second, Phase.ADMIT, True))
        < order.index((second, Phase.ENV_SETUP, False))
    )


async def test_a_node_that_is_full_says_so(node, runner, task_of):
    node.gate.slots = 1
    held = await node.gate.enter(0)
    runner.budgets = Budgets(admit=0.2)
    result = await runner.run(task_of(), Nop(), episode="e")
    assert (result.termination, result.reason) == (Termination.ROLLOUT_ERROR, Reason.ADMIT_TIMEOUT)
    held.release()


async def test_an_image_is_built_once_for_all_episodes_of_a_task(node, task_of, tmp_path):
    runner = EpisodeRunner(node, tmp_path / "jobs")
    task = task_of()
    results = await asyncio.gather(*(runner.run(task, Shell(), episode=str(index)) for index in range(3)))
    assert [result.score for result in results] == [1.0] * 3
    built = node.backend.engine.inspect_image(tag_of(task, "agent"))["Id"]
    assert (await runner.run(task, Nop(), episode="again")).score == 0.0
    assert node.backend.engine.inspect_image(tag_of(task, "agent"))["Id"] == built
    for role in ("agent", "verifier"):
        await node.backend.remove_image(tag_of(task, role))


async def test_other_artifacts_reach_the_verifier_at_their_own_paths(node, runner, task_of, tmp_path):
    check = '#!/bin/sh\n[ "$(cat /app/out/x)" = 7 ] && [ ! -e /app/none ] && echo 1 > /logs/verifier/reward.txt\n'
    write_task(tmp_path / "task", check)
    manifest = (tmp_path / "task" / "task.toml").read_text()
    (tmp_path / "task" / "task.toml").write_text('artifacts = ["/app/out", "/app/none"]\n' + manifest)
    from runner.sandbox.task import load_task

    result = await runner.run(load_task(tmp_path / "task"), Shell("mkdir /app/out; echo 7 > /app/out/x"), episode="e")
    assert result.score == 1.0, result.detail
    statuses = {entry["source"]: entry["status"] for entry in json.loads((result.artifacts / "manifest.json").read_text())}
    assert statuses == {"/logs/artifacts": "empty", "/app/out": "ok", "/app/none": "failed"}
