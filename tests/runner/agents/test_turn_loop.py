"""12.5: the terminal agent against a served model that misbehaves in every way."""

import json
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

from runner.agents.base import Action, user
from runner.agents.chat import Chat, ChatFailed, ContextOverflow
from runner.agents.turn_loop import ModelAgent
from runner.contract.run_config import TerminalAgent as Settings
from runner.contract.termination import Termination
from runner.environments.base import Observation, Step
from runner.sandbox.agent import Budget
from tests.runner.agents.local import LocalContainer
from tests.runner.agents.test_terminal import reply

OVERFLOW = "The decoder prompt (length 41000) is longer than the maximum model length of 40960."


class FakeServer:
    """Answers with what `script` holds, in order, then repeats the last; `asked` are the bodies it got."""

    def __init__(self):
        self.script, self.asked = [], []
        server = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self):
                body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
                server.asked.append(body)
                status, document = server.script.pop(0) if len(server.script) > 1 else server.script[0]
                data = (document if isinstance(document, str) else json.dumps(document)).encode()
                self.send_response(status)
                self.send_header("Content-Length", str(len(data)))
                self.end_headers()
                self.wfile.write(data)

            def log_message(self, *_):
                pass

        self.http = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        threading.Thread(target=self.http.serve_forever, daemon=True).start()

    @property
    def url(self):
        return f"http://127.0.0.1:{self.http.server_port}/v1"


def says(text, finish="stop", prompt=100, completion=10):
    usage = {"prompt_tokens": prompt, "completion_tokens": completion}
    return 200, {"choices": [{"message": {"content": text}, "finish_reason": finish}], "usage": usage}


@pytest.fixture
def server():
    server = FakeServer()
    yield server
    server.http.shutdown()


class FakeAgent:
    """A turn agent without a container: takes replies until one says done."""

    name, version = "fake", "1"

    def __init__(self, shorter=None):
        self.actions, self.finished, self.shorter, self.cuts = [], 0, shorter, 0

    async def setup(self, container, task):
        pass

    async def begin(self, instruction, seed):
        return [user(instruction)]

    async def take(self, reply):
        self.actions.append(Action(reply))
        return Step(done=True) if reply == "done" else Step(Observation([user(f"saw {reply}")]))

    async def cut(self, reply):
        self.cuts += 1
        return Step(Observation([user("shorter")]))

    async def condense(self, ask, history):
        return None if self.shorter is None else await self.shorter(ask, history)

    async def finish(self):
        self.finished += 1


async def act(server, agent, **options):
    model = ModelAgent(agent, Chat(server.url, "m"), "mend it", **options)
    ended = await model.run(None, None, Budget(60))
    assert agent.finished == 1, "what was done is delivered, whatever ended it"
    return ended, model


async def test_a_conversation_grows_by_reply_and_observation(server):
    server.script = [says("one"), says("two"), says("done")]
    ended, model = await act(server, FakeAgent())
    assert ended is Termination.FINISHED and [reply.text for reply in model.replies] == ["one", "two", "done"]
    roles = [[message["role"] for message in body["messages"]] for body in server.asked]
    assert roles == [["user"], ["user", "assistant", "user"], ["user", "assistant"] * 2 + ["user"]]
    assert "max_tokens" not in server.asked[0] and server.asked[0]["temperature"] == 1.0
    assert (model.usage.calls, model.usage.prompt_tokens, model.usage.completion_tokens) == (3, 300, 30)


async def test_a_cut_reply_is_not_taken(server):
    server.script = [says("o", "length"), says("done")]
    agent = FakeAgent()
    ended, _ = await act(server, agent)
    assert ended is Termination.FINISHED and agent.cuts == 1 and len(agent.actions) == 1


@pytest.mark.parametrize("words", [OVERFLOW, "context length exceeded", "Prompt is too long"])
async def test_an_overflow_is_final_and_the_prompt_is_sent_once(server, words):
    """One run sent the same rejected prompt 1,733 times."""
    server.script = [says("one"), (400, {"error": {"message": words}})]
    ended, model = await act(server, FakeAgent())
    assert ended is Termination.MAX_RESPONSE_LENGTH_EXCEEDED and len(server.asked) == 2 and words in model.error


