"""Gathering evidence, also from a hostile guest."""

from __future__ import annotations

import base64
import contextlib
import gzip
import json
import re
import shlex
import shutil
import tempfile
import tracemalloc
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from harness.errors import BadInputError, HarnessError
from harness.evidence import Evidence
from harness.evidence.collect import collect_guest, keep_host_files
from harness.evidence.collection_script import render_script
from harness.evidence.request import (
    EvidenceRequest,
    guest_request,
    node_request,
)
from harness.provisioner import ConfigurationFile, EvidenceDeclaration, Provisioner
from harness.provisioner.outcome import OutcomeDeclaration, OutcomeFile
from harness.provisioning.command import CommandResult
from harness.shell.mocks.scripted_runner import ScriptedRunner

if TYPE_CHECKING:
    from collections.abc import Sequence

NOTHING = EvidenceRequest(commands={}, files=(), paths=())
NONCE = "0123456789abcdef"


def a_frame(kind: str, name: str = "", content: bytes = b"x") -> bytes:
    return f"\n{NONCE} {kind} {name}\0".encode() + content


END = a_frame("end", content=b"")


def an_archive(*frames: bytes) -> bytes:
    return gzip.compress(b"".join((*frames, END)))


def unpack(folder: Path, *frames: bytes) -> list[str]:
    """Unpack frames from a guest into `folder`, and return the files in and beside the folder."""
    output = base64.encodebytes(an_archive(*frames)).decode()
    with ScriptedRunner().expect(
        "sh", stdin=render_script(NOTHING, NONCE), stdout=output
    ) as runner:
        collect_guest(runner, NOTHING, folder, nonce=NONCE)
    root = folder.parent
    return sorted(
        path.relative_to(root).as_posix() for path in root.rglob("*") if not path.is_dir()
    )


def test_frames_are_unpacked_into_files_of_the_evidence_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The pieces of the stream may end anywhere."""
    monkeypatch.setattr("harness.evidence.collect._PIECE_BYTES", 7)
    files = unpack(
        tmp_path / "e",
        a_frame("command", "lspci"),
        a_frame("exit", "0", b""),
        a_frame("file", "/proc/stat"),
        a_frame("paths", content=b"d 755 0 1.0 /\nf 644 0 1.0 /x\n"),
    )

    assert files == [
        "e/commands/lspci",
        "e/commands/lspci.exit-code",
        "e/files/proc/stat",
        "e/requested.json",
        "e/stat.txt",
        "e/unreadable.txt",
    ]
    assert (tmp_path / "e/stat.txt").read_text() == "f 644 0 1.0 /x\n"


def test_empty_output_of_find_is_not_treated_as_an_empty_node(tmp_path: Path) -> None:
    """Busybox's find has no -printf, prints nothing and fails."""
    for number, content in enumerate((b"", b"/ 755 d\n")):
        message = _refused_frames(tmp_path / str(number), a_frame("paths", content=content))

        assert "in the guest (the output of find has no line for '/').\n" in message


def _refused(folder: Path, stdout: str, exit_code: int = 0) -> str:
    scripted = ScriptedRunner().expect("sh", stdout=stdout, stderr="gzip: no", exit_code=exit_code)
    with scripted as runner, pytest.raises(HarnessError) as caught:
        collect_guest(runner, NOTHING, folder, nonce=NONCE)
    assert (folder / "not-collected.txt").read_text() == str(caught.value)
    return str(caught.value)


def _refused_frames(folder: Path, *frames: bytes) -> str:
    return _refused(folder, base64.b64encode(an_archive(*frames)).decode())


def test_path_that_leads_outside_the_folder_is_refused(tmp_path: Path) -> None:
    outside = tmp_path / "outside"
    outside.write_text("is not touched")
    for kind, name in (
        *(("file", name) for name in ("../outside", "a/../../outside", "..", "")),
        *(("command", "../outside"), ("unreadable", "../outside")),
    ):
        message = _refused_frames(tmp_path / "e", a_frame(kind, name))

        assert f"the stream has a frame with the invalid name {name!r}" in message
        assert outside.read_text() == "is not touched"
        assert {path.name for path in tmp_path.iterdir()} == {"outside", "e"}


def test_malformed_frame_is_refused(tmp_path: Path) -> None:
    for number, (frames, words) in enumerate(
        (
            ([a_frame("command", "/x")], "a frame with the invalid name '/x'"),
            ([a_frame("link", "/etc/passwd")], "a frame of the unknown kind 'link'"),
            ([f"\n{NONCE} file /x".encode()], "the name of a frame has no end"),
            (
                [a_frame("command", "x"), a_frame("exit", "yes", b"")],
                "(the stream has the invalid exit code 'yes')",
            ),
            (
                [a_frame("exit", "0", b"")],
                "in the guest (the stream has an exit code before any command).\n",
            ),
        )
    ):
        assert words in _refused_frames(tmp_path / str(number), *frames)


