"""A provisioner that is declared in Python, and its files and commands in the machine."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

from harness.cloudinit import GuestFile
from harness.errors import BadInputError
from harness.payload import Payload
from harness.provisioner import (
    ConfigurationFile,
    ConfigurationFormat,
    NodeFact,
    Provisioner,
)
from harness.provisioner.gpu_node import CONFIG_PATH, gpu_node_provisioner

PAYLOAD = Payload(content=b"#!/usr/bin/env python3\nPK", digest="ab" * 32)
MINE = Provisioner(name="mine", run=["/opt/mine", "boot; reboot"])


def test_guest_files_of_the_gpu_node_provisioner_are_the_program_and_the_configuration() -> None:
    program, config = gpu_node_provisioner(PAYLOAD).guest_files(
        {
            NodeFact.HAS_GPUS: False,
            NodeFact.DRIVER_VERSION: "580.1",
            NodeFact.DRIVER_SHA: None,
        },
        {"gpu_driver_type": "grid", "gpu_driver_version": "570.1"},
    )

    assert program == GuestFile(
        path="/opt/gpu-node/provisioning-abababababab.pyz", content=PAYLOAD.content, mode=0o755
    )
    assert (config.path, config.mode) == (CONFIG_PATH, 0o600)
    assert json.loads(config.content) == {
        "gpu_node": False,
        "config_gpu_driver_if_needed": True,
        "gpu_driver_type": "grid",
        "gpu_driver_version": "570.1",
    }


def test_gpu_node_provisioner_runs_in_isolated_python_with_config_and_outcome_options() -> None:
    argv = gpu_node_provisioner(PAYLOAD).guest_command("boot", output="/var/log/output")

    assert argv == (
        *("sh", "/usr/local/lib/gpu-node-harness/run-provisioner.sh", "boot"),
        "/var/lib/gpu-node/outcome.json",
        "/var/log/azure/Microsoft.Azure.Extensions.CustomScript/events/*",
        "",
        "/var/log/output",
        *("python3", "-I", "-S", "/opt/gpu-node/provisioning-abababababab.pyz", "boot"),
        *("--config", "/etc/gpu-node/config.json"),
        *("--outcome", "/var/lib/gpu-node/outcome.json"),
    )


def test_declared_environment_variables_are_set_by_the_env_program_before_the_command() -> None:
    argv = replace(MINE, environment={"A": "x; y"}).guest_command("boot")

    assert argv[-4:] == ("env", "A=x; y", "/opt/mine", "boot; reboot")


def test_run_key_overrides_a_boot_command_in_the_commands_key() -> None:
    assert replace(MINE, commands={"boot": ["/other"]}).command("boot") == MINE.run


def test_command_that_is_not_a_list_of_words_or_not_declared_is_refused() -> None:
    rows: tuple[tuple[str, str | list[str], str], ...] = (
        ("run", "/opt/mine boot", "'/opt/mine boot' is a string"),
        ("bake", [], "A command has at least one word"),
    )
    for key, argv, words in rows:
        with pytest.raises(BadInputError, match=rf"^Provisioner 'mine': key '{key}': {words}"):
            replace(MINE, **{key: argv})  # type: ignore[arg-type]

    with pytest.raises(
        BadInputError, match=r"key 'bake': .* declares no command 'bake', only 'boot'; declare"
    ):
        MINE.guest_command("bake")


def test_requested_configuration_is_refused_if_no_configuration_file_is_declared() -> None:
    with pytest.raises(BadInputError, match=r"key 'config': .* asks for 'gpu_node'; declare a "):
        MINE.guest_files({}, {"gpu_node": True})


def test_configuration_has_the_declared_format() -> None:
    rows = {
        ConfigurationFormat.JSON: b'{\n  "A": "1",\n  "B": true\n}\n',
        ConfigurationFormat.YAML: b"A: '1'\nB: true\n",
        ConfigurationFormat.ENV: b"A=1\nB=true\n",
    }

    for form, content in rows.items():
        configuration = ConfigurationFile(path="/etc/c", values={"A": "1"}, format=form)
        (file,) = replace(MINE, configuration=configuration).guest_files({}, {"B": True})
        assert file.content == content


def test_facts_of_the_node_override_declared_values_and_a_request_overrides_both() -> None:
    """A fact that is false or null still overrides a declared value."""
    node_values = {"B": NodeFact.HAS_GPUS, "C": NodeFact.GPU_COUNT, "D": NodeFact.GPU_COUNT}
    values = dict.fromkeys("ABCD", 7)
    configuration = ConfigurationFile(path="/etc/c", values=values, node_values=node_values)

    (file,) = replace(MINE, configuration=configuration).guest_files(
        {NodeFact.HAS_GPUS: False, NodeFact.GPU_COUNT: 0}, {"D": 2}
    )

    assert json.loads(file.content) == {"A": 7, "B": False, "C": 0, "D": 2}


def test_value_that_the_configuration_format_cannot_express_is_refused() -> None:
    rows: tuple[tuple[ConfigurationFormat, object], ...] = (
        (ConfigurationFormat.JSON, {1: "a", "b": "c"}),
        (ConfigurationFormat.JSON, float("nan")),
        (ConfigurationFormat.YAML, object()),
        (ConfigurationFormat.ENV, "\ud800"),
    )
    for form, value in rows:
        provisioner = replace(MINE, configuration=ConfigurationFile(path="/etc/c", format=form))
        with pytest.raises(BadInputError, match=f"written in the format '{form.value}'"):
            provisioner.guest_files({}, {"A": value})


def test_environment_variable_that_the_env_program_would_misread_is_refused() -> None:
    for environment in ({"-i": ""}, {"": "x"}, {"A B": "x"}, {"A": "x\0"}):
        with pytest.raises(BadInputError, match=r"key 'environment\..*': A variable needs a name"):
            replace(MINE, environment=environment)


def test_provisioner_digest_changes_with_everything_that_the_bake_uses() -> None:
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
        replace(mine, configuration=replace(configuration, mode=0o644)),
        replace(mine, configuration=replace(configuration, format=ConfigurationFormat.ENV)),
        *(
            replace(mine, configuration=replace(configuration, node_values={"a": fact}))
            for fact in (NodeFact.HAS_GPUS, NodeFact.GPU_COUNT)
        ),
    ]

    assert len({each.digest for each in changed}) == len(changed)
    assert replace(mine, name="yours", source="/elsewhere").digest == mine.digest


def test_gpu_node_provisioner_is_baked_with_gpu_node_false_and_has_the_payload_digest() -> None:
    provisioner = gpu_node_provisioner(PAYLOAD)

    assert provisioner.digest == PAYLOAD.digest
    assert provisioner.bake_values == {"gpu_node": False, "feature_flags": "NVIDIA_CUDA_PREBAKE"}
