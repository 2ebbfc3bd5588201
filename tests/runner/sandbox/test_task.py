import pytest

from runner.repair.files import read_files
from runner.sandbox.base import Network
from runner.sandbox.reasons import Reason, SandboxFailure
from runner.sandbox.task import load_task
from tests.runner.sandbox.tasks import write_task


def test_a_verifier_of_its_own_has_no_network_and_its_own_limits(tmp_path):
    task = write_task(tmp_path, environment='network_mode = "public"\nmemory_mb = 256', verifier='memory_mb = 512\nnetwork_mode = "public"')
    assert task.separate and task.tests is None
    assert task.verifier.network is Network.NONE
    assert (task.agent.limits.memory_mb, task.verifier.limits.memory_mb) == (256, 512)


def test_tests_without_a_dockerfile_run_in_a_fresh_copy_of_the_agents_image(tmp_path):
    task = write_task(tmp_path, tests_dockerfile=None)
    assert task.verifier.folder == task.agent.folder
    assert task.tests == tmp_path / "tests"


def test_without_a_verifier_environment_the_tests_share_the_agents_container(tmp_path):
    assert not write_task(tmp_path, verifier=None).separate


def test_defaults_are_the_formats(tmp_path):
    (tmp_path / "task.toml").write_text('[task]\nname = "demo/x"\n')
    task = load_task(tmp_path)
    assert task.agent.build_timeout == 600 and task.verifier_timeout == 600
    assert task.agent_timeout is None and task.agent.network is Network.PUBLIC


@pytest.mark.parametrize(
    ("lines", "memory", "network"),
    [
        ('memory = "2G"', 2048, Network.PUBLIC),
        ('memory = "512MB"\nallow_internet = false', 512, Network.NONE),
        ("memory_mb = 77", 77, Network.PUBLIC),
    ],
)
def test_older_spellings_are_read(lines, memory, network, tmp_path):
    task = write_task(tmp_path, environment=lines)
    assert (task.agent.limits.memory_mb, task.agent.network) == (memory, network)


def test_the_healthcheck_of_a_task_is_read(tmp_path):
    task = write_task(tmp_path, environment='memory_mb = 64\nhealthcheck = {command = "true", interval_sec = 1.5, retries = 7}')
    assert (task.agent.healthcheck.command, task.agent.healthcheck.interval, task.agent.healthcheck.retries) == ("true", 1.5, 7)


@pytest.mark.parametrize(
    ("lines", "named"),
    [('network_mode = "lan"', "network_mode"), ('memory = "lots"', "environment.memory")],
)
def test_what_cannot_be_read_is_named(lines, named, tmp_path):
    with pytest.raises(SandboxFailure, match=named) as caught:
        write_task(tmp_path, environment=lines)
    assert caught.value.reason is Reason.CONTEXT_MISSING


def test_several_steps_are_refused(tmp_path):
    write_task(tmp_path)
    with open(tmp_path / "task.toml", "a") as manifest:
        manifest.write("[[steps]]\nname = 'one'\n")
    with pytest.raises(SandboxFailure, match="steps"):
        load_task(tmp_path)


def test_a_missing_task_is_a_named_failure(tmp_path):
    with pytest.raises(SandboxFailure, match="compile") as caught:
        load_task(tmp_path / "gone")
    assert caught.value.reason is Reason.CONTEXT_MISSING


def test_the_canary_is_not_shown(tmp_path):
    write_task(tmp_path, extra={"instruction.md": "<!-- canary GUID 1 -->\n# demo-canary 2\n\n# Title\ncanary later stays\n"})
    assert load_task(tmp_path).instruction == "# Title\ncanary later stays\n"


def test_the_digest_is_the_banks(tmp_path):
    task = write_task(tmp_path)
    assert task.digest == read_files(tmp_path).digest
    (tmp_path / "instruction.md").chmod(0o755)
    assert load_task(tmp_path).digest != task.digest


def test_a_task_with_a_link_out_of_its_folder_is_refused(tmp_path):
    write_task(tmp_path)
    (tmp_path / "tests" / "key").symlink_to("/etc/passwd")
    with pytest.raises(SandboxFailure, match="tests/key") as caught:
        load_task(tmp_path)
    assert caught.value.reason is Reason.CONTEXT_UNSAFE