def test_file_content_that_resembles_a_frame_with_another_nonce_is_not_parsed(
    tmp_path: Path,
) -> None:
    """A frame begins with the nonce, which the guest's files cannot contain."""
    forged = b"\n0000000000000000 file /x\0forged"

    unpack(tmp_path / "e", a_frame("file", "/log", forged))

    assert (tmp_path / "e/files/log").read_bytes() == forged


def test_truncated_stream_is_refused(tmp_path: Path) -> None:
    archive = an_archive(a_frame("file", "/x", bytes(range(256)) * 64))
    whole = base64.b64encode(archive).decode()
    for share, cut in ((0.0, 0), (0.3, 1), (0.9, 0)):
        length = int(len(whole) * share) // 4 * 4 + cut

        message = _refused(tmp_path / str(share), whole[:length])

        assert message.startswith("The evidence could not be gathered in the guest")
        assert "gzip: no" in message


def test_stream_without_its_last_frame_is_refused(tmp_path: Path) -> None:
    """The shell ended before the script did, and gzip closed the stream normally."""
    archive = gzip.compress(a_frame("file", "/x"))

    message = _refused(tmp_path / "e", base64.b64encode(archive).decode())

    assert "the stream is incomplete" in message


def test_damaged_stream_and_stream_that_is_not_gzip_are_refused(tmp_path: Path) -> None:
    archive = bytearray(an_archive(a_frame("file", "/x", bytes(range(256)) * 64)))
    archive[40:80] = b"\xff" * 40

    _refused(tmp_path / "damaged", base64.b64encode(archive).decode())
    for number, text in enumerate(("sh: gzip: not found", "QUJD")):
        _refused(tmp_path / str(number), text, exit_code=127)
    _refused_frames(tmp_path / "e", a_frame("file", "/a"), a_frame("file", "/a/b"))


def test_stream_that_unpacks_to_more_than_the_limit_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HARNESS_LIMIT_EVIDENCE_MIB", "1")

    message = _refused_frames(tmp_path / "e", a_frame("file", "/zeros", bytes(3 << 19)))

    assert "more than 1 MiB, which is the limit 'evidence-mib'" in message


def test_evidence_beyond_a_limit_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HARNESS_LIMIT_EVIDENCE_ENTRIES", "100")
    monkeypatch.setenv("HARNESS_LIMIT_EVIDENCE_FILE_MIB", "1")
    paths = b"d 755 0 1.0 /\n" + bytes((1 << 20) + 1)
    for number, (frames, words) in enumerate(
        (
            ([a_frame("file", f"/{each}") for each in range(101)], "'evidence-entries'"),
            ([a_frame("unreadable", f"/{each}") for each in range(101)], "'evidence-entries'"),
            ([a_frame("file", "/" + "d/" * 1000 + "f")], "'path-levels'"),
            ([a_frame("file", "/" + "n" * 300)], "File name too long"),
            ([a_frame("file", "/" + "n" * 10_000)], "the name of a frame has no end"),
            ([a_frame("paths", content=paths)], "'evidence-file-mib'"),
            ([a_frame("command", "c"), a_frame("exit", "9" * 6000)], "exit code '9999"),
            ([a_frame("command", "c"), a_frame("exit", "-1_0")], "exit code '-1_0'"),
        )
    ):
        assert words in _refused_frames(tmp_path / str(number), *frames)


def test_truncated_stream_leaves_no_evidence_files(tmp_path: Path) -> None:
    """The last file of the stream may be truncated."""
    frames = (
        *(a_frame("paths", content=b"d 755 0 1.0 /\n"), a_frame("unreadable", "/b", b"")),
        *(a_frame("command", "c"), a_frame("file", "/x", b"beg")),
    )
    packed = gzip.compress(b"".join(frames))

    _refused(tmp_path / "e", base64.b64encode(packed).decode())

    assert sorted(path.name for path in (tmp_path / "e").iterdir()) == [
        "not-collected.txt",
        "requested.json",
    ]


def test_path_that_is_not_utf8_is_written_as_raw_bytes(tmp_path: Path) -> None:
    frame = f"\n{NONCE} unreadable /b".encode() + b"\xff\0"

    assert "e/unreadable.txt" in unpack(tmp_path / "e", frame)
    assert (tmp_path / "e/unreadable.txt").read_bytes() == b"/b\xff\n"


