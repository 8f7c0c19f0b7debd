"""Gathering evidence, also from a hostile guest."""

from __future__ import annotations

import os
import re
import shutil
import signal
from typing import TYPE_CHECKING

import pytest

from harness.errors import HarnessError
from harness.evidence import Evidence, collection_script
from harness.evidence.collect import collect_guest
from harness.evidence.collection_script import TOOLS, render_script
from harness.evidence.node_state import LOCKS_SCRIPT
from harness.evidence.request import (
    AdditionalEvidence,
    EvidenceRequest,
    node_request,
)
from harness.provisioning.command import LocalRunner
from harness.shell.mocks.scripted_runner import ScriptedRunner

if TYPE_CHECKING:
    from pathlib import Path

NOTHING = EvidenceRequest(commands={}, files=(), paths=())
NONCE = "0123456789abcdef"


def test_lock_is_listed_with_the_process_that_still_holds_it(tmp_path: Path) -> None:
    """The kernel's own list names the process that took the lock, although that process has ended."""
    lock = tmp_path / "a lock"
    script = f"exec 9>>'{lock}'; flock -x 9 || exit; sleep 60 <&- >&- 2>&- & echo $!"
    kept = LocalRunner().run(["sh", "-c", script], timeout_s=60).stdout.strip()
    try:
        listed = LocalRunner().run(["sh", "-c", LOCKS_SCRIPT], timeout_s=60).stdout
    finally:
        os.kill(int(kept), signal.SIGTERM)

    assert f"{kept}\t{lock}\tsleep 60 \n" in listed


@pytest.mark.parametrize("missing", TOOLS)
def test_script_fails_without_output_on_a_node_that_lacks_a_tool(
    tmp_path: Path, missing: str
) -> None:
    """With partial output, commands and files would wrongly count as absent."""
    for name in {"sh", *TOOLS} - {missing}:
        (tmp_path / name).symlink_to(str(shutil.which(name)))
    text = render_script(NOTHING, NONCE).replace(":/usr/local/sbin:/usr/sbin:/sbin", "")

    result = LocalRunner().run(["sh"], timeout_s=60, stdin=text, env={"PATH": str(tmp_path)})

    assert (result.exit_code, result.stdout) == (1, "")
    assert result.stderr == f"The node has no '{missing}'.\n"


def _gather(folder: Path, request: EvidenceRequest) -> Path:
    collect_guest(LocalRunner(), request, folder)
    return folder


