"""A run stopped at step k and resumed equals one that never stopped, bit for bit; a checkpoint is a model."""

import json

import numpy as np
import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from runner.contract.bank import Demonstration
from runner.contract.episode import Author
from runner.contract.metrics import lookup
from runner.contract.run_config import (
    GrpoStage,
    LearnerSettings,
    LoraAdapter,
    Model,
    NoAdapter,
    Optimizer,
    ReferenceKl,
    RunConfig,
    Sampling,
    SftStage,
)
from runner.contract.termination import Termination
from runner.learning import checkpoints
from runner.learning.checkpoints import BrokenCheckpoint
from runner.learning.learner import Learner
from runner.policies.base import SamplingParams, token_seed
from runner.policies.transformers import TransformersPolicy
from runner.rollouts.types import SampleBuilder
from runner.rollouts.workflow import GroupWorkflow

DEMONSTRATIONS = [
    Demonstration(key=f"d{index}", kind="answer", prompt=f"which planet {index}?", completion="A B"[index % 3 :]) for index in range(7)
]
PROMPTS = {f"t{index}": [1, 40 + index, 7, 9][: 2 + index % 3] for index in range(5)}
SFT_STEPS, GRPO_STEPS = 3, 4
FULL = NoAdapter()
KEPT = LearnerSettings()


def run_config(adapter=FULL, dtype="float32", seed=11, learner=KEPT, **changes):
    fast = Optimizer(learning_rate=5e-3, schedule="cosine", warmup_steps=1, weight_decay=0.01)
    grpo = {
        "steps": GRPO_STEPS,
        "batch_size": 8,
        "group_size": 4,
        "micro_batch_tokens": 64,
        "optimizer": fast,
        "reference_kl": ReferenceKl(beta=0.05),
    }
    return RunConfig(
        name="test",
        seed=seed,
        model=Model(adapter=adapter, dtype=dtype, max_length=64),
        sampling=Sampling(max_new_tokens=6),
        learner=learner,
        stages=[SftStage(steps=SFT_STEPS, batch_size=4, micro_batch_tokens=64, optimizer=fast), GrpoStage(**{**grpo, **changes})],
    )


class Run:
    """The driver's loop in miniature: one policy, one learner, rewards by rule."""

    def __init__(self, config, folder):
        self.config, self.history = config, {}
        self.learner = Learner(config, folder)
        self.policy = TransformersPolicy(folder, config.model, seed=config.seed)

    def resume(self, path):
        extra = self.learner.restore(path, DEMONSTRATIONS)
        self.policy.load_weights(self.learner.weights())
        return extra

    def go(self, until):
        for step in range(self.learner.completed + 1, until + 1):
            if step in (1, SFT_STEPS + 1):
                self.learner.begin_stage(0 if step == 1 else 1, DEMONSTRATIONS)
            report = self.learner.learn(step, self.rollouts(step) if step > SFT_STEPS else None)
            self.policy.load_weights(self.learner.weights())
            self.history[step] = {name: value for name, value in report.metrics.items() if not name.startswith("timing_s/")}
        return report

    def rollouts(self, step):
        plans = GroupWorkflow(sorted(PROMPTS), 8, 4, self.config.seed, SFT_STEPS + 1).episodes(step)
        seeds = [token_seed(self.config.seed, step, plan.group, plan.index) for plan in plans]
        generations = self.policy.generate([PROMPTS[plan.task] for plan in plans], SamplingParams(max_new_tokens=6), seeds)
        return [self.episode(plan, generation) for plan, generation in zip(plans, generations)]

    def episode(self, plan, generation):
        builder = SampleBuilder()
        builder.append(PROMPTS[plan.task], Author.ENVIRONMENT)
        builder.append(generation.token_ids, Author.STUDENT, generation.logprobs)
        reward = float(generation.token_ids.sum() % 2)
        ended = Termination.FINISHED if generation.finish_reason == "stop" else Termination.MAX_RESPONSE_LENGTH_EXCEEDED
        name = f"{plan.step}-{plan.group}-{plan.index}"
        return builder.build(
            episode=name,
            task=plan.task,
            group=plan.group,
            index=plan.index,
            reward=reward,
            termination=ended,
            policy_version=generation.policy_version,
        )


def assert_same_bits(left, right):
    for name, tensor in left.learner.network.state_dict().items():
        assert torch.equal(tensor, right.learner.network.state_dict()[name]), name


