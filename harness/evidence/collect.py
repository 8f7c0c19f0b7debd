"""Gathers evidence: from a running guest by one script, from the host by copying files."""

from __future__ import annotations

import base64
import binascii
import json
import secrets
import shutil
import zlib
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING

from harness.errors import HarnessError
from harness.evidence import Evidence
from harness.evidence.collection_script import StreamError, parse_stream, render_script
from harness.evidence.gaps import NOT_COLLECTED, UNREADABLE_NAME
from harness.evidence.requested import write_request
from harness.lease import make_private_folder

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from harness.evidence.collection_script import Frame
    from harness.evidence.request import EvidenceRequest
    from harness.provisioning.command import Runner

#: The version of the format of `manifest.json`.
SCHEMA = 1
_ARCHIVE_LIMIT_BYTES = 256 << 20
_SCRIPT_S = 180.0
#: zlib's value for a stream with gzip's header and trailer.
_GZIP = 16 + zlib.MAX_WBITS


def collect_guest(
    runner: Runner, request: EvidenceRequest, folder: Path, *, nonce: str | None = None
) -> Evidence:
    """Run the script in the guest, and unpack its output into the new `folder`.

    Nothing is written in the guest. A `nonce` is generated if none is given. Raises HarnessError if
    the output is not complete; the reason is then also in the folder.
    """
    make_private_folder(folder)
    write_request(folder, commands=request.commands, files=request.files, paths=request.paths)
    nonce = nonce or secrets.token_hex(16)
    # On stdin, because other processes and the log of sudo see arguments.
    result = runner.run(["sh"], timeout_s=_SCRIPT_S, stdin=render_script(request, nonce))
    try:
        archive = base64.b64decode(result.stdout, validate=False)
        _unpack(parse_stream(_gunzip(archive), nonce), folder)
    except (StreamError, binascii.Error, zlib.error, OSError, ValueError) as error:
        sentence = f"The evidence could not be gathered in the guest ({error}).\n{result.render()}"
        (folder / NOT_COLLECTED).write_text(sentence)
        raise HarnessError(sentence) from error
    return Evidence(folder)


def _gunzip(archive: bytes) -> bytes:
    """Unpack a gzip archive; it comes from a guest, so its size is limited."""
    unpacking = zlib.decompressobj(wbits=_GZIP)
    content = unpacking.decompress(archive, _ARCHIVE_LIMIT_BYTES)
    if unpacking.unconsumed_tail:
        raise StreamError(f"it unpacks to more than {_ARCHIVE_LIMIT_BYTES >> 20} MiB")
    if not unpacking.eof:
        raise StreamError("it ends too early")
    return content


def _unpack(frames: Iterable[Frame], folder: Path) -> None:
    """Write frames as files, only below `folder`, because the names come from a guest."""
    command: str | None = None
    unreadable: list[str] = []
    for frame in frames:
        match frame.kind:
            case "command":
                command = frame.name
                _write(_below(folder / "commands", command), frame.content)
            case "exit":
                if command is None:
                    raise StreamError("it has an exit code before any command")
                exit_code = _below(folder / "commands", f"{command}.exit-code")
                _write(exit_code, f"{int(frame.name)}\n".encode())
            case "file":
                _write(_below(folder / "files", frame.name.lstrip("/")), frame.content)
            case "unreadable":
                unreadable.append(frame.name)
                _below(folder / "files", frame.name.lstrip("/")).unlink(missing_ok=True)
            case "paths":
                root, _, paths = frame.content.partition(b"\n")
                if not root.endswith(b" /"):
                    raise StreamError("the output of find has no line of '/'")
                _write(folder / "stat.txt", paths)
            case _:
                raise StreamError(f"it has a frame of the unknown kind {frame.kind!r}")
    _write(folder / UNREADABLE_NAME, "".join(f"{path}\n" for path in unreadable).encode())


def _below(folder: Path, name: str) -> Path:
    path = PurePosixPath(name)
    if path.is_absolute() or ".." in path.parts or not path.parts:
        raise StreamError(f"it has a frame named {name!r}")
    return folder / path


def _write(target: Path, content: bytes) -> None:
    target.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    target.write_bytes(content)


def keep_host_files(folder: Path, files: Mapping[str, Path], texts: Mapping[str, str]) -> None:
    """Copy the host's files of a machine to `folder`/host, and list the missing ones."""
    host = make_private_folder(folder / "host")
    missing: list[str] = []
    for name, source in files.items():
        if source.is_file():
            shutil.copyfile(source, host / name)
        else:
            missing.append(name)
    for name, text in texts.items():
        (host / name).write_text(text)
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
