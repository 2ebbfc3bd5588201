"""The client of Ray's REST API against replies recorded from a real head, and against its failures."""

import time

import pytest

from controlplane.runs.ray_jobs import JobExists, RayJobs, RayRefused, RayUnreachable


def submit(client, submission_id="assay-7"):
    client.submit(submission_id, "python -m runner.main", {"ASSAY_ATTEMPT": "7"}, {"run": "r"}, {"assay_node:local": 0.001})


def test_a_submitted_job_is_found_with_its_metadata(ray):
    client = RayJobs()
    submit(client)
    job = client.job("assay-7")
    assert (job.status, job.is_over, job.metadata) == ("RUNNING", False, {"run": "r"})
    assert ray.jobs["assay-7"]["runtime_env"] == {"env_vars": {"ASSAY_ATTEMPT": "7"}}
    assert ray.jobs["assay-7"]["entrypoint_resources"] == {"assay_node:local": 0.001}


def test_a_second_submission_says_the_job_exists(ray):
    client = RayJobs()
    submit(client)
    with pytest.raises(JobExists, match="assay-7 already exists"):
        submit(client)


def test_an_unknown_job_is_none_and_not_an_error(ray):
    client = RayJobs()
    assert client.job("assay-9") is None
    assert client.stop("assay-9") is False
    assert client.delete("assay-9") is False


def test_stop_ends_a_running_job_once(ray):
    client = RayJobs()
    submit(client)
    assert client.stop("assay-7") is True
    assert client.stop("assay-7") is False
    assert client.job("assay-7").status == "STOPPED"


def test_nodes_carry_capacity_and_their_own_resource(ray):
    ray.nodes.append({**ray.nodes[0], "node_name": "dead", "state": "DEAD"})
    ray.nodes.append({**ray.nodes[0], "node_name": "", "node_ip": "10.0.0.2", "resources_total": {"CPU": 8.0, "GPU": 4.0, "node:10.0.0.2": 1.0}})
    client = RayJobs()
    first, second = client.nodes()
    assert (first.name, first.cpus, first.gpus, first.resource) == ("local", 2.0, 0, "assay_node:local")
    assert (second.name, second.cpus, second.gpus, second.resource) == ("10.0.0.2", 8.0, 4, "node:10.0.0.2")


def test_removed_groups_are_left_out(ray):
    ray.groups = [{"name": "assay-7", "state": "CREATED", "creator_job_id": "01"}, {"name": "assay-6", "state": "REMOVED", "creator_job_id": "02"}]
    client = RayJobs()
    assert [group.name for group in client.groups()] == ["assay-7"]


def test_a_hanging_head_is_unreachable_within_the_deadline(ray):
    ray.hang_s = 3.0
    began = time.monotonic()
    with pytest.raises(RayUnreachable, match="did not answer"):
        RayJobs(timeout=0.2).job("assay-7")
    assert time.monotonic() - began < 2.0


def test_a_server_error_says_nothing_of_the_job(ray):
    ray.fail = 500
    client = RayJobs()
    with pytest.raises(RayUnreachable, match="500: RuntimeError: injected"):
        client.job("assay-7")


def test_a_client_error_is_a_refusal(ray):
    ray.fail = 400
    client = RayJobs()
    with pytest.raises(RayRefused):
        submit(client)


def test_no_head_at_all_is_unreachable():
    client = RayJobs("http://127.0.0.1:1")
    with pytest.raises(RayUnreachable):
        client.nodes()


def test_a_submit_whose_answer_is_lost_still_made_the_job(ray):
    ray.lose_submit = True
    client = RayJobs()
    with pytest.raises(RayUnreachable):
        submit(client)
    assert client.job("assay-7").status == "RUNNING"
