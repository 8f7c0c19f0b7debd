"""Debian's registry is unpacked once, and images are pushed only from valid OCI archives."""

from __future__ import annotations

import gzip
import hashlib
import io
import json
import tarfile
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from harness.errors import HarnessError, RequirementError
from harness.image.formats.oci import Entry, archive_of, container_image, tar_of
from harness.provisioning.command import CommandResult
from harness.registry.server import (
    RegistryServer,
    ensure_registry_program,
    read_image,
    render_configuration,
)

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from harness.image.formats.oci import ContainerImage

PROGRAM = "usr/bin/docker-registry"


class UnpackingRunner:
    """Plays mmdebstrap and tar; refuses anything else."""

    def __init__(self) -> None:
        self.commands: list[list[str]] = []

    def run(
        self,
        argv: Sequence[str],
        *,
        timeout_s: float,
        stdin: str | None = None,
        env: Mapping[str, str] | None = None,
    ) -> CommandResult:
        assert timeout_s > 0
        assert (stdin, env) == (None, None)
        self.commands.append(list(argv))
        if argv[0] == "mmdebstrap":
            Path(argv[-1]).write_bytes(b"")
        else:
            assert argv[0] == "tar"
            (root,) = (word for word in argv if word.startswith("--directory="))
            binary = Path(root.partition("=")[2]) / PROGRAM
            binary.parent.mkdir(parents=True)
            binary.write_bytes(b"ELF")
        return CommandResult(argv=tuple(argv), exit_code=0, stdout="", stderr="")


@pytest.fixture
def _mmdebstrap(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tool = tmp_path / "bin" / "mmdebstrap"
    tool.parent.mkdir()
    tool.write_text("#!/bin/sh\nexit 1\n")
    tool.chmod(0o755)
    monkeypatch.setenv("PATH", str(tool.parent))
    monkeypatch.setattr("harness.debian_packages.KEYRING", tool)


def _silence(_message: str) -> None:
    """Ignore the message."""


@pytest.mark.usefixtures("_mmdebstrap")
def test_registry_is_unpacked_once_and_runs_with_its_own_linker(tmp_path: Path) -> None:
    runner = UnpackingRunner()

    first = ensure_registry_program(tmp_path / "cache", runner, report=_silence)
    again = ensure_registry_program(tmp_path / "cache", runner, report=_silence)

    assert first == again
    assert [command[0] for command in runner.commands] == ["mmdebstrap", "tar"]
    assert "--include=docker-registry" in runner.commands[0]
    assert "check-valid-until" not in " ".join(runner.commands[0]).lower()
    assert f"./{PROGRAM}" in runner.commands[1]
    linker, _, _, program = first
    assert linker.endswith("/lib/x86_64-linux-gnu/ld-linux-x86-64.so.2")
    assert Path(program).read_bytes() == b"ELF"
    assert not list((tmp_path / "cache").rglob(".work-*"))


def test_error_on_a_host_without_mmdebstrap_mentions_the_package(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))

    with pytest.raises(RequirementError, match="apt-get install mmdebstrap"):
        ensure_registry_program(tmp_path, UnpackingRunner(), report=_silence)


def test_registry_listens_on_a_unix_socket_and_on_no_port() -> None:
    configuration = json.loads(render_configuration(Path("/storage")))

    assert configuration["http"] == {"net": "unix", "addr": "socket"}
    assert configuration["storage"]["filesystem"] == {"rootdirectory": "/storage"}


def _without_index() -> bytes:
    return tar_of([Entry(path="blobs/sha256/12", content=b"{}")])


def _with_two_images() -> bytes:
    index = {"manifests": [{"digest": "sha256:1"}, {"digest": "sha256:2"}]}
    return tar_of([Entry(path="index.json", content=json.dumps(index).encode())])


def _index(content: bytes = b"", *, names: int = 1) -> Entry:
    named = {"manifests": [{"digest": f"sha256:{hashlib.sha256(content).hexdigest()}"}] * names}
    return Entry(path="index.json", content=json.dumps(named).encode())


def _blob(content: bytes, *, named_as: bytes | None = None) -> Entry:
    digest = hashlib.sha256(content if named_as is None else named_as).hexdigest()
    return Entry(path=f"blobs/sha256/{digest}", content=content)