async def test_a_history_that_can_be_shortened_goes_on(server):
    async def shorter(ask, history):
        return [user(f"summary: {await ask([user('summarise')])}")]

    server.script = [says("one"), (400, OVERFLOW), says("all is well"), says("done")]
    ended, model = await act(server, FakeAgent(shorter))
    assert ended is Termination.FINISHED and server.asked[3]["messages"] == [user("summary: all is well")]


async def test_a_shortened_history_that_is_rejected_again_ends_it(server):
    async def shorter(ask, history):
        return [user("same")]

    server.script = [says("one"), (400, OVERFLOW)]
    ended, _ = await act(server, FakeAgent(shorter))
    assert ended is Termination.MAX_RESPONSE_LENGTH_EXCEEDED and len(server.asked) == 3


async def test_other_failures_are_tried_three_times(server):
    server.script = [(503, "busy"), (200, "not json"), says("done")]
    assert (await act(server, FakeAgent()))[0] is Termination.FINISHED
    server.script, server.asked = [(503, "busy")], []
    ended, model = await act(server, FakeAgent())
    assert ended is Termination.POLICY_ERROR and len(server.asked) == 3 and "503" in model.error


async def test_a_cancelled_sibling_is_no_error(server):
    server.script = [(500, "Request aborted by PS Manager")]
    assert (await act(server, FakeAgent()))[0] is Termination.CANCELLED and len(server.asked) == 1


async def test_the_window_keeps_its_margin(server):
    server.script = [says("one", prompt=900), says("done")]
    assert (await act(server, FakeAgent(), window=1000))[0] is Termination.FINISHED
    server.script, server.asked = [says("one", prompt=1000), says("done")], []
    ended, model = await act(server, FakeAgent(), window=1000)
    assert ended is Termination.MAX_RESPONSE_LENGTH_EXCEEDED and len(server.asked) == 1 and "1000 are offered" in model.error


async def test_a_server_that_is_away_is_named():
    with pytest.raises(ChatFailed, match="did not answer"):
        await Chat("http://127.0.0.1:9/v1", "m").complete([user("a")])


async def test_an_overflow_has_an_exception_of_its_own(server):
    server.script = [(400, OVERFLOW)]
    with pytest.raises(ContextOverflow, match="41000"):
        await Chat(server.url, "m").complete([user("a")])


async def test_the_terminal_agent_lives_through_a_bad_day(server, tmp_path):
    """Malformed JSON, a missing duration, a cut reply, a completion that is taken back, then the work and two completions."""
    from runner.agents.terminal import TerminalAgent

    no_duration = json.dumps({"analysis": "", "plan": "", "commands": [{"keystrokes": "echo begun\n"}]})
    work = reply("echo mended > mended\n")
    said = ["{'analysis':", no_duration, reply(complete=True), work, reply(complete=True), reply(complete=True)]
    server.script = [says(said[0]), says(said[1]), says("{", "length"), *(says(text) for text in said[2:])]
    model = ModelAgent(TerminalAgent(Settings(max_turns=10)), Chat(server.url, "m"), "Mend it.")
    box = LocalContainer(tmp_path)
    await model.setup(box, None)
    assert await model.run(box, None, Budget(60)) is Termination.FINISHED
    assert (tmp_path / "app" / "mended").read_text() == "mended\n"
    shown = [body["messages"][-1]["content"] for body in server.asked]
    assert "not valid JSON" in shown[1] and "no duration" in shown[2] and "shorter" in shown[3] and "once more" in shown[4]
    assert sum(bool(action.errors) for action in model.agent.actions) == 2


async def test_a_summary_goes_on_from_questions_and_answers(server):
    from runner.agents.summary import condense

    asked = []

    async def ask(messages):
        asked.append(messages)
        return f"reply {len(asked)}"

    history = [user("prompt"), {"role": "assistant", "content": "a"}, user("screen")]
    after = await condense(ask, history, "task", "the screen")
    assert (
        [len(messages) for messages in asked] == [4, 1, 4]
        and "reply 1" in asked[1][0]["content"]
        and "the screen" in asked[1][0]["content"]
    )
    assert after[0] == history[0] and after[2]["content"] == "reply 2" and "reply 3" in after[3]["content"]

    async def small(messages):
        return "brief" if len(messages) == 1 else None

    (only,) = await condense(small, history, "task", "x" * 2000)
    assert "brief" in only["content"] and only["content"].startswith("prompt")
