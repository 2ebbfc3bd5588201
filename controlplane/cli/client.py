"""HTTP to one Assay: where it is, who we are, and its problem documents as lines."""

import os
import stat
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import httpx

from controlplane.env import SettingsError, home_folder, read_environment_file
from controlplane.env import url as checked_url

REFUSED, UNREACHABLE = 1, 3
LOOPBACK = ("127.0.0.1", "localhost", "::1")
TIMEOUT = httpx.Timeout(60.0, connect=5.0)


class ClientError(Exception):
    """What the user is told, one line each, and the exit code."""

    def __init__(self, *lines: str, code: int = REFUSED):
        self.lines, self.code = lines, code
        super().__init__("\n".join(lines))


class AnswerLost(ClientError):
    """The request may or may not have been served."""


def connect() -> "Client":
    """A client of ASSAY_URL (else of this checkout's house) with the token of ASSAY_TOKEN (else of the house's 0600 file)."""
    home = home_folder()
    url = os.environ.get("ASSAY_URL") or read_environment_file(home / "environment").get("ASSAY_URL")
    if not url:
        raise ClientError("assay: no Assay is known here; start one with `./assay up` or set ASSAY_URL", code=UNREACHABLE)
    try:
        checked = checked_url("ASSAY_URL", url)
    except SettingsError as error:
        raise ClientError(f"assay: {error}", code=UNREACHABLE) from None
    return Client(checked, os.environ.get("ASSAY_TOKEN") or _token_of(home / "token"))


def _token_of(path: Path) -> str:
    try:
        mode = path.stat().st_mode
    except FileNotFoundError:
        raise ClientError("assay: set ASSAY_TOKEN to an API token (settings page of Assay, or `./assay token create NAME`)") from None
    if mode & (stat.S_IRWXG | stat.S_IRWXO):
        raise ClientError(f"assay: {path} can be read by others; revoke that token, then: chmod 600 {path}")
    return path.read_text().strip()


class Client:
    """Thin calls that return parsed JSON or raise ClientError."""

    def __init__(self, url: str, token: str, transport: httpx.BaseTransport | None = None):
        self.url = url
        # A proxy of the environment must not see, nor be asked for, what is on this machine.
        trusts_environment = urlsplit(self.url).hostname not in LOOPBACK
        self.http = httpx.Client(
            base_url=self.url + "/api/v1",
            headers={"Authorization": f"Bearer {token}", "User-Agent": "assay-cli"},
            timeout=TIMEOUT,
            trust_env=trusts_environment,
            transport=transport,
        )

    def get(self, path: str, **query: Any) -> Any:
        return self._call("GET", path, params=_given(query)).json()

    def post(self, path: str, body: Any = None, key: str | None = None) -> Any:
        """POST under an idempotency key, a fresh one by default, so that a repeat after a lost answer does nothing twice."""
        headers = {"Idempotency-Key": key or uuid.uuid4().hex}
        options = {"headers": headers} if body is None else {"headers": headers, "json": body}
        try:
            answer = self._call("POST", path, **options)
        except AnswerLost:
            answer = self._call("POST", path, **options)
        return answer.json() if answer.content else None

    def text(self, path: str) -> str:
        """What a download holds."""
        return self._call("GET", path).text

    def upload(self, path: str, file: Path, **fields: str) -> Any:
        with file.open("rb") as content:
            return self._call("POST", path, files={"file": (file.name, content)}, data=_given(fields), timeout=600).json()

    def pages(self, path: str, limit: int, **query: Any) -> Iterator[dict]:
        """The first `limit` items of a list, page by page."""
        cursor = None
        while limit > 0:
            page = self.get(path, limit=min(limit, 200), cursor=cursor, **query)
            yield from page["items"][:limit]
            limit -= len(page["items"])
            cursor = page["next"]
            if cursor is None:
                return

    def _call(self, method: str, path: str, **options: Any) -> httpx.Response:
        try:
            answer = self.http.request(method, path, **options)
        except (httpx.ConnectError, httpx.ConnectTimeout) as error:
            raise ClientError(f"assay: {self.url} does not answer ({error}); is it up? ./assay status", code=UNREACHABLE) from None
        except httpx.TransportError as error:
            raise AnswerLost(f"assay: {self.url} broke off ({type(error).__name__}: {error})", code=UNREACHABLE) from None
        if answer.is_success:
            return answer
        raise ClientError(*problem_lines(answer), code=UNREACHABLE if answer.status_code in (502, 503, 504) else REFUSED)


def _given(query: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in query.items() if value not in (None, "", [])}


def problem_lines(answer: httpx.Response) -> list[str]:
    """One line a field of a problem document: ``stages[1].group_size: try batch_size 64``."""
    try:
        problem = answer.json()
        errors = problem["errors"]
    except (ValueError, KeyError, TypeError):
        return [f"assay: HTTP {answer.status_code} from {answer.request.url}, and no problem document"]
    if errors:
        return [f"{dotted(error['pointer']) or problem['title']}: {error['message']}" for error in errors]
    wait = f" (in {answer.headers['Retry-After']} s)" if "Retry-After" in answer.headers else ""
    return [f"assay: {problem['title']}: {problem['detail']}{wait}" if problem["detail"] else f"assay: {problem['title']}{wait}"]


def dotted(pointer: str) -> str:
    """/stages/1/group_size → stages[1].group_size"""
    text = ""
    for part in pointer.split("/")[1:]:
        part = part.replace("~1", "/").replace("~0", "~")
        text += f"[{part}]" if part.isdigit() else f".{part}" if text else part
    return text
