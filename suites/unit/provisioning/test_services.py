"""The managed services."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from harness.provisioning.configuration import Configuration
from harness.provisioning.exit_codes import ProvisioningError
from harness.provisioning.node_files import NodeFiles
from harness.provisioning.plan import Plan
from harness.provisioning.services import (
    MARKER_PATH,
    Mode,
    add_node_label,
    choose_mode,
    render_device_plugin,
    steps_on,
)
from harness.shell.mocks.scripted_runner import ScriptedRunner

from .fakes import make_node

if TYPE_CHECKING:
    from pathlib import Path

    from harness.provisioning.node_context import NodeContext
    from harness.provisioning.plan import Do

LABEL = "kubernetes.azure.com/dcgm-exporter=enabled"
SHOW = "systemctl show --property=LoadState --value"
STOP = "20 attempts, 5 s apart, limit 25 s each; failure ignored"
PLUGIN_PACKAGES = (
    "datacenter-gpu-manager-4-core",
    "datacenter-gpu-manager-4-proprietary",
    "dcgm-exporter",
    "nvidia-device-plugin",
)


def action(name: str, index: int = 0) -> Do:
    (step,) = (s for s in steps_on(Configuration(), Mode.DEVICE_PLUGIN, "n") if s.name == name)
    return step.actions[index]  # type: ignore[return-value]


def test_tag_and_configuration_determine_the_mode_of_the_managed_services() -> None:
    rows = {
        (False, False, False): None,
        (True, False, False): Mode.DEVICE_PLUGIN,
        (False, True, False): Mode.DEVICE_PLUGIN,
        (False, False, True): Mode.DRA,
    }

    assert {
        (is_tagged, is_on, is_dra): choose_mode(
            Configuration(enable_managed_gpu=is_on, enable_managed_gpu_dra=is_dra),
            is_tagged=is_tagged,
        )
        for is_tagged, is_on, is_dra in rows
    } == rows
    for is_tagged in (True, False):
        both = Configuration(enable_managed_gpu=not is_tagged, enable_managed_gpu_dra=True)
        with pytest.raises(ProvisioningError, match="DRA mode are both on") as error:
            choose_mode(both, is_tagged=is_tagged)
        assert error.value.exit_code == 123


def test_device_plugin_gets_the_mig_strategy_of_a_partitioned_node() -> None:
    rows = {
        (False, "Mixed"): "--pass-device-specs",
        (True, "Mixed"): "--mig-strategy mixed --pass-device-specs",
        (True, "mixed"): "--mig-strategy single --pass-device-specs",
        (True, None): "--mig-strategy single --pass-device-specs",
    }

    for (is_mig, strategy), arguments in rows.items():
        configuration = Configuration(mig_node=is_mig, nvidia_mig_strategy=strategy)
        assert render_device_plugin(configuration) == (
            f"[Service]\nExecStart=\nExecStart=/usr/bin/nvidia-device-plugin {arguments}\n"
        )


def test_newest_package_in_the_cache_is_installed(tmp_path: Path) -> None:
    """The first name of each row is of the newest version."""
    for number, (newest, *others) in enumerate(
        (
            ("0.10.0_amd64", "0.9.0_amd64"),
            ("0.18_amd64", "0.18~rc2_amd64"),
            ("1%3a0.9_amd64", "0.18_amd64"),
            ("0.18_amd64", "²%3a0.9_amd64"),
            ("0.10", "0.9_amd64"),
        )
    ):
        top = tmp_path / str(number)
        files = NodeFiles(top)
        for package in PLUGIN_PACKAGES[:3]:
            files.write(f"/opt/{package}/downloads/{package}_4.2_amd64.deb", "")
        for version in (newest, *others):
            files.write(f"/opt/nvidia-device-plugin/nvidia-device-plugin_{version}.deb", "")
        debs = [f"{top}/opt/{p}/downloads/{p}_4.2_amd64.deb" for p in PLUGIN_PACKAGES[:3]]
        debs.append(f"{top}/opt/nvidia-device-plugin/nvidia-device-plugin_{newest}.deb")
        with (
            ScriptedRunner()
            .expect(f"{SHOW} nvidia-device-plugin", stdout="loaded\n", timeout_s=30)
            .expect(f"{SHOW} nvidia-dcgm", stdout="not-found\n")
            .expect(
                ["apt-get", "install", "-y", "--no-install-recommends", *debs],
                env={"DEBIAN_FRONTEND": "noninteractive"},
                timeout_s=300,
            ) as runner
        ):
            assert action("install-managed-packages").function(make_node(runner, top)) is None


def test_unit_is_missing_unless_it_is_loaded_or_masked(tmp_path: Path) -> None:
    with (
        ScriptedRunner()
        .expect(f"{SHOW} nvidia-device-plugin", stdout="loaded\n")
        .expect(f"{SHOW} nvidia-dcgm", stdout="masked\n")
        .expect(f"{SHOW} nvidia-dcgm-exporter", stdout="masked\n") as runner
    ):
        assert (
            action("install-managed-packages").function(make_node(runner, tmp_path))
            == "All units exist."
        )

    for state, exit_code in (("masked-not\n", 0), ("loaded\n", 1)):
        runner = ScriptedRunner().expect(
            f"{SHOW} nvidia-device-plugin", stdout=state, exit_code=exit_code
        )
        with pytest.raises(ProvisioningError) as error:
            action("install-managed-packages").function(make_node(runner, tmp_path))
        assert error.value.exit_code == 227


def _node_without_units(tmp_path: Path, runner: ScriptedRunner) -> NodeContext:
    runner.expect(f"{SHOW} nvidia-device-plugin", stdout="not-found\n")
    return make_node(runner, tmp_path)


def test_exit_code_is_227_if_a_package_is_not_cached(tmp_path: Path) -> None:
    files = NodeFiles(tmp_path)
    files.write("/opt/datacenter-gpu-manager-4-core/datacenter-gpu-manager-4-core_1_amd64.deb", "")
    files.write("/opt/datacenter-gpu-manager-4-proprietary/other_1_amd64.deb", "")

    with pytest.raises(ProvisioningError) as error:
        action("install-managed-packages").function(
            _node_without_units(tmp_path, ScriptedRunner())
        )

    assert error.value.exit_code == 227
    assert "'datacenter-gpu-manager-4-proprietary' is not in the image's cache" in str(error.value)


def test_exit_code_is_9_if_a_package_cannot_be_installed(tmp_path: Path) -> None:
    files = NodeFiles(tmp_path)
    for package in PLUGIN_PACKAGES:
        files.write(f"/opt/{package}/{package}_1_amd64.deb", "")
    debs = [f"{tmp_path}/opt/{p}/{p}_1_amd64.deb" for p in PLUGIN_PACKAGES]
    runner = ScriptedRunner()
    node = _node_without_units(tmp_path, runner)
    runner.expect(
        ["apt-get", "install", "-y", "--no-install-recommends", *debs],
        exit_code=100,
        stderr="E: held",
        times=10,
    )

    with pytest.raises(ProvisioningError) as error:
        action("install-managed-packages").function(node)

    runner.verify()
    assert error.value.exit_code == 9
    assert str(error.value).endswith("stderr: E: held")


def test_node_label_is_added_once_to_the_kubelet_node_labels() -> None:
    rows = {
        "": f"KUBELET_NODE_LABELS={LABEL}\n",
        "KUBELET_NODE_LABELS=\nA=b\n": f"KUBELET_NODE_LABELS={LABEL}\nA=b\n",
        'X=1\nKUBELET_NODE_LABELS="a=b,"c=d\nA=b\n': f"X=1\nKUBELET_NODE_LABELS=a=b,c=d,{LABEL}\nA=b\n",
        f"KUBELET_NODE_LABELS='a=b, {LABEL}, c=d'": f"KUBELET_NODE_LABELS='a=b, {LABEL}, c=d'",
        f"KUBELET_NODE_LABELS={LABEL}2\n": f"KUBELET_NODE_LABELS={LABEL}2,{LABEL}\n",
        f"#KUBELET_NODE_LABELS={LABEL}\n": f"#KUBELET_NODE_LABELS={LABEL}\nKUBELET_NODE_LABELS={LABEL}\n",
        f"X={LABEL}\nKUBELET_NODE_LABELS=,a=b,\n": f"X={LABEL}\nKUBELET_NODE_LABELS=a=b,{LABEL}\n",
        f"KUBELET_NODE_LABELS={LABEL}\nKUBELET_NODE_LABELS=b=c\n": f"KUBELET_NODE_LABELS={LABEL}\nKUBELET_NODE_LABELS=b=c,{LABEL}\n",
        "  KUBELET_NODE_LABELS = a=b\t\r\nA=b\r\n": f"  KUBELET_NODE_LABELS=a=b,{LABEL}\t\r\nA=b\r\n",
        "A='\nKUBELET_NODE_LABELS=x=y\n'\nKUBELET_NODE_LABELS=\"a=\\\nb,c=d\n\" 'e=f'\n": f"A='\nKUBELET_NODE_LABELS=x=y\n'\nKUBELET_NODE_LABELS=\"a=b,c=d\ne=f,{LABEL}\"\n",
        "A=b\\\n": f"KUBELET_NODE_LABELS={LABEL}\nA=b\\\n",
        "A='b\n": f"KUBELET_NODE_LABELS={LABEL}\nA='b\n",
        "# A=\\\n": f"KUBELET_NODE_LABELS={LABEL}\n# A=\\\n",
        "# A=\\\nKUBELET_NODE_LABELS=a=b": f"# A=\\\nKUBELET_NODE_LABELS=a=b,{LABEL}",
        "KUBELET_NODE_LABELS=a=\\$b\n": f'KUBELET_NODE_LABELS="a=\\$b,{LABEL}"\n',
        "KUBELET_NODE_LABELS='a=\\$b'\n": f'KUBELET_NODE_LABELS="a=\\\\\\$b,{LABEL}"\n',
        "KUBELET_NODE_LABELS=a=\\\nb c\n": f'KUBELET_NODE_LABELS="a=b c,{LABEL}"\n',
        "A\u2028b=c": f"A\u2028b=c\nKUBELET_NODE_LABELS={LABEL}\n",
    }

    assert {text: add_node_label(text, LABEL) for text in rows} == rows


def test_kubelet_defaults_are_written_only_for_a_new_label(tmp_path: Path) -> None:
    files = NodeFiles(tmp_path)
    label = action("configure-managed-services", 2)
    node = make_node(ScriptedRunner(), tmp_path)
    assert label.function(node) is None
    assert files.read("/etc/default/kubelet") == f"KUBELET_NODE_LABELS={LABEL}\n"

    files.write("/etc/default/kubelet", "X=\udce9\n", mode=0o600)
    label.function(node)

    written = files.at("/etc/default/kubelet")
    assert written.read_bytes() == b"X=\xe9\nKUBELET_NODE_LABELS=%s\n" % LABEL.encode()
    assert written.stat().st_mode & 0o7777 == 0o600
    before = written.stat().st_ino
    label.function(node)
    assert written.stat().st_ino == before
    assert MARKER_PATH == "/opt/azure/containers/managed-gpu-experience.enabled"


def test_service_of_the_unused_mode_is_stopped_before_the_start_of_the_other_service() -> None:
    for mode, other, start in (
        (Mode.DEVICE_PLUGIN, "dra-driver-nvidia-gpu", "start-device-plugin"),
        (Mode.DRA, "nvidia-device-plugin", "start-dra-driver"),
    ):
        plan = Plan.order(steps_on(Configuration(), mode, "n"))

        stop = next(step for step in plan.steps if step.name == f"stop-{other}")
        names = [step.name for step in plan.steps]
        assert names.index(stop.name) < names.index(start)
        assert (stop.exit_code, stop.event) == (None, f"AKS.CSE.stop.{other}")
        assert stop.describe()[1:] == (
            f"    {SHOW} {other}  # limit 30 s",
            f"    if the unit {other} exists:",
            f"      systemctl stop {other}  # {STOP}",
            f"      systemctl disable {other}  # {STOP}",
        )


def test_package_in_the_downloads_folder_is_preferred_to_a_package_in_the_parent_folder(
    tmp_path: Path,
) -> None:
    files = NodeFiles(tmp_path)
    names = (*PLUGIN_PACKAGES[:3], "dra-driver-nvidia-gpu")
    for package in names:
        files.write(f"/opt/{package}/{package}_9.9_amd64.deb", "")
        files.write(f"/opt/{package}/downloads/{package}_4.1_amd64.deb", "")
        files.write(f"/opt/{package}/downloads/{package}_4.2_amd64.deb", "")
        files.write(f"/opt/{package}/downloads/{package}x_5_amd64.deb", "")
        files.write(f"/opt/{package}/downloads/{package}_6_amd64.deb.part", "")
    debs = [f"{tmp_path}/opt/{p}/downloads/{p}_4.2_amd64.deb" for p in names]
    steps = {step.name: step for step in steps_on(Configuration(), Mode.DRA, "n")}
    (install,) = steps["install-managed-packages"].actions
    with (
        ScriptedRunner()
        .expect(f"{SHOW} dra-driver-nvidia-gpu", stdout="loaded\n", timeout_s=30)
        .expect(f"{SHOW} nvidia-dcgm", stdout="loaded\n", timeout_s=30)
        .expect(f"{SHOW} nvidia-dcgm-exporter", stdout="not-found\n", timeout_s=30)
        .expect(["apt-get", "install", "-y", "--no-install-recommends", *debs]) as runner
    ):
        install.function(make_node(runner, tmp_path))  # type: ignore[union-attr]
