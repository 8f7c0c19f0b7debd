"""What the command `status` prints about a node for an operator."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest

from harness.evidence import RECORD_PATH
from harness.provisioner.gpu_node import METADATA_CACHE
from suites.e2e.guest_script import shell
from suites.e2e.interruption.interrupt import DONE, GO_ON, Interruption
from suites.e2e.kernel_module import INSTALLED
from suites.e2e.promises import promise

if TYPE_CHECKING:
    from harness.api import Image
    from harness.lab.node import Node
    from suites.e2e.conftest import StartNode

UNIT = "suites/unit/provisioning/test_status.py"
_NOT_BUILT = 'rm -r "/var/lib/dkms/nvidia/580.126.09/$(uname -r)"; dkms status'
_LOG = "/var/log/azure/cluster-provision.log"
_SPEC = "/run/cdi/nvidia.yaml"


def status_of(node: Node) -> dict[str, object]:
    """Return what `status` prints; raises CommandError if it fails."""
    printed = node.provision("status").check("status").stdout
    # The line before the status says which run this is.
    document: dict[str, object] = json.loads(printed[printed.index("{") :])
    return document


@promise(section="3", unit=UNIT, each_change=("added",))
@pytest.mark.parametrize(
    ("change", "state"),
    [
        pytest.param("true", "installed", id="installed"),
        pytest.param(_NOT_BUILT, "added", id="added"),
    ],
)
def test_status_has_the_state_of_the_module_in_dkms(
    start_node: StartNode, baked_image: Image, change: str, state: str
) -> None:
    """If DKMS has only added the module, this state explains why a baked node builds its driver again."""
    node = start_node("status", gpus=[], before=[shell(change)], command=None)

    entries = status_of(node)["dkms"]

    assert isinstance(entries, list)
    (entry,) = entries
    kernel = baked_image.newest_kernel.version if state == "installed" else None
    assert (entry["module"], entry["version"]) == ("nvidia", "580.126.09")
    assert (entry["state"], entry["kernel"]) == (state, kernel)


@promise(section="3", unit=UNIT)
def test_status_has_the_present_driver_and_the_decision_of_a_boot(
    start_node: StartNode, baked_image: Image
) -> None:
    """Status works even if the tags of the machine cannot be read."""
    writes_linker_cache = Interruption(at="ldconfig ", act=GO_ON).file
    kernels = (baked_image.newest_kernel.version, baked_image.other_kernel.version)
    folders = [f"/lib/modules/{kernel}/updates/dkms" for kernel in kernels]
    node = start_node(
        "whole-status",
        files=[writes_linker_cache],
        before=[
            ["nvidia-modprobe", "-u", "-c0"],
            shell(f"mkdir -p {folders[1]}; cp {INSTALLED} {folders[1]}"),
        ],
        command=None,
    )
    files = {
        kernel: node.guest.output_of("sh", "-c", f"ls {folder}/nvidia*").split()
        for kernel, folder in zip(kernels, folders, strict=True)
    }
    record = node.guest.output_of("cat", RECORD_PATH).split()
    log = node.guest.output_of("cat", _LOG)

    status = status_of(node)
    node.provision("plan").check("plan")
    node.guest.write_text(
        _SPEC, "cdiVersion: 0.5.0\nkind: nvidia.com/gpu\ndevices:\n- name: all\n"
    )
    node.guest.output_of("rm", METADATA_CACHE)
    later = status_of(node)

    expected = {
        "record": dict(line.split("=") for line in record),
        "module_files": files,
        "loaded": {"nvidia_uvm": 0, "nvidia": 1},
        "has_cdi_spec": False,
    }
    assert {key: status[key] for key in expected} == expected
    boot, boot_without_tags = status["boot"], later["boot"]
    assert isinstance(boot, dict)
    assert boot["decision"] == {"action": "install-skip-build", "reason": "ok"}
    assert later["has_cdi_spec"] is True, f"'{_SPEC}' offers a GPU, but the status denies it."
    assert isinstance(boot_without_tags, dict)
    assert (boot_without_tags["decision"], boot_without_tags["exit_code"]) == (None, 224)
    assert node.guest.read_text(DONE) is None, "`status` has written the linker's cache."
    assert node.guest.output_of("cat", _LOG) == log, "`status` has written to the log."
