"""Which files and kernel modules a teardown removes, unloads and keeps.

The nodes run the command `teardown`, which does what a boot does after the decision.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest

from harness import expect
from harness.evidence import RECORD_PATH
from harness.provisioner.gpu_node import OUTCOME_PATH
from suites.e2e.guest_script import shell
from suites.e2e.interruption.interrupt import DONE, GO_ON, Interruption
from suites.e2e.kernel_module import (
    BAKED_VERSION,
    INSTALLED,
    LOAD_OTHER_VERSION,
    OTHER_VERSION,
    of_other_version,
)
from suites.e2e.promises import promise
from suites.e2e.services.units import MONITORING_PACKAGES
from suites.e2e.teardown.node import (
    CUSTOMER,
    CUSTOMER_VERSION,
    DKMS,
    HOLD,
    LOAD,
    OPTED_OUT,
    PROBE,
    expect_line,
    listed_modules,
)

if TYPE_CHECKING:
    from harness.api import GpuModel
    from suites.e2e.conftest import StartNode

UNIT = "suites/unit/provisioning/test_teardown.py"
LINKER_CONFIGURATION = "/etc/ld.so.conf.d/nvidia.conf"
#: The start of the path of the module's sources; the version follows.
SOURCE = "/usr/src/nvidia"
#: The driver's paths in the evidence, apart from its modules.
DRIVER_FILES = (LINKER_CONFIGURATION, PROBE, "/usr/bin/nvidia-smi", "/usr/bin/lib64")
CACHES = tuple(
    f"/opt/{package}"
    for package in (*MONITORING_PACKAGES, "nvidia-device-plugin", "dra-driver-nvidia-gpu")
)


@promise(section="6", unit=UNIT, each_change=True, any_provisioner=True)
def test_idle_modules_are_unloaded_with_their_dependents(
    start_node: StartNode, h100: GpuModel
) -> None:
    """An idle module does not count as busy because of its dependents or the device nodes."""
    asks_dkms = Interruption(at="dkms *", act=GO_ON).file
    node = start_node(
        "idle",
        gpus=[h100],
        tags=OPTED_OUT,
        files=[asks_dkms],
        before=LOAD,
        command="teardown",
    )

    evidence = node.evidence(files=["/dev/nvidia*", DONE])

    expect.provisioned(evidence)
    expect_line(
        evidence,
        "cleaned",
        gpu_node="true",
        dkms_before="true",
        module_before="true",
        module_after="false",
        marker_after="false",
        dkms_after="false",
        modprobe_after="false",
    )
    loaded = [name for name in evidence.loaded_modules if name.startswith("nvidia")]
    assert loaded == [], f"No module of the driver was expected to stay loaded, but {loaded} did."
    assert listed_modules(node) == []
    expect.no_record(evidence)
    assert DONE not in evidence.paths, (
        "The teardown has run 'dkms remove', which takes half a minute."
    )


@promise(section="6", unit=UNIT, each_change=True, any_provisioner=True)
def test_driver_stays_complete_while_its_device_is_in_use(
    start_node: StartNode, h100: GpuModel
) -> None:
    """No module is unloaded and no process is killed; the next run completes the removal."""
    node = start_node(
        "held", gpus=[h100], tags=OPTED_OUT, before=[*LOAD, HOLD], command="teardown"
    )
    node.guest.output_of("systemctl", "is-active", "holder")
    held = node.evidence().loaded_modules
    node.guest.output_of("systemctl", "stop", "holder")
    node.provision("teardown")

    evidence = node.evidence()

    # The second module is idle; without it, the process that uses the device would have half a
    # driver.
    assert {"nvidia", "nvidia_uvm"} <= set(held), (
        f"Both modules were expected to stay loaded, but these did: {sorted(held)}."
    )
    expect.provisioned(evidence, run=1)
    expect_line(
        evidence.of_run(1),
        "incomplete",
        module_before="true",
        module_after="true",
        marker_after="true",
    )
    expect.provisioned(evidence)
    expect_line(evidence, "cleaned", module_before="true", module_after="false")
    expect.no_driver_artefact(evidence)
    expect.no_record(evidence)


@promise(section="6", unit=UNIT, each_change=("setuid program",), any_provisioner=True)
@pytest.mark.parametrize(
    "locked",
    [
        # Only the file is immutable, not its folder, so all other parts can be removed.
        pytest.param(PROBE, id="setuid program"),
        pytest.param(LINKER_CONFIGURATION, id="linker configuration"),
        pytest.param(f"{DKMS}/580.126.09", id="DKMS tree"),
    ],
)
def test_record_is_kept_for_the_next_run_if_a_part_cannot_be_removed(
    start_node: StartNode, locked: str
) -> None:
    """After an incomplete removal, the record stays.

    A run after the repair completes the removal.
    """
    node = start_node("locked", gpus=[], before=[shell(f"chattr +i {locked}")], command="teardown")
    node.guest.output_of("chattr", "-i", locked)
    before = node.evidence()
    node.provision("teardown")

    evidence = node.evidence()

    expect.provisioned(before)
    expect_line(before, "incomplete", marker_after="true", gpu_node="false")
    left = [path for path in before.paths if path in DRIVER_FILES and path != locked]
    assert left == [], f"All removable parts were expected to be removed, but {left} stayed."
    expect.no_module_for(before, before.running_kernel)
    assert before.record is not None, "The record was expected to stay, but it is gone."
    expect.provisioned(evidence)
    expect_line(evidence, "cleaned", marker_after="false")
    expect.no_driver_artefact(evidence)


@promise(section="6", unit="suites/unit/provisioning/test_main.py")
def test_incomplete_removal_on_a_managed_node_is_a_failure(
    start_node: StartNode, h100: GpuModel
) -> None:
    """Only a node that opted out may continue. The outcome file has the record, even a corrupt one."""
    change = f"echo >{RECORD_PATH}; chattr +i {PROBE}"
    node = start_node("managed-locked", gpus=[h100], before=[shell(change)], command="teardown")

    evidence = node.evidence()

    expect.provisioned(evidence, exit_code=84)
    expect_line(evidence, "incomplete", marker_after="true", gpu_node="true")
    assert isinstance(json.loads(evidence.file(OUTCOME_PATH) or "{}")["record"], dict)


@promise(section="6", unit=UNIT, any_provisioner=True)
def test_node_without_a_record_keeps_everything(start_node: StartNode) -> None:
    """Without a record, nothing shows that the driver comes from the image."""
    node = start_node("no-record", gpus=[], before=[["rm", RECORD_PATH]], command="teardown")

    evidence = node.evidence()

    expect.provisioned(evidence)
    assert evidence.prebake_lines == []
    expect.driver_installed(evidence)


@promise(section="6", unit=UNIT, each_change=("version in DKMS",))
@pytest.mark.parametrize(
    ("customer", "version", "has_module_file"),
    [
        pytest.param(
            f"{CUSTOMER}; cp -a {SOURCE}-{BAKED_VERSION} {SOURCE}-{CUSTOMER_VERSION}",
            CUSTOMER_VERSION,
            False,
            id="version in DKMS",
        ),
        pytest.param(
            f"{of_other_version(INSTALLED)}; depmod",
            OTHER_VERSION,
            True,
            id="version of the module file",
        ),
        pytest.param(LOAD_OTHER_VERSION, OTHER_VERSION, False, id="version of the loaded module"),
    ],
)
def test_driver_of_the_customer_is_preserved(
    start_node: StartNode,
    h100: GpuModel,
    customer: str,
    version: str,
    *,
    has_module_file: bool,
) -> None:
    """A driver whose version differs from the recorded version is the customer's.

    Only baked files are removed.
    """
    node = start_node(
        "customer", gpus=[h100], tags=OPTED_OUT, before=[shell(customer)], command="teardown"
    )

    evidence = node.evidence(
        files=[f"{DKMS}/*/source/dkms.conf", f"{DKMS}/*", f"{SOURCE}-*/dkms.conf"]
    )

    expect.provisioned(evidence)
    expect.prebake_line(
        evidence,
        event="teardown",
        status="preserved_customer_driver",
        marker_version="580.126.09",
        installed_version=version,
    )
    if customer == LOAD_OTHER_VERSION:
        assert "nvidia" in evidence.loaded_modules, "The customer's module was unloaded."
    paths = evidence.paths
    kept = (PROBE, LINKER_CONFIGURATION)
    gone = [path for path in kept if path not in paths]
    assert gone == [], f"{kept} of the customer were expected to stay, but {gone} are gone."
    modules = sorted(path for path in paths if "/updates/dkms/nvidia" in path)
    expected = 1 if has_module_file else 0
    assert len(modules) == expected, f"The customer has {expected} module file; left: {modules}."
    assert "/usr/bin/lib64" not in paths
    assert f"{DKMS}/580.126.09/source/dkms.conf" not in paths
    assert f"{SOURCE}-580.126.09/dkms.conf" not in paths
    if version == CUSTOMER_VERSION:
        for path in (f"{SOURCE}-{version}/dkms.conf", f"{DKMS}/{version}"):
            assert path in paths, f"'{path}' of the customer was expected to stay, but it is gone."
    expect.no_record(evidence)


@promise(section="6", unit=UNIT, any_provisioner=True)
def test_record_without_a_version_preserves_no_driver(start_node: StartNode) -> None:
    """Without a version, drivers cannot be told apart, so the whole driver is removed."""
    other = "/usr/src/nvidia-fs-2.1/dkms.conf"
    cut = shell(
        f"sed -i /^driver_version=/d {RECORD_PATH}; mkdir {DKMS}/{CUSTOMER_VERSION}; "
        f"mkdir $(dirname {other}); echo x >{other}"
    )
    node = start_node("no-version", gpus=[], before=[cut], command="teardown")

    evidence = node.evidence(files=[other])

    expect.provisioned(evidence)
    expect_line(evidence, "cleaned")
    expect.no_driver_artefact(evidence)
    assert other in evidence.paths, f"'{other}' belongs to nvidia-fs, but it is gone."


@promise(section="6", unit=UNIT)
def test_teardown_uses_the_record_at_the_configured_path(start_node: StartNode) -> None:
    """The teardown reads the record at GPU_DKMS_MARKER_FILE and removes it at the end."""
    path = "/opt/azure/another-marker"
    move = shell(f"mv {RECORD_PATH} {path}")
    config = {"gpu_dkms_marker_file": path}
    node = start_node("moved", gpus=[], before=[move], config=config, command="teardown")

    evidence = node.evidence(files=[path])

    expect.provisioned(evidence)
    expect_line(evidence, "cleaned", marker_after="false")
    expect.no_driver_artefact(evidence)
    assert path not in evidence.paths, f"The record '{path}' was expected to be removed."


@promise(section="6", unit=UNIT, each_change=True, any_provisioner=True)
def test_files_whose_names_are_only_similar_are_not_removed(start_node: StartNode) -> None:
    """Names are compared exactly: a file with a similar name belongs to another program."""
    kept = (
        "/usr/bin/nvidia-smi.orig",
        "/usr/bin/nvidia-container-cli",
        "/etc/ld.so.conf.d/nvidia-container.conf",
        "/var/lib/dkms/nvidia-fs/2.1/source",
        "/usr/src/nvidia-fs-2.1/dkms.conf",
        "/opt/gpu-tools/x",
        "/opt/azure/aks-gpu/dkms-marker.bak",
    )
    make = shell("; ".join(f"mkdir -p $(dirname {path}); echo x >{path}" for path in kept))
    node = start_node("neighbours", gpus=[], before=[make], command="teardown")

    evidence = node.evidence(files=kept)

    expect.provisioned(evidence)
    expect_line(evidence, "cleaned")
    gone = [path for path in kept if path not in evidence.paths]
    assert gone == [], f"These files were expected to stay, but they are gone: {gone}."


@promise(section="6", unit=UNIT)
def test_driver_sources_that_neither_the_record_nor_dkms_lists_are_kept(
    start_node: StartNode,
) -> None:
    """The teardown keeps sources that are listed neither in the record nor by DKMS.

    The folder `original_module` is not a version.
    """
    source = f"{SOURCE}-{CUSTOMER_VERSION}/dkms.conf"
    make = f"mkdir {DKMS}/original_module $(dirname {source}); echo x >{source}"
    node = start_node("unnamed", gpus=[], before=[shell(make)], command="teardown")

    evidence = node.evidence(files=[source])

    expect.provisioned(evidence)
    expect_line(evidence, "cleaned", marker_after="false", dkms_after="false")
    left = list(evidence.paths.matching(f"{SOURCE}-*"))
    kept = [f"{SOURCE}-{CUSTOMER_VERSION}"]
    assert left == kept, f"Only the sources {kept} were expected to stay, but these did: {left}."
    assert source in evidence.paths, f"'{source}' was expected to stay, but it is gone."


@promise(section="6", unit=UNIT)
def test_payload_and_caches_are_removed_only_from_a_node_that_opted_out(
    start_node: StartNode, h100: GpuModel
) -> None:
    """A node that still gets a driver needs its payload and caches."""
    folders = ("/opt/gpu", "/usr/local/nvidia", "/opt/actions", *CACHES)
    # The second path is a link, for example to a folder on another disk.
    link = "mkdir /srv/nvidia; ln -s /srv/nvidia /usr/local/nvidia"
    fill = (f"mkdir -p {path}; echo x >{path}/x" for path in folders)
    # On a managed node, a driver of another version is not the customer's, and is removed too.
    make = shell("; ".join([link, *fill, CUSTOMER]))
    node = start_node(
        "managed",
        gpus=[h100],
        before=[make],
        config={"gpu_driver_version": "580.126.10"},
        command="teardown",
    )
    managed = node.evidence(files=[f"{path}/x" for path in folders])
    node.guest.write_text(RECORD_PATH, "driver_version=1\n")
    config = node.guest.output_of("sed", 's/"gpu_node": true/"gpu_node": false/', _CONFIG)
    node.guest.write_text(_CONFIG, config)
    node.provision("teardown")

    opted_out = node.evidence(files=[f"{path}/x" for path in folders])

    expect_line(managed, "cleaned", gpu_node="true")
    kept = [path for path in folders if f"{path}/x" in managed.paths]
    assert kept == list(folders), f"All of {folders} were expected to stay, but only {kept} did."
    left = [path for path in folders if f"{path}/x" in opted_out.paths]
    assert left == [], f"None of {folders} was expected to stay, but {left} did."


_CONFIG = "/etc/gpu-node/config.json"
