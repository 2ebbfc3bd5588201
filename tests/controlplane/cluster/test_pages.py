import re
from datetime import timedelta

from django.utils import timezone

from controlplane.cluster.models import Grant, GrantState, Node, NodeState, ReconcilerTick, Share
from runner.contract.states import RunState
from tests.controlplane.factories import make_attempt, make_run
from tests.controlplane.pages import queries_of, read, signed_in


def make_node(name="gpu-01", **values):
    return Node.objects.create(name=name, address="10.0.0.1", cpus=8, gpus=2, last_seen_at=timezone.now(), **values)


def hold(node, team, state=GrantState.HELD, **values):
    run = make_run(team, **values)
    grant = Grant.objects.create(attempt=make_attempt(run), state=state, reason="pid 41 is still there")
    Share.objects.create(grant=grant, node=node, bundle="learner", cpus="1.5", gpus=1)
    return run


def test_an_empty_cluster_says_how_nodes_come(owner):
    assert "No node yet" in read(owner, "/cluster")


def test_a_node_shows_what_is_held_and_by_whom(owner, team, other_team):
    node = make_node()
    hold(node, team, name="mine")
    hold(node, other_team, name="secret")
    html = read(owner, "/cluster", queries=14)
    assert "3 of 8 held" in html and "2 of 2 held" in html and "mine" in html
    assert "secret" not in html and "another team" in html


def test_the_gpus_of_a_run_are_told_on_the_node_of_its_driver(owner, team, other_team):
    node, told = make_node(), {"index": 1, "uuid": "GPU-1", "name": "H200", "memory_errors": None}
    for whose, name, busy in ((team, "mine", 87.0), (other_team, "secret", None)):
        run = hold(node, whose, name=name)
        attempt = run.attempts.get()
        Share.objects.create(grant=attempt.grant, node=node, bundle="driver", cpus="0.2", gpus=0)
        attempt.devices = [{**told, "utilisation": busy, "memory_used": 3 << 30, "memory_total": 141 << 30, "temperature": 61, "power": 412.4}]
        attempt.save()
    html = read(owner, "/cluster")
    cells = re.findall(r'title="(H200, GPU-1[^"]*)"><th scope="row">1</th>((?:<td class="num">[^<]*</td>)+)', html)
    told = {title: re.findall(r">([^<]*)</td>", row) for title, row in cells}
    assert told == {"H200, GPU-1: mine": ["87 %", "3.0 GiB", "61", "412"], "H200, GPU-1": ["–", "3.0 GiB", "61", "412"]}
    assert "secret" not in html and "memory error" not in html


def test_quarantined_grants_are_shown_with_the_reason(owner, team, other_team):
    hold(make_node(), team, GrantState.QUARANTINED, name="stuck")
    hold(make_node("gpu-02"), other_team, GrantState.QUARANTINED, name="secret")
    html = read(owner, "/cluster")
    assert "pid 41 is still there" in html and "stuck" in html and "secret" not in html


def test_the_queue_tells_why_each_run_waits_and_counts_those_of_others(owner, team, other_team):
    for name, priority in (("later", 0), ("first", 5)):
        make_run(team, name=name, priority=priority, state=RunState.QUEUED, queued_at=timezone.now(), waiting=f"needs 8 GPUs for {name}")
    make_run(other_team, name="secret", state=RunState.QUEUED, queued_at=timezone.now())
    html = read(owner, "/cluster")
    assert html.index("needs 8 GPUs for first") < html.index("needs 8 GPUs for later")
    assert "and 1 of other teams" in html and "secret" not in html


def test_more_runs_take_no_more_queries(owner, team):
    node = make_node()
    hold(node, team)
    one = queries_of(owner, "/cluster")
    for index in range(6):
        hold(node, team)
        make_node(f"node-{index}")
    assert queries_of(owner, "/cluster") == one


def test_htmx_gets_the_content_alone(owner):
    assert "<html" not in signed_in(owner).get("/cluster", headers={"HX-Request": "true"}).content.decode()


def test_only_an_admin_cordons(owner, teammate):
    node = make_node()
    path = f"/cluster/nodes/{node.pk}/cordon"
    assert signed_in(teammate).post(path, {"cordoned": "1"}).status_code == 403
    assert "Cordon" not in read(teammate, "/cluster")
    signed_in(owner).post(path, {"cordoned": "1"})
    node.refresh_from_db()
    assert node.state == NodeState.CORDONED


def test_a_silent_reconciler_is_a_banner_on_every_page(owner):
    assert "has not run yet" in read(owner, "/runs")
    ReconcilerTick.objects.create(at=timezone.now() - timedelta(seconds=95))
    assert re.search(r"last ran 1 min \d\d s ago", read(owner, "/cluster"))
    ReconcilerTick.objects.update(at=timezone.now())
    assert "reconciler last ran" not in read(owner, "/runs") and read(owner, "/house").strip() == ""
