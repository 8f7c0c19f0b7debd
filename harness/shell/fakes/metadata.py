"""A stateful fake of `curl`, which answers as Azure's instance metadata service."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from pathlib import PurePosixPath
from typing import TYPE_CHECKING
from urllib.parse import parse_qs, urlsplit

from typing_extensions import override

from harness.shell.fakes.arguments import check_texts, checks_arguments
from harness.shell.fakes.fake import Fake
from harness.shell.fakes.invocation import Syntax, unknown_use
from harness.shell.mocks.commands import Answer

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from harness.shell.fakes.fake import Handler
    from harness.shell.fakes.invocation import Invocation
    from harness.shell.mocks.commands import Call

HOST = "169.254.169.254"

_SYNTAX = Syntax(
    options=(
        "-s,--silent",
        "-S,--show-error",
        "-f,--fail",
        "-L,--location",
        "-I,--head",
        "-i,--include",
        "-H,--header=",
        "-o,--output=",
        "-w,--write-out=",
        "-m,--max-time=",
        "--connect-timeout=",
        "--retry=",
        "--retry-delay=",
        "--retry-connrefused",
        "--noproxy=",
        "-X,--request=",
        "--url=",
        "-g,--globoff",
        "-4,--ipv4",
        "-k,--insecure",
        "-A,--user-agent=",
        "--compressed",
        "--retry-all-errors",
        "--retry-max-time=",
    )
)
_NUMBER = re.compile(r"[0-9]{1,19}(?:\.[0-9]{1,9})?")
_MOST_RETRIES = 1000
_REASONS = {200: "OK", 400: "Bad Request", 404: "Not Found"}
_JSON = "application/json; charset=utf-8"
_TEXT = "text/plain; charset=utf-8"


@dataclass(frozen=True, kw_only=True)
class _Response:
    status: int
    body: str
    kind: str = _JSON

    @property
    def head(self) -> str:
        length = len(self.body.encode())
        return (
            f"HTTP/1.1 {self.status} {_REASONS[self.status]}\r\nContent-Type: {self.kind}\r\n"
            f"Content-Length: {length}\r\n\r\n"
        )


class InstanceMetadata(Fake):
    """A fake of `curl` that answers only for 169.254.169.254, Azure's instance metadata service.

    `document` is the document at `/metadata/instance`; a test may change `document`. While `is_up`
    is false, the service refuses connections. While `is_slow` is true, every request times out. The
    service refuses the next `refusals` connections.
    """

    @checks_arguments
    def __init__(self, document: Mapping[str, object]) -> None:
        super().__init__()
        self.document = dict(document)
        self.is_up = True
        self.is_slow = False
        self.refusals = 0

    @classmethod
    def with_tags(cls, **tags: str) -> InstanceMetadata:
        """Return a fake that serves the metadata of a virtual machine with `tags`."""
        check_texts(tags, source="fakes.InstanceMetadata.with_tags")
        tags_list = [{"name": name, "value": value} for name, value in tags.items()]
        return cls({"compute": {"tagsList": tags_list}})

    @property
    @override
    def commands(self) -> Mapping[str, Handler]:
        return {"curl": self._curl}

    def _curl(self, call: Call) -> Answer:
        invocation = _SYNTAX.parse(call)
        urls = [*invocation.operands, *invocation.all("--url")]
        if len(urls) != 1:
            raise unknown_use(call, "the fake of 'curl' takes exactly one URL")
        if invocation.value("--request") not in {None, "GET"}:
            raise unknown_use(call, "the fake of 'curl' knows only the method 'GET'")
        try:
            url = urlsplit(urls[0])
        except ValueError:
            raise unknown_use(
                call, f"the fake of 'curl' does not know the URL '{urls[0]}'"
            ) from None
        if url.scheme != "http" or url.hostname != HOST:
            raise unknown_use(
                call, f"the fake of 'curl' knows only 'http://{HOST}', the metadata service"
            )
        if not invocation.has("--silent"):
            raise unknown_use(
                call, "the fake of 'curl' needs '--silent', because the fake can't show progress"
            )
        retries = int(_number(invocation, "--retry"))
        errors = ""
        for attempt in range(min(retries, _MOST_RETRIES) + 1):
            answer, is_transient = self._attempt(invocation, url.path, url.query)
            errors += answer.stderr
            is_transient |= bool(answer.exit_code) and invocation.has("--retry-all-errors")
            if not is_transient or attempt == retries:
                return Answer(stdout=answer.stdout, stderr=errors, exit_code=answer.exit_code)
        raise unknown_use(
            call,
            f"the fake of 'curl' makes at most {_MOST_RETRIES} retries, but '--retry' asks for {retries}",
        )

    def _attempt(self, invocation: Invocation, path: str, query: str) -> tuple[Answer, bool]:
        """Return curl's output for one attempt, and whether curl may retry after the attempt."""
        if not self.is_up or self.refusals > 0:
            self.refusals = max(0, self.refusals - 1)
            message = f"Failed to connect to {HOST} port 80 after 0 ms: Couldn't connect to server"
            return _error(invocation, 7, message), invocation.has("--retry-connrefused")
        if self.is_slow:
            milliseconds = int(_number(invocation, "--max-time") * 1000)
            if milliseconds == 0:
                raise unknown_use(
                    invocation.call,
                    "the fake of the metadata service is slow and never answers, so 'curl' needs "
                    "'--max-time'",
                )
            message = (
                f"Operation timed out after {milliseconds} milliseconds with 0 bytes received"
            )
            return _error(invocation, 28, message), True
        return self._received(invocation, self._respond(invocation, path, query)), False

    def _respond(self, invocation: Invocation, path: str, query: str) -> _Response:
        headers = {
            name.strip().lower(): value.strip().lower()
            for name, _, value in (header.partition(":") for header in invocation.all("--header"))
        }
        parameters = parse_qs(query)
        if headers.get("metadata") != "true":
            return _refusal(400, "Bad request. Required metadata header not specified")
        if "api-version" not in parameters:
            return _refusal(400, "Bad request. api-version was not specified in the request")
        parts = path.strip("/").split("/")
        if parts[:2] != ["metadata", "instance"]:
            return _refusal(404, "Not found")
        try:
            found = _look_up(self.document, parts[2:])
        except (KeyError, IndexError, ValueError):
            return _refusal(404, "Not found")
        if parameters.get("format") == ["text"] and isinstance(found, str):
            return _Response(status=200, body=found, kind=_TEXT)
        return _Response(status=200, body=json.dumps(found, separators=(",", ":")))

    def _received(self, invocation: Invocation, response: _Response) -> Answer:
        if response.status >= 400 and invocation.has("--fail"):
            message = f"The requested URL returned error: {response.status}"
            answer = _error(invocation, 22, message)
            return Answer(
                stdout=_write_out(invocation, response.status),
                stderr=answer.stderr,
                exit_code=22,
            )
        body = "" if invocation.has("--head") else response.body
        if invocation.has("--head") or invocation.has("--include"):
            body = response.head + body
        output = invocation.value("--output")
        if output not in {None, "-"}:
            path = str(PurePosixPath(invocation.call.cwd, str(output)))
            if path != "/dev/null" and not self._save(path, body):
                return _error(invocation, 23, "Failure writing output to destination")
            body = ""
        return Answer(stdout=body + _write_out(invocation, response.status))

    def _save(self, path: str, text: str) -> bool:
        if not self.files(path).is_folder(path.rpartition("/")[0] or "/"):
            return False
        self.write_file(path, text)
        return True


