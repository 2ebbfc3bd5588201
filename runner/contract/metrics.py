"""The metrics dictionary: every metric's name, formula, unit, population, good direction and alert rule.

Help texts, health tiles, alert rules and the documentation page read this module. Canonical spelling follows
verl where a name exists there; other spellings are aliases for import. `{reason}` and `{split}` are holes
filled by `Termination` names and bank domains.
"""

import re
from dataclasses import dataclass
from functools import cache
from typing import Literal

Direction = Literal["up", "down", "none"]


@dataclass(frozen=True)
class Rule:
    """An alert over one series.

    above/below: the last `for_steps` values all lie beyond `limit`.
    ratio_above/ratio_below: they lie beyond `limit` times the median of the `window` steps before them.
    non_finite: any value is NaN or infinite.
    Where `critical` is set, an alert whose newest values all lie beyond it too is critical, else it has the `severity`.
    """

    kind: Literal["above", "below", "ratio_above", "ratio_below", "non_finite"]
    limit: float = 0.0
    for_steps: int = 3
    window: int = 20
    severity: Literal["warning", "critical"] = "warning"
    advice: str = ""
    critical: float | None = None


@dataclass(frozen=True)
class Metric:
    """One entry. `population` names what a mean is taken over; `group` is the dashboard section."""

    name: str
    title: str
    formula: str
    unit: str = ""
    population: str = ""
    good: Direction = "none"
    group: str = "training"
    rules: tuple[Rule, ...] = ()
    aliases: tuple[str, ...] = ()


_NON_FINITE = Rule("non_finite", for_steps=1, severity="critical", advice="Lower the learning rate or clip harder; resume from the last checkpoint.")