def test_evidence_is_unpacked_with_a_limited_amount_of_memory(tmp_path: Path) -> None:
    """Before there was a limit, 300 MiB of zeros, compressed to 1.4 MiB, took 846 MiB of memory."""
    output = base64.b64encode(an_archive(a_frame("file", "/z", bytes(4 << 20)))).decode()
    with ScriptedRunner().expect("sh", stdout=output) as runner:
        tracemalloc.start()
        try:
            collect_guest(runner, NOTHING, tmp_path / "e", nonce=NONCE)
            peak = tracemalloc.get_traced_memory()[1]
        finally:
            tracemalloc.stop()

    assert (tmp_path / "e/files/z").stat().st_size == 4 << 20
    assert peak < 3 << 20


def test_error_about_a_failed_evidence_stream_has_a_limited_length(tmp_path: Path) -> None:
    """Before there was a limit, the message had 53 MiB."""
    noise = base64.b64encode(bytes(range(256)) * (4 << 10)).decode()
    scripted = ScriptedRunner().expect("sh", stdout=noise, exit_code=124)
    with scripted as runner, pytest.raises(HarnessError) as caught:
        collect_guest(runner, NOTHING, tmp_path / "e", nonce=NONCE)

    assert len(str(caught.value)) < 9000
    assert (tmp_path / "e/not-collected.txt").stat().st_size < 10_000


@given(
    frames=st.lists(
        st.one_of(
            st.binary(max_size=60),
            st.builds(
                lambda kind, name, content: f"\n{NONCE} {kind} ".encode() + name + b"\0" + content,
                st.sampled_from(["file", "command", "exit", "unreadable", "paths", "end", "x"]),
                st.binary(max_size=30)
                | st.sampled_from([b"/a", b"/a/b", b"../x", b"/", b"0", b"9" * 5000, b"a/" * 500]),
                st.binary(max_size=60) | st.just(b"d 755 0 1.0 /\n"),
            ),
        ),
        max_size=8,
    ),
    cut=st.integers(0, 2000),
    has_end=st.booleans(),
)
def test_any_stream_is_unpacked_within_its_folder_or_refused(
    frames: list[bytes], cut: int, *, has_end: bool
) -> None:
    packed = gzip.compress(b"".join(frames) + (END if has_end else b""), 1)
    output = base64.b64encode(packed[:cut] if cut < 30 else packed).decode()
    place = Path(tempfile.mkdtemp())
    try:
        runner = ScriptedRunner().expect("sh", stdout=output)
        with runner, contextlib.suppress(HarnessError):
            collect_guest(runner, NOTHING, place / "e", nonce=NONCE)
        assert [path.name for path in place.iterdir()] == ["e"]
        assert not any(path.is_symlink() for path in place.rglob("*"))
    finally:
        shutil.rmtree(place)


def test_unreadable_file_raises_an_error_but_an_absent_file_is_none(tmp_path: Path) -> None:
    """The part that was read before an error must not be used, and the file must not count as empty."""
    unpack(tmp_path / "e", a_frame("file", "/a", b"ha"), a_frame("unreadable", "/a", b""))
    request = json.dumps({"schema": 1, "files": ["/a", "/b"]})
    (tmp_path / "e/requested.json").write_text(request)

    evidence = Evidence(tmp_path / "e")
    with pytest.raises(
        HarnessError, match=r"no permission to read '/a'.*Gather the evidence as root"
    ):
        evidence.file("/a")
    assert evidence.file("/b") is None


def test_evidence_script_does_not_redirect_output_into_files() -> None:
    """Outside of quotes, the shell redirects only to /dev/null and to open descriptors."""
    text = render_script(node_request(["6.1.0-56"]), NONCE)

    words = list(shlex.shlex(text, posix=True, punctuation_chars=True))
    redirections = {
        (word, words[at + 1]) for at, word in enumerate(words) if set(word) & set("<>")
    }

    assert redirections == {("<", "/dev/null"), (">", "/dev/null"), (">&", "1"), (">&", "2")}
    assert "mktemp" not in words


def test_stretch_factor_extends_the_timeouts_of_guest_commands() -> None:
    request = EvidenceRequest(commands={"dkms-status": ["dkms", "status"]}, files=[], paths=[])

    assert "\ntimeout 60 dkms status 2>&1" in render_script(request, NONCE)
    assert "\ntimeout 141 dkms status 2>&1" in render_script(request, NONCE, stretch=2.35)


def test_timeout_of_the_evidence_script_exceeds_the_stretched_command_timeout(
    tmp_path: Path,
) -> None:
    """The command then runs for its stretched limit of ten minutes, and the script has 12 minutes."""
    runner = ScriptedRunner().expect("sh", timeout_s=720)

    with runner, pytest.raises(HarnessError):
        collect_guest(runner, NOTHING, tmp_path / "e", stretch=10.0)


