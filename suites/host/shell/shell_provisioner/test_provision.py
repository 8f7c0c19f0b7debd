"""Tests a provisioning script with stateful fakes of the commands that it runs."""

from __future__ import annotations

import json
import stat
from typing import TYPE_CHECKING

import pytest

from harness.shell import fakes
from harness.shell.testing import Answer
from suites.host.shell.shell_provisioner.node import EVENTS, IMAGE, KERNEL, RECORD, VERSION

if TYPE_CHECKING:
    from suites.host.shell.shell_provisioner.node import Node

STACK = ("nvidia", "nvidia_modeset", "nvidia_uvm", "nvidia_drm")


# Tags


@pytest.mark.parametrize(
    ("name", "value", "is_set"),
    [
        ("SkipGpuDriverInstall", "true", True),
        ("skipgpudriverinstall", "True", True),
        ("SkipGpuDriverInstall", "untrue", False),
        ("xSkipGpuDriverInstallY", "true", False),
        ("SkipGpuDriverInstall", "false", False),
    ],
)
def test_tag_is_set_only_if_its_whole_name_and_value_match(
    node: Node, name: str, value: str, *, is_set: bool
) -> None:
    tags = [{"name": "other", "value": "true"}, {"name": name, "value": value}]
    node.metadata.document = {"compute": {"tagsList": tags}}
    node.call("fetch_tags").check()

    assert (node.call("has_tag", "SkipGpuDriverInstall").status == 0) == is_set


def test_tags_are_requested_again_while_the_metadata_service_starts(node: Node) -> None:
    node.metadata.refusals = 3

    result = node.call("fetch_tags").check()

    assert [sleep.seconds for sleep in result.sleeps] == [2, 2, 2]


def test_fetching_tags_without_a_metadata_service_exits_with_224(node: Node) -> None:
    node.metadata.is_up = False

    assert node.call("fetch_tags").status == 224


# The decision


def decision(node: Node) -> str:
    return node.call("decide").check().stdout.strip()


def test_driver_is_installed_if_there_is_no_record(node: Node) -> None:
    assert decision(node) == "install no_record"


@pytest.mark.parametrize(
    "fields",
    [
        {"driver_kind": "cuda"},
        {"driver_kind": "", "driver_version": VERSION},
        {"driver_kind": "cuda", "driver_version": f"{VERSION} "},
    ],
)
def test_record_without_a_usable_kind_or_version_is_corrupt(
    node: Node, fields: dict[str, str]
) -> None:
    node.write_record(kernel=KERNEL, **fields)

    assert decision(node) == "teardown-install corrupt"


def test_record_that_is_not_a_file_is_corrupt(node: Node) -> None:
    node.shell.path(RECORD).mkdir(parents=True)

    assert decision(node) == "teardown-install corrupt"


@pytest.mark.parametrize(
    ("kind", "version", "kernel", "expected"),
    [
        ("cuda", VERSION, KERNEL, "install-skip-build ok"),
        ("cuda-lts", VERSION, KERNEL, "install-skip-build ok"),
        ("grid-v20", VERSION, KERNEL, "teardown-install kind"),
        ("cuda", "580.159.04", KERNEL, "teardown-install version"),
        ("cuda", VERSION, "6.1.0-55-cloud-amd64", "install kernel"),
    ],
)
def test_baked_driver_is_used_only_if_kind_and_version_and_kernel_match(
    node: Node, kind: str, version: str, kernel: str, expected: str
) -> None:
    node.bake(kind=kind, version=version, kernel=kernel)

    assert decision(node) == expected


def test_driver_of_another_architecture_is_built_again(node: Node) -> None:
    node.bake()
    uname = node.shell.mock("uname")
    uname.when("-m").answers("aarch64\n")
    uname.when("-r").answers(f"{KERNEL}\n")

    assert decision(node) == "install arch"


def test_module_file_that_was_built_for_another_kernel_is_built_again(node: Node) -> None:
    node.bake()
    node.modules.add("nvidia", module_for(f"{KERNEL}6"))

    assert decision(node) == "install vermagic"


def module_for(kernel: str) -> fakes.Module:
    return fakes.Module(fields={"version": VERSION, "vermagic": f"{kernel} SMP"})


