"""The status of a node."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest

from harness.provisioning.configuration import parse_configuration
from harness.provisioning.kernel_modules import DkmsState
from harness.provisioning.node_files import NodeFiles
from harness.provisioning.status import status
from harness.provisioning.toolkit import CDI_SPEC

from .fakes import GPU_NODE, KERNEL, OTHER_KERNEL, RECORD_PATH, VERSION, make_node, write_tags
from .simulation import SimulatedNode, module_path, module_text

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path


def see(simulated: SimulatedNode, fields: Mapping[str, object]) -> dict[str, object]:
    before = sorted(simulated.top.rglob("*"))
    document = status(make_node(simulated, simulated.top), parse_configuration(fields, {}))
    assert sorted(simulated.top.rglob("*")) == before
    assert ("ldconfig",) not in simulated.calls, "that would write the linker's cache"
    assert json.loads(json.dumps(document)) == document
    return document


def test_status_of_a_baked_node_describes_its_driver(tmp_path: Path) -> None:
    simulated = SimulatedNode(tmp_path)
    simulated.build(VERSION, KERNEL)
    simulated.load(VERSION, "nvidia_uvm", "nvidia", users=2)
    simulated.files.write(CDI_SPEC, 'kind: nvidia.com/gpu\ndevices:\n- name: "0"\n')

    document = see(simulated, {**GPU_NODE, "enable_managed_gpu": True})

    assert document == {
        "kernel": KERNEL,
        "arch": "x86_64",
        "record": {
            "kernel": KERNEL,
            "driver_version": VERSION,
            "driver_kind": "cuda",
            "arch": "x86_64",
        },
        "dkms": [
            {
                "module": "nvidia",
                "version": VERSION,
                "kernel": KERNEL,
                "arch": "x86_64",
                "state": DkmsState.INSTALLED.value,
            }
        ],
        "has_dkms_tree": True,
        "module": {
            "version": VERSION,
            "vermagic": f"{KERNEL} SMP preempt mod_unload modversions",
        },
        "module_files": {KERNEL: [module_path(KERNEL, "nvidia_uvm"), module_path(KERNEL)]},
        "loaded": {"nvidia_uvm": 0, "nvidia": 3},
        "resident_version": VERSION,
        "has_cdi_spec": True,
        "boot": {
            "decision": {"action": "install-skip-build", "reason": "ok"},
            "driver_type": "cuda-lts",
            "is_opted_out": False,
            "managed_services": "nvidia-device-plugin",
            "cdi": {
                "support": "absent",
                "toolkit_environment": {
                    "CDI_ENABLED": "true",
                    "NVIDIA_RUNTIME_SET_AS_DEFAULT": "true",
                    "NVIDIA_CONTAINER_RUNTIME_MODE": "cdi",
                    "CRIO_CONFIG_MODE": "config",
                    "NVIDIA_CONTAINER_RUNTIME_MODES_CDI_ANNOTATION_PREFIXES": (
                        "nvidia.cdi.k8s.io/"
                    ),
                },
                "plugin_environment": {
                    "DEVICE_LIST_STRATEGY": "envvar,cdi-annotations",
                    "CDI_ENABLED": "true",
                    "CDI_ANNOTATION_PREFIX": "nvidia.cdi.k8s.io/",
                },
            },
        },
    }


def test_status_of_a_machine_without_a_driver_lists_no_driver_parts(tmp_path: Path) -> None:
    simulated = SimulatedNode(tmp_path, kernel="6.6")

    document = see(simulated, {})

    assert document == {
        "kernel": "6.6",
        "arch": "x86_64",
        "record": None,
        "dkms": [],
        "has_dkms_tree": False,
        "module": None,
        "module_files": {},
        "loaded": {},
        "resident_version": None,
        "has_cdi_spec": False,
        "boot": {
            "decision": {"action": "nothing", "reason": None},
            "driver_type": "cuda-lts",
            "is_opted_out": True,
            "managed_services": None,
            "cdi": None,
        },
    }


def test_status_lists_modules_of_every_kernel(tmp_path: Path) -> None:
    simulated = SimulatedNode(tmp_path)
    simulated.files.write(module_path(OTHER_KERNEL), module_text(VERSION, OTHER_KERNEL))

    document = see(simulated, {})

    assert document["module_files"] == {OTHER_KERNEL: [module_path(OTHER_KERNEL)]}


@pytest.mark.parametrize(
    ("fields", "tags", "exit_code", "words"),
    [
        (GPU_NODE, None, 224, "The machine's tags cannot be looked up."),
        ({"gpu_node": True}, (), 2, "The field 'gpu_driver_version' is not set"),
    ],
)
def test_status_shows_the_error_that_a_boot_would_raise(
    tmp_path: Path,
    fields: Mapping[str, object],
    tags: tuple[tuple[str, str], ...] | None,
    exit_code: int,
    words: str,
) -> None:
    simulated = SimulatedNode(tmp_path)
    if tags is None:
        simulated.files.remove("/opt/azure/containers")
    else:
        write_tags(simulated.files, *tags)

    boot = see(simulated, fields)["boot"]

    assert isinstance(boot, dict)
    assert boot.pop("error").startswith(words)
    assert boot == {"decision": None, "exit_code": exit_code}


def test_status_of_an_arm64_machine_has_no_decision_for_a_boot(tmp_path: Path) -> None:
    boot = see(SimulatedNode(tmp_path, arch="aarch64"), GPU_NODE)["boot"]

    assert isinstance(boot, dict)
    assert boot["decision"] is None


def test_status_reads_the_record_from_the_configured_path(tmp_path: Path) -> None:
    simulated = SimulatedNode(tmp_path)
    simulated.build(VERSION, KERNEL)
    files = NodeFiles(tmp_path)
    files.write("/opt/other", files.read(RECORD_PATH) or "")
    files.remove(RECORD_PATH)

    document = see(simulated, {"gpu_dkms_marker_file": "/opt/other"})

    assert document["record"] is not None
    assert document["has_dkms_tree"] is True