def test_script_gathers_outputs_and_files_and_the_states_of_paths(tmp_path: Path) -> None:
    """A real shell runs the script on names with shell metacharacters."""
    source = tmp_path / "it's a $(reboot) node"
    source.mkdir()
    (source / "one.log").write_bytes(b"\0\xff\n")
    (source / "two.log").write_text("2")
    (source / "other").write_text("no")
    (source / "dangling").symlink_to("nowhere")
    request = EvidenceRequest(
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


def test_additional_files_and_commands_are_gathered(tmp_path: Path) -> None:
    source = tmp_path / "it's mine"
    source.mkdir()
    (source / "a.conf").write_text("a")
    (source / "a.conf").chmod(0o640)
    more = AdditionalEvidence(
        files=[f"{source}/*.conf", f"{source}/absent"], commands={"mine": ["printf", "%s", "$x y"]}
    )

    evidence = Evidence(_gather(tmp_path / "e", NOTHING.extended(more)))

    assert evidence.files(str(source)) == {"a.conf": "a"}
    assert evidence.paths[f"{source}/a.conf"].mode == 0o640
    assert evidence.file(f"{source}/absent") is None
    assert (evidence.output_of("mine"), evidence.exit_code_of("mine")) == ("$x y", 0)


def test_unreadable_folder_that_a_wildcard_has_to_search_is_reported(tmp_path: Path) -> None:
    """A file takes the place of an unreadable folder, because root may read every folder."""
    for name in ("1/open/x", "1/open/deep/x", "2/shut/x", "2/shut/no", "3/no"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).touch()
    patterns = [f"{tmp_path}/*/open/x", f"{tmp_path}/?/shut/*", f"{tmp_path}/1/open/deep/x"]
    request = EvidenceRequest(commands={}, files=[], paths=patterns)
    text = render_script(request, NONCE)
    text = text.replace('[ -x "$f" ]', '[ ! -e "$f/no" ]').replace('[ -r "$f" ]', "true")

    output = LocalRunner().run(["sh"], timeout_s=60, stdin=text).check("sh").stdout

    with ScriptedRunner().expect("sh", stdin=render_script(request, NONCE), stdout=output) as sh:
        evidence = collect_guest(sh, request, tmp_path / "e", nonce=NONCE)
    closed = set((tmp_path / "e/unreadable.txt").read_text().splitlines())
    assert closed == {f"{tmp_path}/3", f"{tmp_path}/2/shut"}
    assert f"{tmp_path}/1/open/x" in evidence.paths
    assert evidence.paths.matching(f"{tmp_path}/1/open/deep/x")
    for hidden in (f"{tmp_path}/3/open/x", f"{tmp_path}/2/shut/y"):
        with pytest.raises(HarnessError, match="no permission to read"):
            evidence.paths.get(hidden)
    with pytest.raises(HarnessError, match="no permission to read"):
        list(evidence.paths)


def test_absent_file_is_none_but_a_file_that_was_not_gathered_is_an_error(tmp_path: Path) -> None:
    """A wildcard of a shell matches neither '/' nor a leading dot."""
    request = EvidenceRequest(commands={}, files=["/absent/*.conf", "/absent/[a].?"], paths=[])
    evidence = Evidence(_gather(tmp_path / "e", request))

    assert evidence.file("/absent/a.conf") is None
    assert evidence.file("/absent/[a].c") is None
    for path in (
        "/absent/a.json",
        "/absent/b/a.conf",
        "/absent/.a.conf",
        "/absent/a.c",
        "/etc/fstab",
    ):
        with pytest.raises(HarnessError, match=rf"'{path}' was not gathered.*files=\['{path}'\]"):
            evidence.file(path)
    with pytest.raises(
        HarnessError, match=r"gather the file by `node.evidence\(files=\['/etc/x/\*'\]\)`"
    ):
        evidence.files("/etc/x")


def test_files_whose_reported_size_is_zero_are_read(tmp_path: Path) -> None:
    request = EvidenceRequest(commands={}, files=["/proc/stat"], paths=[])

    assert "btime" in (_gather(tmp_path / "e", request) / "files/proc/stat").read_text()


def test_endless_file_is_truncated(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(collection_script, "FILE_LIMIT_KIB", 4)
    large = tmp_path / "large.log"
    large.write_bytes(bytes(8192))

    folder = _gather(tmp_path / "e", EvidenceRequest(commands={}, files=[str(large)], paths=[]))

    assert (folder / f"files{large}").stat().st_size == 4096


#: The command lines with which the script may run its own tools; none of them writes to a file.
HARMLESS = re.compile(
    r"timeout 60 .*|head -c 4096K /.*|find / (/\S+ )*-maxdepth 0 -printf \S.*|gzip -c|base64"
)


def test_gathering_runs_only_the_listed_commands(tmp_path: Path) -> None:
    """Mocks on PATH record each call of a program."""
    recorders, log = tmp_path / "bin", tmp_path / "log"
    recorders.mkdir()
    request = node_request(["6.1.0-56"])
    shell = str(shutil.which("sh"))
    for name in {*TOOLS, *(argv[0] for argv in request.commands.values())}:
        then = f'exec {shutil.which(name)} "$@"' if name in TOOLS else "exit 0"
        (recorders / name).write_text(f'#!{shell}\nprintf "%s\\n" "{name} $*" >>{log}\n{then}\n')
        (recorders / name).chmod(0o755)

    result = LocalRunner().run(
        [shell], timeout_s=60, stdin=render_script(request, NONCE), env={"PATH": str(recorders)}
    )

    assert (result.exit_code, result.stderr) == (0, "")
    ran = [line.rstrip() for line in log.read_text().splitlines()]
    listed = [" ".join(argv) for argv in request.commands.values()]
    assert [line for line in ran if line.split()[0] not in TOOLS] == listed
    others = [line for line in ran if line.split()[0] in TOOLS]
    assert [line for line in others if not HARMLESS.fullmatch(line)] == []
