"""Gathers evidence: from a running guest with one script, and from the host by copying files."""

from __future__ import annotations

import base64
import binascii
import contextlib
import json
import re
import secrets
import shutil
import zlib
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING

from harness.errors import HarnessError
from harness.evidence import Evidence
from harness.evidence.collection_script import COMMAND_S, StreamError, parse_stream, render_script
from harness.evidence.gaps import NOT_COLLECTED, UNREADABLE_NAME
from harness.evidence.requested import write_request
from harness.lease import make_private_folder
from harness.limits import EVIDENCE, EVIDENCE_ENTRIES, EVIDENCE_FILE, PATH_LEVELS, LimitError

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping
    from typing import BinaryIO

    from harness.evidence.collection_script import Frame
    from harness.evidence.request import EvidenceRequest
    from harness.provisioning.command import Runner

#: The version of the format of `manifest.json`.
SCHEMA = 1
_PIECE_BYTES = 1 << 18
_NO_BASE64 = re.compile("[^A-Za-z0-9+/=]+")
_SCRIPT_S = 180.0
#: The `wbits` argument of zlib for a stream with gzip's header and trailer.
_GZIP = 16 + zlib.MAX_WBITS


def collect_guest(
    runner: Runner,
    request: EvidenceRequest,
    folder: Path,
    *,
    nonce: str | None = None,
    stretch: float = 1.0,
) -> Evidence:
    """Run the collection script in the guest, and unpack its output into the new folder `folder`.

    Nothing is written in the guest. A `nonce` is generated if none is given; `stretch` multiplies
    the time limit of each command. Raises HarnessError if the script's output is not complete; a
    file in `folder` then states the reason.
    """
    make_private_folder(folder)
    write_request(folder, commands=request.commands, files=request.files, paths=request.paths)
    nonce = nonce or secrets.token_hex(16)
    script = render_script(request, nonce, stretch=stretch)
    # The script is passed by stdin, because arguments are visible in the list of processes and in
    # sudo's log.
    # Even on an idle host, a command that hangs takes its whole stretched limit.
    limit_s = _SCRIPT_S + COMMAND_S * (stretch - 1)
    result = runner.run(["sh"], timeout_s=limit_s, stdin=script)
    try:
        _unpack(parse_stream(_gunzip(_decoded(result.stdout)), nonce), folder)
    except (LimitError, binascii.Error, zlib.error, OSError, ValueError) as error:
        _remove_guest_part(folder)
        failure = HarnessError(
            f"The evidence could not be gathered in the guest ({error}).\n{result.render()}"
        )
        failure.whole_text = folder / NOT_COLLECTED
        failure.whole_text.write_text(failure.sentence, errors="backslashreplace")
        raise failure from error
    return Evidence(folder)


def _remove_guest_part(folder: Path) -> None:
    """Remove the guest's files that were unpacked before an error, because these files may be truncated."""
    for name in ("commands", "files"):
        shutil.rmtree(folder / name, ignore_errors=True)
    for name in (UNREADABLE_NAME, "stat.txt"):
        (folder / name).unlink(missing_ok=True)


def _decoded(text: str) -> Iterator[bytes]:
    """Decode base64 piece by piece; raises ValueError for other text."""
    rest = ""
    for at in range(0, len(text), _PIECE_BYTES):
        rest += _NO_BASE64.sub("", text[at : at + _PIECE_BYTES])
        whole = len(rest) // 4 * 4
        yield base64.b64decode(rest[:whole])
        rest = rest[whole:]
    yield base64.b64decode(rest)


def _gunzip(archive: Iterable[bytes]) -> Iterator[bytes]:
    """Unpack a gzip archive piece by piece; the archive comes from a guest, so its size is limited."""
    unpacking = zlib.decompressobj(wbits=_GZIP)
    size = 0
    for packed in archive:
        left = packed
        while left and not unpacking.eof:
            content = unpacking.decompress(left, _PIECE_BYTES)
            size += len(content)
            EVIDENCE.check_bytes(size, "the stream")
            yield content
            left = unpacking.unconsumed_tail
    if not unpacking.eof:
        raise StreamError("the stream ends too early")