def test_read_permission_is_required_only_for_folders_that_a_wildcard_lists() -> None:
    request = EvidenceRequest(commands={}, files=["/a/b*/c", "/a/d"], paths=["/e/f/*"])

    tests = re.findall(
        r"for f in (\S+); do \[ ! -d .*?\|\| (.*?) \|\| frame", render_script(request, NONCE)
    )

    listed, opened = '{ [ -r "$f" ] && [ -x "$f" ]; }', '[ -x "$f" ]'
    assert tests == [
        ("/", opened), ("/a", listed), ("/a/b*", opened), ("/e", opened), ("/e/f", listed)
    ]  # fmt: skip


def test_evidence_of_the_host_is_kept_with_a_manifest(tmp_path: Path) -> None:
    source = tmp_path / "serial.log"
    source.write_text("boot\n")

    keep_host_files(
        tmp_path / "e",
        {"a.log": tmp_path / "absent", "serial.log": source, "stderr.log": tmp_path / "absent"},
        {"qmp-events.json": "[]", "argv.txt": "qemu"},
    )

    manifest = json.loads((tmp_path / "e/manifest.json").read_text())
    assert (tmp_path / "e/host/serial.log").read_text() == "boot\n"
    assert manifest == {
        "schema": 1,
        "files": ["host/argv.txt", "host/qmp-events.json", "host/serial.log"],
        "missing": ["a.log", "stderr.log"],
    }


def test_evidence_request_has_the_declared_files_instead_of_the_gpu_node_files() -> None:
    mine = Provisioner(
        name="mine",
        run=["/opt/mine"],
        outcome=OutcomeDeclaration(file=OutcomeFile(path="/var/lib/mine.json")),
        configuration=ConfigurationFile(path="/etc/mine.json"),
        evidence=EvidenceDeclaration(files=["/var/log/mine/*"], commands={"mounts": ["findmnt"]}),
    )

    request = node_request([], mine)

    own = {*node_request([]).files}
    assert {*request.files} - own == {"/var/lib/mine.json", "/etc/mine.json", "/var/log/mine/*"}
    assert own - {*request.files} == {
        "/var/lib/gpu-node/outcome.json",
        "/etc/gpu-node/config.json",
        "/var/log/azure/cluster-provision.log",
        "/var/log/azure/Microsoft.Azure.Extensions.CustomScript/events/*",
    }
    assert list(request.commands["mounts"]) == ["findmnt"]
    assert {*request.paths} - {*node_request([]).paths} == {"/var/log/mine/*"}
    assert list(guest_request([], mine).commands) == [*request.commands, "dkms-status"]


def test_declared_evidence_command_with_a_reserved_name_is_refused() -> None:
    for name in ("dmesg", "dkms-status"):
        mine = Provisioner(
            name="mine",
            source="/p/mine.yaml",
            run=["/opt/mine"],
            evidence=EvidenceDeclaration(commands={name: ["true"]}),
        )
        with pytest.raises(BadInputError) as caught:
            node_request([], mine)
        assert str(caught.value) == (
            f"/p/mine.yaml: key 'evidence.commands.{name}': The harness uses the name '{name}' for the output "
            "of a command of its own; choose another name."
        )


def test_folders_of_evidence_are_private(tmp_path: Path) -> None:
    """The mode of the outermost folder denies other users access to all files below."""
    unpack(tmp_path / "e", a_frame("file", "/a/b/c"), a_frame("file", "/a/d"))
    keep_host_files(tmp_path / "e", {}, {"x": ""})

    folders = ("", "host", "files/a/b")
    modes = {name: (tmp_path / "e" / name).stat().st_mode & 0o777 for name in folders}
    assert modes == dict.fromkeys(folders, 0o700)


def test_each_gathering_has_a_new_nonce_and_records_its_request(
    tmp_path: Path,
) -> None:
    """With a known nonce, a guest could put the end of a frame into a file."""
    request = EvidenceRequest(commands={"a": ("b", "c")}, files=["/file"], paths=["/path"])
    scripts: list[str] = []

    class Guest:
        def run(self, argv: Sequence[str], **options: Any) -> CommandResult:
            assert (list(argv), options["timeout_s"]) == (["sh"], 180)
            scripts.append(options["stdin"])
            return CommandResult(argv=tuple(argv), exit_code=0, stdout="", stderr="")

    for number in (1, 2):
        with pytest.raises(HarnessError):
            collect_guest(Guest(), request, tmp_path / str(number))
        recorded = json.loads((tmp_path / str(number) / "requested.json").read_text())
        assert (recorded["files"], recorded["paths"]) == (["/file"], ["/path"])
        assert (recorded["schema"], recorded["commands"]) == (1, {"a": ["b", "c"]})

    nonces = [re.findall(r"\\n([0-9a-f]{32}) ", script)[0] for script in scripts]
    assert len(set(nonces)) == 2
