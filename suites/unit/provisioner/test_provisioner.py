"""A provisioner declared in Python: what reaches the machine."""

from __future__ import annotations

import json
import shlex
from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

from harness.cloudinit import GuestFile
from harness.errors import BadInputError
from harness.payload import Payload
from harness.provisioner import (
    EXIT_CODE_PATH,
    ConfigurationFile,
    ConfigurationFormat,
    NodeFact,
    Provisioner,
)
from harness.provisioner.gpu_node import CONFIG_PATH, gpu_node_provisioner
from harness.provisioning.command import LocalRunner

if TYPE_CHECKING:
    from pathlib import Path

PAYLOAD = Payload(content=b"#!/usr/bin/env python3\nPK", digest="ab" * 32)
MINE = Provisioner(name="mine", run=["/opt/mine", "boot; reboot"])


def test_gpu_node_travels_with_its_configuration() -> None:
    program, config = gpu_node_provisioner(PAYLOAD).guest_files(
        {NodeFact.HAS_GPUS: True, NodeFact.DRIVER_VERSION: None}, {"gpu_driver_type": "grid"}
    )

    assert program == GuestFile(
        path="/opt/gpu-node/provisioning-abababababab.pyz", content=PAYLOAD.content, mode=0o755
    )
    assert (config.path, config.mode) == (CONFIG_PATH, 0o600)
    assert json.loads(config.content) == {
        "gpu_node": True,
        "config_gpu_driver_if_needed": True,
        "gpu_driver_type": "grid",
    }


def test_gpu_node_runs_isolated_with_its_files_named() -> None:
    shell, option, script = gpu_node_provisioner(PAYLOAD).guest_command("boot")

    program, _, rest = script.partition("; ")
    assert (shell, option) == ("sh", "-c")
    assert shlex.split(program) == [
        *("python3", "-I", "-S", "/opt/gpu-node/provisioning-abababababab.pyz", "boot"),
        *("--config", "/etc/gpu-node/config.json"),
        *("--outcome", "/var/lib/gpu-node/outcome.json"),
    ]
    assert rest == f"code=$?; echo $code > {EXIT_CODE_PATH}; exit $code"


def test_command_and_environment_are_quoted_for_the_shell() -> None:
    _, _, script = replace(MINE, environment={"A": "x; y"}).guest_command("boot")

    assert script.startswith("env 'A=x; y' /opt/mine 'boot; reboot'; code=$?")


@pytest.mark.starts_process
def test_exit_code_reaches_both_the_file_and_cloud_init(tmp_path: Path) -> None:
    program = replace(MINE, run=["sh", "-c", 'exit "$A"'], environment={"A": "86"})
    shell, option, script = program.guest_command("boot")
    script = script.replace(EXIT_CODE_PATH, shlex.quote(str(tmp_path / "code")))

    result = LocalRunner().run([shell, option, script], timeout_s=20)

    assert (result.exit_code, (tmp_path / "code").read_text()) == (86, "86\n")


@pytest.mark.parametrize("key", ["run", "bake", "teardown"])
@pytest.mark.parametrize("argv", ["/opt/mine boot", []])
def test_command_that_is_no_list_of_words_is_refused(key: str, argv: str | list[str]) -> None:
    with pytest.raises(
        BadInputError, match=rf"^Provisioner 'mine': key '{key}': A command is a list of its words"
    ):
        replace(MINE, **{key: argv})  # type: ignore[arg-type]


def test_command_that_is_not_declared_is_refused() -> None:
    with pytest.raises(BadInputError) as refused:
        MINE.guest_command("bake")

    assert str(refused.value) == (
        "Provisioner 'mine': key 'bake': Provisioner 'mine' declares no command 'bake', only 'boot'; "
        "declare it."
    )


def test_requested_configuration_needs_a_file() -> None:
    with pytest.raises(BadInputError, match=r"key 'config': .* asks for 'gpu_node'; declare one"):
        MINE.guest_files({}, {"gpu_node": True})


@pytest.mark.parametrize(
    ("form", "content"),
    [
        (ConfigurationFormat.JSON, b'{\n  "A": "1",\n  "B": true\n}\n'),
        (ConfigurationFormat.YAML, b"A: '1'\nB: true\n"),
        (ConfigurationFormat.ENV, b"A=1\nB=true\n"),
    ],
)
def test_configuration_has_the_declared_format(form: ConfigurationFormat, content: bytes) -> None:
    configuration = ConfigurationFile(path="/etc/c", values={"A": "1"}, format=form)

    (file,) = replace(MINE, configuration=configuration).guest_files({}, {"B": True})

    assert file.content == content


def test_bake_depends_on_all_that_is_put_into_the_machine() -> None:
    file = GuestFile(path="/opt/mine", content=b"1")
    mine = replace(MINE, files=[file], bake=["/opt/mine"])
    configuration = ConfigurationFile(path="/etc/c")
    changed = [
        mine,
        replace(mine, files=[replace(file, content=b"2")]),
        replace(mine, files=[replace(file, mode=0o755)]),
        replace(mine, bake=["/opt/mine", "bake"]),
        replace(mine, environment={"A": "1"}),
        replace(mine, user_data={"timezone": "UTC"}),
        replace(mine, configuration=configuration),
        replace(mine, configuration=replace(configuration, values={"a": 1})),
    ]

    assert len({each.digest for each in changed}) == len(changed)
    assert replace(mine, name="yours", source="/elsewhere").digest == mine.digest


def test_bake_of_the_gpu_node_depends_on_its_payload_as_ever() -> None:
    assert gpu_node_provisioner(PAYLOAD).digest == PAYLOAD.digest
