import pytest

from runner.contract.termination import Termination
from runner.sandbox.reasons import TERMINATION, Reason, SandboxFailure
from runner.sandbox.rewards import LIMIT, parse_json, parse_text, read_rewards, score


class Files:
    """A container that holds these files."""

    def __init__(self, **files):
        self.files = {f"/logs/verifier/reward.{kind}": content for kind, content in files.items()}

    async def read(self, path, limit):
        if path not in self.files:
            raise SandboxFailure(Reason.PATH_MISSING, path)
        if len(self.files[path]) > limit:
            raise SandboxFailure(Reason.ARCHIVE_TOO_LARGE, path)
        return self.files[path]


async def reason_of(**files) -> Reason:
    with pytest.raises(SandboxFailure) as caught:
        await read_rewards(Files(**files))
    return caught.value.reason


async def test_json_wins_over_text():
    assert await read_rewards(Files(json=b'{"reward": 0.5, "n": 1}', txt=b"1.0")) == {"reward": 0.5, "n": 1.0}
    assert await read_rewards(Files(txt=b" 0.25\n")) == {"reward": 0.25}


async def test_a_broken_json_is_not_replaced_by_the_text():
    assert await reason_of(json=b"{", txt=b"1.0") is Reason.REWARD_UNPARSABLE


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (b"", Reason.REWARD_EMPTY),
        (b" \n", Reason.REWARD_EMPTY),
        (b"{}", Reason.REWARD_EMPTY),
        (b"0.5", Reason.REWARD_UNPARSABLE),
        (b"[1]", Reason.REWARD_UNPARSABLE),
        (b"\xff\xfe", Reason.REWARD_UNPARSABLE),
        (b"[" * 100_000, Reason.REWARD_UNPARSABLE),
        (b'{"reward": NaN}', Reason.REWARD_NOT_FINITE),
        (b'{"reward": -Infinity}', Reason.REWARD_NOT_FINITE),
        (b'{"reward": 1e999}', Reason.REWARD_NOT_FINITE),
        (b'{"reward": 1' + b"0" * 400 + b"}", Reason.REWARD_NOT_FINITE),
        (b'{"reward": "good"}', Reason.REWARD_NOT_NUMERIC),
        (b'{"reward": "1.0"}', Reason.REWARD_NOT_NUMERIC),
        (b'{"reward": true}', Reason.REWARD_NOT_NUMERIC),
        (b'{"reward": null}', Reason.REWARD_NOT_NUMERIC),
        (b'{"reward": {"x": 1}}', Reason.REWARD_NOT_NUMERIC),
        (b'{"reward": "' + b"x" * LIMIT + b'"}', Reason.REWARD_TOO_LARGE),
    ],
)
async def test_what_is_no_flat_map_of_finite_numbers_has_a_name(content, reason):
    assert await reason_of(json=content) is reason
    assert TERMINATION[reason] is Termination.VERIFIER_ERROR


@pytest.mark.parametrize(
    ("content", "reason"), [(b"", Reason.REWARD_EMPTY), (b"ok", Reason.REWARD_NOT_NUMERIC), (b"nan", Reason.REWARD_NOT_FINITE)]
)
def test_a_text_that_is_no_number_has_a_name(content, reason):
    with pytest.raises(SandboxFailure) as caught:
        parse_text(content)
    assert caught.value.reason is reason


async def test_no_file_is_missing_not_zero():
    assert await reason_of() is Reason.REWARD_MISSING


def test_a_score_is_one_named_reward():
    rewards = parse_json(b'{"reward": 0.75, "reward_repair": 0.615385, "floor": 0.35, "check_heat_32": 1.0}')
    assert score(rewards, "reward_repair") == 0.615385
    with pytest.raises(SandboxFailure) as caught:
        score(rewards, "reward_gpu")
    assert caught.value.reason is Reason.REWARD_KEY_MISSING


def test_a_crashed_grader_is_not_a_zero():
    with pytest.raises(SandboxFailure) as caught:
        score({"reward": 0.0, "equivalence_pass": 0.0, "grader_error": 1.0}, "reward")
    assert caught.value.reason is Reason.GRADER_ERROR
