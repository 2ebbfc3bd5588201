"""The instant preflight: what can be refused in under a second, with the field, the value and the remedy."""

import re
import uuid
from dataclasses import dataclass, field
from pathlib import Path

import httpx
from django.db.models import F, Func, IntegerField, TextField
from django.db.models.fields.json import KT
from django.db.models.functions import Cast, Coalesce, Length

from controlplane.banks.models import Bank, BankVersion, Task
from controlplane.checkpoints import lineage
from controlplane.checkpoints.models import Checkpoint
from controlplane.cluster import selectors as cluster
from controlplane.runs import forecast, preflight_harbor, preflight_scienceworld
from controlplane.runs.model_folder import BadModelFolder, ModelFacts, read_folder
from runner.contract.builtin_models import BUILTIN_MODELS
from runner.contract.parse import FieldError, pointer
from runner.contract.presets import PRESETS, find
from runner.contract.run_config import RunConfig
from runner.contract.states import CheckpointState

COMMIT = re.compile(r"[0-9a-f]{40}")
HUB = "https://huggingface.co"
HUB_TIMEOUT_S = 0.8
# No tokenizer packs science text tighter than this; the node preflight counts real tokens.
MOST_CHARACTERS_PER_TOKEN = 8
USUAL_CHARACTERS_PER_TOKEN = 3
# A filter of the environment's settings → the column of a task that it is about.
FILTERS = {"domains": "domain", "levels": "level", "families": "family"}


@dataclass
class Findings:
    """What the preflight found: errors refuse the run, warnings are shown and refuse nothing; the rest pins it."""

    errors: list[FieldError] = field(default_factory=list)
    warnings: list[FieldError] = field(default_factory=list)
    bank_version: BankVersion | None = None
    facts: ModelFacts | None = None

    def refuse(self, path: str, message: str, value=None) -> None:
        self.errors.append(FieldError(path, message, value))

    def warn(self, path: str, message: str, value=None) -> None:
        self.warnings.append(FieldError(path, message, value))


def instant(config: RunConfig, team) -> Findings:
    """Check `config` against what `team` has. Opens no model and asks no node."""
    found = Findings()
    check_preset(config, found)
    check_bank(config, team, found)
    check_model(config, team, found)
    check_lineage(config, found)
    check_capacity(config, found)
    check_engine(config, found)
    if found.facts:
        check_sizes(config, found)
    return found


def check_preset(config: RunConfig, found: Findings) -> None:
    if config.preset:
        try:
            find(config.preset)
        except KeyError:
            found.refuse("/preset", f"no preset of that name; known are {', '.join(PRESETS)}", config.preset)


# ---------------------------------------------------------------- tasks
def check_bank(config: RunConfig, team, found: Findings) -> None:
    wanted = config.environment
    bank = Bank.objects.filter(team=team, slug=wanted.bank).first()
    if bank is None:
        known = ", ".join(Bank.objects.filter(team=team, archived_at=None).values_list("slug", flat=True)) or "none yet"
        return found.refuse("/environment/bank", f"team {team.slug} has no such bank (it has: {known}); import it first", wanted.bank)
    if bank.archived_at:
        return found.refuse(
            "/environment/bank", f"was archived on {bank.archived_at:%Y-%m-%d}; choose another bank or bring it back", wanted.bank
        )
    if bank.environment != wanted.type:
        found.refuse("/environment/bank", f"holds tasks of environment {bank.environment}, not {wanted.type}", wanted.bank)
    version = bank.versions.filter(**({"digest": wanted.version} if wanted.version else {})).first()
    if version is None:
        known = ", ".join(f"{item.digest[:12]}… (number {item.number})" for item in bank.versions.all()[:5]) or "none"
        return found.refuse("/environment/version", f"bank {bank.slug} has no version of that digest; it has: {known}", wanted.version)
    found.bank_version = version
    check_tasks(config, version, found)
    check_demonstrations(config, version, found)


def check_tasks(config: RunConfig, version: BankVersion, found: Findings) -> None:
    wanted, rows = config.environment, Task.objects.filter(version=version)
    for name, column in FILTERS.items():
        chosen = getattr(wanted, name, [])
        known = set(rows.values_list(column, flat=True).distinct()) if chosen else set()
        for index, value in enumerate(chosen):
            if value not in known:
                told = ", ".join(sorted(known - {""})) or "none"
                found.refuse(pointer(["environment", name, index]), f"{version} has no such {column}; it has: {told}", value)
    if found.errors:
        return
    if wanted.train_split == wanted.eval_split:
        found.refuse(
            "/environment/train_split",
            "is also the held-out split, whose answers are never trained on; name two splits",
            wanted.train_split,
        )
    for name in needed_splits(config):
        check_split(config, version, name, found)
    if wanted.type == "harbor":
        preflight_harbor.check(config, version, selected(config, version), found)
    if wanted.type == "scienceworld":
        preflight_scienceworld.check(config, version, selected(config, version), found)


