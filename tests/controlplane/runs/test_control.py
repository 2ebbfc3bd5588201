"""The runner-facing endpoints: claim once, be fenced when closed, say clearly what is wrong."""

import json

import pytest

from controlplane.runs.models import Attempt
from controlplane.runs.services import request_stop
from tests.controlplane.runs.conftest import run_due


@pytest.fixture
def attempt(launch, node, ray):
    launch()
    run_due()
    return Attempt.objects.get()


@pytest.fixture
def driver(driver_of, attempt):
    return driver_of(attempt)


@pytest.fixture
def claimed(driver):
    assert driver.claim().status_code == 200
    return driver


# ---------------------------------------------------------------- claim
def test_a_claim_returns_everything_the_driver_needs(driver, attempt, storage_folder):
    answer = driver.claim().json()
    run = attempt.run
    assert answer["token"].startswith("assay_") and len(answer["token"]) == 49
    assert (answer["run"], answer["attempt"], answer["number"], answer["total_steps"]) == (str(run.pk), attempt.pk, 1, 10)
    assert answer["config"] == json.loads(bytes(run.config)) and answer["config_hash"] == run.config_hash
    assert answer["storage"] == str(storage_folder / "runs" / str(run.pk))
    assert answer["bank"]["digest"] == "b" * 64
    assert [share["bundle"] for share in answer["grant"]] == ["driver", "learner", "worker-0", "worker-1"]
    assert answer["grant"][1] == {"bundle": "learner", "node": "local", "node_resource": "assay_node:local", "cpus": 0.8, "gpus": 0}
    assert answer["resume"] is None and answer["model_checkpoint"] is None


def test_a_claim_stores_only_hashes_and_registers_the_process(driver, attempt):
    token = driver.claim(host="node-1", pid=77, started=12.5).json()["token"]
    attempt.refresh_from_db()
    assert token not in str(attempt.__dict__) and driver.code not in str(attempt.__dict__)
    assert attempt.processes == [{"component": "driver", "host": "node-1", "pid": 77, "started": 12.5}]
    assert attempt.claimed_at and attempt.state == "starting"
    assert attempt.run.events.filter(kind="claimed").exists()


def test_a_second_claimant_is_refused(claimed, attempt):
    second = claimed.claim(host="imposter")
    assert second.status_code == 409
    assert second.json()["title"] == "Claimed already" and "exit" in second.json()["detail"]
    assert second["Content-Type"] == "application/problem+json"
    assert Attempt.objects.get().host == "elsewhere"


def test_a_wrong_code_is_forbidden_and_a_right_one_still_works(driver):
    right, driver.code = driver.code, "assay_wrong"
    assert driver.claim().status_code == 403
    driver.code = right
    assert driver.claim().status_code == 200


def test_an_unknown_attempt_is_as_forbidden_as_a_wrong_code(client, db):
    assert client.post("/api/ingest/999999/claim", "{}", content_type="application/json").status_code == 400
    body = json.dumps({"code": "x", "pid": 1, "started": 1.0})
    assert client.post("/api/ingest/999999/claim", body, content_type="application/json").status_code == 403


def test_a_closed_attempt_cannot_be_claimed(driver, attempt):
    Attempt.objects.update(state="lost")
    assert driver.claim().status_code == 410


def test_the_driver_may_claim_before_its_job_was_seen(driver, attempt):
    Attempt.objects.update(state="granted")
    assert driver.claim().status_code == 200
    assert Attempt.objects.get().state == "starting"


# ---------------------------------------------------------------- authentication and form
@pytest.mark.parametrize("what", ["heartbeat", "state", "exit", "checkpoints"])
def test_every_endpoint_wants_the_attempts_token(driver, what):
    assert driver.post(what, {}).status_code == 401
    driver.token = "assay_guess"
    assert driver.post(what, {}).status_code == 401


@pytest.mark.parametrize("what", ["claim", "heartbeat", "state", "exit", "checkpoints"])
def test_only_post_is_taken(client, attempt, what):
    response = client.get(f"/api/ingest/{attempt.pk}/{what}")
    assert response.status_code == 405 and response["Allow"] == "POST"


@pytest.mark.parametrize("body", [b"", b"[]", b"\xff", b"nonsense"])
def test_a_body_that_is_no_object_is_a_bad_request(client, claimed, attempt, body):
    headers = {"Authorization": f"Bearer {claimed.token}"}
    assert client.post(f"/api/ingest/{attempt.pk}/heartbeat", body, content_type="application/json", headers=headers).status_code == 400


def test_one_attempts_token_does_not_open_another(claimed, attempt):
    attempt.pk = None
    other = Attempt.objects.create(run=attempt.run, number=9, state="lost", submission_id="assay-x", claim_hash="")
    claimed.attempt = other
    assert claimed.beat().status_code == 401


