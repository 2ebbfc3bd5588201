"""A served model as a policy, against a real HTTP server: tokens where it gives them, text elsewhere, failures with names."""

import json
import threading

import numpy as np
import pytest

from runner.policies.base import SamplingParams, Weights, token_seed
from runner.policies.remote import Patience, RemoteFailed, RemotePolicy
from tests.runner.completion_server import CompletionServer
from tests.runner.tiny_models import tiny_tokenizer

QUICK = Patience(tries=3, first=0.01, longest=0.02)
SAMPLING = SamplingParams(temperature=0.5, top_p=0.9, max_new_tokens=3)
SEED = token_seed(1, 2, 3, 4)


@pytest.fixture
def serve():
    """serve(script) → the server; it ends with the test."""
    running = []

    def start(script):
        running.append(CompletionServer(script))
        return running[-1]

    yield start
    for server in running:
        server.close()


@pytest.fixture(scope="module")
def tokenizer():
    return tiny_tokenizer()


def policy_of(server, tokenizer, **options):
    return RemotePolicy(server.url, "m", tokenizer, max_length=32, **{"patience": QUICK, **options})


def completion(**choice):
    return {"choices": [{"index": 0, "text": "", "finish_reason": "stop", **choice}]}


def in_tokens(body):
    """A server like vLLM: each answer counts on from the prompt's last token."""
    last = body["prompt"][-1]
    ids = [last + 1, last + 2, 2][: body["max_tokens"]]
    reason = "stop" if ids[-1] == 2 else "length"
    return completion(token_ids=ids, logprobs={"token_logprobs": [-0.5 * (n + 1) for n in range(len(ids))]}, finish_reason=reason)


def refuses(message="prompt must be a string", status=400):
    return status, json.dumps({"error": {"message": message}}), {}


# ---------------------------------------------------------------- tokens
def test_tokens_go_in_and_come_out(serve, tokenizer):
    server = serve(in_tokens)
    policy = policy_of(server, tokenizer)
    first, second = policy.generate([[5, 6], [30]], SAMPLING, [SEED, token_seed(1, 2, 3, 5)])
    assert (first.token_ids.tolist(), second.token_ids.tolist()) == ([7, 8, 2], [31, 32, 2])
    assert first.token_ids.dtype == np.int32 and first.logprobs.dtype == np.float32
    assert first.logprobs.tolist() == [-0.5, -1.0, -1.5] and first.finish_reason == "stop" and policy.health()["exact"] is True
    sent = {tuple(body["prompt"]): body for body in server.bodies}
    assert set(sent) == {(5, 6), (30,)} and {body["path"] for body in server.bodies} == {"/v1/completions"}
    body = sent[5, 6]
    assert (body["model"], body["temperature"], body["top_p"], body["max_tokens"]) == ("m", 0.5, 0.9, 3)
    assert body["seed"] != sent[30,]["seed"] and 0 <= body["seed"] < 2**31


def test_a_seed_is_the_same_number_every_time_and_the_answer_fits_the_context(serve, tokenizer):
    server = serve(in_tokens)
    policy = policy_of(server, tokenizer)
    for _ in range(2):
        (last,) = policy.generate([[5] * 31], SAMPLING, [SEED])
    assert len(last.token_ids) == 1 and last.finish_reason == "length"
    assert server.bodies[0] == server.bodies[1]
    with pytest.raises(ValueError, match="model.max_length: a prompt of 32 tokens"):
        policy.generate([[5] * 32], SAMPLING, [SEED])
    with pytest.raises(ValueError, match="seeds: 0 for 1 prompts"):
        policy.generate([[5]], SAMPLING, [])


def test_a_missing_log_prob_is_no_number_and_a_wrong_count_is_refused(serve, tokenizer):
    (generation,) = policy_of(serve(lambda body: completion(token_ids=[7, 2])), tokenizer).generate([[5]], SAMPLING, [SEED])
    assert np.isnan(generation.logprobs).all() and len(generation.logprobs) == 2
    short = serve(lambda body: completion(token_ids=[7, 2], logprobs={"token_logprobs": [-1.0]}))
    with pytest.raises(RemoteFailed, match="2 tokens with 1 log-probs"):
        policy_of(short, tokenizer).generate([[5]], SAMPLING, [SEED])


@pytest.mark.parametrize("reason", [None, "abort", "content_filter"])
def test_an_answer_that_is_not_whole_is_none(serve, tokenizer, reason):
    with pytest.raises(RemoteFailed, match="only stop and length"):
        policy_of(serve(lambda body: completion(token_ids=[7], finish_reason=reason)), tokenizer).generate([[5]], SAMPLING, [SEED])


# ---------------------------------------------------------------- text
@pytest.mark.parametrize("refusing", [True, False])
def test_a_server_of_text_is_spoken_to_in_text(serve, tokenizer, refusing):
    def script(body):
        if refusing and not isinstance(body["prompt"], str):
            return refuses()
        return completion(text="the answer is B")

    server = serve(script)
    policy = policy_of(server, tokenizer)
    prompt = [1, *tokenizer.encode("water boils", add_special_tokens=False)]
    for _ in range(2):
        (generation,) = policy.generate([prompt], SAMPLING, [SEED])
        assert tokenizer.decode(generation.token_ids, skip_special_tokens=True) == "the answer is B"
        assert generation.token_ids[-1] == tokenizer.eos_token_id and np.isnan(generation.logprobs).all()
    assert policy.health()["exact"] is False
    assert server.bodies[-1]["prompt"] == "<|im_start|>water boils" and "return_token_ids" not in server.bodies[-1]
    assert [isinstance(body["prompt"], str) for body in server.bodies] == ([False, True, True] if refusing else [False, True])