def check_demonstrations(config: RunConfig, version: BankVersion, found: Findings) -> None:
    """A warm start finds the kinds that it names. Of which split they are only the node sees, which reads the bank."""
    known = (version.counts or {}).get("kinds")
    if known is None:
        return
    for stage, settings in enumerate(config.stages):
        for index, kind in enumerate(settings.kinds if settings.type == "sft" else ()):
            if kind not in known:
                told = f"{version} has no demonstrations of this kind; it has: {', '.join(sorted(known)) or 'none'}"
                found.refuse(pointer(["stages", stage, "kinds", index]), told, kind)


def needed_splits(config: RunConfig) -> list[str]:
    trains_on_tasks = any(stage.type != "sft" for stage in config.stages)
    return ["train_split"] * trains_on_tasks + ["eval_split"] * (config.evaluation.type != "none")


def check_split(config: RunConfig, version: BankVersion, name: str, found: Findings) -> None:
    split = getattr(config.environment, name)
    tasks = selected(config, version).filter(split=split)
    longest = tasks.annotate(size=PROMPT_LENGTH).order_by("-size").values_list("size", flat=True).first()
    if longest is None:
        splits = ", ".join(sorted(set(Task.objects.filter(version=version).values_list("split", flat=True).distinct())))
        what = "no task is left after the domain and level filters" if split in splits.split(", ") else f"no such split; it has: {splits}"
        return found.refuse(f"/environment/{name}", f"{version}: {what}", split)
    check_prompt_length(config, longest, split, found)


def selected(config: RunConfig, version: BankVersion):
    """Tasks of `version` that the filters keep, over all splits."""
    kept = {f"{column}__in": chosen for name, column in FILTERS.items() if (chosen := getattr(config.environment, name, []))}
    return Task.objects.filter(version=version, **kept)


class ChoiceCharacters(Func):
    """Characters of the options' texts."""

    template = "(SELECT coalesce(sum(length(item->>'text')), 0) FROM jsonb_array_elements(%(expressions)s->'choices') AS item)"
    output_field = IntegerField()


def _length(key: str):
    return Coalesce(Length(Cast(KT(f"payload__{key}"), TextField())), 0)


PROMPT_LENGTH = _length("instruction") + _length("question") + ChoiceCharacters(F("payload"))


