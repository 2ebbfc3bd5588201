import gzip
import json
from pathlib import Path

import pytest

from runner.contract.bank import Task
from runner.contract.run_config import ScienceWorldEnvironment as Settings
from runner.contract.scienceworld import kind_of
from runner.environments.scienceworld.environment import ScienceWorldEnvironment
from runner.environments.scienceworld.java import JavaMissing, find_java
from runner.environments.scienceworld.pool import Pool
from runner.environments.scienceworld.prompts import reply

DATA = Path(__file__).parents[5] / "shared" / "data"


def task(name, variation, split="train"):
    kind = kind_of(name)
    payload = {"task_id": kind.id, "task": kind.name, "topic": kind.topic, "title": kind.title, "variation": variation}
    return Task(key=f"{kind.id}/{variation}", split=split, domain=kind.topic, level=kind.id, family=kind.name, payload=payload)


@pytest.fixture(scope="session")
def java():
    try:
        return find_java()
    except JavaMissing as missing:
        pytest.skip(str(missing))


@pytest.fixture(scope="module")
def folder(java, tmp_path_factory):
    return tmp_path_factory.mktemp("simulators")


@pytest.fixture(scope="module")
def pool(folder):
    """One simulator that the module's tests take turns in."""
    pool = Pool(Settings(boot_timeout_sec=300, load_timeout_sec=300, step_timeout_sec=120), folder, size=1)
    yield pool
    pool.close()


@pytest.fixture
def make(pool):
    """An environment in the module's simulator, under settings that differ by what is given."""
    return lambda **changes: ScienceWorldEnvironment(pool.settings.model_copy(update=changes), pool)


@pytest.fixture(scope="session")
def tasks_file():
    path = DATA / "scienceworld_tasks.json"
    if not path.exists():
        pytest.skip(f"{path.name} is not beside this checkout")
    return json.loads(path.read_text())


@pytest.fixture(scope="session")
def gold_file():
    path = DATA / "scienceworld_gold.jsonl.gz"
    if not path.exists():
        pytest.skip(f"{path.name} is not beside this checkout")
    with gzip.open(path) as lines:
        return [json.loads(line) for line in lines]


async def act(environment, *actions):
    """The last step's answer to these commands."""
    for action in actions:
        step = await environment.step(reply(action, "so"))
    return step
