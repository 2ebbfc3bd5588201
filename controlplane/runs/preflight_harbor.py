"""The instant preflight of container runs: what would waste a night of containers, each refused with field, value and remedy.

What only a node can tell (an engine that hangs, images that are missing) is asked of it before the first step.
"""

from pathlib import PurePosixPath

from django.db.models import FloatField, IntegerField
from django.db.models.fields.json import KT
from django.db.models.functions import Cast

from controlplane import storage
from controlplane.banks import warming
from controlplane.banks.anchors import gate
from controlplane.banks.models import BankVersion
from controlplane.cluster.models import Node
from runner.contract.repair import BLOCKED
from runner.contract.run_config import HarborEnvironment, RunConfig

LEAST_REASON = 10
SMALLEST_WINDOW = 1024
# What one turn of the published runs took: its reply and what was shown.
USUAL_TURN_TOKENS = 1104
NODE_LOCAL = ("/tmp", "/var/tmp", "/dev/shm", "/run")
NAMED = 3
ROLLOUT_STAGES = ("grpo", "gigpo")


def check(config: RunConfig, version: BankVersion, tasks, found) -> None:
    """`tasks` are the rows that the run's filters keep; `found` collects (preflight.Findings)."""
    wanted: HarborEnvironment = config.environment
    kept = tasks.filter(split__in=(wanted.train_split, wanted.eval_split), quarantined_at=None)
    check_splits(wanted, found)
    check_anchors(wanted, version, found)
    check_files(version, kept, found)
    check_verifiers(wanted, kept, found)
    check_agent(config, kept, found)
    check_devices(config, kept, found)
    check_warmth(wanted, version, found)
    check_places(config, found)
    check_masking(config, found)
    check_trainer(config, found)


def check_splits(wanted: HarborEnvironment, found) -> None:
    for name in ("train_split", "eval_split"):
        if getattr(wanted, name) == BLOCKED:
            found.refuse(f"/environment/{name}", "holds the tasks that cannot run; choose another split", BLOCKED)


def check_anchors(wanted: HarborEnvironment, version: BankVersion, found) -> None:
    """A verifier that nobody proved says nothing about a model."""
    why = gate(version.bank, version)
    if why is None:
        return
    reason = (wanted.unproven_reason or "").strip()
    if len(reason) < LEAST_REASON:
        told = f"{why}; prove the anchors on the bank's page, or say in unproven_reason (from {LEAST_REASON} characters) why it may start"
        return found.refuse("/environment/bank", told, wanted.bank)
    found.warn("/environment/unproven_reason", f"{why}; the reason stays on the run and on every score made from it", reason)


def check_files(version: BankVersion, tasks, found) -> None:
    """The task files that the version names are still there: a bank that moved dies in seconds, episode by episode."""
    digests = tasks.annotate(files=KT("payload__task_digest")).values_list("key", "files")
    gone = [key for key, digest in digests if not storage.exists(digest or "0" * 64)]
    if gone:
        told = f"E13: the files of {len(gone)} tasks are gone from the storage ({_some(gone)}); import the bank again"
        found.refuse("/environment/version", told, version.digest)


def check_verifiers(wanted: HarborEnvironment, tasks, found) -> None:
    limits = tasks.annotate(limit=Cast(KT("payload__verifier_timeout_sec"), FloatField()))
    longest = limits.order_by("-limit").values_list("key", "limit").first()
    if longest and longest[1] and longest[1] > wanted.verifier_timeout_sec:
        told = f"W09: the verifier of {longest[0]} may take {longest[1]:.0f} s; raise this to that, or its grading is cut off"
        found.refuse("/environment/verifier_timeout_sec", told, wanted.verifier_timeout_sec)


def check_agent(config: RunConfig, tasks, found) -> None:
    wanted = config.environment
    if wanted.agent.type == "menu":
        return check_menus(tasks, found)
    findings = tasks.values_list("key", "payload__findings")
    blind = [key for key, listed in findings if any(item["code"] == "E16" for item in listed or ())]
    if blind:
        told = f"E16: the agent's image of {len(blind)} tasks has no tmux ({_some(blind)}); install it, or use the menu agent"
        found.refuse("/environment/agent/type", told, "terminal")
    check_window(config, found)


