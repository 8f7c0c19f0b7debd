"""Requests for nodes: kernels, configurations, metadata and commands."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

from harness.errors import BadInputError, HarnessError
from harness.gpu.catalogue import load_catalogue
from harness.lab.node import Node
from harness.provisioner import (
    ConfigurationFile,
    ConfigurationFormat,
    NodeFact,
    Provisioner,
)
from harness.provisioner.gpu_node import CONFIG_PATH
from suites.unit.lab.builders import (
    a_cloud_image,
    a_lab_machine,
    a_provisioner,
    a_request,
    an_image,
)

if TYPE_CHECKING:
    from pathlib import Path

    from harness.lab.node_request import NodeRequest


def configuration_of(request: NodeRequest) -> dict[str, object]:
    """Return the configuration that the harness's own provisioner gets on a node."""
    (file,) = (f for f in request.provisioner_files(a_provisioner()) if f.path == CONFIG_PATH)
    found: dict[str, object] = json.loads(file.content)
    return found


def test_newest_kernel_is_booted_by_default() -> None:
    assert a_request().booted_kernel.version == "6.1.0-56"
    assert a_request(kernel=an_image().other_kernel).booted_kernel.version == "6.1.0-55"


def test_configuration_has_the_driver_of_the_image_unless_another_value_is_requested() -> None:
    assert configuration_of(a_request()) == {
        "gpu_node": False,
        "config_gpu_driver_if_needed": True,
        "gpu_driver_type": "cuda-lts",
        "gpu_driver_version": "580.1",
        "gpu_image_sha": "2026",
    }
    without = configuration_of(a_request(image=replace(an_image(), driver=None)))
    assert not {"gpu_driver_version", "gpu_image_sha"} & without.keys()
    own = configuration_of(a_request(config={"gpu_node": True, "gpu_driver_version": "1"}))
    assert (own["gpu_node"], own["gpu_driver_version"]) == (True, "1")


def test_metadata_cache_contains_tags_and_vm_size() -> None:
    tags = {"SkipGPUDriverInstall": 'it\'s, "true"'}
    file = a_request(tags=tags, vm_size="x").metadata_cache("/imds.json")

    assert json.loads(file.content) == {
        "compute": {
            "tagsList": [{"name": "SkipGPUDriverInstall", "value": 'it\'s, "true"'}],
            "vmSize": "x",
        }
    }


def test_reboot_is_refused_if_qemu_loads_the_kernel(tmp_path: Path) -> None:
    machine = a_lab_machine(tmp_path)

    with pytest.raises(HarnessError, match="ends when its guest reboots; boot the machine by"):
        machine.reboot(machine.deadline(1))


def test_tags_are_refused_with_a_provisioner_that_reads_no_metadata() -> None:
    mine = Provisioner(name="mine", source="/p/mine.yaml", run=["/opt/mine"])

    assert a_request().provisioner_files(mine) == ()
    with pytest.raises(BadInputError, match=r"^/p/mine\.yaml: key 'metadata': .* 'tags'"):
        a_request(tags={"SkipGpuDriverInstall": "true"}).provisioner_files(mine)


def test_command_that_the_provisioner_does_not_declare_is_refused(tmp_path: Path) -> None:
    node = Node(
        a_request(),
        a_lab_machine(tmp_path),
        provisioner=Provisioner(name="mine", run=["/opt/mine"]),
    )

    with pytest.raises(BadInputError, match=r"declares no command 'teardown', only 'boot'"):
        node.provision("teardown")


def test_declared_node_facts_are_written_to_the_configuration_file() -> None:
    gpu = load_catalogue().get("h100-sxm5-80gb")
    facts = {"GPUS": NodeFact.GPU_COUNT, "VERSION": NodeFact.DRIVER_VERSION}
    configuration = ConfigurationFile(
        path="/etc/mine", format=ConfigurationFormat.ENV, node_values=facts
    )
    mine = Provisioner(name="mine", run=["/opt/mine"], configuration=configuration)

    (file,) = a_request(gpus=[gpu, gpu]).provisioner_files(mine)

    assert file.content == b"GPUS=2\nVERSION=580.1\n"


def test_request_to_skip_cloud_init_in_a_cloud_image_is_refused() -> None:
    with pytest.raises(BadInputError, match=r"'skip_cloud_init': .*'noble' is provisioned at its"):
        a_request(image=a_cloud_image(), skip_cloud_init=True)


def test_node_without_a_command_runs_no_command_after_cloud_init(tmp_path: Path) -> None:
    request = a_request(skip_cloud_init=True, command=None)

    # The machine was not started, so any command in its guest would raise an error.
    Node(request, a_lab_machine(tmp_path), provisioner=a_provisioner()).wait_until_provisioned()