def test_a_server_of_tokens_that_refuses_one_prompt_is_not_asked_in_text(serve, tokenizer):
    server = serve(lambda body: refuses("maximum context length is 8") if len(body["prompt"]) > 8 else in_tokens(body))
    policy = policy_of(server, tokenizer)
    policy.generate([[5]], SAMPLING, [SEED])
    with pytest.raises(RemoteFailed, match="maximum context length is 8"):
        policy.generate([[5] * 9], SAMPLING, [SEED])
    assert len(server.bodies) == 2


# ---------------------------------------------------------------- failures
@pytest.mark.parametrize(
    "failure", [(503, "busy", {}), (429, "slow down", {"Retry-After": "1"}), (200, "<html>proxy</html>", {}), (200, "[]", {})]
)
def test_what_may_pass_is_tried_again(serve, tokenizer, failure):
    left = [failure, failure]
    server = serve(lambda body: left.pop() if left else in_tokens(body))
    (generation,) = policy_of(server, tokenizer).generate([[5]], SAMPLING, [SEED])
    assert generation.token_ids.tolist() == [6, 7, 2] and len(server.bodies) == 3
    assert server.bodies[0] == server.bodies[2], "the same draw is asked for"


@pytest.mark.parametrize(
    ("failure", "words"), [((503, "busy", {}), "answered 503: busy; tried 3 times"), ((200, "no", {}), "something else than a completion")]
)
def test_tries_are_bounded(serve, tokenizer, failure, words):
    server = serve(lambda body: failure)
    with pytest.raises(RemoteFailed, match=words):
        policy_of(server, tokenizer).generate([[5]], SAMPLING, [SEED])
    assert len(server.bodies) == 3


@pytest.mark.parametrize("status", [401, 404])
def test_what_no_repetition_cures_is_told_at_once(serve, tokenizer, status):
    server = serve(lambda body: (status, "no model m", {}))
    with pytest.raises(RemoteFailed, match=f"answered {status}: no model m"):
        policy_of(server, tokenizer).generate([[5]], SAMPLING, [SEED])
    assert len(server.bodies) == 1


def test_nobody_there_and_nobody_answering(serve, tokenizer):
    server = serve(in_tokens)
    policy = policy_of(server, tokenizer)
    server.close()
    with pytest.raises(RemoteFailed, match="did not answer: ConnectError.*tried 3 times"):
        policy.generate([[5]], SAMPLING, [SEED])
    release = threading.Event()
    slow = serve(lambda body: release.wait(10) and in_tokens(body) or in_tokens(body))
    with pytest.raises(RemoteFailed, match="ReadTimeout"):
        policy_of(slow, tokenizer, seconds=0.1, patience=Patience(1)).generate([[5]], SAMPLING, [SEED])
    release.set()


def test_waits_double_up_to_a_bound_and_the_server_may_name_them():
    patience = Patience(tries=9, first=0.5, longest=3.0)
    assert [patience.before(again, None) for again in (1, 2, 3, 4, 8)] == [0.5, 1.0, 2.0, 3.0, 3.0]
    assert patience.before(1, 2.0) == 2.0 and patience.before(1, 600.0) == 3.0


# ---------------------------------------------------------------- scores
def scoring(body):
    places = [None, *({str(token): {"logprob": -token / 10, "rank": 1}} for token in body["prompt"][1:])]
    return completion(token_ids=[9], prompt_logprobs=places)


def test_a_teacher_scores_tokens_without_generating_an_answer(serve, tokenizer):
    server = serve(scoring)
    policy = policy_of(server, tokenizer)
    (scores,) = policy.score([[1, 5, 6]])
    assert np.isnan(scores[0]) and scores.dtype == np.float32
    np.testing.assert_allclose(scores[1:], [-0.5, -0.6], rtol=1e-6)
    assert (server.bodies[0]["max_tokens"], server.bodies[0]["prompt_logprobs"]) == (1, 0)
    (choices,) = policy.choice_logprobs([[1]], [[[5], [5, 6]]])
    np.testing.assert_allclose(choices, [-0.5, -1.1], rtol=1e-6)
    with pytest.raises(ValueError, match="temperature"):
        policy.score([[1, 5]], temperature=2.0)


def test_a_server_that_cannot_score_is_named(serve, tokenizer):
    with pytest.raises(RemoteFailed, match="it cannot score"):
        policy_of(serve(in_tokens), tokenizer).score([[1, 5]])


def test_its_weights_are_its_own(serve, tokenizer):
    with pytest.raises(RemoteFailed, match="version 3 cannot be pushed"):
        policy_of(serve(in_tokens), tokenizer).load_weights(Weights(3, {}, {}))
