"""A provisioner's file is read completely, or refused by one sentence with file and key."""

from __future__ import annotations

import errno
import os
from dataclasses import dataclass
from typing import TYPE_CHECKING

import pytest

from harness.cloudinit import GuestFile
from harness.errors import BadInputError
from harness.provisioner.outcome import EventFormat
from suites.unit.provisioner.builders import WHOLE, Project, a_project

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

THIN = "schema: 1\nname: thin\nrun: [/bin/true]\n"


def test_all_keys_of_a_provisioner_file_are_read(project: Project) -> None:
    provisioner = project.read(WHOLE)

    assert provisioner.name == "my-node"
    assert list(provisioner.files) == [
        GuestFile(path="/opt/my/provision.sh", content=b"#!/bin/sh\n", mode=0o755),
        GuestFile(path="/opt/my/lib/bin/tool", content=b"#!/bin/sh\n", mode=0o755),
        GuestFile(path="/opt/my/lib/words.sh", content=b"say() { :; }\n", mode=0o644),
    ]
    assert list(provisioner.folders) == ["/opt/my/lib"]
    assert list(provisioner.command("boot")) == ["/opt/my/provision.sh", "boot"]
    assert list(provisioner.command("bake")) == ["/opt/my/provision.sh", "bake"]
    assert list(provisioner.command("teardown")) == ["/opt/my/provision.sh", "teardown"]
    assert list(provisioner.command("report")) == ["/opt/my/provision.sh", "report"]
    assert provisioner.environment == {"MY_REGION": "eu"}
    assert provisioner.user_data == {"timezone": "Europe/Paris"}
    assert provisioner.outcome.exit_codes == {0: "ok", 84: "no-driver"}
    assert provisioner.outcome.events is not None
    assert provisioner.outcome.events.format is EventFormat.JSON_LINES
    assert provisioner.outcome.paths == (
        "/var/lib/my/outcome.json",
        "/var/log/my/events.jsonl",
        "/var/log/my.log",
    )
    assert provisioner.outcome_paths == ("/var/lib/my/outcome.json",)
    assert list(provisioner.evidence.files) == ["/var/log/my/*.log"]
    assert {name: list(argv) for name, argv in provisioner.evidence.commands.items()} == {
        "mounts": ["findmnt", "--json"]
    }
    assert provisioner.where == str(project.folder / "provisioner.yaml")
    assert (provisioner.metadata_path, provisioner.timeout_s) == ("/run/my/metadata.json", 90.5)


def test_values_in_an_env_configuration_file_are_quoted_for_the_shell(project: Project) -> None:
    *_, configuration = project.read(WHOLE).guest_files({}, {"MY_COUNT": 8})

    assert configuration == GuestFile(
        path="/etc/my/config.env",
        content=b"MY_MODE='it'\"'\"'s on'\nMY_GPU=false\nMY_COUNT=8\n",
        mode=0o600,
    )


def test_provisioner_file_with_only_required_keys_is_accepted(project: Project) -> None:
    provisioner = project.read(THIN)

    assert list(provisioner.command("boot")) == ["/bin/true"]
    assert provisioner.guest_files({}, {}) == ()
    events = "outcome: {events: {path: /var/log/events/*, name: /name}}\n"
    assert project.read(THIN + events).outcome_paths == ()
    assert provisioner.timeout_s == 60


@dataclass(frozen=True, kw_only=True)
class Refused:
    """A change of the project or of its file, and the error message that follows the file's name."""

    text: str = WHOLE
    change: Callable[[Project], object] = lambda _project: None
    message: str


def whole(old: str, new: str) -> str:
    assert old in WHOLE
    return WHOLE.replace(old, new)


