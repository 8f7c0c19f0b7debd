"""Runs Debian's `docker-registry` as a process on this host, and pushes images to it."""

from __future__ import annotations

import contextlib
import hashlib
import http.client
import io
import json
import os
import re
import shlex
import socket
import tarfile
from dataclasses import dataclass
from typing import TYPE_CHECKING

from typing_extensions import override

from harness.debian_packages import ensure_unpacked
from harness.errors import HarnessError
from harness.foreign_json import parse_json
from harness.lease import make_private_folder
from harness.provisioning.command import LocalRunner, end, spawn
from harness.provisioning.wait import Deadline, Observation, WaitTimeoutError, wait_for

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping
    from pathlib import Path

    from harness.provisioning.command import Runner

#: The Debian release of the program, which does not depend on the host's release.
RELEASE = "bookworm"
PACKAGE = "docker-registry"
_PROGRAM = "usr/bin/docker-registry"
_LIBRARIES = "lib/x86_64-linux-gnu"
_LINKER = f"{_LIBRARIES}/ld-linux-x86-64.so.2"
#: The program, and all files that it loads: it is written in Go and uses only the C library.
_FILES = (_PROGRAM, _LINKER, f"{_LIBRARIES}/libc.so.6")
_SOCKET = "socket"
_MANIFEST_TYPE = "application/vnd.oci.image.manifest.v1+json"
_MEDIA_TYPE = re.compile(r"[!-~]{1,255}")
_START_S = 30.0
_REQUEST_S = 60.0


def ensure_registry_program(
    cache: Path, runner: Runner | None = None, *, report: Callable[[str], None]
) -> tuple[str, ...]:
    """Return the command that runs `docker-registry`.

    Unpack the program if the cache lacks the program.

    The program runs with the dynamic linker and the C library of its own Debian release. The Debian
    package `docker-registry` is not installed, since the package starts a service that listens on
    all addresses.

    Raises RequirementError if mmdebstrap is missing, and CommandError if mmdebstrap fails.
    """
    root = ensure_unpacked(
        _FILES,
        package=PACKAGE,
        release=RELEASE,
        store=cache / PACKAGE,
        runner=runner or LocalRunner(),
        report=report,
    )
    return (
        str(root / _LINKER),
        *("--library-path", str(root / _LIBRARIES)),
        str(root / _PROGRAM),
    )


def render_configuration(storage: Path) -> str:
    """Render the configuration of a registry that stores its data in the folder `storage`.

    The registry listens on a Unix socket in its working directory, since any user of the host
    could connect to a TCP port.
    """
    return json.dumps(
        {
            "version": "0.1",
            "log": {"level": "warn", "accesslog": {"disabled": True}},
            "storage": {
                "filesystem": {"rootdirectory": str(storage)},
                "delete": {"enabled": True},
            },
            "http": {"net": "unix", "addr": _SOCKET},
        }
    )


class SocketConnection(http.client.HTTPConnection):
    """An HTTP connection to a Unix socket whose path may be too long for a socket address."""

    def __init__(self, folder: Path) -> None:
        super().__init__("registry", timeout=_REQUEST_S)
        self._folder = folder

    @override
    def connect(self) -> None:
        descriptor = os.open(self._folder, os.O_PATH | os.O_CLOEXEC)
        try:
            self.sock = socket.socket(socket.AF_UNIX)
            self.sock.settimeout(_REQUEST_S)
            self.sock.connect(f"/proc/self/fd/{descriptor}/{_SOCKET}")
        finally:
            os.close(descriptor)


@dataclass(frozen=True, kw_only=True)
class RegistryServer:
    """A running registry that only this user can reach."""

    folder: Path

    def connection(self) -> http.client.HTTPConnection:
        """Return a new connection, which the first request opens."""
        return SocketConnection(self.folder)

    def push(self, archive: bytes, *, repository: str, tag: str) -> None:
        """Push the only image in an OCI archive, which `ctr images export` or buildah can write.

        Raises HarnessError if `archive` is not an OCI archive with one image, or if the registry
        refuses the image.
        """
        manifest_digest, blobs = read_image(archive)
        manifest = json.loads(blobs[manifest_digest])
        for descriptor in (manifest["config"], *manifest["layers"]):
            self._push_blob(repository, descriptor["digest"], blobs[descriptor["digest"]])
        self._ask(
            "PUT",
            f"/v2/{repository}/manifests/{tag}",
            blobs[manifest_digest],
            {"Content-Type": manifest.get("mediaType", _MANIFEST_TYPE)},
            expected=201,
        )

    def _push_blob(self, repository: str, digest: str, content: bytes) -> None:
        location = self._ask("POST", f"/v2/{repository}/blobs/uploads/", expected=202)
        _, _, path = location.partition("/v2/")
        joint = "&" if "?" in path else "?"
        self._ask(
            "PUT",
            f"/v2/{path}{joint}digest={digest}",
            content,
            {"Content-Type": "application/octet-stream"},
            expected=201,
        )

    def _ask(
        self,
        method: str,
        path: str,
        content: bytes = b"",
        headers: Mapping[str, str] | None = None,
        *,
        expected: int,
    ) -> str:
        """Send a request, and return the value of the `Location` header in the answer."""
        with contextlib.closing(self.connection()) as connection:
            connection.request(method, path, body=content, headers=dict(headers or {}))
            answer = connection.getresponse()
            text = answer.read().decode(errors="replace")
            if answer.status != expected:
                raise HarnessError(
                    f"The registry was expected to answer '{method} {path}' with {expected}, but "
                    f"answered with {answer.status}: {text[:500]}"
                )
            return answer.getheader("Location") or ""