METRICS: tuple[Metric, ...] = (
    # -- reward
    Metric("critic/score/mean", "Reward, graded", "mean of rewards", "", "graded episodes", "up", "reward", (_NON_FINITE,), ("reward/mean", "reward", "critic/rewards/mean")),
    Metric("critic/score/max", "Reward, best", "max of rewards", "", "graded episodes", "up", "reward"),
    Metric("critic/score/min", "Reward, worst", "min of rewards", "", "graded episodes", "up", "reward"),
    Metric("critic/score/n", "Graded episodes", "count of non-null rewards", "episodes", "batch", "none", "reward"),
    Metric("reward/trained/mean", "Reward, trained", "mean reward of the episodes that entered the loss", "", "trained episodes", "up", "reward"),
    Metric("termination/finished/score_mean", "Reward, finished", "mean reward of finished episodes", "", "finished and graded episodes", "up", "reward", aliases=("finished/score_mean",)),
    Metric("reward/missing_fraction", "Reward missing", "episodes without a reward / episodes", "", "all episodes", "down", "reward",
           (Rule("above", 0.05, advice="Open the episodes without a reward; their reason names the verifier or the environment."),)),
    Metric("critic/advantages/mean", "Advantage, mean", "mean over loss tokens", "", "loss tokens", "none", "reward"),
    Metric("critic/advantages/max", "Advantage, max", "max over loss tokens", "", "loss tokens", "none", "reward"),
    Metric("critic/advantages/min", "Advantage, min", "min over loss tokens", "", "loss tokens", "none", "reward"),
    Metric("group/zero_variance_fraction", "Groups without signal", "groups whose graded rewards have population std < 1e-6 / groups with > 1 graded", "", "groups", "down", "reward",
           (Rule("above", 0.5, for_steps=5, advice="Tasks are all solved or all failed: a harder tier, another task mix or larger groups give signal."),), ("group/zero_signal_frac", "frac_reward_zero_std")),
    Metric("group/count", "Groups", "groups in the batch", "groups", "batch", "none", "reward"),
    Metric("group/effective", "Episodes in the loss", "episodes with a loss token", "episodes", "batch", "none", "reward"),
    Metric("group/trainable", "Episodes with signal", "episodes in the loss whose advantage is not 0", "episodes", "batch", "up", "reward"),
    # -- step-level groups
    Metric("episode/reward/mean", "Episode score, mean", "mean of summed step rewards", "", "episodes that take part", "up", "reward"),
    Metric("episode/reward/max", "Episode score, best", "max of summed step rewards", "", "episodes that take part", "up", "reward"),
    Metric("episode/reward/min", "Episode score, worst", "min of summed step rewards", "", "episodes that take part", "up", "reward"),
    Metric("episode/length/mean", "Episode length, mean", "mean of steps the environment took", "turns", "episodes that take part", "none", "length"),
    Metric("episode/length/max", "Episode length, max", "max of steps the environment took", "turns", "episodes that take part", "none", "length"),
    Metric("episode/length/min", "Episode length, min", "min of steps the environment took", "turns", "episodes that take part", "none", "length"),
    Metric("episode/valid_action_ratio", "Valid actions", "turns whose action could be read and was understood / turns", "", "turns that take part", "up", "episodes",
           (Rule("below", 0.5, for_steps=5, advice="Most actions mean nothing: look at the replies, lengthen the warm start or raise the penalty."),)),
    Metric("episode/success_rate", "Success", "episodes that reached the full score / graded episodes", "", "graded episodes", "up", "reward"),
    Metric("episode/ambiguous_mean", "Ambiguous requests", "mean number of names that fitted several objects", "", "graded episodes", "down", "episodes"),
    Metric("env/error_fraction", "Environment errors", "tries that ended in an env_… termination or replay_mismatch / tries", "", "all tries", "down", "episodes",
           (Rule("above", 0.05, critical=0.15, advice="Simulators fail: look at the errors of the episodes, run fewer at a time, raise their heap or their limits."),)),
    Metric("env/restart_count", "Simulators replaced", "simulators that workers had to replace since they started", "simulators", "workers", "down", "episodes"),
    Metric("env/step_ms_p95", "Simulator step, p95", "median over episodes of their simulator's 95th percentile", "ms", "episodes", "down", "speed"),
    Metric("gigpo/ae_std", "Episode-level advantage, std", "std of A_E", "", "turns that take part", "none", "reward"),
    Metric("gigpo/as_std", "Step-level advantage, std", "std of A_S", "", "turns that take part", "none", "reward"),
    Metric("gigpo/group_size_mean", "Step-level group size", "turns / step-level groups", "turns", "turns that take part", "up", "reward"),
    Metric("gigpo/singleton_share", "Turns alone in their state", "turns in a step-level group of one / turns", "", "turns that take part", "down", "reward",
           (Rule("above", 0.9, for_steps=5, advice="Hardly any state is met twice: step-level credit is 0 and this is plain GRPO. Choose a coarser anchor or larger groups."),)),
    Metric("gigpo/cross_episode_share", "Turns compared across episodes", "turns in a step-level group of several episodes / turns", "", "turns that take part", "up", "reward"),
    Metric("gigpo/mixed_places_share", "Turns in groups that mix states", "turns in a step-level group whose members differ in room or inventory / turns", "", "turns that take part", "down", "reward",
           (Rule("above", 0.3, for_steps=5, advice="The anchor is no state: turns in different rooms are compared. Use look_inv or look_inv_score."),)),
    Metric("gigpo/mixed_scores_share", "Turns in groups that mix scores", "turns in a step-level group whose members differ in score / turns", "", "turns that take part", "down", "reward"),
    Metric("gigpo/zero_variance_groups", "Groups of equal episodes", "groups whose episodes all earned the same", "groups", "batch", "down", "reward"),
    Metric("gigpo/singleton_groups", "Groups of one turn", "groups with a single turn", "groups", "batch", "down", "reward"),
    Metric("gigpo/dropped_groups", "Dropped groups", "groups with fewer than two episodes left", "groups", "batch", "down", "reward"),
    Metric("gigpo/floored_deviations", "Floored deviations", "standard deviations that min_std replaced", "", "batch", "down", "reward"),
    Metric("gigpo/missing_anchors", "Turns without a state", "turns whose environment did not tell the state", "turns", "batch", "down", "reward"),
    Metric("episode/batches", "Batches drawn", "batches sampled for the step, fresh ones for groups without signal included", "batches", "batch", "down", "speed"),
    # -- lengths
    Metric("response_length/mean", "Response length, mean", "mean of response tokens", "tokens", "all episodes", "none", "length", aliases=("completions/mean_length",)),
    Metric("response_length/p90", "Response length, p90", "90th percentile of response tokens", "tokens", "all episodes", "none", "length"),
    Metric("response_length/max", "Response length, max", "max of response tokens", "tokens", "all episodes", "none", "length"),
    Metric("response_length/min", "Response length, min", "min of response tokens", "tokens", "all episodes", "none", "length"),
    Metric("response_length/clip_ratio", "At the response cap", "episodes whose response reached max_new_tokens / episodes", "", "all episodes", "down", "length",
           (Rule("above", 0.2, advice="Responses hit the cap: raise max_new_tokens or shorten the task."),), ("truncated_frac",)),
    Metric("prompt_length/mean", "Prompt length, mean", "mean of prompt tokens", "tokens", "all episodes", "none", "length"),
    Metric("prompt_length/max", "Prompt length, max", "max of prompt tokens", "tokens", "all episodes", "none", "length"),
    Metric("prompt_length/min", "Prompt length, min", "min of prompt tokens", "tokens", "all episodes", "none", "length"),
    Metric("response_length_non_aborted/mean", "Response length of those that replied, mean", "mean of response tokens", "tokens", "episodes with a response", "none", "length"),
    Metric("response_length_non_aborted/max", "Response length of those that replied, max", "max of response tokens", "tokens", "episodes with a response", "none", "length"),
    Metric("response_length_non_aborted/min", "Response length of those that replied, min", "min of response tokens", "tokens", "episodes with a response", "none", "length"),
    Metric("response/aborted_ratio", "Without a response", "episodes without a response token / episodes", "", "all episodes", "down", "length"),
    Metric("num_turns/mean", "Turns, mean", "mean of student turns", "turns", "all episodes", "none", "length"),
    Metric("num_turns/max", "Turns, max", "max of student turns", "turns", "all episodes", "none", "length"),
    Metric("num_turns/min", "Turns, min", "min of student turns", "turns", "all episodes", "none", "length"),
    # -- policy
    Metric("actor/entropy", "Entropy", "mean token entropy of the learner's policy", "nats", "loss tokens", "none", "policy",
           (Rule("ratio_below", 0.2, advice="Entropy collapsed: lower the learning rate or widen the upper clip."), Rule("ratio_above", 2.0, advice="Entropy doubled: the policy is drifting to noise.")), ("entropy",)),
    Metric("actor/pg_loss", "Policy loss", "the stage's loss before penalties", "", "loss tokens", "none", "policy", (_NON_FINITE,), ("loss/policy",)),
    Metric("actor/pg_clipfrac", "Clipped or masked", "loss tokens whose gradient the clip or mask removed / loss tokens", "", "loss tokens", "down", "policy", aliases=("clip_frac",)),
    Metric("actor/pg_clipfrac_lower", "Dual-clipped", "loss tokens bounded by the dual clip / loss tokens", "", "loss tokens", "down", "policy"),
    Metric("actor/ppo_kl", "KL, old to new", "mean(old log-prob − new log-prob)", "nats", "loss tokens", "none", "policy"),
    Metric("actor/ref_kl", "KL to reference", "mean k3 of policy against the stage's first weights", "nats", "loss tokens", "down", "policy", aliases=("kl/ref",)),
    Metric("actor/grad_norm", "Gradient norm", "global norm before clipping", "", "batch", "none", "policy",
           (_NON_FINITE, Rule("ratio_above", 10.0, for_steps=1, advice="One batch moved the weights far; look at its episodes.")), ("grad_norm",)),
    Metric("actor/lr", "Learning rate", "schedule value", "", "batch", "none", "policy", aliases=("lr",)),
    Metric("actor/skipped_steps", "Skipped steps", "optimizer steps skipped for a non-finite gradient", "steps", "batch", "down", "policy"),
    Metric("sft/loss", "Warm-start loss", "mean cross-entropy", "nats", "demonstration tokens", "down", "policy", (_NON_FINITE,)),
    Metric("sft/tokens", "Warm-start tokens", "trained tokens in the batch", "tokens", "batch", "none", "policy"),
    # -- sampler against learner
    Metric("rollout_corr/kl", "Train–inference KL", "mean(sampler log-prob − learner log-prob)", "nats", "loss tokens", "none", "mismatch",
           (Rule("above", 0.05, critical=0.1, advice="Sampler and learner disagree: check weight sync and precision."),)),
    Metric("rollout_corr/k3_kl", "Train–inference KL, k3", "mean(exp(d) − d − 1), d = learner − sampler log-prob", "nats", "loss tokens", "down", "mismatch",
           (Rule("ratio_above", 3.0, for_steps=5, advice="The mismatch is growing; check weight sync."),), ("mismatch_kl/all/mean", "kl/sampler")),
    Metric("rollout_corr/rollout_is_mean", "Importance weight, mean", "mean of min(exp(d), 2)", "", "loss tokens", "none", "mismatch", aliases=("ratio/mean",)),
    Metric("rollout_corr/rollout_is_max", "Importance weight, max", "max of min(exp(d), 2)", "", "loss tokens", "none", "mismatch"),
    Metric("rollout_corr/rollout_is_min", "Importance weight, min", "min of min(exp(d), 2)", "", "loss tokens", "none", "mismatch"),
    Metric("rollout_corr/rollout_is_std", "Importance weight, std", "std of min(exp(d), 2)", "", "loss tokens", "none", "mismatch"),
    Metric("rollout_corr/rollout_is_eff_sample_size", "Effective sample size", "1 / mean((v / mean v)²), v = clamp(exp(d), 1/2, 2)", "", "loss tokens", "up", "mismatch",
           (Rule("below", 0.9, for_steps=2, critical=0.7, advice="Sampler and learner drift apart: compare the weight version of every worker, lower the staleness bound."), Rule("ratio_below", 0.5, advice="ESS halved against its median."))),
    Metric("rollout_corr/training_ppl", "Perplexity, learner", "mean over sequences of exp(−mean learner log-prob)", "", "trained sequences", "none", "mismatch"),
    Metric("rollout_corr/rollout_ppl", "Perplexity, sampler", "mean over sequences of exp(−mean sampler log-prob)", "", "trained sequences", "none", "mismatch"),
    Metric("rollout_corr/log_ppl_diff", "Log-perplexity difference", "mean over sequences of mean sampler − mean learner log-prob", "nats", "trained sequences", "none", "mismatch"),
    Metric("rollout_corr/log_ppl_abs_diff", "Log-perplexity difference, absolute", "mean over sequences of its absolute value", "nats", "trained sequences", "down", "mismatch"),
    Metric("rollout_corr/ppl_ratio", "Perplexity ratio", "mean over sequences of exp(log-perplexity difference)", "", "trained sequences", "none", "mismatch"),
    Metric("rollout_corr/chi2_token", "χ² of tokens", "mean(ρ²) − 1, ρ = exp(learner − sampler log-prob)", "", "loss tokens", "down", "mismatch"),
    Metric("rollout_corr/chi2_seq", "χ² of sequences", "the same with ρ over whole sequences", "", "trained sequences", "down", "mismatch"),
    Metric("rollout_corr/clamped", "Clamped log-ratios", "tokens whose |d| exceeded 20", "tokens", "loss tokens", "down", "mismatch"),
    Metric("training/rollout_probs_diff_mean", "Probability difference, mean", "mean |exp(sampler) − exp(learner)|", "", "loss tokens", "down", "mismatch"),
    Metric("training/rollout_probs_diff_max", "Probability difference, max", "max |exp(sampler) − exp(learner)|", "", "loss tokens", "down", "mismatch"),
    Metric("weight_sync/probe_difference", "Weight sync probe", "|learner log-prob − worker log-prob| over fixed prompts, after each push: the largest in float32, the mean in bfloat16; of the worker farthest off", "nats", "probe tokens", "down", "mismatch",
           (Rule("above", 0.1, for_steps=1, severity="critical", advice="More than rounding in bfloat16 explains: do the workers hold the learner's weights? Look at the weight sync."),)),
    Metric("staleness/mean", "Staleness, mean", "learner version − version the episode started from", "versions", "trained episodes", "down", "mismatch"),
    Metric("staleness/max", "Staleness, max", "largest of the batch", "versions", "trained episodes", "down", "mismatch"),
    # -- episodes
    Metric("termination/{reason}/fraction", "Ended {reason}", "episodes with that termination / episodes", "", "all episodes", "none", "episodes"),
    Metric("termination/{reason}/score_mean", "Reward, {reason}", "mean reward of graded episodes with that termination", "", "graded episodes of that termination", "up", "episodes"),
    Metric("termination/trained_tokens", "Trained tokens", "sum of loss-mask tokens", "tokens", "batch", "none", "episodes"),
    Metric("termination/masked_sample_fraction", "Masked episodes", "episodes without a loss token / episodes", "", "all episodes", "down", "episodes"),
    Metric("verifier_error/fraction", "Verifier errors", "(verifier_error + verifier_timeout) / episodes", "", "all episodes", "down", "episodes",
           (Rule("above", 0.05, critical=0.15, advice="The verifier fails: look at its output before more compute is spent. Under contention run fewer episodes at once, or raise the rows' time limit."),), ("verifier_error_frac",)),
    Metric("episode/parsed_fraction", "Answers parsed", "episodes whose answer could be read / graded episodes", "", "graded episodes", "up", "episodes"),
    Metric("verifier/timeout_fraction", "Verifier timeouts", "verifier_timeout / container episodes", "", "container episodes", "down", "episodes"),
    Metric("episode/env_setup_s/p50", "Set-up, median", "median seconds of building and starting the agent's container", "s", "container episodes", "down", "episodes"),
    Metric("episode/env_setup_s/p95", "Set-up, p95", "95th percentile of the same", "s", "container episodes", "down", "episodes",
           (Rule("above", 40.0, advice="Images are built cold: warm the bank on this node before the run."),)),
    Metric("episode/agent_s/p50", "Acting, median", "median seconds of the agent", "s", "container episodes", "none", "episodes"),
    Metric("episode/agent_s/p95", "Acting, p95", "95th percentile of the same", "s", "container episodes", "none", "episodes"),
    Metric("episode/verifier_s/p50", "Verifying, median", "median seconds of the verifier, a second verification included", "s", "container episodes", "down", "episodes"),
    Metric("episode/verifier_s/p95", "Verifying, p95", "95th percentile of the same", "s", "container episodes", "down", "episodes"),
    Metric("episode/tokens_per_turn", "Tokens per turn", "response tokens / student turns", "tokens", "container episodes", "none", "episodes"),
    Metric("episode/delivered_fraction", "Delivered", "episodes that delivered a file / container episodes", "", "container episodes", "up", "episodes",
           (Rule("below", 0.3, for_steps=5, advice="Agents forget to copy what is to be judged: say it in the instruction, and ask for early deliveries."),)),
    Metric("episode/regraded_fraction", "Regraded", "episodes verified a second time / container episodes", "", "container episodes", "down", "episodes"),
    Metric("episode/fetched_fraction", "Fetched upstream code", "episodes whose commands may have fetched the upstream code / container episodes", "", "container episodes", "down", "episodes",
           (Rule("above", 0.0, for_steps=1, advice="Open the episodes: the answer may have been one clone away. Close the network."),)),
    Metric("episode/forked_fraction", "Forked", "episodes whose chat template did not accumulate / container episodes", "", "container episodes", "down", "episodes"),
    Metric("queue/wait_s", "Waiting for a slot", "mean seconds until the node admitted the episode", "s", "container episodes", "down", "speed"),
    Metric("sandbox/{reason}", "Episodes in phase, {reason}", "episodes that are in the phase now", "episodes", "worker", "none", "hardware"),
    Metric("docker/containers/{reason}", "Containers, {reason}", "running containers of the node's engine", "containers", "node", "none", "hardware"),
    Metric("docker/dangling_images/{reason}", "Dangling images, {reason}", "images without a tag", "images", "node", "down", "hardware"),
    Metric("docker/ps_latency_s/{reason}", "Engine latency, {reason}", "seconds to list containers", "s", "node", "down", "hardware"),
    Metric("filter/{reason}/fraction", "Filter {reason}", "episodes the filter matched / episodes", "", "all episodes", "down", "episodes"),
    Metric("episode/refilled", "Refilled episodes", "episodes replaced after a failure of policy or infrastructure", "episodes", "batch", "down", "episodes"),
    # -- speed
    Metric("perf/throughput", "Tokens per second", "prompt and response tokens / (step seconds × devices)", "tokens/s", "batch", "up", "speed"),
    Metric("perf/total_num_tokens", "Tokens", "prompt and response tokens", "tokens", "batch", "none", "speed"),
    Metric("perf/mfu", "MFU", "(6 N a token and causal attention of the sequences learned from) / (learning seconds × GPUs × their peak)", "", "batch", "up", "speed"),
    Metric("timing_s/step", "Step time", "wall seconds of the step", "s", "batch", "down", "speed", aliases=("time/step",)),
    Metric("timing_s/wait", "Waiting", "seconds the learner waited for work", "s", "batch", "down", "speed"),
    Metric("timing_s/generate", "Generating", "seconds of sampling", "s", "batch", "down", "speed", aliases=("timing_s/gen", "time/rollout")),
    Metric("timing_s/grade", "Grading", "seconds of grading", "s", "batch", "down", "speed"),
    Metric("timing_s/learn", "Learning", "seconds of forward, backward and update", "s", "batch", "down", "speed", aliases=("timing_s/update_actor", "time/train")),
    Metric("timing_s/sync", "Weight sync", "seconds until every sampler holds the new weights", "s", "batch", "down", "speed", aliases=("timing_s/update_weights", "time/weight_sync")),
    Metric("timing_s/weight_transfer", "Weight transfer", "seconds until every sampler was given the new weights; a part of timing_s/sync", "s", "batch", "down", "speed"),
    Metric("timing_s/checkpoint", "Checkpoint", "seconds of writing", "s", "batch", "down", "speed", aliases=("timing_s/save_checkpoint",)),
    Metric("timing_s/report", "Reporting", "seconds that telling of the step before held this step up", "s", "batch", "down", "speed"),
    Metric("timing_s/report_aside", "Reporting aside", "seconds spent telling of episodes while the learner learned", "s", "batch", "down", "speed"),
    Metric("memory/{reason}/rss", "Memory, {reason}", "resident set of the process", "bytes", "process", "down", "hardware"),
    Metric("cpu/{reason}/percent", "Processor, {reason}", "processor time / wall time", "%", "process", "none", "hardware"),
    Metric("gpu/{reason}/utilisation", "GPU {reason}, busy", "share of the driver's last sampling period in which a kernel ran", "%", "GPU", "none", "hardware"),
    Metric("gpu/{reason}/memory", "GPU {reason}, memory", "memory in use, by whomever", "bytes", "GPU", "down", "hardware"),
    Metric("gpu/{reason}/temperature", "GPU {reason}, temperature", "of the chip", "°C", "GPU", "down", "hardware"),
    Metric("gpu/{reason}/power", "GPU {reason}, power", "drawn by the board", "W", "GPU", "none", "hardware"),
    Metric("gpu/{reason}/memory_errors", "GPU {reason}, memory errors", "uncorrected errors since the driver was loaded", "errors", "GPU", "down", "hardware"),
    # -- held out
    Metric("val/accuracy", "Held-out accuracy", "correct generated answers / held-out tasks", "", "graded held-out tasks", "up", "held out", aliases=("eval/acc",)),
    Metric("val/forced_choice", "Held-out forced choice", "tasks whose key has the highest log-prob / held-out tasks", "", "held-out tasks", "up", "held out"),
    Metric("val/without_question", "Held-out forced choice, question hidden", "tasks whose key has the highest log-prob among the options alone / held-out tasks", "", "held-out tasks", "none", "held out"),
    Metric("val/parsed_fraction", "Held-out answers parsed", "answers that could be read / held-out tasks", "", "held-out tasks", "up", "held out"),
    Metric("val/success_rate", "Held-out success", "episodes that reached the full score / graded held-out episodes", "", "graded held-out episodes", "up", "held out"),
    Metric("val/success_rate/{reason}", "Held-out success, {reason}", "the same over one topic", "", "graded held-out episodes of that topic", "up", "held out"),
    Metric("val/success_rate_of/{reason}", "Held-out success, task {reason}", "the same over one task type", "", "graded held-out episodes of that task type", "up", "held out"),
    Metric("val/success_rate_low", "Held-out success, lower bound", "Wilson's 95 % interval", "", "graded held-out episodes", "up", "held out"),
    Metric("val/success_rate_high", "Held-out success, upper bound", "Wilson's 95 % interval", "", "graded held-out episodes", "up", "held out"),
    Metric("val/score_mean", "Held-out score", "mean over episodes of the final score / 10, failures as they are", "", "graded held-out episodes", "up", "held out"),
    Metric("val/score_mean_clip0", "Held-out score, failures as 0", "the same with negative scores as 0", "", "graded held-out episodes", "up", "held out"),
    Metric("val/score_best_mean", "Held-out best score", "mean over episodes of the best score reached / 10", "", "graded held-out episodes", "up", "held out"),
    Metric("val/test_score_rowweighted", "Held-out score, by turns", "mean of the final score / 10 over turns, as published: long episodes weigh more", "", "turns of graded held-out episodes", "up", "held out"),
    Metric("val/n_effective", "Held-out episodes graded", "held-out episodes with a score", "episodes", "held-out episodes", "up", "held out"),
    Metric("val/effective_fraction", "Held-out episodes graded, share", "held-out episodes with a score / planned", "", "held-out episodes", "up", "held out",
           (Rule("below", 0.95, for_steps=1, advice="The pass is incomplete and no checkpoint is the best by it; look at the environment's errors."),)),
    Metric("val/accuracy/{reason}", "Held-out accuracy, {reason}", "correct / tasks of that domain", "", "graded held-out tasks of that domain", "up", "held out"),
    Metric("val/forced_choice/{reason}", "Held-out forced choice, {reason}", "key has highest log-prob / tasks of that domain", "", "held-out tasks of that domain", "up", "held out"),
)

