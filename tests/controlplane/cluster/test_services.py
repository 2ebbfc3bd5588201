"""Nodes as Ray reports them, cordons, and processes that are told apart from those that reuse their number."""

import os
import socket
import subprocess
import sys
import time
from datetime import timedelta
from decimal import Decimal

import psutil
import pytest
from django.core.exceptions import PermissionDenied
from django.utils import timezone

from controlplane.cluster import processes
from controlplane.cluster.allocator import Bundle
from controlplane.cluster.models import Node, ReconcilerTick
from controlplane.cluster.selectors import capacity, tick_age, total_memory, why_impossible, why_would_wait
from controlplane.cluster.services import set_cordoned, sync_nodes
from controlplane.runs.ray_jobs import NodeReport


def report(name="local", cpus=2.0, gpus=0, **more):
    return NodeReport(**{"name": name, "address": "127.0.0.1", "ray_id": "r", "resource": f"assay_node:{name}", "cpus": cpus, "gpus": gpus, "memory": 8 << 30, **more})


pytestmark = pytest.mark.django_db


# ---------------------------------------------------------------- nodes
def test_nodes_appear_change_and_go():
    sync_nodes([report("a"), report("b", cpus=8.5, gpus=4)])
    assert [(node.name, node.cpus, node.gpus, node.state) for node in Node.objects.all()] == [("a", 2, 0, "ready"), ("b", Decimal("8.5"), 4, "ready")]
    sync_nodes([report("a", cpus=3.0)])
    assert dict(Node.objects.values_list("name", "state")) == {"a": "ready", "b": "gone"}
    assert Node.objects.get(name="a").cpus == 3
    sync_nodes([report("a"), report("b")])
    assert dict(Node.objects.values_list("name", "state")) == {"a": "ready", "b": "ready"}


def test_viewers_of_the_cluster_are_told_only_of_changes(monkeypatch):
    told = []
    monkeypatch.setattr("controlplane.cluster.services.live.notify_cluster", lambda: told.append(1))
    sync_nodes([report()])
    sync_nodes([report(memory=(8 << 30) + 17)])
    assert len(told) == 1
    sync_nodes([])
    assert len(told) == 2


def test_only_fresh_and_ready_nodes_have_capacity():
    sync_nodes([report("a"), report("b"), report("c")])
    Node.objects.filter(name="b").update(state="cordoned")
    Node.objects.filter(name="c").update(last_seen_at=timezone.now() - timedelta(seconds=31))
    assert set(capacity(Node.objects.all())) == {"a"}
    assert total_memory() == 2 * (8 << 30)


def test_a_cordon_lasts_until_it_is_lifted(owner, team):
    sync_nodes([report()])
    node = set_cordoned(owner, Node.objects.get(), True)
    sync_nodes([report()])
    assert node.state == Node.objects.get().state == "cordoned"
    assert set_cordoned(owner, node, False).state == "ready"


def test_only_an_admin_cordons(teammate, viewer):
    sync_nodes([report()])
    for user in (teammate, viewer):
        with pytest.raises(PermissionDenied):
            set_cordoned(user, Node.objects.get(), True)


def test_impossible_and_waiting_are_told_apart():
    big = (Bundle("learner", Decimal(5)),)
    assert why_impossible(big) is None and why_would_wait(big) == "no node is ready; Ray has not reported one"
    sync_nodes([report("a")])
    assert "needs 5.0 CPUs; the cluster has 2.0 CPUs" in why_impossible(big)
    assert why_would_wait((Bundle("learner", Decimal(2)),)) is None


def test_a_reconciler_that_never_spoke_or_fell_silent_is_late():
    assert tick_age().is_late
    ReconcilerTick.objects.create(at=timezone.now())
    assert not tick_age().is_late
    ReconcilerTick.objects.update(at=timezone.now() - timedelta(seconds=31))
    assert tick_age().is_late


# ---------------------------------------------------------------- processes
@pytest.fixture
def process():
    started = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"])
    yield started
    started.kill()
    started.wait()


def entry(pid, started, host=None):
    return {"component": "worker-0", "host": host or socket.gethostname(), "pid": pid, "started": started}


def test_a_process_is_its_pid_and_its_start(process):
    began = psutil.Process(process.pid).create_time()
    assert processes.is_alive(process.pid, began)
    assert not processes.is_alive(process.pid, began - 60)
    assert not processes.is_alive(2**22 + 1, began)


def test_a_zombie_is_not_alive(process):
    began = psutil.Process(process.pid).create_time()
    process.kill()
    deadline = time.monotonic() + 5
    while psutil.Process(process.pid).status() != psutil.STATUS_ZOMBIE and time.monotonic() < deadline:
        time.sleep(0.01)
    assert not processes.is_alive(process.pid, began)


def test_what_runs_elsewhere_cannot_be_seen(process):
    seen = processes.look([entry(process.pid, psutil.Process(process.pid).create_time()), entry(1, 0.0, "another-host"), entry(os.getpid(), 5.0)])
    assert [len(part) for part in (seen.alive, seen.elsewhere, seen.gone)] == [1, 1, 1]


def test_kill_ends_the_registered_process_and_no_other(process):
    processes.kill([entry(process.pid, 1000.0), entry(os.getpid(), 1000.0)])
    assert process.poll() is None
    processes.kill([entry(process.pid, psutil.Process(process.pid).create_time())])
    assert process.wait(timeout=10) == -9


def test_components_without_a_process_are_not_registered():
    assert processes.merge([], {"a": {"state": "idle"}, "b": {"pid": "x", "started": 1}, "c": {"pid": 3}}, "host") == []