def read_image(archive: bytes) -> tuple[str, Mapping[str, bytes]]:
    """Return the manifest digest of the only image in an OCI archive, and all blobs by digest.

    Raises HarnessError if `archive` is not an OCI archive with exactly one image. The archive may
    come from a guest, so the archive's digests are checked.
    """
    try:
        blobs = _read_archive(archive)
        # An image with several names is listed once for each name.
        digests = list({str(each["digest"]) for each in parse_json(blobs[""])["manifests"]})
        if len(digests) != 1:
            raise _no_archive(f"it has {len(digests)} images, but one was expected")
        digest = digests[0]
        manifest = parse_json(blobs[digest])
        if "manifests" in manifest:
            raise _no_archive("it has an index of several platforms; export one platform")
        named = [
            digest,
            *(str(blob["digest"]) for blob in (manifest["config"], *manifest["layers"])),
        ]
        for each in named:
            if each != f"sha256:{hashlib.sha256(blobs[each]).hexdigest()}":
                raise _no_archive(f"the content of '{each}' has another digest")
        # Only manifests of the OCI may lack their media type.
        if not _MEDIA_TYPE.fullmatch(manifest.get("mediaType", _MANIFEST_TYPE)):
            raise _no_archive("its manifest has a wrong media type")
    except KeyError as error:
        raise _no_archive(f"it has no '{error.args[0] or 'index.json'}'") from error
    except (ValueError, TypeError, IndexError, AttributeError, RecursionError) as error:
        raise _no_archive(str(error)) from error
    except tarfile.TarError as error:
        raise _no_archive(str(error)) from error
    return digest, blobs


def _no_archive(why: str) -> HarnessError:
    return HarnessError(f"A container image is not an OCI archive: {why}.")


def _read_archive(archive: bytes) -> dict[str, bytes]:
    """Return the blobs of an OCI archive by digest, and the archive's index under the key ''."""
    blobs: dict[str, bytes] = {}
    # The archive is not compressed, so only a file with holes can be larger than the archive.
    with tarfile.open(fileobj=io.BytesIO(archive), mode="r:") as tar:
        for member in tar:
            parts = member.name.removeprefix("./").split("/")
            if not member.isreg() or (parts[0] != "blobs" and parts != ["index.json"]):
                continue
            if member.issparse():
                raise _no_archive(f"its file '{member.name}' is larger than the archive")
            opened = tar.extractfile(member)
            assert opened is not None  # noqa: S101 - a regular file
            blobs[":".join(parts[1:])] = opened.read()
    return blobs


@contextlib.contextmanager
def running_registry(program: tuple[str, ...], folder: Path) -> Iterator[RegistryServer]:
    """Run a registry that stores its data in `folder`, until the `with` block or this process ends.

    Raises HarnessError if the registry does not start.
    """
    make_private_folder(folder / "storage")
    (folder / "config.yml").write_text(render_configuration(folder / "storage"))
    log = folder / "registry.log"
    with log.open("wb") as output:
        process = spawn(
            [*program, "serve", "config.yml"], stdout=output, stderr=output, cwd=folder
        )
    server = RegistryServer(folder=folder)

    def poll() -> Observation[bool]:
        if process.poll() is not None:
            raise HarnessError(
                f"The registry ended with exit code {process.returncode} at its start. Its command was "
                f"{shlex.join(program)!r}. Its output ends with: "
                f"{log.read_text(errors='replace')[-2000:]}"
            )
        try:
            with contextlib.closing(server.connection()) as connection:
                connection.request("GET", "/v2/")
                status = connection.getresponse().status
        except (OSError, http.client.HTTPException) as error:
            return Observation(None, repr(error))
        return Observation(True if status == 200 else None, f"status {status}")

    try:
        try:
            wait_for("the registry to answer", poll, Deadline.after(_START_S), interval_s=0.05)
        except WaitTimeoutError as error:
            raise HarnessError(f"{error} The registry's output is in '{log}'.") from error
        yield server
    finally:
        end(process)
