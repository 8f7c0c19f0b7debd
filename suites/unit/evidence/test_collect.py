"""Gathering evidence, also from a guest that means harm."""

from __future__ import annotations

import base64
import io
import json
import tarfile
from typing import TYPE_CHECKING

import pytest

from harness.errors import HarnessError
from harness.evidence import Evidence, collect
from harness.evidence.collect import (
    Request,
    collect_guest,
    keep_host_files,
    node_request,
    render_script,
)
from harness.provisioning.command import LocalRunner
from harness.shell.mocks import ScriptedRunner

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

NOTHING = Request(commands={}, files=(), paths=())
SCRIPT = ["sh", "-c", render_script(NOTHING)]


def a_member(name: str, content: bytes = b"x", **fields: object) -> tuple[tarfile.TarInfo, bytes]:
    info = tarfile.TarInfo(name)
    info.size = len(content)
    for key, value in fields.items():
        setattr(info, key, value)
    return info, content


def an_archive(*members: tuple[tarfile.TarInfo, bytes]) -> bytes:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w:gz") as tar:
        for info, content in members:
            tar.addfile(info, io.BytesIO(content))
    return buffer.getvalue()


def unpack(folder: Path, *members: tuple[tarfile.TarInfo, bytes]) -> list[str]:
    """Let a guest deliver an archive, and return what of it lies in and beside `folder`."""
    output = base64.encodebytes(an_archive(*members)).decode()
    with ScriptedRunner().expect(SCRIPT, stdout=output) as runner:
        collect_guest(runner, NOTHING, folder)
    root = folder.parent
    return sorted(
        path.relative_to(root).as_posix() for path in root.rglob("*") if not path.is_dir()
    )


def test_files_of_the_archive_lie_in_the_folder(tmp_path: Path) -> None:
    files = unpack(tmp_path / "e", a_member("./commands/lspci"), a_member("stat.txt"))

    assert files == ["e/commands/lspci", "e/stat.txt"]


@pytest.mark.parametrize(
    "evil",
    [
        a_member("../outside"),
        a_member("files/../../outside"),
        a_member("/outside"),
        a_member("link", b"", type=tarfile.SYMTYPE, linkname="/etc/passwd"),
        a_member("hard", b"", type=tarfile.LNKTYPE, linkname="../outside"),
        a_member("device", b"", type=tarfile.CHRTYPE, devmajor=1, devminor=3),
        a_member("pipe", b"", type=tarfile.FIFOTYPE),
    ],
    ids=lambda evil: evil[0].name,
)
def test_what_would_reach_outside_the_folder_is_left_out(
    tmp_path: Path, evil: tuple[tarfile.TarInfo, bytes]
) -> None:
    assert unpack(tmp_path / "e", evil, a_member("good")) == ["e/good"]


def test_link_is_no_way_out_for_what_comes_after_it(tmp_path: Path) -> None:
    outside = tmp_path / "outside"
    outside.mkdir()
    link = a_member("files", b"", type=tarfile.SYMTYPE, linkname=str(outside))

    assert unpack(tmp_path / "e", link, a_member("files/x")) == ["e/files/x"]
    assert list(outside.iterdir()) == []


def test_setuid_does_not_reach_the_host(tmp_path: Path) -> None:
    unpack(tmp_path / "e", a_member("files/sh", mode=0o4777))

    assert (tmp_path / "e/files/sh").stat().st_mode & 0o6000 == 0


def _refused(folder: Path, stdout: str, exit_code: int = 0) -> str:
    script = ScriptedRunner().expect(SCRIPT, stdout=stdout, stderr="tar: no", exit_code=exit_code)
    with script as runner, pytest.raises(HarnessError) as caught:
        collect_guest(runner, NOTHING, folder)
    assert (folder / "not-collected.txt").read_text() == str(caught.value)
    return str(caught.value)


@pytest.mark.parametrize("share", [0.0, 0.3, 0.9])
@pytest.mark.parametrize("cut", [0, 1])
def test_truncated_archive_is_refused(tmp_path: Path, share: float, cut: int) -> None:
    archive = an_archive(a_member("x", bytes(range(256)) * 64))
    whole = base64.b64encode(archive).decode()
    length = int(len(whole) * share) // 4 * 4 + cut

    message = _refused(tmp_path / "e", whole[:length])

    assert message.startswith("The guest did not deliver its evidence")
    assert "tar: no" in message