def _with_other_content() -> bytes:
    other = json.dumps({"config": {"digest": "sha256:1"}, "layers": []}).encode()
    return tar_of([_index(b"right"), _blob(other, named_as=b"right")])


def _of_two_layers(
    second: bytes = b"two",
    media_type: object = "application/vnd.oci.image.manifest.v1+json",
    names: int = 1,
) -> tuple[bytes, bytes]:
    """Return an archive whose image has two layers, and its manifest; `second` is layer 2's content."""
    config, *layers = (b"{}", b"one", b"two")
    named = [f"sha256:{hashlib.sha256(each).hexdigest()}" for each in (config, *layers)]
    manifest = json.dumps(
        {
            **({} if media_type is None else {"mediaType": media_type}),
            "config": {"digest": named[0]},
            "layers": [{"digest": each} for each in named[1:]],
        }
    ).encode()
    blobs = [_blob(manifest), _blob(config), _blob(layers[0]), _blob(second, named_as=layers[1])]
    return tar_of([_index(manifest, names=names), *blobs]), manifest


_PLATFORMS = json.dumps({"manifests": [{"digest": "sha256:1"}, {"digest": "sha256:2"}]}).encode()


def _sparse() -> bytes:
    """Return an archive whose only file is a hole of a terabyte."""
    member = tarfile.TarInfo("blobs/sha256/00")
    member.size = 512
    # GNU tar's sparse format 1.0: the content begins with the map of the data, which is empty here.
    member.pax_headers = {
        "GNU.sparse.major": "1",
        "GNU.sparse.minor": "0",
        "GNU.sparse.name": "blobs/sha256/00",
        "GNU.sparse.realsize": str(1 << 40),
    }
    made = io.BytesIO()
    with tarfile.open(fileobj=made, mode="w", format=tarfile.PAX_FORMAT) as tar:
        tar.addfile(member, io.BytesIO(b"0\n".ljust(512, b"\0")))
    return made.getvalue()


@pytest.mark.parametrize(
    ("archive", "why"),
    [
        (b"no archive", "is not an OCI archive: "),
        (_without_index(), r"has no 'index\.json'"),
        (_with_two_images(), "it has 2 images, but one was expected"),
        (tar_of([_index()]), "has no 'sha256:e3b0c4"),
        (_with_other_content(), "has another digest"),
        (_of_two_layers(b"other")[0], "has another digest"),
        (_of_two_layers(media_type="a\r\nX: b")[0], "its manifest has a wrong media type"),
        (_of_two_layers(media_type=7)[0], "is not an OCI archive: "),
        (tar_of([_index(_PLATFORMS), _blob(_PLATFORMS)]), "export one platform"),
        (tar_of([_index(b"[]"), _blob(b"[]")]), "is not an OCI archive: "),
        (tar_of([_index(b"[" * 9000), _blob(b"[" * 9000)]), "is not an OCI archive: "),
        (tar_of([_index(b"\xff"), _blob(b"\xff")]), "is not an OCI archive: "),
        (gzip.compress(tar_of([_index()])), "is not an OCI archive: "),
        (_sparse(), "its file 'blobs/sha256/00' is larger than the archive"),
    ],
    ids=[
        *("no archive", "no index", "two images", "no manifest", "other content"),
        *("other layer", "header as media type", "number as media type", "platforms", "a list"),
        *("deep", "no text", "compressed", "sparse"),
    ],
)
def test_malformed_archive_is_refused(tmp_path: Path, archive: bytes, why: str) -> None:
    with pytest.raises(HarnessError, match=why):
        RegistryServer(folder=tmp_path).push(archive, repository="gpu", tag="1")


class FakeConnection:
    """Plays a connection to the registry; each request has its own connection."""

    def __init__(
        self, asked: list[tuple[str, str, bytes, str | None]], refused: str, status: int
    ) -> None:
        self._asked = asked
        self._refused = refused
        self._refusal = status
        self.status = 0
        self.is_closed = False

    def request(self, method: str, path: str, *, body: bytes, headers: Mapping[str, str]) -> None:
        self._asked.append((method, path, body, headers.get("Content-Type")))
        is_refused = bool(self._refused) and self._refused in path
        self.status = self._refusal if is_refused else 202 if method == "POST" else 201

    def getresponse(self) -> FakeConnection:
        return self

    def read(self) -> bytes:
        return b"because"

    def getheader(self, name: str) -> str | None:
        assert name == "Location"
        return "https://registry/v2/gpu/blobs/uploads/7?_state=x" if self.status == 202 else None

    def close(self) -> None:
        self.is_closed = True


