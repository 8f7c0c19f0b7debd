"""A provisioner's user-data is merged into the harness's, or refused if a value would be lost."""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import TYPE_CHECKING

import pytest
import yaml

from harness.cloudinit import GuestFile, UserData, cloud_config
from harness.errors import BadInputError
from harness.provisioner import Provisioner
from harness.provisioner.user_data import merge_user_data

if TYPE_CHECKING:
    from collections.abc import Mapping

    from suites.unit.provisioner.builders import Project

OURS = cloud_config(
    UserData(
        hostname="node",
        files=[GuestFile(path="/opt/mine", content=b"")],
        commands=[["/opt/mine"]],
    )
)
JOINED = "merge_how: dict(recurse_list)+list(append)+str()\n"


def merged(text: str) -> Mapping[str, object]:
    theirs = yaml.safe_load(text)
    provisioner = Provisioner(
        name="mine", run=["/opt/mine"], user_data=theirs, user_data_source="/p/user-data.yaml"
    )
    return merge_user_data(OURS, provisioner)


def test_user_data_keys_that_the_harness_does_not_set_are_added() -> None:
    found = merged("packages: [jq]\ntimezone: UTC\n")

    assert found == {**OURS, "packages": ["jq"], "timezone": "UTC"}
    assert merged("disable_root: false\n") == OURS, "equal values do not conflict"


def test_merge_rule_in_user_data_can_join_lists_and_mappings() -> None:
    more = [["touch", "/run/x"]]
    for rule in (
        "merge_how: dict(recurse_list)+list(append)+str()\n",
        "merge_how: 'list(append) + dict(no_replace, recurse_array)'\n",
        "merge_type: [[list, append], [dict, recurse_list]]\n",
        "merge_how: List(append)+DICT(Recurse_List)\n",
        "merge_how: [{name: list, settings: [append]}, {name: dict, settings: [recurse_list]}]\n",
    ):
        found = merged(f"{rule}runcmd: [[touch, /run/x]]\n")
        assert found == {**OURS, "runcmd": [["/opt/mine"], *more]}, rule

    found = merged("merge_how: list(prepend)+dict(recurse_list)\nruncmd: [[touch, /run/x]]\n")
    assert found["runcmd"] == [*more, ["/opt/mine"]]
    found = merged("merge_how: dict()\nssh:\n  more: 1\n")
    assert found["ssh"] == {"emit_keys_to_console": False, "more": 1}


@dataclass(frozen=True)
class Refused:
    """User-data, and the error message that follows the file's name."""

    text: str
    message: str


REFUSED = {
    "list": Refused(
        "runcmd: [[x]]\n",
        "key 'runcmd': The harness sets this key too, and cloud-init would keep only one of the "
        "lists; join them by 'merge_how: dict(recurse_list)+list(append)'.",
    ),
    "value": Refused(
        "hostname: other\n",
        "key 'hostname': The harness sets this key too, and cloud-init would keep only one of the "
        "values, 'other' and 'node'; remove the key here.",
    ),
    "value in a mapping": Refused(
        "merge_how: dict()\nssh: {emit_keys_to_console: true}\n",
        "key 'ssh.emit_keys_to_console': ",
    ),
    "mapping without a rule": Refused("ssh: {more: 1}\n", "key 'ssh': "),
    "mapping that replaces": Refused("merge_how: dict(replace)\nssh: {more: 1}\n", "key 'ssh': "),
    # cloud-init joins no lists in mappings that do not recurse into them.
    "list in a mapping without recursion": Refused(
        "merge_how: list(append)+dict(no_replace)\nruncmd: []\n", "key 'runcmd': "
    ),
    "list in a mapping that replaces": Refused(
        "merge_how: list(append)+dict(replace,recurse_list)\nruncmd: []\n", "key 'runcmd': "
    ),
    "file of the harness": Refused(
        f"{JOINED}write_files: [{{path: /opt/./mine, content: x}}]\n",
        "key 'write_files': The provisioner or the harness also writes '/opt/mine', so the file "
        "would be overwritten; remove the path from 'write_files' of this user-data.",
    ),
    "rule of no known form": Refused(
        "merge_how: append everything\nruncmd: []\n",
        "key 'merge_how': cloud-init does not know the rule for merging 'append everything'; write a rule such as "
        "'dict(recurse_list)+list(append)'.",
    ),
    "rule that is a number": Refused("merge_how: 7\nruncmd: []\n", "key 'merge_how': "),
}


def test_error_for_conflicting_user_data_mentions_the_file_and_the_key() -> None:
    for name, case in REFUSED.items():
        with pytest.raises(BadInputError) as refused:
            merged(case.text)

        assert str(refused.value).startswith(f"/p/user-data.yaml: {case.message}"), name


def test_repeated_key_of_user_data_is_refused(project: Project) -> None:
    project.write("user-data.yaml", "#cloud-config\ntimezone: UTC\ntimezone: CET\n")

    with pytest.raises(BadInputError, match=r"user-data\.yaml:3: key 'timezone': .* duplicate"):
        project.read("schema: 1\nname: x\nrun: [x]\nuser_data: user-data.yaml\n")


def test_user_data_that_is_not_a_plain_file_is_refused(project: Project) -> None:
    """Opening a FIFO would wait for a writer."""
    os.mkfifo(project.folder / "pipe")

    with pytest.raises(BadInputError, match=r"key 'user_data': .*not a regular file"):
        project.read("schema: 1\nname: x\nrun: [x]\nuser_data: pipe\n")


def test_error_for_conflicting_user_data_mentions_the_line_in_the_file(project: Project) -> None:
    path = project.write("user-data.yaml", "#cloud-config\ntimezone: UTC\nhostname: other\n")
    provisioner = project.read("schema: 1\nname: x\nrun: [x]\nuser_data: user-data.yaml\n")

    with pytest.raises(BadInputError, match=rf"^{path}:3: key 'hostname': The harness sets"):
        merge_user_data(OURS, provisioner)