def test_archive_with_damaged_bytes_is_refused(tmp_path: Path) -> None:
    archive = bytearray(an_archive(a_member("x", bytes(range(256)) * 64)))
    archive[40:80] = b"\xff" * 40

    _refused(tmp_path / "e", base64.b64encode(archive).decode())


@pytest.mark.parametrize("text", ["sh: tar: not found", "!", "QUJD"])
def test_what_is_no_archive_is_refused(tmp_path: Path, text: str) -> None:
    _refused(tmp_path / "e", text, exit_code=127)


def test_archive_that_unpacks_to_more_than_is_sane_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(collect, "_ARCHIVE_LIMIT_BYTES", 1 << 20)
    archive = an_archive(*(a_member(f"zeros-{number}", bytes(1 << 19)) for number in range(3)))

    message = _refused(tmp_path / "e", base64.b64encode(archive).decode())

    assert "it unpacks to more than 1 MiB" in message


def test_file_in_a_folders_place_is_refused(tmp_path: Path) -> None:
    archive = an_archive(a_member("files"), a_member("files/x"))

    _refused(tmp_path / "e", base64.b64encode(archive).decode())


def _gather(folder: Path, request: Request) -> Path:
    collect_guest(LocalRunner(), request, folder)
    return folder


@pytest.mark.starts_process
def test_script_gathers_outputs_files_and_paths(tmp_path: Path) -> None:
    """The script is run by a real shell, with names that mean something to one."""
    source = tmp_path / "it's a $(reboot) node"
    source.mkdir()
    (source / "one.log").write_bytes(b"\0\xff\n")
    (source / "two.log").write_text("2")
    (source / "other").write_text("no")
    (source / "dangling").symlink_to("nowhere")
    request = Request(
        commands={
            "echo": ["sh", "-c", "echo out; echo err >&2; exit 3"],
            "it's": ["printf", "%s", "a b; $x"],
        },
        files=[f"{source}/*.log", f"{source}/absent", f"{source}/?ther"],
        paths=[f"{source}/d*", f"{source}/absent", f"{source}/one.log"],
    )

    folder = _gather(tmp_path / "e", request)

    evidence = Evidence(folder)
    assert (evidence.output_of("echo"), evidence.exit_code_of("echo")) == ("out\nerr\n", 3)
    assert evidence.output_of("it's") == "a b; $x"
    assert evidence.files(str(source)) == {"one.log": "\0\ufffd\n", "other": "no", "two.log": "2"}
    assert {path: state.kind for path, state in evidence.paths.items()} == {
        f"{source}/dangling": "l",
        f"{source}/one.log": "f",
    }


@pytest.mark.starts_process
def test_files_without_a_size_are_read(tmp_path: Path) -> None:
    request = Request(commands={}, files=["/proc/stat"], paths=[])

    assert "btime" in (_gather(tmp_path / "e", request) / "files/proc/stat").read_text()


@pytest.mark.starts_process
def test_endless_file_is_cut_off(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(collect, "_FILE_LIMIT_KIB", 4)
    large = tmp_path / "large.log"
    large.write_bytes(bytes(8192))

    folder = _gather(tmp_path / "e", Request(commands={}, files=[str(large)], paths=[]))

    assert (folder / f"files{large}").stat().st_size == 4096


def test_request_covers_every_kernel_of_the_image() -> None:
    request = node_request(["6.1.0-56", "6.1.0-55"])

    assert request.commands["modinfo-6.1.0-55"] == ["modinfo", "-k", "6.1.0-55", "nvidia"]
    assert not [argv for argv in request.commands.values() if argv[0] == "nvidia-smi"]


def test_host_side_is_kept_with_a_manifest(tmp_path: Path) -> None:
    source = tmp_path / "serial.log"
    source.write_text("boot\n")

    keep_host_files(
        tmp_path / "e",
        {"serial.log": source, "stderr.log": tmp_path / "absent"},
        {"qmp-events.json": "[]"},
    )

    manifest = json.loads((tmp_path / "e/manifest.json").read_text())
    assert (tmp_path / "e/host/serial.log").read_text() == "boot\n"
    assert manifest == {
        "schema": 1,
        "files": ["host/qmp-events.json", "host/serial.log"],
        "missing": ["stderr.log"],
    }


def _all_paths_of(request: Request) -> Sequence[str]:
    return [*request.files, *request.paths]


def test_every_path_asked_for_is_absolute() -> None:
    assert not [path for path in _all_paths_of(node_request([])) if not path.startswith("/")]