class Pushed:
    """Records the requests to a server; a path that contains `refused` is answered with `status`."""

    def __init__(
        self, monkeypatch: pytest.MonkeyPatch, refused: str = "", status: int = 500
    ) -> None:
        self.asked: list[tuple[str, str, bytes, str | None]] = []
        self.connections: list[FakeConnection] = []
        self.refused = refused
        self.status = status
        monkeypatch.setattr(RegistryServer, "connection", lambda _: self._connection())
        self.server = RegistryServer(folder=Path("/registry"))

    def _connection(self) -> FakeConnection:
        self.connections.append(FakeConnection(self.asked, self.refused, self.status))
        return self.connections[-1]


def _an_image() -> tuple[bytes, ContainerImage]:
    image = container_image([Entry(path="a", content=b"1")], entrypoint=["/a"])
    return archive_of(image, reference="registry.test/gpu:1"), image


@pytest.mark.parametrize(
    "made",
    [
        _of_two_layers(),
        _of_two_layers(media_type="application/vnd.docker.distribution.manifest.v2+json"),
        _of_two_layers(media_type=None),
        _of_two_layers(names=2),
    ],
    ids=["OCI", "Docker", "no media type", "two names"],
)
def test_image_is_pushed_with_its_blobs_before_its_manifest(
    monkeypatch: pytest.MonkeyPatch, made: tuple[bytes, bytes]
) -> None:
    archive, whole = made
    manifest = json.loads(whole)
    pushed = Pushed(monkeypatch)

    pushed.server.push(archive, repository="gpu", tag="580.1")

    digests = [manifest["config"]["digest"], *(each["digest"] for each in manifest["layers"])]
    assert [(method, path) for method, path, _, _ in pushed.asked] == [
        *(
            request
            for digest in digests
            for request in (
                ("POST", "/v2/gpu/blobs/uploads/"),
                ("PUT", f"/v2/gpu/blobs/uploads/7?_state=x&digest={digest}"),
            )
        ),
        ("PUT", "/v2/gpu/manifests/580.1"),
    ]
    *blobs, (_, _, content, kind) = pushed.asked
    assert [
        f"sha256:{hashlib.sha256(body).hexdigest()}" for _, _, body, _ in blobs[1::2]
    ] == digests
    default = "application/vnd.oci.image.manifest.v1+json"
    assert (content, kind) == (whole, manifest.get("mediaType", default))
    assert all(connection.is_closed for connection in pushed.connections)


@pytest.mark.parametrize(
    ("refused", "status"), [("uploads/", 500), ("digest=", 204), ("manifests", 401)]
)
def test_refused_push_is_reported_with_the_answer_of_the_registry(
    monkeypatch: pytest.MonkeyPatch, refused: str, status: int
) -> None:
    pushed = Pushed(monkeypatch, refused, status)

    with pytest.raises(HarnessError, match=rf"{refused}.* but answered with {status}: because"):
        pushed.server.push(_an_image()[0], repository="gpu", tag="1")
    assert all(connection.is_closed for connection in pushed.connections)


def test_files_in_an_image_archive_that_are_not_blobs_are_ignored() -> None:
    """Docker adds a list in its own format, and names in the archive may begin with './'."""
    archive, image = _an_image()
    made = io.BytesIO()
    with (
        tarfile.open(fileobj=io.BytesIO(archive)) as old,
        tarfile.open(fileobj=made, mode="w") as new,
    ):
        for name in ("manifest.json", "blobs/link"):
            member = tarfile.TarInfo(name)
            member.type = tarfile.SYMTYPE if "link" in name else tarfile.REGTYPE
            new.addfile(member)
        for member in old:
            content = old.extractfile(member)
            member.name = f"./{member.name}"
            new.addfile(member, content)

    digest, blobs = read_image(made.getvalue())

    assert blobs[digest] == image.manifest.content
    assert all(name == "" or name.startswith("sha256:") for name in blobs)
