"""Two nodes of one engine, warmed from the bank's page: two labels, a run each, real containers, and the page says what came of it."""

import os
import time

import pytest
from django.urls import reverse
from django.utils import timezone

import docker
from controlplane import storage
from controlplane.banks import anchors, warming
from controlplane.cluster.models import Node
from controlplane.runs import scheduling
from runner.assignment import from_claim
from runner.contract.repair import FileEntry, RepairPayload, write_listing
from runner.evaluation.harness import Harness
from runner.repair.cache import TaskCache
from runner.reporting.heartbeat import StopRequest, Vitals
from runner.sandbox.images import tag_of
from runner.sandbox.task import load_task
from tests.controlplane.banks.repair import repair_version
from tests.controlplane.pages import form
from tests.runner.environments.toy_repair import make_task
from tests.runner.evaluation.test_harness import Heard
from tests.runner.sandbox.conftest import scratch_image  # noqa: F401

pytestmark = [pytest.mark.django_db, pytest.mark.docker]
NODES = ("one", "two")


@pytest.fixture
def toy(scratch_image, tmp_path, settings, monkeypatch):  # noqa: F811
    """The toy repair: its files in the store and in the nodes' cache. Its images are gone afterwards."""
    settings.ASSAY_STORAGE = tmp_path / "storage"
    monkeypatch.setenv("ASSAY_CACHE", str(tmp_path / "cache"))
    folder, cache = tmp_path / "task", TaskCache(tmp_path / "cache" / "tasks")
    task = make_task(folder, cache)
    files = [path for path in folder.rglob("*") if path.is_file()]
    entries = [FileEntry(str(path.relative_to(folder)), os.access(path, os.X_OK), storage.put(path.read_bytes())) for path in files]
    assert storage.put(write_listing(entries)) == task.payload["task_digest"]
    yield task.model_copy(update={"payload": RepairPayload.model_validate(task.payload).model_dump(mode="json")})
    built = load_task(cache.folder(task.payload["task_digest"]))
    for role in ("agent", "verifier"):
        docker.from_env().api.remove_image(tag_of(built, role), force=True)


@pytest.fixture
def drive(client, tmp_path, monkeypatch):
    """drive(attempt, node): the driver's life on `node`, from the claim to the exit record; what it told."""

    def post(attempt, path, body, token):
        answer = client.post(
            f"/api/ingest/{attempt.pk}/{path}", body, content_type="application/json", HTTP_AUTHORIZATION=f"Bearer {token}"
        )
        assert answer.status_code == 200, answer.content
        return answer.json()

    def run(attempt, node):
        monkeypatch.setenv("ASSAY_NODE_NAME", node)
        monkeypatch.setenv("ASSAY_NODE_FOLDER", str(tmp_path / f"node-{node}"))
        claim = {"code": scheduling.claim_code(attempt), "host": node, "pid": 1, "started": time.time()}
        reply = post(attempt, "claim", claim, "")
        assert [share["node"] for share in reply["grant"]] == [node]
        assignment, heard = from_claim(reply, str(attempt.pk)), Heard()
        assignment.folder.mkdir(parents=True)
        bank = client.get(f"/api/ingest/{attempt.pk}/bank", HTTP_AUTHORIZATION=f"Bearer {reply['token']}").content
        assert Harness(assignment, bank, heard, heard, Vitals(), StopRequest()).run() == "succeeded"
        for path, results in (("warmed", heard.warmed_told), ("anchors", heard.anchors_told)):
            post(attempt, path, {"results": results}, reply["token"])
        post(attempt, "exit", {"outcome": "succeeded", "reason": "", "step": 1, "at": time.time()}, reply["token"])
        return heard

    return run


def test_two_nodes_of_one_engine_are_warmed_and_the_page_says_so(client, owner, team, toy, drive, fresh_buckets):
    version = repair_version(team, owner, [toy])
    for name in NODES:
        Node.objects.create(name=name, address="127.0.0.1", resource=f"assay_node:{name}", cpus=2, last_seen_at=timezone.now())
    client.force_login(owner)
    assert client.post(reverse("bank-warm", args=["repair", 1]), form()).status_code == 302
    granted = {attempt.grant.shares.get().node.name: attempt for attempt in scheduling.place_waiting()}
    heard = {node: drive(granted[node], node) for node in NODES}
    for node in NODES:
        [ended] = heard[node].of("finished")
        assert ended["facts"]["node"] == node and ended["facts"]["isolation"] == "strong"
    found = {row.node: row for row in warming.nodes(version)}
    assert [(found[node].state, found[node].warm_count, found[node].repaired) for node in NODES] == [("warm", 1, 0)] * 2
    setups = [found[node].slowest.env_setup_seconds for node in NODES]
    assert 0 < setups[1] <= setups[0], "the second node finds the images that the first has built: one engine"
    page = client.get(reverse("bank-warmth", args=["repair", 1])).content.decode()
    assert page.count("state-warm") == 2 and page.count("1 of 1") == 2 and "every 3s" not in page
    assert anchors.newest_checks(version)["demo/heat-repair-sign", "nop"].problems == [], "what nop earned counts for the anchors"