def check_prompt_length(config: RunConfig, characters: int, split: str, found: Findings) -> None:
    room = config.model.max_length - config.sampling.max_new_tokens
    say = f"the longest task of split {split} has {characters} characters; {room} tokens are left for it beside max_new_tokens"
    if characters > room * MOST_CHARACTERS_PER_TOKEN:
        least = -(-characters // MOST_CHARACTERS_PER_TOKEN) + config.sampling.max_new_tokens
        found.refuse("/model/max_length", f"{say}; raise it to {least} or more", config.model.max_length)
    elif characters > room * USUAL_CHARACTERS_PER_TOKEN:
        found.warn(
            "/model/max_length", f"{say}, which may be too few; the nodes count tokens before the run starts", config.model.max_length
        )


# ---------------------------------------------------------------- model
def check_model(config: RunConfig, team, found: Findings) -> None:
    source = config.model.source
    facts = {"builtin": _builtin, "path": _folder, "hub": _hub, "checkpoint": _checkpoint}[source.type](source, team, found)
    if facts is None:
        return
    found.facts = facts
    if source.revision and source.revision != facts.revision and source.type != "hub":
        told = f"is pinned, but the {source.type} is now {facts.revision[:16]}; clear the revision to train from what is there"
        found.refuse("/model/source/revision", told, source.revision)
    if facts.context and config.model.max_length > facts.context:
        found.refuse("/model/max_length", f"exceeds the model's context of {facts.context} tokens; lower it", config.model.max_length)
    if config.model.adapter.type == "lora" and config.model.adapter.dropout:
        found.refuse("/model/adapter/dropout", "makes sampler and learner disagree; set it to 0", config.model.adapter.dropout)


def _builtin(source, team, found: Findings) -> ModelFacts:
    known = BUILTIN_MODELS[source.name]
    return ModelFacts(known.revision, known.parameters, known.hidden, known.layers, known.context)


def _folder(source, team, found: Findings) -> ModelFacts | None:
    try:
        return read_folder(Path(source.path))
    except BadModelFolder as error:
        found.refuse("/model/source/path", str(error), source.path)


def _hub(source, team, found: Findings) -> ModelFacts | None:
    if source.revision and COMMIT.fullmatch(source.revision):
        return ModelFacts(source.revision)
    try:
        answer = httpx.get(f"{HUB}/api/models/{source.repo_id}/revision/{source.revision or 'main'}", timeout=HUB_TIMEOUT_S)
        answer.raise_for_status()
        return ModelFacts(str(answer.json()["sha"]))
    except (httpx.HTTPError, ValueError, KeyError, TypeError) as error:
        where = "/model/source/revision" if source.revision else "/model/source/repo_id"
        told = f"the hub did not name its commit ({error or type(error).__name__}); give a commit of 40 digits as revision, or use a local folder"
        found.refuse(where, told, source.revision or source.repo_id)


def _checkpoint(source, team, found: Findings) -> ModelFacts | None:
    try:
        key = uuid.UUID(source.checkpoint)
    except ValueError:
        return found.refuse("/model/source/checkpoint", "is no checkpoint identifier; copy it from a run's checkpoints", source.checkpoint)
    checkpoint = Checkpoint.objects.filter(pk=key, run__project__team=team).select_related("run").first()
    if checkpoint is None:
        return found.refuse("/model/source/checkpoint", f"team {team.slug} has no such checkpoint", source.checkpoint)
    if checkpoint.state != CheckpointState.COMPLETE:
        return found.refuse(
            "/model/source/checkpoint", f"is {checkpoint.state}; only a complete checkpoint can be trained from", source.checkpoint
        )
    return ModelFacts(checkpoint.manifest_hash, checkpoint.manifest.get("parameters"))


def check_lineage(config: RunConfig, found: Findings) -> None:
    """What the weights have learned from cannot be held out."""
    if config.model.source.type != "checkpoint" or not found.facts or not found.bank_version or config.evaluation.type == "none":
        return
    split = config.environment.eval_split
    keys = list(selected(config, found.bank_version).filter(split=split).values_list("key", flat=True))
    if seen := lineage.overlap(config.model.source.checkpoint, config.environment.type, keys):
        told = f"{len(seen)} of its {len(keys)} tasks ({seen[0]} among them) were trained on by the checkpoint this run begins from"
        found.refuse("/environment/eval_split", f"{told}; choose another split, another checkpoint, or evaluation none", split)


# ---------------------------------------------------------------- machines
def check_capacity(config: RunConfig, found: Findings) -> None:
    if why := cluster.why_impossible(forecast.bundles(config.resources)):
        what = "gpus" if "GPU" in why else "rollout_workers"
        found.refuse(f"/resources/{what}", f"{why}; ask for less or add a node", getattr(config.resources, what))


def check_engine(config: RunConfig, found: Findings) -> None:
    """GPUs are granted whole: an engine on them needs one of its own. Whether nodes have the engine, the node preflight asks them."""
    asked = config.resources
    if config.engine.type == "transformers" or not asked.gpus:
        return
    least = asked.rollout_workers + asked.learner_processes
    if asked.gpus < least:
        workers = f"{asked.rollout_workers} worker{'s' * (asked.rollout_workers > 1)}"
        told = f"{asked.gpus} for {workers} and the learner leaves a worker without one, and {config.engine.type} needs one in each"
        found.refuse("/resources/gpus", f"{told}; ask for {least}, or for fewer workers, or choose engine transformers", asked.gpus)
    elif config.engine.sleep_while_learning:
        told = "frees memory that nobody uses: the learner has a GPU of its own; turn it off to save the time it takes"
        found.warn("/engine/sleep_while_learning", told, True)


def check_sizes(config: RunConfig, found: Findings) -> None:
    disk = forecast.disk(config, found.facts)
    if disk and disk.is_too_small:
        limit = f"{forecast.DISK_LIMIT:.0%} while less than {forecast.size(forecast.DISK_SPARE)} are left"
        told = f"{disk.sentence}: the storage would be {disk.after:.0%} full, the limit is {limit}; keep fewer or free some"
        found.refuse("/checkpoints/keep_last", told, config.checkpoints.keep_last)
    memory = forecast.memory(config, found.facts)
    if memory and memory["available"] and memory["total"] > memory["available"]:
        found.warn("/resources/rollout_workers", f"memory: {memory['sentence']}", config.resources.rollout_workers)
    if disk is None:
        found.warn("/model/source", "the model's size is not known here, so disk and memory are not forecast")