@pytest.mark.parametrize("stopped_at", [2, SFT_STEPS, SFT_STEPS + 2])
@pytest.mark.parametrize(
    "adapter, dtype",
    [(NoAdapter(), "float32"), (LoraAdapter(rank=4), "float32"), (NoAdapter(), "bfloat16")],
    ids=["full", "lora", "bfloat16"],
)
def test_stopped_and_resumed_equals_never_stopped(tiny_qwen3, tmp_path, stopped_at, adapter, dtype):
    config, last = run_config(adapter, dtype), SFT_STEPS + GRPO_STEPS
    unbroken = Run(config, tiny_qwen3)
    unbroken.go(last)

    stopped = Run(config, tiny_qwen3)
    stopped.go(stopped_at)
    written = stopped.learner.save(tmp_path, extra={"best": 0.5})
    del stopped

    resumed = Run(config, tiny_qwen3)
    assert resumed.resume(written.path) == {"best": 0.5}
    assert resumed.learner.completed == stopped_at
    resumed.go(last)
    assert_same_bits(unbroken, resumed)
    assert {step: unbroken.history[step] for step in resumed.history} == resumed.history


def test_activations_computed_again_leave_every_bit_and_resume(tiny_qwen3, tmp_path):
    again = run_config(learner=LearnerSettings(checkpoint_activations=True))
    kept, stopped, resumed = Run(run_config(), tiny_qwen3), Run(again, tiny_qwen3), Run(again, tiny_qwen3)
    kept.go(SFT_STEPS + 2)
    stopped.go(SFT_STEPS + 1)
    resumed.resume(stopped.learner.save(tmp_path).path)
    resumed.go(SFT_STEPS + 2)
    assert_same_bits(kept, resumed)


def test_the_same_seed_repeats_and_another_differs(tiny_qwen3):
    first, again, other = Run(run_config(), tiny_qwen3), Run(run_config(), tiny_qwen3), Run(run_config(seed=12), tiny_qwen3)
    for run in (first, again, other):
        run.go(5)
    assert_same_bits(first, again)
    assert first.history == again.history != other.history


def test_sampler_and_learner_agree_after_every_push(tiny_qwen3):
    run = Run(run_config(), tiny_qwen3)
    run.go(6)
    assert run.policy.version == 6
    probe = [[1, 40, 41, 7, 9], [1, 2, 3]]
    for sampled, learned in zip(run.policy.score(probe), run.learner.score(probe)):
        np.testing.assert_array_equal(sampled, learned)
    for step in (4, 5, 6):
        assert abs(run.history[step]["rollout_corr/kl"]) < 1e-5
        assert run.history[step]["rollout_corr/rollout_is_eff_sample_size"] == pytest.approx(1, abs=1e-6)


def test_samples_come_back_with_what_learning_saw(tiny_qwen3):
    run = Run(run_config(), tiny_qwen3)
    report = run.go(4)
    assert [item.episode for item in report.samples] == [f"4-{group}-{index}" for group in range(2) for index in range(4)]
    assert sum(item.trained_tokens for item in report.samples) == report.metrics["termination/trained_tokens"]
    trained = next(item for item in report.samples if not item.masked)
    assert np.isfinite(trained.learner_logprob[trained.mask]).all() and np.isnan(trained.learner_logprob[~trained.mask]).all()


def test_learning_moves_the_loss_down(tiny_qwen3):
    config = run_config()
    run = Run(config.model_copy(update={"stages": [SftStage(steps=20, batch_size=7, optimizer=Optimizer(learning_rate=1e-2))]}), tiny_qwen3)
    run.learner.begin_stage(0, DEMONSTRATIONS)
    losses = [run.learner.learn(step).metrics["sft/loss"] for step in range(1, 21)]
    assert losses[-1] < 0.2 * losses[0]


def test_every_metric_is_in_the_dictionary(tiny_qwen3):
    run = Run(run_config(), tiny_qwen3)
    run.go(4)
    assert [name for step in run.history.values() for name in step if lookup(name) is None] == []


def test_a_step_out_of_order_is_refused(tiny_qwen3):
    run = Run(run_config(), tiny_qwen3)
    run.go(1)
    with pytest.raises(ValueError, match="step: 3 does not follow 1; learn step 2"):
        run.learner.learn(3)


def test_learning_before_a_stage_is_refused(tiny_qwen3):
    with pytest.raises(RuntimeError, match="no stage has begun"):
        Learner(run_config(), tiny_qwen3).learn(1)