REFUSED = {
    "misspelt key": Refused(
        text=whole("teardown:", "tear_down:"),
        message=":9: key 'tear_down': This key is not known here; the known keys are 'schema', 'name', ",
    ),
    "command as a string": Refused(
        text=THIN.replace("[/bin/true]", "/bin/true --fast"),
        message=":3: key 'run': A command is a list of its words, such as [/opt/my/provision.sh, "
        "boot], but the file has '/bin/true --fast'.",
    ),
    "command without a word": Refused(
        text=THIN.replace("[/bin/true]", "[]"), message="key 'run': "
    ),
    "missing file": Refused(
        change=lambda p: (p.folder / "provision.sh").unlink(),
        message=":4: key 'files./opt/my/provision.sh.source': The file '{folder}/provision.sh' cannot "
        "be read (No such file or directory).",
    ),
    "empty folder": Refused(
        text=whole("source: lib/", "source: nothing"),
        change=lambda p: (p.folder / "nothing").mkdir(),
        message=":5: key 'files./opt/my/lib': The folder '{folder}/nothing' contains no file.",
    ),
    "link to a folder in a folder": Refused(
        change=lambda p: (p.folder / "lib" / "more").symlink_to("bin"),
        message=":5: key 'files./opt/my/lib.source': The file '{folder}/lib/more' cannot be read (It is "
        "not a regular file).",
    ),
    "mode of a folder": Refused(
        text=whole("{source: lib/}", '{source: lib, mode: "0755"}'),
        message=":5: key 'files./opt/my/lib': '{folder}/lib' is a folder, whose files keep their own "
        "modes; remove 'mode'.",
    ),
    "mode that is no string": Refused(
        text=whole('"0755"', "755"),
        message=":4: key 'files./opt/my/provision.sh.mode': An octal mode in quotes, such as \"0755\", "
        "is expected here, but the file has 755.",
    ),
    "relative path in the machine": Refused(
        text=whole("/opt/my/lib:", "opt/my/lib:"),
        message=":5: key 'files.opt/my/lib': The absolute path of a file in the machine is expected "
        "here, but the file has 'opt/my/lib'.",
    ),
    **{
        f"path {path!r}": Refused(
            text=f"{THIN}files: {{{path}: {{source: lib}}}}\n",
            message=f":4: key 'files.{path}': The absolute path of a file in",
        )
        for path in ("/opt/my/lib/", "/opt/../lib", "/opt/./lib")
    },
    "two ways to write one path": Refused(
        text=whole("/opt/my/provision.sh:", "/opt//my/lib/words.sh:"),
        message=": key 'files': Two files have the path '/opt/my/lib/words.sh' in the machine; keep one",
    ),
    "fifo": Refused(
        change=lambda p: os.mkfifo(p.folder / "lib/fifo"),
        message="The file '{folder}/lib/fifo' cannot be read (It is not a regular file).",
    ),
    "configuration over a file": Refused(
        text=whole("/etc/my/config.env", "/opt//my/provision.sh"),
        message=": key 'files': Two files have the path '/opt/my/provision.sh' in the machine",
    ),
    "exit code without a name": Refused(
        text=whole("84: no-driver", "84: "),
        message=":16: key 'outcome.exit_codes.84': A name of this exit code, such as no-driver, is "
        "expected here, but the file has None.",
    ),
    "pointer without a slash": Refused(
        text=whole("decision: /decision", "decision: decision"),
        message=":17: key 'outcome.file.decision': A JSON pointer (RFC 6901), such as "
        "'/decision/action', is expected here, but the file has 'decision'.",
    ),
    "pointer with another escape": Refused(
        text=f"{THIN}outcome: {{file: {{path: /x, decision: /a~2b}}}}\n",
        message="A JSON pointer (RFC",
    ),
    "pattern without a group": Refused(
        text=whole(r"step (\S+)", "step"),
        message=":19: key 'outcome.log.step': A regular expression with one group, or with a group "
        "'(?P<name>…)' and other groups named 'detail', 'duration_s', 'status', is expected here",
    ),
    **{
        f"pattern {pattern!r}": Refused(
            text=f"{THIN}outcome: {{log: {{path: /x, step: '{pattern}'}}}}\n", message=message
        )
        for pattern, message in (
            ("(a) (b)", "A regular expression with one group"),
            (r"(?P<nam>\S+)", "A regular expression with one group"),
            (
                "(step)?",
                "The regular expression here must not match an empty line, but the file has",
            ),
            ("(", "This is not a regular expression (missing )"),
        )
    },
    "value that no shell takes": Refused(
        text=whole("MY_GPU: false", "MY_GPU: [a]"),
        message=": key 'config.values.MY_GPU': A file of the format 'env' maps names of shell variables "
        "to texts, numbers or booleans, but 'MY_GPU' is ['a']; use the format 'json'.",
    ),
    "value of a bake that no shell takes": Refused(
        text=f"{THIN}config: {{path: /x, format: env, bake_values: {{MY_GPU: [a]}}}}\n",
        message=": key 'config.values.MY_GPU': A file of the format 'env' maps names of shell",
    ),
    "name that no shell takes": Refused(
        text=f"{THIN}config: {{path: /x, format: env, values: {{my-gpu: 1}}}}\n",
        message="key 'config.values.my-gpu': ",
    ),
    "unknown fact of the node": Refused(
        text=f"{THIN}config: {{path: /x, node_values: {{MY_GPUS: gpus}}}}\n",
        message="key 'config.node_values.MY_GPUS': Input should be 'has_gpus', 'gpu_count', ",
    ),
    **{
        f"command {name!r} with a key of its own": Refused(
            text=f"{THIN}commands: {{{name}: [/bin/true]}}\n",
            message=f":4: key 'commands.{name}': The command '{name}' can't be in 'commands'; declare the command "
            f"by the key '{key}' of the provisioner.",
        )
        for name, key in (("boot", "run"), ("bake", "bake"), ("teardown", "teardown"))
    },
    "no user-data": Refused(
        change=lambda p: (p.folder / "user-data.yaml").unlink(),
        message=":6: key 'user_data': The user-data '{folder}/user-data.yaml' cannot be read",
    ),
    "user-data that is a script": Refused(
        change=lambda p: p.write("user-data.yaml", "#!/bin/sh\n"),
        message=":6: key 'user_data': The user-data '{folder}/user-data.yaml' has to begin with "
        "'#cloud-config', but begins with '#!/bin/sh'; put a script into 'files' and call it by 'run'.",
    ),
    "another schema": Refused(
        text=whole("schema: 1", "schema: 2"),
        message=":1: key 'schema': The file has the format 2, but",
    ),
}