def test_module_that_dkms_has_built_but_not_installed_is_built_again(node: Node) -> None:
    node.bake()
    node.shell.evaluate(f"dkms uninstall nvidia/{VERSION} -k {KERNEL}").check()
    node.modules.add("nvidia", module_for(KERNEL))

    assert node.dkms.state("nvidia", VERSION) == "built"
    assert decision(node) == "install dkms"


def test_module_whose_file_is_gone_is_built_again(node: Node) -> None:
    node.bake()
    node.shell.evaluate(f"rm /lib/modules/{KERNEL}/updates/dkms/nvidia.ko").check()

    assert decision(node) == "install module"


# The image


def test_present_image_is_not_pulled(node: Node) -> None:
    node.containerd = fakes.Containerd([IMAGE]).install(node.shell)

    node.call("pull_image").check()

    assert node.containerd.images() == (IMAGE,)


def test_image_is_pulled_if_only_a_similar_image_exists(node: Node) -> None:
    similar = IMAGE.replace("580.126", "580x126")
    node.containerd = fakes.Containerd([similar], registry=[IMAGE]).install(node.shell)

    node.call("pull_image").check()

    assert node.containerd.images() == (IMAGE, similar)


def test_image_that_is_pulled_from_another_registry_also_gets_the_default_name(
    node: Node,
) -> None:
    elsewhere = IMAGE.replace("mcr.microsoft.com", "registry.example")
    node.containerd.registry = {elsewhere}

    node.call("pull_image", REGISTRY="registry.example/").check()

    assert node.containerd.images() == (IMAGE, elsewhere)
    node.call("remove_image", REGISTRY="registry.example/")
    assert node.containerd.images() == ()


def test_pull_is_tried_three_times(node: Node) -> None:
    node.containerd.pull_failures = 2
    assert [s.seconds for s in node.call("pull_image").check().sleeps] == [5, 5]

    node.call("remove_image")
    node.containerd.pull_failures = 3
    result = node.call("pull_image")
    assert result.status == 84
    assert result.stdout.count(": not found\n") == 3, "The log has what each attempt answered."


# Installing


def test_missing_packages_are_installed_and_held(node: Node) -> None:
    node.call("install_packages").check()

    assert node.packages.version("gcc") == "4:12.2.0-3"
    assert node.packages.is_installed("cpp")
    assert node.packages.is_held("gcc")
    assert not node.packages.is_held("make"), "It was there before."


def test_installation_of_packages_waits_for_dpkgs_lock(node: Node) -> None:
    node.packages.lock(attempts=4)

    result = node.call("install_packages").check()

    assert [sleep.seconds for sleep in result.sleeps] == [2, 2, 2, 2]
    assert node.packages.is_installed("libc6-dev")


def test_failed_installation_of_packages_has_its_own_exit_code(node: Node) -> None:
    node.packages.lock()

    assert node.call("install_packages").status == 9
    assert not node.packages.is_installed("gcc")


def test_installer_is_privileged_and_shares_network_and_processes_with_the_node(
    node: Node,
) -> None:
    node.call("pull_image").check()

    node.call("run_image", "copy").check()

    (run,) = node.containerd.runs
    assert run.is_privileged
    assert run.has_host_network
    assert run.namespaces == ("pid:/proc/1/ns/pid",)
    assert [mount.split(",")[2] for mount in run.mounts] == ["dst=/mnt/gpu", "dst=/mnt/actions"]
    assert run.arguments == ("/entrypoint.sh", "copy")


def test_baked_driver_that_does_not_start_is_installed_again(node: Node) -> None:
    node.bake()
    node.smi.answers_in_turn(Answer(exit_code=9), Answer())

    result = node.call("main").check()

    assert "the baked driver did not start; building it again" in result.stdout
    assert [run.arguments[-1] for run in node.containerd.runs] == ["copy"]


def test_installation_is_tried_five_times(node: Node) -> None:
    node.installer_failures = fakes.ALWAYS

    assert node.call("main").status == 84

    assert len(node.containerd.runs) == 5
    assert not node.has(RECORD)


# Removing


def test_modules_are_unloaded_before_their_dependencies(node: Node) -> None:
    node.bake()

    node.call("unload_modules").check()

    assert node.modules.loaded == ()


def test_all_modules_stay_loaded_if_one_module_is_in_use(node: Node) -> None:
    node.bake()
    node.modules.hold("nvidia_uvm")

    assert node.call("unload_modules").status == 1

    assert set(node.modules.loaded) == set(STACK)