def _number(invocation: Invocation, option: str) -> float:
    """Return the value of an option as a number, or 0 if the option is not given."""
    value = invocation.value(option) or "0"
    if not _NUMBER.fullmatch(value):
        raise unknown_use(invocation.call, f"'{option}' needs a number, not '{value}'")
    return float(value)


def _look_up(document: object, parts: Sequence[str]) -> object:
    for part in parts:
        if isinstance(document, list):
            if not part.isdecimal():
                raise KeyError(part)
            document = document[int(part)]
        elif isinstance(document, dict):
            document = document[part]
        else:
            raise KeyError(part)
    return document


def _refusal(status: int, message: str) -> _Response:
    return _Response(status=status, body=json.dumps({"error": message}, separators=(",", ":")))


def _error(invocation: Invocation, code: int, message: str) -> Answer:
    shown = f"curl: ({code}) {message}\n" if invocation.has("--show-error") else ""
    return Answer(stdout=_write_out(invocation, 0), stderr=shown, exit_code=code)


def _write_out(invocation: Invocation, status: int) -> str:
    text = invocation.value("--write-out") or ""
    text = text.replace("\\n", "\n").replace("%{http_code}", f"{status:03}")
    if "%{" in text:
        raise unknown_use(invocation.call, "the fake of 'curl' writes out only '%{http_code}'")
    return text