def test_a_sample_over_the_limit_is_refused(tiny_qwen3):
    run = Run(run_config(), tiny_qwen3)
    run.go(3)
    run.learner.begin_stage(1)
    builder = SampleBuilder()
    builder.append([1] * 64, Author.ENVIRONMENT)
    builder.append([1], Author.STUDENT, [-1.0])
    long = builder.build(episode="long", task="t", group=0, index=0, reward=1.0, termination=Termination.FINISHED, policy_version=3)
    with pytest.raises(ValueError, match="model.max_length: episode long has 65 tokens, the limit is 64"):
        run.learner.learn(4, [long])


def test_a_checkpoint_is_a_model_transformers_loads(tiny_qwen3, tmp_path):
    run = Run(run_config(), tiny_qwen3)
    run.go(2)
    path = run.learner.save(tmp_path).path
    exported = checkpoints.export_huggingface(path, tmp_path / "export")
    model, tokenizer = AutoModelForCausalLM.from_pretrained(exported).eval(), AutoTokenizer.from_pretrained(exported)
    assert tokenizer.eos_token_id == 2 and model.generation_config.eos_token_id == 2
    assert_scores(model, run)


def test_an_adapter_is_exported_merged(tiny_qwen3, tmp_path):
    run = Run(run_config(LoraAdapter(rank=4)), tiny_qwen3)
    run.go(2)
    written = run.learner.save(tmp_path)
    assert written.manifest.adapter and (written.path / "adapter" / "adapter_config.json").is_file()
    exported = checkpoints.export_huggingface(written.path, tmp_path / "export")
    assert not list(exported.glob("adapter*"))
    assert_scores(AutoModelForCausalLM.from_pretrained(exported).eval(), run)


def assert_scores(model, run):
    tokens = [1, 40, 41, 7, 9]
    with torch.no_grad():
        table = torch.log_softmax(model(torch.tensor([tokens])).logits[0], -1)
    expected = table[:-1].gather(-1, torch.tensor(tokens[1:])[:, None])[:, 0]
    np.testing.assert_allclose(run.learner.score([tokens])[0][1:], expected.numpy(), atol=1e-5)


def test_the_manifest_says_what_the_checkpoint_is(tiny_qwen3, tmp_path):
    run = Run(run_config(), tiny_qwen3)
    run.go(4)
    written = run.learner.save(tmp_path)
    document = json.loads((written.path / "manifest.json").read_text())
    assert (document["step"], document["stage"], document["stage_type"], document["policy_version"]) == (4, 1, "grpo", 4)
    assert set(document["versions"]) == {"torch", "transformers", "peft"} and document["rng"]["seed"] == 11
    assert {"model/model.safetensors", "model/tokenizer.json", "trainer/state.pt", "trainer/reference.safetensors", "driver.json"} <= {
        entry["path"] for entry in document["files"]
    }


def test_a_damaged_checkpoint_is_not_restored(tiny_qwen3, tmp_path):
    run = Run(run_config(), tiny_qwen3)
    run.go(1)
    path = run.learner.save(tmp_path).path
    state = path / "trainer" / "state.pt"
    state.write_bytes(state.read_bytes()[:-1])
    with pytest.raises(BrokenCheckpoint, match="trainer/state.pt"):
        Run(run_config(), tiny_qwen3).resume(path)


def test_another_configuration_is_refused(tiny_qwen3, tmp_path):
    run = Run(run_config(), tiny_qwen3)
    run.go(1)
    path = run.learner.save(tmp_path).path
    with pytest.raises(ValueError, match="written under another configuration"):
        Run(run_config(seed=12), tiny_qwen3).resume(path)


def test_processes_and_gpus_may_change_from_one_attempt_to_the_next(tiny_qwen3, tmp_path):
    run = Run(run_config(), tiny_qwen3)
    run.go(1)
    path = run.learner.save(tmp_path).path
    more = run.config.resources.model_copy(update={"learner_processes": 2, "gpus": 4})
    again = Run(run.config.model_copy(update={"resources": more}), tiny_qwen3)
    again.resume(path)
    assert again.learner.completed == 1
    with pytest.raises(ValueError, match="written under another configuration"):
        fewer = more.model_copy(update={"learner_threads": 1})
        Run(run.config.model_copy(update={"resources": fewer}), tiny_qwen3).resume(path)


def test_the_state_file_holds_no_code(tiny_qwen3, tmp_path):
    run = Run(run_config(), tiny_qwen3)
    run.go(1)
    path = run.learner.save(tmp_path).path
    assert set(torch.load(path / "trainer" / "state.pt", weights_only=True)) == {"counters", "rng", "optimizer"}
