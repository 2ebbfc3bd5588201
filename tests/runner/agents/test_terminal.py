"""The terminal agent in a real tmux on this machine: types, looks, confirms, gives up."""

import json
import shutil

import pytest

from runner.agents.terminal import TerminalAgent, window
from runner.agents.tmux import Tmux
from runner.contract.run_config import TerminalAgent as Settings
from runner.contract.termination import Termination
from runner.sandbox.reasons import Reason, SandboxFailure
from tests.runner.agents.local import LocalContainer

pytestmark = pytest.mark.skipif(not shutil.which("tmux"), reason="this machine has no tmux")
WAIT = 0.4


def reply(*keystrokes, complete=False):
    commands = [{"keystrokes": keys, "duration": WAIT} for keys in keystrokes]
    return json.dumps({"analysis": "a", "plan": "p", "commands": commands, "task_complete": complete})


@pytest.fixture
async def act(tmp_path):
    """A started agent: `agent, first prompt`; the shell ends with the test."""
    agents = []

    async def start(**settings):
        agent = TerminalAgent(Settings(**settings))
        agents.append(agent)
        agent.box = LocalContainer(tmp_path)
        await agent.setup(agent.box, None)
        (prompt,) = await agent.begin("Mend the sign.\n\n## Location hint", 0)
        return agent, prompt["content"]

    yield start
    for agent in agents:
        await agent.finish()


async def test_the_first_prompt_holds_protocol_task_and_screen(act):
    _, prompt = await act()
    assert "keystrokes" in prompt and "Mend the sign.\n\n## Location hint" in prompt and "Current screen:" in prompt


async def test_commands_run_and_only_what_is_new_is_shown(act):
    agent, _ = await act()
    first = await agent.take(reply("echo one $((40+2))\n"))
    second = await agent.take(reply("cat > note <<EOF\nhello\nEOF\n", "cat note\n"))
    told = [step.observation.messages[0]["content"] for step in (first, second)]
    assert "one 42" in told[0] and "hello" in told[1] and "one 42" not in told[1]
    assert [call for action in agent.actions for call in action.calls][0] == (
        "bash_command",
        {"keystrokes": "echo one $((40+2))\n", "duration": WAIT},
    )


async def test_control_keys_interrupt(act):
    agent, _ = await act()
    await agent.take(reply("sleep 60\n"))
    step = await agent.take(reply("C-c", "echo back\n"))
    assert "\nback" in step.observation.messages[0]["content"]


async def test_keystrokes_too_long_for_a_call_are_pasted(act, tmp_path):
    agent, _ = await act()
    text = "".join(f"line {number}\n" for number in range(3000))
    assert len(text) > 16_000
    await agent.take(reply(f"cat > long <<'EOF'\n{text}EOF\n", "sync\n"))
    assert (tmp_path / "app" / "long").read_text() == text


async def test_a_screen_is_cut_by_bytes(act):
    agent, _ = await act(max_observation_bytes=1000)
    step = await agent.take(reply("seq 1 9999\n"))
    for _ in range(20):
        # A loaded machine prints late; what a look did not hold yet is new at the next one.
        if "left out" in (shown := step.observation.messages[0]["content"]):
            break
        step = await agent.take(reply(""))
    assert len(shown.encode()) <= 1200 and "left out" in shown and "9999" in shown


async def test_completion_takes_two_steps_and_any_other_reply_clears_it(act):
    agent, _ = await act()
    asked = await agent.take(reply(complete=True))
    assert not asked.done and "once more" in asked.observation.messages[0]["content"]
    assert not (await agent.take(reply("ls\n"))).done
    assert not (await agent.take(reply(complete=True))).done
    assert not (await agent.take("not json")).done
    assert not (await agent.take(reply(complete=True))).done
    done = await agent.take(reply(complete=True))
    assert done.done and done.termination is None


async def test_an_unreadable_reply_runs_nothing_and_costs_a_turn(act, tmp_path):
    agent, _ = await act(max_turns=2)
    step = await agent.take('{"commands": [{"keystrokes": "touch made\\n"}]}')
    assert "'analysis' is missing" in step.observation.messages[0]["content"] and not (tmp_path / "app" / "made").exists()
    last = await agent.take(reply("ls\n"))
    assert last.done and last.termination is Termination.MAX_TURNS_EXCEEDED


async def test_confirming_on_the_last_turn_is_finishing(act):
    agent, _ = await act(max_turns=2)
    await agent.take(reply(complete=True))
    assert (await agent.take(reply(complete=True))).termination is None


async def test_warnings_stand_before_what_was_seen(act):
    agent, _ = await act()
    step = await agent.take('{"analysis": "", "plan": "", "commands": [{"keystrokes": "echo seen\\n"}]}')
    shown = step.observation.messages[0]["content"]
    assert shown.startswith("Warnings:\n- command 1 has no duration") and shown.index("Warnings") < shown.index("seen")


async def test_cut_replies_are_answered_three_times(act):
    agent, _ = await act(length_retries=3)
    steps = [await agent.cut("{") for _ in range(4)]
    assert ["shorter" in step.observation.messages[0]["content"] for step in steps[:3]] == [True] * 3
    assert steps[3].done and steps[3].termination is Termination.MAX_RESPONSE_LENGTH_EXCEEDED
    agent._cuts = 3
    await agent.take(reply("ls\n"))
    assert not (await agent.cut("{")).done


async def test_a_shell_that_ends_ends_the_episode(act):
    agent, _ = await act()
    await agent.take(reply("exit\n"))
    assert (await agent.take(reply("ls\n"))).done


async def test_the_raw_stream_is_kept(act, tmp_path):
    agent, _ = await act()
    await agent.take(reply("echo kept\n"))
    assert b"kept" in (tmp_path / "logs/agent/terminal.pane").read_bytes()


async def test_without_tmux_the_episode_does_not_begin(tmp_path, monkeypatch):
    box = LocalContainer(tmp_path)
    monkeypatch.setenv("PATH", "/nowhere")
    with pytest.raises(SandboxFailure, match="tmux") as caught:
        await Tmux(box).start()
    assert caught.value.reason is Reason.AGENT_SETUP_FAILED and caught.value.termination is Termination.ROLLOUT_ERROR


@pytest.mark.parametrize(("length", "margin", "tokens"), [(40_960, 8192, 32_768), (8192, 8192, 1024), (512, 8192, 512), (1000, 0, 1000)])
def test_the_window_keeps_a_margin(length, margin, tokens):
    assert window(length, margin) == tokens