def test_teardown_removes_all_files_of_the_driver(node: Node) -> None:
    node.bake()

    result = node.call("teardown").check()

    assert result.stdout == "gpu-node: event=teardown status=cleaned\n"
    assert node.dkms.state("nvidia", VERSION) is None
    assert node.modules.module("nvidia") is None
    assert not node.has(RECORD)


def test_record_stays_until_the_driver_is_gone(node: Node) -> None:
    node.bake()
    node.modules.hold("nvidia")

    assert node.call("teardown").status == 1
    assert node.has(RECORD)

    node.modules.release("nvidia")
    node.call("teardown").check()
    assert not node.has(RECORD)


@pytest.mark.parametrize(
    "path",
    ["/usr/bin/nvidia-modprobe", "/etc/ld.so.conf.d/nvidia.conf", "/usr/bin/lib64/libcuda.so"],
)
def test_teardown_keeps_the_record_if_a_file_cannot_be_removed(node: Node, path: str) -> None:
    node.bake()
    node.shell.write(path, "")
    node.shell.mock("rm", optional=True).answers("")

    result = node.call("main", "teardown").check()

    assert "event=teardown status=incomplete" in result.stdout
    assert node.has(RECORD)


# Services


@pytest.mark.parametrize(
    ("strategy", "flags"),
    [
        ("None", "--pass-device-specs"),
        ("Single", "--mig-strategy single --pass-device-specs"),
        ("Mixed", "--mig-strategy mixed --pass-device-specs"),
        ("mixed", "--pass-device-specs"),
    ],
)
def test_device_plugin_flags_depend_on_the_mig_strategy(
    node: Node, strategy: str, flags: str
) -> None:
    node.systemd.unit("nvidia-device-plugin").is_active = True

    node.call("start_managed_services", MIG_STRATEGY=strategy).check()

    running = node.systemd.unit("nvidia-device-plugin").running_text
    assert running.endswith(f"ExecStart=\nExecStart=/usr/bin/nvidia-device-plugin {flags}\n")


def test_failure_to_start_the_device_plugin_has_its_own_exit_code(node: Node) -> None:
    node.systemd.unit("nvidia-device-plugin").start_failures = fakes.ALWAYS

    assert node.call("start_managed_services").status == 86


def test_services_start_even_if_monitoring_does_not_start(node: Node) -> None:
    node.systemd.unit("nvidia-dcgm").start_failures = 1

    node.call("start_managed_services").check()

    assert node.systemd.unit("nvidia-dcgm").is_failed
    assert node.systemd.unit("nvidia-dcgm-exporter").is_active


# The node


def test_new_node_gets_a_driver_and_services(node: Node) -> None:
    result = node.call("main").check()

    assert result.stdout.splitlines()[-1] == "gpu-node: the node is ready"
    assert node.dkms.state("nvidia", VERSION) == "installed"
    assert node.modules.is_loaded("nvidia")
    assert node.systemd.unit("containerd").starts == 1
    assert node.systemd.unit("nvidia-device-plugin").is_active
    assert node.systemd.unit("nvidia-device-plugin").is_enabled
    assert node.containerd.images() == ()
    assert f"driver_version={VERSION}" in node.shell.path(RECORD).read_text()


def test_baked_node_compiles_nothing_and_installs_no_package(node: Node) -> None:
    node.bake()

    result = node.call("main").check()

    assert "action=install-skip-build reason=ok" in result.stdout
    assert node.containerd.runs == []
    assert not node.packages.is_installed("gcc")


def test_driver_of_another_version_is_replaced(node: Node) -> None:
    node.bake(version="580.159.04")

    node.call("main").check()

    assert node.dkms.state("nvidia", "580.159.04") is None
    assert node.dkms.state("nvidia", VERSION) == "installed"


def test_node_that_opted_out_loses_driver_and_services(node: Node) -> None:
    node.bake()
    node.metadata.document = {
        "compute": {"tagsList": [{"name": "SkipGpuDriverInstall", "value": "true"}]}
    }
    node.systemd.unit("nvidia-dcgm").is_active = True
    node.systemd.unit("nvidia-dcgm").is_enabled = True

    node.call("main").check()

    assert not node.has(RECORD)
    assert node.modules.loaded == ()
    assert node.systemd.unit("nvidia-dcgm").file_state == "disabled"
    assert not node.systemd.unit("nvidia-dcgm").is_active
    assert node.containerd.runs == []