DASHBOARD: tuple[tuple[str, tuple[str, ...]], ...] = (
    ("Reward", ("termination/finished/score_mean", "critic/score/mean")),
    ("Held-out", ("val/forced_choice", "val/accuracy")),
    ("Response length", ("response_length/mean", "response_length/p90", "response_length/max")),
    ("Train–inference KL", ("rollout_corr/kl", "rollout_corr/k3_kl")),
    ("Entropy", ("actor/entropy",)),
    ("Gradient norm", ("actor/grad_norm",)),
    ("Effective sample size", ("rollout_corr/rollout_is_eff_sample_size",)),
    ("Clipped or masked", ("actor/pg_clipfrac", "termination/masked_sample_fraction")),
    ("Groups without signal", ("group/zero_variance_fraction",)),
    ("Terminations", ("termination/finished/fraction", "termination/max_response_length_exceeded/fraction", "termination/parse_failed/fraction")),
    ("Verifier errors", ("verifier_error/fraction", "reward/missing_fraction")),
    ("Step time", ("timing_s/wait", "timing_s/generate", "timing_s/grade", "timing_s/learn", "timing_s/sync")),
)

REPAIR_DASHBOARD: tuple[tuple[str, tuple[str, ...]], ...] = (
    ("Reward, finished", ("termination/finished/score_mean",)),
    ("Reward, graded", ("critic/score/mean",)),
    ("Response length", ("response_length/mean",)),
    ("Entropy", ("actor/entropy",)),
    ("Train–inference KL", ("rollout_corr/kl",)),
    ("Verifier errors", ("verifier_error/fraction",)),
    ("Turn limit reached", ("termination/max_turns_exceeded/fraction",)),
    ("Groups without signal", ("group/zero_variance_fraction",)),
)
"""The 2 × 4 that a container run's page opens with; the effective sample size is a health tile."""