def check_menus(tasks, found) -> None:
    """Tasks without a menu are left out (runner.assignment); a split without any that has one cannot run."""
    edits = {key: len(menu or ()) for key, menu in tasks.values_list("key", "payload__menu")}
    bare = [key for key, count in edits.items() if count < 2]
    if edits and len(bare) == len(edits):
        found.refuse("/environment/agent/type", f"none of the {len(edits)} tasks has a menu of edits; use the terminal agent", "menu")
    elif bare:
        told = f"{len(bare)} of {len(edits)} tasks have no menu of edits and are left out ({_some(bare)})"
        found.warn("/environment/agent/type", told, "menu")


def check_window(config: RunConfig, found) -> None:
    """Prompts keep a margin from the model's length, and a reply must fit into it."""
    agent, length, reply = config.environment.agent, config.model.max_length, config.sampling.max_new_tokens
    window = min(length, max(SMALLEST_WINDOW, length - agent.context_margin))
    if window + reply > length:
        least = max(SMALLEST_WINDOW + reply, agent.context_margin + SMALLEST_WINDOW)
        told = f"prompts take {window} tokens and a reply {reply}, more than {length} together; raise it to {least}, or lower max_new_tokens"
        found.refuse("/model/max_length", told, length)
    elif agent.max_turns * USUAL_TURN_TOKENS > window:
        fit = window // USUAL_TURN_TOKENS
        told = f"turns and context are spent together: at {USUAL_TURN_TOKENS} tokens a turn about {fit} fit into {window} tokens"
        found.warn("/environment/agent/max_turns", told, agent.max_turns)


def check_devices(config: RunConfig, tasks, found) -> None:
    counted = tasks.annotate(gpus=Cast(KT("payload__gpus"), IntegerField()))
    needy = list(counted.filter(gpus__gt=0).values_list("key", flat=True))
    if needy and not config.resources.gpus:
        told = f"{len(needy)} tasks need a GPU ({_some(needy)}) and the run has none; ask for GPUs, or leave them out by families or levels"
        found.refuse("/resources/gpus", told, config.resources.gpus)


def check_warmth(wanted: HarborEnvironment, version: BankVersion, found, only: str | None = None) -> None:
    """A cold node builds for minutes in each task's first episode; on which nodes a run will lie is not known, unless it names one."""
    if wanted.backend != "docker" or not (cold := warming.not_warm(version, only)):
        return
    told = "; ".join(node.sentence for node in cold[:NAMED]) + (f"; and {len(cold) - NAMED} more nodes" if len(cold) > NAMED else "")
    remedy = f"there the first episode of a task builds its images, for minutes; press Warm on the page of {version} first"
    found.warn("/environment/bank", f"{told}; {remedy}", wanted.bank)


def check_places(config: RunConfig, found) -> None:
    """A folder that each node has for itself holds something else, or nothing, on the others."""
    source = config.model.source
    if source.type != "path" or Node.objects.count() < 2:
        return
    if any(PurePosixPath(source.path).is_relative_to(place) for place in NODE_LOCAL):
        told = "is local to each node, and this cluster has several; put the model on shared storage"
        found.refuse("/model/source/path", told, source.path)


def check_masking(config: RunConfig, found) -> None:
    """Unmasked truncation ruined a published run: reward .573 to .078."""
    reason = (config.environment.unmasked_reason or "").strip()
    told = "episodes that were cut off are trained on as if they were failures; runs collapsed that way"
    for index, stage in enumerate(config.stages):
        if stage.type not in ROLLOUT_STAGES or not stage.train_truncated:
            continue
        if len(reason) < LEAST_REASON:
            remedy = f"switch it off to mask them, or say in environment.unmasked_reason (from {LEAST_REASON} characters) why not"
            found.refuse(f"/stages/{index}/train_truncated", f"{told}; {remedy}", True)
        else:
            found.warn(f"/stages/{index}/train_truncated", f"{told}; the reason stays on the run", True)


def check_trainer(config: RunConfig, found) -> None:
    for index, stage in enumerate(config.stages):
        if stage.type in ROLLOUT_STAGES and stage.micro_batch_tokens < config.model.max_length:
            told = f"is less than model.max_length {config.model.max_length}: the longest episode fits no forward pass; raise it to that"
            found.refuse(f"/stages/{index}/micro_batch_tokens", told, stage.micro_batch_tokens)


def _some(keys) -> str:
    return ", ".join(keys[:NAMED]) + (f" and {len(keys) - NAMED} more" if len(keys) > NAMED else "")