# ---------------------------------------------------------------- heartbeat
def test_a_heartbeat_is_kept_and_its_processes_registered_once(claimed):
    components = {"worker-0": {"state": "generating", "pid": 9, "started": 50.0, "rss": 1}, "learner": {"state": "idle"}}
    assert claimed.beat(components=components).json() == {"command": None, "grace_s": 120.0}
    claimed.beat(components=components)
    attempt = Attempt.objects.get()
    assert attempt.components == components and attempt.last_heartbeat_at
    assert [entry["component"] for entry in attempt.processes] == ["driver", "worker-0"]
    assert attempt.processes[1] == {"component": "worker-0", "host": "elsewhere", "pid": 9, "started": 50.0}


def test_a_restarted_component_is_registered_beside_its_predecessor(claimed):
    claimed.beat(components={"worker-0": {"pid": 9, "started": 50.0}})
    claimed.beat(components={"worker-0": {"pid": 10, "started": 60.0, "host": "node-2"}})
    assert [(entry["host"], entry["pid"]) for entry in Attempt.objects.get().processes[1:]] == [("elsewhere", 9), ("node-2", 10)]


def test_a_heartbeat_carries_the_command_to_stop(claimed, owner, attempt):
    claimed.run()
    request_stop(owner, attempt.run)
    assert claimed.beat().json()["command"] == "stop"


def test_a_malformed_heartbeat_names_its_field(claimed):
    assert "components" in claimed.beat(components=[1]).json()["detail"]
    assert "components" in claimed.beat(components={"a": 1}).json()["detail"]
    for devices in ("x", ["x"], [{}], [{"index": True}], [{"index": 0, "power": -1}], [{"index": 0, "power": "NaN"}]):
        assert "devices" in claimed.beat(devices=devices).json()["detail"]
    assert not Attempt.objects.get().devices


def test_of_each_gpu_the_known_fields_are_kept(claimed):
    claimed.beat(devices=[{"index": 1, "name": "H\0" * 99, "power": 412.5, "secret": "x"}])
    [device] = Attempt.objects.get().devices
    assert (device["index"], device["power"], device["utilisation"]) == (1, 412.5, None) and "secret" not in device
    assert len(device["name"]) <= 80 and "\0" not in device["name"]


# ---------------------------------------------------------------- state
def test_running_is_reached_once(claimed):
    assert claimed.run(first_step=3).json() == {"state": "running"}
    assert claimed.run(first_step=99).json() == {"state": "running"}
    attempt = Attempt.objects.get()
    assert (attempt.first_step, attempt.phase) == (3, "training") and attempt.running_at
    assert attempt.run.events.filter(kind="attempt_state", data__to="running").count() == 1


def test_running_after_a_stop_request_does_not_undo_it(claimed, owner, attempt):
    request_stop(owner, attempt.run)
    assert claimed.run().json() == {"state": "stopping"}


def test_an_unknown_state_is_refused(claimed):
    assert "must be running or stopping" in claimed.post("state", {"state": "lost"}).json()["detail"]


# ---------------------------------------------------------------- exit and the fence
@pytest.mark.parametrize("outcome", ["succeeded", "failed", "stopped"])
def test_the_exit_record_ends_attempt_and_run(claimed, outcome):
    claimed.run()
    record = {"reason": "as told", "error": {"type": "ValueError", "message": "no", "traceback": "…"} if outcome == "failed" else None}
    assert claimed.exit(outcome, **record).json() == {"state": outcome}
    attempt = Attempt.objects.select_related("run", "grant").get()
    assert (attempt.state, attempt.run.state, attempt.grant.state) == (outcome, outcome, "releasing")
    assert attempt.reason == "as told" and attempt.exit_record["step"] == 10


def test_the_same_exit_record_may_be_sent_again(claimed):
    claimed.run()
    assert claimed.exit().status_code == claimed.exit().status_code == 200
    assert Attempt.objects.get().writes_fenced == 0


def test_an_exit_record_without_an_outcome_is_refused(claimed):
    assert claimed.exit("exploded").status_code == 400


def test_a_closed_attempt_is_fenced_and_each_write_counted(claimed):
    claimed.run()
    claimed.exit("failed")
    refused = [claimed.beat(), claimed.run(), claimed.exit("succeeded"), claimed.post("checkpoints", checkpoint_body())]
    assert [response.status_code for response in refused] == [409] * 4
    attempt = Attempt.objects.get()
    assert (attempt.state, attempt.writes_fenced) == ("failed", 4)


def checkpoint_body():
    return {"checkpoint": "0" * 32, "stage": 0, "step": 1, "state": "writing", "path": "/x"}


def test_a_bad_checkpoint_report_names_its_field(claimed):
    claimed.run()
    assert "state: must be one of" in claimed.post("checkpoints", {**checkpoint_body(), "state": "done"}).json()["detail"]
    assert "step:" in claimed.post("checkpoints", {**checkpoint_body(), "step": -1}).json()["detail"]
    assert claimed.post("checkpoints", {**checkpoint_body(), "checkpoint": "x"}).status_code == 400


# ---------------------------------------------------------------- bank
def test_the_bank_file_is_served_to_the_attempt_only(claimed, client, attempt):
    url = f"/api/ingest/{attempt.pk}/bank"
    assert client.get(url).status_code == 401
    response = client.get(url, headers={"Authorization": f"Bearer {claimed.token}"})
    assert response.content == b"bank file" and response["ETag"] == f'"{"b" * 64}"'