SCIENCEWORLD_DASHBOARD: tuple[tuple[str, tuple[str, ...]], ...] = (
    ("Held-out success", ("val/success_rate", "val/success_rate_low", "val/success_rate_high")),
    ("Held-out score", ("val/score_mean", "val/score_mean_clip0", "val/score_best_mean", "val/test_score_rowweighted")),
    ("Success", ("episode/success_rate",)),
    ("Episode length", ("episode/length/mean", "episode/length/max")),
    ("Valid actions", ("episode/valid_action_ratio",)),
    ("Step-level group size", ("gigpo/group_size_mean",)),
    ("Turns alone, across episodes, or mixed", ("gigpo/singleton_share", "gigpo/cross_episode_share", "gigpo/mixed_places_share", "gigpo/mixed_scores_share")),
    ("Environment errors", ("env/error_fraction",)),
)
"""The 2 × 4 that the page of a run in the text laboratory opens with."""

TRACKED: tuple[str, ...] = (
    "termination/finished/score_mean",
    "critic/score/mean",
    "val/accuracy",
    "val/forced_choice",
    "val/success_rate",
    "val/score_mean",
    "val/score_mean_clip0",
    "val/success_rate/{reason}",
)
"""Metrics whose best checkpoint is kept."""

EFFECTIVE = "val/effective_fraction"
MIN_EFFECTIVE = 0.95
"""A held-out pass in which fewer of its episodes could be graded is incomplete: no checkpoint is the best by it."""

