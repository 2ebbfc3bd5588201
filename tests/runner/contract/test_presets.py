"""Every preset is a valid run, and the published one carries the published numbers."""

import pytest

from runner.contract.presets import PRESETS, as_config, find


@pytest.mark.parametrize("preset", PRESETS.values(), ids=PRESETS)
def test_every_preset_is_a_complete_run_that_names_itself(preset):
    config = as_config(preset)
    assert config.preset == f"{preset.name}@{preset.version}"
    assert preset.sources and all(pointer.startswith("/") for pointer in preset.sources)


@pytest.mark.parametrize("preset", PRESETS.values(), ids=PRESETS)
def test_every_source_points_at_a_value(preset):
    for pointer in preset.sources:
        node = preset.document
        for part in pointer[1:].split("/"):
            node = node[int(part)] if isinstance(node, list) else node[part]


def test_the_published_sciknoweval_run_has_its_form():
    config = as_config(find("sciknoweval-qwen3-8b"))
    (stage,) = config.stages
    assert (stage.batch_size, stage.group_size, stage.steps) == (128, 16, 30)
    assert stage.optimizer.learning_rate == 5e-6 and stage.loss.type == "masked" and stage.advantage == "mean"
    assert (config.sampling.max_new_tokens, config.model.max_length, config.resources.gpus) == (256, 4096, 8)


def test_a_started_document_is_a_copy():
    find("sample").start()["stages"].clear()
    assert find("sample").start()["stages"]


def test_the_control_differs_only_in_its_rewards():
    sample, control = find("sample").start(), find("sample-shuffled").start()
    assert control["stages"][1].pop("reward_control") == "shuffled"
    assert control["stages"] == sample["stages"]


def test_an_unknown_preset_names_the_known_ones():
    with pytest.raises(KeyError, match="sample"):
        find("smaple")


def test_the_published_scienceworld_run_has_its_form():
    config = as_config(find("scienceworld-published"))
    warm, reward = config.stages
    assert warm.steps == -(-3 * 6147 // warm.batch_size) and warm.gate == "stop"
    assert (reward.batch_size, reward.group_size, reward.steps, reward.mini_batch_rows) == (64, 8, 1000, 64)
    assert (reward.gamma, reward.omega, reward.invalid_action_penalty, reward.optimizer.learning_rate) == (0.95, 1.0, 0.1, 3e-6)
    assert (config.model.adapter.rank, config.model.adapter.alpha, config.model.adapter.target_modules) == (64, 64, ["all-linear"])
    assert (config.environment.max_actions, config.environment.history_length, config.environment.eval_tasks) == (100, 2, "dev140")
    assert (config.evaluation.temperature, config.evaluation.every_steps) == (0.0, 10)
    assert reward.loss.importance_cap is None, "old log-probs are the rollout policy's"
