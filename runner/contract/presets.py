"""Presets: named partial documents, each saying where its values come from."""

from copy import deepcopy
from dataclasses import dataclass, field

from runner.contract.run_config import RunConfig


@dataclass(frozen=True)
class Preset:
    """A starting point for a run. `sources` maps JSON pointers to the origin of the value there."""

    name: str
    version: int
    title: str
    summary: str
    document: dict
    sources: dict[str, str] = field(default_factory=dict)

    @property
    def label(self) -> str:
        """Name and version, as recorded in the run document."""
        return f"{self.name}@{self.version}"

    def start(self) -> dict:
        """A fresh document that names the preset it started from."""
        return {**deepcopy(self.document), "preset": self.label}


_SAMPLE = {
    "name": "Sample: warm start, then GRPO on the quiz",
    "experiment": "sample",
    "model": {"source": {"type": "builtin", "name": "assay-tiny"}, "max_length": 64},
    "environment": {"type": "quiz"},
    "sampling": {"max_new_tokens": 3},
    "stages": [
        {
            "type": "sft",
            "steps": 900,
            "batch_size": 64,
            "optimizer": {"learning_rate": 2e-3, "beta2": 0.95, "warmup_steps": 30, "schedule": "linear"},
        },
        {
            "type": "grpo",
            "steps": 60,
            "batch_size": 512,
            "group_size": 8,
            "optimizer": {"learning_rate": 5e-4, "beta2": 0.95, "warmup_steps": 5, "schedule": "linear"},
        },
    ],
    "evaluation": {"type": "held_out"},
}


def _shuffled(document: dict) -> dict:
    control = deepcopy(document)
    control["name"] = "Control: the sample run with shuffled rewards"
    control["stages"][1]["reward_control"] = "shuffled"
    return control


_SCIENCEWORLD_SHORT = {
    "name": "ScienceWorld, three short tasks, assay-tiny",
    "experiment": "scienceworld",
    "model": {"source": {"type": "builtin", "name": "assay-tiny"}, "max_length": 2048},
    "environment": {"type": "scienceworld", "levels": ["4-2", "7-1", "7-2"], "max_actions": 30, "max_concurrent_episodes": 2},
    "sampling": {"max_new_tokens": 64},
    "stages": [
        {
            "type": "sft",
            "steps": 600,
            "batch_size": 16,
            "kinds": ["gold"],
            "optimizer": {"learning_rate": 2e-3, "beta2": 0.95, "warmup_steps": 20, "schedule": "linear"},
        },
        {
            "type": "gigpo",
            "steps": 40,
            "batch_size": 64,
            "group_size": 8,
            "gamma": 0.95,
            "omega": 1.0,
            "invalid_action_penalty": 0.1,
            "anchor": "look_inv_score",
            "optimizer": {"learning_rate": 3e-4, "beta2": 0.95, "warmup_steps": 2},
        },
    ],
    "evaluation": {"type": "held_out", "temperature": 0.0, "forced_choice": False},
    "checkpoints": {"every_steps": 50},
    "resources": {"rollout_workers": 1, "worker_cpus": 1.0},
}


def _smollm2(document: dict) -> dict:
    small = deepcopy(document)
    small["name"] = "ScienceWorld, three short tasks, SmolLM2-135M"
    small["model"] = {
        "source": {"type": "builtin", "name": "smollm2-135m-instruct"},
        "adapter": {"type": "lora", "rank": 16, "alpha": 16},
        "dtype": "float32",
        "max_length": 2048,
    }
    warm, reward = small["stages"]
    warm |= {"steps": 60, "batch_size": 8, "optimizer": {"learning_rate": 1e-3, "warmup_steps": 5}}
    reward |= {"steps": 10, "batch_size": 16, "group_size": 4, "optimizer": {"learning_rate": 1e-4}}
    small["evaluation"]["limit"] = 30
    small["checkpoints"] = {"every_steps": 10}
    return small


