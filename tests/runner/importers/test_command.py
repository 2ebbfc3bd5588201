"""The command line of the importers, and what is sent to a control plane."""

import json
import threading
from email.message import EmailMessage
from email.parser import BytesParser
from email.policy import HTTP
from http.server import BaseHTTPRequestHandler, HTTPServer

import pytest

from runner.contract.bank import read_bank
from runner.importers.__main__ import main


class ControlPlane(BaseHTTPRequestHandler):
    """Keeps what was posted, and answers with `status`."""

    status, seen = 201, []

    def do_POST(self):
        body = self.rfile.read(int(self.headers["Content-Length"]))
        head = f"Content-Type: {self.headers['Content-Type']}\r\n\r\n".encode()
        message: EmailMessage = BytesParser(policy=HTTP).parsebytes(head + body)
        parts = {part.get_param("name", header="content-disposition"): part.get_payload(decode=True) for part in message.iter_parts()}
        type(self).seen.append((self.path, self.headers["Authorization"], parts))
        self.send_response(self.status)
        self.end_headers()
        self.wfile.write(b'{"number": 3}' if self.status < 300 else b'{"detail": "not yours"}')

    def log_message(self, *args):
        pass


@pytest.fixture
def control_plane(tmp_path):
    ControlPlane.seen, ControlPlane.status = [], 201
    server = HTTPServer(("127.0.0.1", 0), ControlPlane)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    (tmp_path / "token").write_text("secret\n")
    yield ["--url", f"http://127.0.0.1:{server.server_port}", "--token-file", str(tmp_path / "token")]
    server.shutdown()
    server.server_close()


def test_sends_bank_and_report_with_the_token(control_plane, capsys):
    assert main(["quiz", "--bank-slug", "my-quiz", *control_plane]) == 0
    [(path, authorization, parts)] = ControlPlane.seen
    assert (path, authorization) == ("/api/v1/banks/my-quiz/versions", "Bearer secret")
    tasks, demonstrations, _ = read_bank(parts["file"])
    assert tasks and demonstrations
    assert json.loads(parts["report"])["kept"] == len(tasks)
    assert "imported as version 3 of bank my-quiz" in capsys.readouterr().out


def test_a_refusal_is_the_last_line_of_standard_error(control_plane, capsys):
    ControlPlane.status = 403
    assert main(["quiz", *control_plane]) == 1
    assert "refused the bank (403)" in capsys.readouterr().err.strip().splitlines()[-1]


def test_an_absent_control_plane_or_token_is_named(tmp_path, capsys):
    (tmp_path / "token").write_text("x")
    assert main(["quiz", "--url", "http://127.0.0.1:9", "--token-file", str(tmp_path / "token")]) == 1
    assert "cannot be reached" in capsys.readouterr().err
    assert main(["quiz", "--url", "http://127.0.0.1:9", "--token-file", str(tmp_path / "none")]) == 1
    assert "--token-file" in capsys.readouterr().err


@pytest.mark.parametrize("arguments", [["quiz"], ["quiz", "--url", "http://x"], ["sciknoweval", "--out", "x"], ["other", "--out", "x"]])
def test_an_incomplete_command_line_is_refused(arguments, capsys):
    with pytest.raises(SystemExit) as exit_:
        main(arguments)
    assert exit_.value.code == 2


def test_what_cannot_be_written_is_named(tmp_path, capsys):
    assert main(["quiz", "--out", str(tmp_path / "no" / "folder")]) == 1
    assert "cannot write" in capsys.readouterr().err
