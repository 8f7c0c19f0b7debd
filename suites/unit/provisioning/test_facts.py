"""The facts on which a boot depends."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import pytest

from harness.provisioning.cdi import CdiSupport, Engine
from harness.provisioning.configuration import parse_configuration
from harness.provisioning.containerd_config import CONTAINERD_CONFIG
from harness.provisioning.exit_codes import ProvisioningError
from harness.provisioning.facts import NodeFacts, collect_facts
from harness.provisioning.families import Family
from harness.provisioning.node_files import NodeFiles
from harness.provisioning.prebake import Action, Decision, Reason, Record
from harness.provisioning.services import Mode
from harness.provisioning.tags import CACHE_PATH
from harness.provisioning.toolkit import RuntimeFacts
from harness.shell.mocks.scripted_runner import ScriptedRunner

from .fakes import (
    GPU_NODE,
    KERNEL,
    VERSION,
    make_node,
    write_record,
    write_tags,
)
from .simulation import DKMS

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path


def script(*, arch: str = "x86_64") -> ScriptedRunner:
    return (
        ScriptedRunner()
        .expect("uname -r", stdout=f"{KERNEL}\n", timeout_s=30)
        .expect("uname -m", stdout=f"{arch}\n")
    )


def see(
    runner: ScriptedRunner,
    tmp_path: Path,
    fields: Mapping[str, object] | None = None,
    *,
    is_read_only: bool = True,
) -> NodeFacts:
    configuration = parse_configuration(fields or {}, {})
    with runner:
        return collect_facts(make_node(runner, tmp_path), configuration, is_read_only=is_read_only)


def script_runtime(runner: ScriptedRunner) -> ScriptedRunner:
    return runner.expect("containerd config dump", stdout="version = 2\n").expect(
        "containerd --version", stdout="containerd x 1.6.20~ds1"
    )


def test_only_a_few_commands_are_run_on_a_node_without_gpu(tmp_path: Path) -> None:
    NodeFiles(tmp_path).write("/etc/os-release", "ID=debian\n")

    facts = see(script().expect("uname -n", stdout="Node-A\n"), tmp_path)

    assert facts == NodeFacts(
        kernel=KERNEL,
        arch="x86_64",
        node_name="node-a",
        family=Family.DEBIAN,
        os_release="ID=debian\n",
        is_opted_out=True,
        mode=None,
        driver_type="cuda-lts",
        record=None,
        decision=Decision(action=Action.NOTHING),
        runtime=None,
        removal=(),
    )


def test_module_is_checked_by_dkms_and_modinfo_if_the_record_matches_the_node(
    tmp_path: Path,
) -> None:
    files = NodeFiles(tmp_path)
    write_tags(files, ("EnableManagedGPUExperience", "True"), vm_size="Standard_NC6")
    write_record(files)
    files.write(CONTAINERD_CONFIG, "version = 2\n")
    runner = (
        script()
        .expect("ldconfig")
        .expect("dkms status", stdout=f"nvidia/{VERSION}, {KERNEL}, x86_64: installed\n")
        .expect(
            f"modinfo -k {KERNEL} nvidia", stdout=f"version: {VERSION}\nvermagic: {KERNEL} SMP\n"
        )
        .expect("uname -n", exit_code=1)
    )

    facts = see(script_runtime(runner), tmp_path, GPU_NODE, is_read_only=False)

    assert facts == NodeFacts(
        kernel=KERNEL,
        arch="x86_64",
        node_name="",
        family=Family.OTHER,
        os_release="",
        is_opted_out=False,
        mode=Mode.DEVICE_PLUGIN,
        driver_type="cuda",
        record=Record(kernel=KERNEL, driver_version=VERSION, driver_kind="cuda", arch="x86_64"),
        decision=Decision(action=Action.INSTALL_SKIP_BUILD, reason=Reason.OK),
        runtime=RuntimeFacts(text="version = 2\n", cdi=CdiSupport.ABSENT, dump="version = 2"),
        removal=(),
    )


def test_plan_checks_the_module_without_updating_the_linker_cache(tmp_path: Path) -> None:
    files = NodeFiles(tmp_path)
    write_tags(files)
    write_record(files)
    runner = (
        script()
        .expect("ldconfig -N -X")
        .expect("dkms status")
        .expect(f"modinfo -k {KERNEL} nvidia", exit_code=1)
        .expect("uname -n")
        .expect("containerd config dump", exit_code=1)
        .expect("containerd --version", stdout="containerd x 1.7.24")
    )

    facts = see(runner, tmp_path, GPU_NODE)

    assert facts.decision == Decision(action=Action.INSTALL, reason=Reason.MODULE)
    assert facts.runtime == RuntimeFacts(text=None, cdi=CdiSupport.CAPABLE)


def test_containerd_dump_that_is_not_toml_is_ignored(tmp_path: Path) -> None:
    """The requested type overrides the VM size."""
    write_tags(NodeFiles(tmp_path), vm_size="Standard_NC6")
    runner = (
        script()
        .expect("uname -n")
        .expect("containerd config dump", stdout="[a notice of a fork")
        .expect("containerd --version", stdout="containerd x 1.7.24")
    )

    facts = see(runner, tmp_path, {**GPU_NODE, "gpu_driver_type": "grid", "cdi_enabled": False})

    assert facts.runtime == RuntimeFacts(text=None, cdi=CdiSupport.CAPABLE, is_cdi_enabled=False)
    assert facts.driver_type == "grid"


def test_containerd_is_not_queried_on_cri_o(tmp_path: Path) -> None:
    """The facts say whether CDI is switched off."""
    write_tags(NodeFiles(tmp_path))
    fields = {**GPU_NODE, "container_runtime": "cri-o", "cdi_enabled": False}

    facts = see(script().expect("uname -n"), tmp_path, fields)

    assert facts.runtime == RuntimeFacts(
        text=None, cdi=CdiSupport.NATIVE, engine=Engine.CRI_O, is_cdi_enabled=False
    )


def test_facts_of_an_opted_out_node_with_a_gpu_include_the_runtime_and_removal_commands(
    tmp_path: Path,
) -> None:
    files = NodeFiles(tmp_path)
    write_tags(files, ("skipgpudriverinstall", "true"), ("EnableManagedGPUExperience", "true"))
    write_record(files)
    files.write(f"{DKMS}/{VERSION}/x", "")
    runner = script().expect("uname -n")
    script_runtime(runner).expect("modinfo -F version nvidia", exit_code=1)

    facts = see(runner, tmp_path, {"gpu_node": True, "enable_managed_gpu_dra": True})

    assert facts.is_opted_out
    assert facts.mode is None
    assert facts.decision == Decision(action=Action.TEARDOWN, reason=Reason.OPTED_OUT)
    assert facts.removal == (f"rm -rf {DKMS}", "ldconfig")


def test_no_driver_decision_is_made_on_an_arm64_node_with_a_gpu(tmp_path: Path) -> None:
    """Without a GPU, the decision is a teardown."""
    files = NodeFiles(tmp_path)
    write_tags(files)
    for arch in ("aarch64", "arm64"):
        runner = script_runtime(script(arch=arch).expect("uname -n"))
        facts = see(runner, tmp_path, {"gpu_node": True})
        assert (facts.decision, facts.removal) == (None, ()), arch

    write_record(files)
    runner = script(arch="aarch64").expect("uname -n").expect("modinfo -F version nvidia")
    teardown = Decision(action=Action.TEARDOWN, reason=Reason.OPTED_OUT)
    assert see(runner, tmp_path).decision == teardown


def test_unreadable_containerd_configuration_has_its_own_exit_code(tmp_path: Path) -> None:
    files = NodeFiles(tmp_path)
    write_tags(files)
    files.make_directory(CONTAINERD_CONFIG)
    runner = script().expect("uname -n")

    with pytest.raises(ProvisioningError) as error:
        see(runner, tmp_path, GPU_NODE)

    assert error.value.exit_code == 6
    assert str(error.value) == (
        "containerd's configuration is not usable. "
        "'/etc/containerd/config.toml' is not a regular file."
    )


def test_decision_is_made_even_if_uname_fails(tmp_path: Path) -> None:
    write_tags(NodeFiles(tmp_path))
    write_record(NodeFiles(tmp_path))
    runner = (
        ScriptedRunner()
        .expect("uname -r", exit_code=1)
        .expect("uname -m", exit_code=1)
        .expect("uname -n")
    )

    facts = see(script_runtime(runner), tmp_path, GPU_NODE)

    assert (facts.kernel, facts.arch) == ("", "")
    assert facts.decision == Decision(action=Action.INSTALL, reason=Reason.KERNEL)


def test_skip_driver_tag_is_looked_up_before_the_managed_services_tag(
    tmp_path: Path,
) -> None:
    """A node that opted out has no managed services, whatever the tag of the services says."""
    form = (
        '{"compute": {"tagsList": [{"name": "EnableManagedGPUExperience", "value": 1},'
        ' {"name": "SkipGpuDriverInstall", "value": %s}]}}'
    )
    files = NodeFiles(tmp_path)
    for skip, exit_code in (("1", 224), ('"false"', 230)):
        files.write(CACHE_PATH, form % skip)
        with pytest.raises(ProvisioningError, match="tags cannot be looked up") as error:
            see(script(), tmp_path, GPU_NODE)
        assert error.value.exit_code == exit_code
        assert CACHE_PATH in str(error.value)

    files.write(CACHE_PATH, form % '"true"')
    facts = see(script_runtime(script().expect("uname -n")), tmp_path, GPU_NODE)
    assert facts.is_opted_out
    assert facts.mode is None


def test_teardown_before_an_install_keeps_the_payload_and_the_caches(tmp_path: Path) -> None:
    files = NodeFiles(tmp_path)
    write_tags(files)
    write_record(files, version="570.1")
    for path in (
        "/opt/gpu/config.sh",
        "/opt/actions/x",
        "/opt/dcgm-exporter/x",
        f"{DKMS}/570.1/x",
    ):
        files.write(path, "")
    runner = script_runtime(script().expect("uname -n"))

    facts = see(runner, tmp_path, GPU_NODE)

    assert facts.decision == Decision(action=Action.TEARDOWN_INSTALL, reason=Reason.VERSION)
    assert facts.removal == (f"rm -rf {DKMS}", "ldconfig")


def test_containerd_configuration_is_stale_if_it_is_newer_than_the_socket(tmp_path: Path) -> None:
    files = NodeFiles(tmp_path)
    write_tags(files)
    files.write(CONTAINERD_CONFIG, "version = 2\n")
    for started, is_stale in ((None, False), (1000, True), (9e9, False)):
        if started is not None:
            files.write("/run/containerd/containerd.sock", "")
            os.utime(files.at("/run/containerd/containerd.sock"), (started, started))

        facts = see(script_runtime(script().expect("uname -n")), tmp_path, GPU_NODE)

        assert facts.runtime is not None
        assert facts.runtime.is_stale is is_stale, started


def test_driver_is_installed_on_a_big_endian_arm64_node(tmp_path: Path) -> None:
    write_tags(NodeFiles(tmp_path))

    facts = see(script_runtime(script(arch="aarch64_be").expect("uname -n")), tmp_path, GPU_NODE)

    assert facts.decision == Decision(action=Action.INSTALL, reason=Reason.NO_RECORD)
