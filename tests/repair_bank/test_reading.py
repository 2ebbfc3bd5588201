"""The preset's warm start on the sample bank, by the learner itself: it reads hints, which no lesson shows."""

import numpy as np
import pytest

from runner.agents.menu import Dialogue, offered
from runner.contract import presets
from runner.contract.bank import write_bank
from runner.contract.run_config import RunConfig
from runner.environments.repair_bank import BANK
from runner.environments.repair_menu import instruction
from runner.importers.harbor import opened
from runner.learning.learner import Learner
from runner.models import assay_tiny
from runner.models.prompts import completion_ids, prompt_ids
from runner.policies.transformers import TransformersPolicy

EPISODES_OF_A_TASK = 4


@pytest.mark.slow
def test_the_menu_s_warm_start_reads_the_file_that_a_hint_names(tmp_path):
    config = RunConfig.model_validate(presets.find("repair-menu-tiny").start() | {"seed": 1})
    with opened(str(BANK), is_sparse=True) as bank:
        data, lessons = write_bank([*bank.tasks, *bank.demonstrations])[0], bank.demonstrations
        payloads = [entry.payload for entry in bank.report.bank.entries if entry.payload.menu and entry.payload.tier == "easy"]
    folder = assay_tiny.ensure(tmp_path, data, config.seed, config.model.source.name)
    learner, policy = Learner(config, folder), TransformersPolicy(folder, config.model, seed=config.seed)
    learner.begin_stage(0, lessons)
    for step in range(1, config.stages[0].steps + 1):
        learner.learn(step)
    policy.load_weights(learner.weights())
    right, chance = zip(*(read(policy, learner.tokenizer, payload, seed) for seed, payload in enumerate(payloads * EPISODES_OF_A_TASK)))
    # Three seeds read three quarters and more.
    assert np.mean(right) > 0.5 > 2 * np.mean(chance)


def read(policy: TransformersPolicy, tokenizer, payload, seed: int) -> tuple[bool, float]:
    """Whether the number of the file that the hint names is the likeliest one, and how often a blind choice would be right."""
    dialogue = Dialogue(offered(payload.menu, None, 2, seed), 2, seed)
    menu = dialogue.first()
    prompt = prompt_ids(tokenizer, f"{instruction(payload, 'L2')}\n\n{menu.text}")
    numbers = [completion_ids(tokenizer, str(number)) for number in range(1, dialogue.options + 1)]
    (scores,) = policy.choice_logprobs([prompt], [numbers])
    return menu.options[int(np.argmax(scores))] in payload.hints["L2"], 1 / dialogue.options