def test_node_without_a_gpu_loses_the_driver_and_asks_for_no_tags(node: Node) -> None:
    node.bake()
    node.shell.mock("lspci").answers("")
    node.metadata.is_up = False

    result = node.call("main").check()

    assert "event=decision action=teardown reason=opted_out" in result.stdout
    assert not node.has(RECORD)


def test_node_without_a_gpu_and_without_a_record_has_nothing_to_remove(node: Node) -> None:
    node.shell.mock("lspci").answers("")

    result = node.call("main").check()

    assert "event=decision action=nothing reason=-" in result.stdout


def test_plan_logs_the_decision_and_changes_nothing(node: Node) -> None:
    node.bake(version="580.159.04")

    result = node.call("main", "plan").check()

    assert "event=decision action=teardown-install reason=version" in result.stdout
    assert node.has(RECORD)
    assert node.containerd.runs == []
    assert not node.systemd.unit("kubelet").is_active


def test_failure_to_start_the_kubelet_has_its_own_exit_code(node: Node) -> None:
    node.systemd.unit("kubelet").start_failures = fakes.ALWAYS

    assert node.call("main").status == 4


def test_bake_builds_for_the_newest_kernel_that_has_headers(node: Node) -> None:
    """Versions are compared as numbers: compared as text, 9 would be newer than 56."""
    newest = "6.1.0-156-cloud-amd64"
    for kernel in ("6.1.0-9-cloud-amd64", newest):
        node.shell.write(f"/lib/modules/{kernel}/build/Makefile", "")
    node.shell.write("/lib/modules/6.1.0-200-cloud-amd64/modules.dep", "")
    node.dkms = fakes.Dkms(
        [fakes.Source(name="nvidia", version=VERSION)], kernels=[KERNEL, newest]
    ).install(node.shell)

    node.call("main", "bake").check()

    assert node.dkms.state("nvidia", VERSION, newest) == "installed"
    assert node.dkms.state("nvidia", VERSION, KERNEL) != "installed"
    assert f"kernel={newest}\n" in node.shell.path(RECORD).read_text()
    assert node.modules.loaded == ()


def test_failed_build_removes_the_record_of_the_earlier_build(node: Node) -> None:
    node.bake(kernel="6.1.0-55-cloud-amd64")
    node.dkms.fail_builds("nvidia", VERSION, fakes.ALWAYS)

    assert node.call("main").status == 84

    assert not node.has(RECORD)


def test_unknown_command_is_refused(node: Node) -> None:
    result = node.call("main", "bok")

    assert result.status == 2
    assert "unknown command 'bok'" in result.stdout


# Files


def test_nvidia_modprobe_is_setuid_but_nvidia_smi_is_not(node: Node) -> None:
    node.call("main").check()

    assert stat.S_IMODE(node.shell.path("/usr/bin/nvidia-modprobe").stat().st_mode) == 0o4755
    assert stat.S_IMODE(node.shell.path("/usr/bin/nvidia-smi").stat().st_mode) == 0o755


def test_record_can_be_read_by_every_user(node: Node) -> None:
    node.call("write_record", KERNEL).check()

    assert stat.S_IMODE(node.shell.path(RECORD).stat().st_mode) == 0o644


# Events


def events(node: Node) -> dict[str, str]:
    files = sorted(node.shell.path(EVENTS).glob("*.json"))
    loaded = [json.loads(file.read_text()) for file in files]
    return {event["TaskName"]: event["Message"] for event in loaded}


def test_each_step_writes_an_event(node: Node) -> None:
    node.call("main").check()

    assert events(node) == dict.fromkeys(
        [
            "GPU.fetchTags", "GPU.pullImage", "GPU.buildDriver", "GPU.installDriver",
            "GPU.restartContainerd", "GPU.validateDriver", "GPU.startManagedServices",
            "GPU.startKubelet",
        ],
        "exit code 0",
    )  # fmt: skip


def test_event_has_the_exit_code_of_its_step(node: Node) -> None:
    node.installer_failures = fakes.ALWAYS

    node.call("main")

    assert events(node)["GPU.buildDriver"] == "exit code 84"


def test_events_of_the_same_millisecond_are_all_kept(node: Node) -> None:
    node.shell.evaluate(f"mkdir -p {EVENTS}; event one true; event two true").check()

    assert set(events(node)) == {"GPU.one", "GPU.two"}