def test_error_for_an_invalid_provisioner_file_mentions_the_file_and_the_key(
    tmp_path: Path,
) -> None:
    for number, (name, case) in enumerate(REFUSED.items()):
        project = a_project(tmp_path / str(number))
        case.change(project)

        with pytest.raises(BadInputError) as refused:
            project.read(case.text)

        message = str(refused.value)
        assert message.startswith(f"{project.folder / 'provisioner.yaml'}:"), name
        assert case.message.replace("{folder}", str(project.folder)) in message, name
        assert "\n" not in message, name


def test_guest_files_above_the_total_size_limit_are_refused(
    project: Project, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The limit applies to the sum of all files."""
    monkeypatch.setattr("harness.provisioner.yaml_file._FILES_LIMIT_MIB", 1)
    project.write("lib/words.sh", "x" * (1 << 19))
    project.read(WHOLE)
    project.write("provision.sh", "x" * (1 << 19))

    with pytest.raises(
        BadInputError, match=r"key 'files': These files have more than 1 MiB together"
    ):
        project.read(WHOLE)


def test_folder_with_an_unreadable_folder_is_refused(
    project: Project, monkeypatch: pytest.MonkeyPatch
) -> None:
    scandir = os.scandir
    unreadable = str(project.folder / "lib" / "bin")

    def refuse(path: str) -> object:
        if str(path) == unreadable:
            raise PermissionError(errno.EACCES, "Permission denied", unreadable)
        return scandir(path)

    monkeypatch.setattr(os, "scandir", refuse)

    with pytest.raises(BadInputError, match=f"'{unreadable}' cannot be read"):
        project.read(WHOLE)
