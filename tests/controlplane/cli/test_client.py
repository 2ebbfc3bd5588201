"""Where Assay is, who we are, and what its refusals look like."""

import json

import httpx
import pytest

from controlplane.cli import main
from controlplane.cli.client import UNREACHABLE, Client, ClientError, connect, dotted

PROBLEM = {
    "type": "about:blank",
    "title": "Invalid run document",
    "status": 422,
    "detail": "2 fields",
    "errors": [
        {"pointer": "/stages/1/group_size", "message": "try batch_size 64", "value": 7},
        {"pointer": "", "message": "not a mapping", "value": None},
    ],
    "request": "r1",
}


def client(*answers):
    """A client whose server gives `answers` in turn (an exception is raised), and the requests it saw."""
    seen, left = [], list(answers)

    def serve(request):
        seen.append(request)
        answer = left.pop(0)
        if isinstance(answer, Exception):
            raise answer
        return answer

    return Client("http://127.0.0.1:9", "assay_secret", httpx.MockTransport(serve)), seen


@pytest.fixture
def home(tmp_path, monkeypatch):
    monkeypatch.setenv("ASSAY_HOME", str(tmp_path))
    for name in ("ASSAY_URL", "ASSAY_TOKEN"):
        monkeypatch.delenv(name, raising=False)
    return tmp_path


def test_a_problem_is_one_line_a_field():
    caller, _ = client(httpx.Response(422, json=PROBLEM))
    with pytest.raises(ClientError) as caught:
        caller.post("/runs", {})
    assert caught.value.lines == ("stages[1].group_size: try batch_size 64", "Invalid run document: not a mapping")
    assert caught.value.code == 1


def test_a_problem_without_fields_is_its_detail_and_the_wait():
    caller, _ = client(
        httpx.Response(
            429, json={**PROBLEM, "title": "Too many requests", "detail": "try later", "errors": []}, headers={"Retry-After": "7"}
        )
    )
    with pytest.raises(ClientError, match=r"^assay: Too many requests: try later \(in 7 s\)$"):
        caller.get("/runs")


@pytest.mark.parametrize("status, code", [(500, 1), (502, UNREACHABLE), (503, UNREACHABLE)])
def test_an_answer_that_is_no_problem_document_is_told_as_such(status, code):
    caller, _ = client(httpx.Response(status, text="<html>"))
    with pytest.raises(ClientError, match=f"HTTP {status}") as caught:
        caller.get("/runs")
    assert caught.value.code == code


def test_a_lost_answer_is_asked_for_again_under_the_same_key():
    caller, seen = client(httpx.ReadTimeout("slow"), httpx.Response(201, json={"id": "r"}))
    assert caller.post("/runs", {"name": "x"}) == {"id": "r"}
    keys = [request.headers["Idempotency-Key"] for request in seen]
    assert keys[0] == keys[1] and len(keys[0]) == 32


def test_two_posts_have_two_keys_unless_one_is_given():
    caller, seen = client(*[httpx.Response(201, json={})] * 3)
    for key in (None, None, "mine"):
        caller.post("/runs", {}, key)
    keys = [request.headers["Idempotency-Key"] for request in seen]
    assert len(set(keys)) == 3 and keys[2] == "mine"


def test_the_token_goes_into_the_header_and_never_into_the_address():
    caller, seen = client(httpx.Response(200, json={"items": [], "next": None}))
    list(caller.pages("/runs", 10))
    assert seen[0].headers["Authorization"] == "Bearer assay_secret"
    assert "secret" not in str(seen[0].url)


def test_pages_are_followed_up_to_the_limit():
    pages = [{"items": [1, 2], "next": "c1"}, {"items": [3, 4], "next": "c2"}]
    caller, seen = client(*[httpx.Response(200, json=page) for page in pages])
    assert list(caller.pages("/runs", 3, state="active", search="")) == [1, 2, 3]
    assert [dict(request.url.params) for request in seen] == [
        {"limit": "3", "state": "active"},
        {"limit": "1", "cursor": "c1", "state": "active"},
    ]


def test_nobody_answering_is_exit_code_3(home, monkeypatch, capsys):
    monkeypatch.setenv("ASSAY_URL", "http://127.0.0.1:1")
    monkeypatch.setenv("ASSAY_TOKEN", "assay_x")
    assert main(["runs"]) == 3
    assert "does not answer" in capsys.readouterr().err


@pytest.mark.parametrize("url", ["nonsense", "ftp://x", "http://"])
def test_a_wrong_address_is_named(home, monkeypatch, capsys, url):
    monkeypatch.setenv("ASSAY_URL", url)
    monkeypatch.setenv("ASSAY_TOKEN", "assay_x")
    assert main(["runs"]) == 3
    assert url in capsys.readouterr().err


def test_no_house_and_no_address_says_what_to_do(home, capsys):
    assert main(["runs"]) == 3
    assert "./assay up" in capsys.readouterr().err


def test_the_house_is_found_with_its_token(home):
    (home / "environment").write_text("ASSAY_URL=http://127.0.0.1:8123\n")
    (home / "token").write_text("assay_abc\n")
    (home / "token").chmod(0o600)
    found = connect()
    assert (found.url, found.http.headers["Authorization"]) == ("http://127.0.0.1:8123", "Bearer assay_abc")


def test_a_token_file_that_others_read_is_refused(home, capsys):
    (home / "environment").write_text("ASSAY_URL=http://127.0.0.1:8123\n")
    (home / "token").write_text("assay_abc")
    (home / "token").chmod(0o644)
    assert main(["runs"]) == 1
    err = capsys.readouterr().err
    assert "chmod 600" in err and "assay_abc" not in err


def test_a_proxy_is_not_asked_for_what_is_on_this_machine(monkeypatch):
    monkeypatch.setenv("HTTP_PROXY", "http://proxy.invalid:1")
    assert not Client("http://127.0.0.1:9", "x").http._mounts
    assert Client("http://assay.example", "x").http._mounts


@pytest.mark.parametrize(
    "pointer, text",
    [("/stages/1/group_size", "stages[1].group_size"), ("/seed", "seed"), ("", ""), ("/a~1b/0/0", "a/b[0][0]"), ("/0/x", "[0].x")],
)
def test_pointers_are_shown_dotted(pointer, text):
    assert dotted(pointer) == text


@pytest.mark.parametrize("argv", [[], ["fly"], ["launch"], ["launch", "a.toml", "--preset", "sample"], ["import", "chess"], ["logs"]])
def test_wrong_usage_is_exit_code_2(argv, capsys):
    with pytest.raises(SystemExit) as caught:
        main(argv)
    assert caught.value.code == 2
    assert "usage: assay" in capsys.readouterr().err


def test_json_survives_the_round_trip():
    caller, seen = client(httpx.Response(201, json={}))
    caller.post("/runs", {"rate": 1e-5, "name": "Größe"})
    assert json.loads(seen[0].content) == {"rate": 1e-5, "name": "Größe"}