# A run that makes no step for max(this, 5 × its median step) seconds is called stalled.
STALL_SECONDS = 300.0


@cache
def _patterns() -> tuple[tuple[re.Pattern, Metric], ...]:
    holes = (m for m in METRICS if "{reason}" in m.name)
    return tuple((re.compile(re.escape(m.name).replace(r"\{reason\}", r"([^/]+)") + "$"), m) for m in holes)


@cache
def _by_name() -> dict[str, Metric]:
    return {metric.name: metric for metric in METRICS if "{" not in metric.name}


@cache
def _by_alias() -> dict[str, str]:
    return {alias: metric.name for metric in METRICS for alias in metric.aliases}


def lookup(name: str) -> Metric | None:
    """The entry of a metric path, with its hole filled in the title; None when the dictionary has none."""
    if name in _by_name():
        return _by_name()[name]
    for pattern, metric in _patterns():
        if found := pattern.match(name):
            return Metric(**{**metric.__dict__, "name": name, "title": metric.title.replace("{reason}", found.group(1).replace("_", " "))})
    return None


@cache
def is_tracked(name: str) -> bool:
    """Whether the best checkpoint by this metric is kept."""
    return any(re.fullmatch(re.escape(form).replace(r"\{reason\}", "[^/]+"), name) for form in TRACKED)


def canonical_name(name: str) -> str:
    """The dictionary's spelling of `name`; unknown names stay as they are."""
    return _by_alias().get(name, name)