def _short(document: dict) -> dict:
    short = deepcopy(document)
    short["name"] = "ScienceWorld, three short tasks, SmolLM2-135M, all weights"
    short["model"] = {"source": {"type": "builtin", "name": "smollm2-135m-instruct"}, "dtype": "bfloat16", "max_length": 2048}
    short["environment"] |= {"max_actions": 15, "max_concurrent_episodes": 32}
    short["sampling"] = {"max_new_tokens": 24}
    warm, reward = short["stages"]
    warm |= {"steps": 37, "batch_size": 64}
    warm["optimizer"] = {"learning_rate": 3e-4, "warmup_steps": 4, "schedule": "linear"}
    reward |= {"steps": 14, "optimizer": {"learning_rate": 5e-5, "beta2": 0.95, "warmup_steps": 2}}
    # Longer than the warm start: once on the way through the other stage.
    short["evaluation"] |= {"before_stages": False, "every_steps": 44}
    short["checkpoints"] = {"every_steps": None, "prune": {"type": "all"}}
    short["resources"] = {"rollout_workers": 1, "worker_cpus": 2.0, "learner_cpus": 1.0, "gpus": 2}
    return short


_ALL = (
    Preset(
        "sample",
        1,
        "Sample run",
        "Teaches a million-weight model the quiz's facts as statements and the answer format, then improves it by GRPO. Minutes on two cores.",
        _SAMPLE,
        {"/stages/0": "chosen by a sweep over warm starts", "/stages/1": "chosen by a sweep, at the held-out scores of one seed"},
    ),
    Preset(
        "sample-shuffled",
        1,
        "Sample run, shuffled control",
        "The sample run with rewards permuted within each batch: what looks like learning here is not.",
        _shuffled(_SAMPLE),
        {"/stages/1/reward_control": "a control; must gain nothing"},
    ),
    Preset(
        "sciknoweval-smollm2",
        1,
        "SciKnowEval with SmolLM2 on a processor",
        "A few real GRPO steps of a 135 M model on imported SciKnowEval questions, small enough to watch, stop and resume on two cores.",
        {
            "name": "SciKnowEval, SmolLM2-135M",
            "experiment": "sciknoweval",
            "model": {"source": {"type": "builtin", "name": "smollm2-135m-instruct"}, "dtype": "float32", "max_length": 4096},
            "environment": {"type": "sciknoweval"},
            "sampling": {"max_new_tokens": 16},
            "stages": [
                {
                    "type": "grpo",
                    "steps": 4,
                    "batch_size": 16,
                    "group_size": 4,
                    "micro_batch_tokens": 2048,
                    "optimizer": {"learning_rate": 5e-6},
                }
            ],
            "evaluation": {"type": "held_out", "limit": 40},
            "checkpoints": {"every_steps": 1, "keep_last": 2},
        },
        {
            "/stages/0": "sized for two cores",
            "/model/dtype": "float32 so that sampler and learner agree exactly",
            "/model/max_length": "the longest question fits",
        },
    ),
    Preset(
        "sciknoweval-qwen3-8b",
        2,
        "SciKnowEval with Qwen3-8B, as published",
        "Asynchronous GRPO in the manner of prime-rl: step 1 reward 0.344, step 30 0.703; held-out 53.0 % to 74.25 %.",
        {
            "name": "SciKnowEval, Qwen3-8B",
            "experiment": "sciknoweval",
            "model": {"source": {"type": "hub", "repo_id": "Qwen/Qwen3-8B"}, "dtype": "bfloat16", "max_length": 4096},
            "environment": {"type": "sciknoweval"},
            "sampling": {"temperature": 1.0, "max_new_tokens": 256},
            "stages": [
                {
                    "type": "grpo",
                    "steps": 30,
                    "batch_size": 128,
                    "group_size": 16,
                    "max_staleness": 8,
                    "advantage": "mean",
                    "loss": {"type": "masked", "mask_low": 0.2, "mask_high": 0.2, "advantage_tau": 1.0, "drift_tau": 1e-3},
                    "optimizer": {"learning_rate": 5e-6, "weight_decay": 0.01},
                }
            ],
            "evaluation": {"type": "held_out", "temperature": 1.0, "forced_choice": False},
            "engine": {"type": "vllm", "memory_fraction": 0.9},
            "learner": {"checkpoint_activations": True},
            "resources": {"rollout_workers": 6, "worker_cpus": 1.0, "learner_cpus": 2.0, "learner_processes": 2, "gpus": 8},
        },
        {
            "/stages/0/batch_size": "published run: 128 samples a step",
            "/stages/0/group_size": "published run: 16",
            "/stages/0/optimizer/learning_rate": "published run: 5e-6",
            "/stages/0/optimizer/weight_decay": "prime-rl default",
            "/stages/0/max_staleness": "prime-rl default max_off_policy_steps",
            "/stages/0/loss": "prime-rl defaults",
            "/sampling/max_new_tokens": "published run: 256",
            "/model/max_length": "published run: seq_len 4096",
            "/resources/gpus": "published run: 2 for training, 6 for inference",
            "/engine": "published run: vLLM; an engine has its GPU to itself",
            "/learner": "chosen for memory: activations are computed again in the backward pass",
        },
    ),
    Preset(
        "repair-menu-tiny",
        2,
        "Repair by menu on a processor",
        "A million-weight model chooses edits in real containers: a warm start that teaches to read a list, then GRPO on what the verifier says.",
        {
            "name": "Repair by menu, assay-tiny-3",
            "experiment": "repair",
            "model": {"source": {"type": "builtin", "name": "assay-tiny-3"}, "max_length": 1024},
            "environment": {
                "type": "harbor",
                "levels": ["easy"],
                "hint_level": "L2",
                "agent": {"type": "menu", "max_turns": 2, "max_edits": 2},
                "max_concurrent_episodes": 2,
            },
            "sampling": {"max_new_tokens": 2},
            "stages": [
                {
                    "type": "sft",
                    "steps": 160,
                    "batch_size": 32,
                    "kinds": ["list", "lookup"],
                    "optimizer": {"learning_rate": 1e-3, "beta2": 0.95, "warmup_steps": 10, "schedule": "linear"},
                },
                {
                    "type": "grpo",
                    "steps": 30,
                    "batch_size": 32,
                    "group_size": 8,
                    "train_truncated": False,
                    "optimizer": {"learning_rate": 5e-5, "beta2": 0.95, "warmup_steps": 2},
                },
            ],
            "evaluation": {"type": "held_out", "forced_choice": False},
            "checkpoints": {"every_steps": 10},
            "resources": {"rollout_workers": 1, "worker_cpus": 1.0},
        },
        {
            "/stages/0": "measured with three seeds: 0.94 and more of the lookups are right after 120 steps; dialogues with drawn answers unlearn it",
            "/stages/1": "960 episodes, planned for 45 minutes on two cores at 5 s an episode, two at once; not yet measured in containers",
            "/stages/1/optimizer/learning_rate": "trials with a made-up verifier: 1e-4 raised one seed from 0.23 to 0.73 and undid what another had read, 4e-5 raised that one from 0.13 to 0.36",
            "/environment/agent/max_turns": "choose a file, choose an edit: each answer's share of the reward is plain to see",
            "/stages/1/train_truncated": "published recipe: overlong filtering on",
            "/environment/max_concurrent_episodes": "one container a core",
        },
    ),
    Preset(
        "scienceide-published",
        2,
        "ScienceIDE repair with Qwen3.5-4B, as published",
        "GRPO with the terminal agent: on one code's easy repairs the reward rose from 0.49 to 0.77 in 31 steps, held-out tasks solved from 0.357 to 0.857.",
        {
            "name": "ScienceIDE repair, Qwen3.5-4B",
            "experiment": "scienceide",
            "seed": 1,
            "model": {"source": {"type": "hub", "repo_id": "Qwen/Qwen3.5-4B"}, "dtype": "bfloat16", "max_length": 67_584},
            "environment": {
                "type": "harbor",
                "hint_level": "L1",
                "agent": {"type": "terminal", "max_turns": 50, "max_observation_bytes": 4096, "context_margin": 8192, "summarise": False},
                "max_concurrent_episodes": 16,
                "task_timeout_sec": 2700,
                "verifier_timeout_sec": 900,
            },
            "sampling": {"temperature": 1.0, "top_p": 1.0, "max_new_tokens": 8192},
            "stages": [
                {
                    "type": "grpo",
                    "steps": 200,
                    "batch_size": 128,
                    "group_size": 8,
                    "max_staleness": 1,
                    "advantage": "mean",
                    "aggregation": "token",
                    "ungraded_in_baseline": "zero",
                    "train_truncated": False,
                    "loss": {"type": "clipped", "clip_low": 0.2, "clip_high": 0.3, "dual_clip": 3.0, "importance_cap": 2.0},
                    "filters": {"zero_advantage": "monitor"},
                    "micro_batch_tokens": 67_584,
                    "optimizer": {"learning_rate": 1e-6, "weight_decay": 0.1, "warmup_steps": 3, "max_grad_norm": 1.0},
                }
            ],
            "evaluation": {"type": "held_out", "every_steps": 200, "temperature": 1.0, "forced_choice": False},
            "checkpoints": {"every_steps": 10},
            "engine": {"type": "vllm", "memory_fraction": 0.85},
            "learner": {"checkpoint_activations": True},
            "resources": {"rollout_workers": 8, "worker_cpus": 2.0, "learner_cpus": 2.0, "learner_processes": 16, "gpus": 24},
        },
        {
            "/model/max_length": "published recipe: prompt 2,048 and response 65,536, exactly their sum",
            "/environment/agent/max_turns": "published recipe: 50",
            "/environment/agent/max_observation_bytes": "published training value: 4,096",
            "/environment/agent/context_margin": "published recipe: advertised window is the model's less 8,192",
            "/environment/max_concurrent_episodes": "published training value: 16 a worker",
            "/environment/task_timeout_sec": "published training value: 2,700",
            "/environment/verifier_timeout_sec": "published recipe: 900",
            "/sampling/max_new_tokens": "published recipe: 8,192 output tokens a reply",
            "/stages/0/batch_size": "published recipe: 16 prompts of 8 rollouts",
            "/stages/0/max_staleness": "published recipe: 1",
            "/stages/0/ungraded_in_baseline": "published recipe: an unmeasured episode counts as 0 in its group",
            "/stages/0/train_truncated": "published recipe: overlong filtering on; without it the reward fell from .573 to .078",
            "/stages/0/loss": "published recipe: clip 0.2 and 0.3, importance weights of tokens capped at 2",
            "/stages/0/filters/zero_advantage": "published recipe: group filter off",
            "/stages/0/micro_batch_tokens": "published recipe: at least the model's length",
            "/stages/0/optimizer": "published recipe: 1e-6, decay 0.1, 3 warm-up steps, clip 1.0",
            "/checkpoints/every_steps": "published recipe: every 10",
            "/evaluation/every_steps": "published recipe: every 200",
            "/resources/gpus": "published recipe: 3 nodes of 8, one of them for generation; there four engines of two GPUs each, here eight of one",
            "/resources/learner_processes": "published recipe: 16 GPUs train",
            "/engine/memory_fraction": "published recipe: 0.85",
            "/learner": "chosen for memory: rows are 67,584 tokens long",
        },
    ),
    Preset(
        "scienceworld-tiny",
        1,
        "ScienceWorld with a tiny model on a processor",
        "A warm start on gold paths, then GiGPO, on three short kinds of task. Import the bank with gold first: "
        "./assay import scienceworld --replays 50 --gold-tasks 4-2,7-1,7-2",
        _SCIENCEWORLD_SHORT,
        {
            "/environment/levels": "the kinds whose gold is shortest: 3 to 11 actions",
            "/environment/max_actions": "nearly three times the longest gold of these kinds",
            "/stages/0": "a model without any words needs many more passes than the published three; planned, not measured",
            "/stages/1/anchor": "room, inventory and score: the published anchor mixes rooms",
            "/stages/1": "published recipe for gamma, omega, penalty and normalisation; sized for two cores, planned, not measured",
            "/evaluation/temperature": "published recipe: greedy",
        },
    ),
    Preset(
        "scienceworld-smollm2",
        1,
        "ScienceWorld with SmolLM2 and an adapter on a processor",
        "The same three kinds of task with a 135 M model and a low-rank adapter: small enough to watch, stop and resume on two cores.",
        _smollm2(_SCIENCEWORLD_SHORT),
        {
            "/model/adapter": "all projections, as published, at a rank that two cores bear",
            "/stages/0": "sized for two cores",
            "/stages/1": "sized for two cores",
            "/evaluation/limit": "sized for two cores",
        },
    ),
    Preset(
        "scienceworld-short",
        2,
        "ScienceWorld with SmolLM2 on GPUs",
        "Warm start on gold, then GiGPO, with every weight of a 135 M model, on the same three kinds of task: minutes on two GPUs. The gold has "
        "no thoughts: python -m runner.importers scienceworld --replays 50 --gold-tasks 4-2,7-1,7-2 --cap 20 --think empty …",
        _short(_SCIENCEWORLD_SHORT),
        {
            "/environment/max_actions": "the longest gold of these kinds takes 11",
            "/sampling/max_new_tokens": "the longest gold reply without thoughts takes 21",
            "/stages/0": "three epochs over 788 pairs",
            "/stages/1": "published recipe for gamma, omega, penalty and normalisation; planned, not measured to its end",
        },
    ),
    Preset(
        "scienceworld-published",
        1,
        "ScienceWorld with Qwen2.5-1.5B, as published",
        "Gold warm start, then GiGPO with LoRA over 1,000 steps: of 140 fixed dev episodes 44 succeeded at step 140, 38 at the end.",
        {
            "name": "scienceworld_single_warmstart_ms100_1k_seed0",
            "experiment": "scienceworld",
            "seed": 0,
            "model": {
                "source": {"type": "hub", "repo_id": "Qwen/Qwen2.5-1.5B-Instruct"},
                "adapter": {"type": "lora", "rank": 64, "alpha": 64},
                "dtype": "bfloat16",
                "max_length": 4608,
            },
            "environment": {
                "type": "scienceworld",
                "eval_tasks": "dev140",
                "simplification": "easy",
                "max_actions": 100,
                "history_length": 2,
                "max_concurrent_episodes": 32,
            },
            "sampling": {"temperature": 1.0, "max_new_tokens": 512},
            "stages": [
                {"type": "sft", "steps": 289, "batch_size": 64, "gate": "stop", "optimizer": {"learning_rate": 1e-4, "warmup_steps": 10}},
                {
                    "type": "gigpo",
                    "steps": 1000,
                    "batch_size": 64,
                    "group_size": 8,
                    "advantage": "mean_std",
                    "min_std": 0.0,
                    "gamma": 0.95,
                    "omega": 1.0,
                    "invalid_action_penalty": 0.1,
                    "episode_stat_scope": "rows",
                    "anchor": "observation",
                    "mini_batch_rows": 64,
                    "loss": {"type": "clipped", "clip_low": 0.2, "clip_high": 0.2, "importance_cap": None},
                    "filters": {"zero_advantage": "monitor"},
                    "optimizer": {"learning_rate": 3e-6},
                },
            ],
            "evaluation": {"type": "held_out", "every_steps": 10, "temperature": 0.0, "forced_choice": False},
            "resources": {"rollout_workers": 2, "worker_cpus": 8.0, "learner_cpus": 4.0, "gpus": 1},
        },
        {
            "/seed": "published run: seed 0",
            "/model/adapter/rank": "published run: 64, alpha 64, all linear layers",
            "/model/max_length": "prompt 4,096 and response 512: not stated by the published run",
            "/environment/max_actions": "published run: 100",
            "/environment/history_length": "published run: 2",
            "/environment/simplification": "not stated by the published run",
            "/environment/eval_tasks": "published run: 140 fixed dev episodes, whose list was not published; this is ours",
            "/stages/0/steps": "three epochs, as published, over 6,147 pairs: six variations of thirty tasks, cut at 100 actions",
            "/stages/0/optimizer": "not stated by the published run",
            "/stages/1/batch_size": "published run: 8 tasks of 8 episodes",
            "/stages/1/gamma": "published run: 0.95",
            "/stages/1/advantage": "not stated by the published run; mean_std as in the reference's script for another environment",
            "/stages/1/min_std": "the reference has no floor",
            "/stages/1/anchor": "the reference compares the bare observation",
            "/stages/1/invalid_action_penalty": "published run: 0.1",
            "/stages/1/mini_batch_rows": "published run: 64 turns an update",
            "/stages/1/optimizer/learning_rate": "published run: 3e-6",
            "/evaluation/every_steps": "published run: every 10 steps, greedy",
        },
    ),
)

PRESETS: dict[str, Preset] = {preset.name: preset for preset in _ALL}


def find(name: str) -> Preset:
    """The preset called `name`, with or without its version. Raises KeyError naming the known ones."""
    base = name.partition("@")[0]
    if base not in PRESETS:
        raise KeyError(f"no preset {name!r}; known are {', '.join(PRESETS)}")
    return PRESETS[base]


def as_config(preset: Preset) -> RunConfig:
    """The preset as a complete run."""
    from runner.contract.parse import parse

    return parse(preset.start())