def _unpack(stream: Iterable[Frame | bytes], folder: Path) -> None:
    """Write the frames of a stream as files below `folder`."""
    with (
        (folder / UNREADABLE_NAME).open("wb") as unreadable,
        contextlib.closing(_Unpacked(folder, unreadable)) as unpacked,
    ):
        for item in stream:
            if isinstance(item, bytes):
                unpacked.add(item)
            else:
                unpacked.begin(item)


class _Unpacked:
    """Writes frames to files; a guest chooses the files' names, so files outside `folder` are refused."""

    def __init__(self, folder: Path, unreadable: BinaryIO) -> None:
        self._folder = folder
        self._unreadable = unreadable
        self._command: str | None = None
        self._target: BinaryIO | None = None
        self._paths: bytearray | None = None
        self._count = 0

    def begin(self, frame: Frame) -> None:
        self.close()
        self._count += 1
        EVIDENCE_ENTRIES.check(self._count, "the stream")
        match frame.kind:
            case "command":
                self._command = frame.name
                self._target = _created(_below(self._folder / "commands", frame.name))
            case "exit":
                self._end_command(frame.name)
            case "file":
                self._target = _created(_below(self._folder / "files", frame.name.lstrip("/")))
            case "unreadable":
                self._unreadable.write(f"{frame.name}\n".encode(errors="surrogateescape"))
                _below(self._folder / "files", frame.name.lstrip("/")).unlink(missing_ok=True)
            case "paths":
                self._paths = bytearray()
            case "end":
                pass
            case _:
                raise StreamError(f"the stream has a frame of the unknown kind {frame.kind!r}")

    def add(self, content: bytes) -> None:
        """Append content to the file of the last frame; frames without a file have no content."""
        if self._target is not None:
            self._target.write(content)
        elif self._paths is not None:
            self._paths += content
            EVIDENCE_FILE.check_bytes(len(self._paths), "the list of paths")

    def close(self) -> None:
        """Finish the file of the last frame."""
        if self._target is not None:
            self._target.close()
            self._target = None
        if self._paths is not None:
            root, _, paths = self._paths.partition(b"\n")
            self._paths = None
            if not root.endswith(b" /"):
                raise StreamError("the output of find has no line for '/'")
            (self._folder / "stat.txt").write_bytes(paths)

    def _end_command(self, exit_code: str) -> None:
        if self._command is None:
            raise StreamError("the stream has an exit code before any command")
        if not re.fullmatch("[0-9]{1,3}", exit_code):
            raise StreamError(f"the stream has the invalid exit code {exit_code!r}")
        place = _below(self._folder / "commands", f"{self._command}.exit-code")
        with _created(place) as file:
            file.write(f"{exit_code}\n".encode())


def _below(folder: Path, name: str) -> Path:
    path = PurePosixPath(name)
    if path.is_absolute() or ".." in path.parts or not path.parts:
        raise StreamError(f"the stream has a frame with the invalid name {name!r}")
    PATH_LEVELS.check(len(path.parts), "the stream")
    return folder / path


def _created(target: Path) -> BinaryIO:
    target.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    return target.open("wb")


def keep_host_files(folder: Path, files: Mapping[str, Path], texts: Mapping[str, str]) -> None:
    """Copy the host's files about a machine to `folder`/host; the manifest lists missing files."""
    host = make_private_folder(folder / "host")
    missing: list[str] = []
    for name, source in files.items():
        if source.is_file():
            shutil.copyfile(source, host / name)
        else:
            missing.append(name)
    for name, text in texts.items():
        (host / name).write_text(text, errors="backslashreplace")
    manifest = {
        "schema": SCHEMA,
        "files": sorted(
            path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file()
        ),
        "missing": missing,
    }
    beside = folder / "manifest.json.part"
    beside.write_text(json.dumps(manifest, indent=2) + "\n")
    beside.replace(folder / "manifest.json")
