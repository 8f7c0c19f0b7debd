"""Near misses: the last of several GPUs is wrong, or a name only begins like the expected name."""

from __future__ import annotations

import json
import time
from typing import TYPE_CHECKING

import pytest

from harness import expect
from harness.errors import ExpectationError, HarnessError
from harness.evidence import CLOUD_INIT_OUTPUT_PATH, RECORD_PATH
from harness.expect.driver import DRIVER_MODULES
from harness.expect.runtime import OTHER_RUNTIMES
from harness.fixtures.recordings import load_recording
from harness.gpu.trace import AccessKind, IncidentKind
from harness.provisioner import EXIT_CODE_PATH
from suites.unit.evidence.folders import (
    BOOTED_AT_S,
    CONTAINERD_CONFIG,
    IMAGE,
    EvidenceFolder,
    a_cdi_spec,
    a_serving_node,
    a_stripped_node,
)

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from harness.evidence import Evidence

    Expectation = Callable[[Evidence], object]
    Change = Callable[[EvidenceFolder], EvidenceFolder]

SHORT, LONG = "6.1.0-5", "6.1.0-55"
OLD, NEW = "580.1", "580.12"
NAME = "NVIDIA H100 80GB HBM3"
NOT_FOUND = "modinfo: ERROR: Module nvidia not found.\n"


def a_function(number: int, device: str = "10de:2330", driver: str | None = "nvidia") -> str:
    in_use = "" if driver is None else f"\tKernel driver in use: {driver}\n"
    return f"{number + 1:02x}:00.0 3D controller [0302]: NVIDIA GPU [{device}]\n{in_use}"


def with_gpus(folder: EvidenceFolder, count: int, last: str | None = None) -> EvidenceFolder:
    """Give the node `count` GPUs; `last` replaces lspci's text about the last GPU."""
    functions = [a_function(number) for number in range(count)]
    if last is not None:
        functions[-1] = last
    folder.command("lspci", "".join(functions))
    for number in range(count):
        folder.file(
            f"/proc/driver/nvidia/gpus/0000:{number + 1:02x}:00.0/information", f"Model: {NAME}\n"
        )
    return with_nodes(folder, *(f"c /dev/nvidia{number}" for number in range(count)))


def with_nodes(folder: EvidenceFolder, *nodes: str) -> EvidenceFolder:
    lines = (folder.root / "stat.txt").read_text().splitlines()
    rest = [line for line in lines if not line.endswith(tuple("0123456789"))]
    pairs = (node.split(" ") for node in nodes)
    return folder.paths(*rest, *(f"{kind} 666 0 1.0 {path}" for kind, path in pairs))


def judge_gpus(count: int) -> dict[str, Expectation]:
    return {
        "gpus_on_bus": lambda e: expect.gpus_on_bus(e, *["2330"] * count),
        "gpu_bound": lambda e: expect.gpu_bound(e, device="2330"),
        "gpus_driven": lambda e: expect.gpus_driven(e, *["2330"] * count),
        "every_gpu_driven": expect.every_gpu_driven,
        "driver_names_gpus": lambda e: expect.driver_names_gpus(e, *[NAME] * count),
    }


def refusing(folder: EvidenceFolder, judges: dict[str, Expectation]) -> set[str]:
    """Return the names of the expectations that refuse the node; any other error is raised."""
    return {name for name, judge in judges.items() if _refuses(judge, folder.evidence)}


def _refuses(judge: Expectation, evidence: Evidence) -> bool:
    try:
        judge(evidence)
    except ExpectationError:
        return True
    return False


BINDING = {"gpu_bound", "gpus_driven", "every_gpu_driven"}
ON_BUS = {"gpus_on_bus", "gpu_bound", "gpus_driven"}


def test_more_or_fewer_gpus_than_expected_are_refused(tmp_path: Path) -> None:
    """Expectations that check every present GPU accept any number of GPUs."""
    folder = with_gpus(a_serving_node(tmp_path), 12)

    assert refusing(folder, judge_gpus(12)) == set()
    for expected in (11, 13):
        assert refusing(folder, judge_gpus(expected)) == {
            *("gpus_on_bus", "gpus_driven", "driver_names_gpus")
        }


@pytest.mark.parametrize("segment", ["", "0001:"])
def test_virtual_functions_are_not_counted_as_gpus(tmp_path: Path, segment: str) -> None:
    """Virtual functions have the ids and the driver of their GPU, and no device nodes."""
    virtual = a_function(0).replace("01:00.0", "01:00.4")
    functions = f"{segment}{a_function(0)}{segment}{virtual}"
    folder = with_gpus(a_serving_node(tmp_path), 1).command("lspci", functions)
    assert refusing(folder, judge_gpus(1)) == ON_BUS | BINDING

    folder.more_paths(
        f"l 777 0 1.0 /sys/bus/pci/devices/{segment or '0000:'}01:00.4/physfn",
        "l 777 0 1.0 /sys/bus/pci/devices/0002:01:00.0/physfn",
    )

    assert refusing(folder, judge_gpus(1)) == set()


def test_last_gpu_without_the_driver_is_refused(tmp_path: Path) -> None:
    folder = a_serving_node(tmp_path)

    for driver in (None, "vfio-pci", "nvidia_uvm"):
        with_gpus(folder, 2, a_function(1, driver=driver))
        assert refusing(folder, judge_gpus(2)) == BINDING


def test_last_gpu_of_another_model_is_refused(tmp_path: Path) -> None:
    folder = with_gpus(a_serving_node(tmp_path), 2, a_function(1, device="10de:2331"))

    assert refusing(folder, judge_gpus(2)) == ON_BUS


def test_last_gpu_that_is_not_on_the_bus_is_refused(tmp_path: Path) -> None:
    folder = a_serving_node(tmp_path)

    assert refusing(with_gpus(folder, 1, ""), judge_gpus(1)) == ON_BUS | BINDING
    assert refusing(with_gpus(folder, 2, ""), judge_gpus(2)) == {"gpus_on_bus", "gpus_driven"}


def test_last_gpu_without_its_device_node_is_refused(tmp_path: Path) -> None:
    folder = with_gpus(a_serving_node(tmp_path), 2)

    for instead in ([], ["c /dev/nvidia10"], ["f /dev/nvidia1"]):
        with_nodes(folder, "c /dev/nvidia0", *instead)
        assert refusing(folder, judge_gpus(2)) == {"gpu_bound", "every_gpu_driven"}


def test_last_gpu_with_another_model_name_is_refused(tmp_path: Path) -> None:
    folder = with_gpus(a_serving_node(tmp_path), 2)

    for name in (f"{NAME}e", "", NAME.split(maxsplit=1)[0]):
        folder.file("/proc/driver/nvidia/gpus/0000:02:00.0/information", f"Model: {name}\n")
        assert refusing(folder, judge_gpus(2)) == {"driver_names_gpus"}


def test_gpu_is_found_among_nvlink_switches(tmp_path: Path) -> None:
    bridges = "".join(
        f"{number:02x}:00.0 Bridge [0680]: NVIDIA Corporation GH100 [10de:22a3]\n"
        for number in range(4)
    )
    folder = a_stripped_node(tmp_path).command("lspci", bridges)
    expect.no_gpu(folder.evidence)
    folder.command("lspci", bridges + a_function(4, driver=None))

    with pytest.raises(ExpectationError):
        expect.no_gpu(folder.evidence)


def test_last_gpu_whose_configuration_space_is_all_ones_is_refused(tmp_path: Path) -> None:
    """The kernel still shows the ids, the class and the driver that it read before."""
    folder = a_serving_node(tmp_path)
    for count, ones, others in (
        (1, "(rev ff)", {"has_gpus"}),
        (2, "(rev ff) (prog-if ff)\n\t!!! Unknown header type 7f", set[str]()),
    ):
        with_gpus(folder, count, a_function(count - 1).replace("]\n", f"] {ones}\n"))
        judges = {**judge_gpus(count), "has_gpus": expect.has_gpus}

        assert refusing(folder, judges) == BINDING | others
        with pytest.raises(
            ExpectationError, match=rf"of 10de:2330 at {count:02x}:00\.0 reads all ones"
        ):
            expect.every_gpu_driven(folder.evidence)


def test_refusal_of_one_gpu_does_not_count_for_a_second_gpu_of_the_same_model(
    tmp_path: Path,
) -> None:
    log = load_recording("dmesg/2.38.1-nvidia-refusal").text
    folder = a_serving_node(tmp_path).command("dmesg", log * 3)

    expect.gpus_refused(folder.evidence, "2bb5")
    expect.gpus_refused(folder.evidence, "10de:2bb5")
    with pytest.raises(ExpectationError):
        expect.gpus_refused(folder.evidence, "2bb5", "2bb5")
    folder.command("dmesg", log + log.replace("0000:0b:00.0", "0000:0c:00.0"))
    expect.gpus_refused(folder.evidence, "2bb5", "2bb5")
    with pytest.raises(ExpectationError):
        expect.gpus_refused(folder.evidence, "2bb5")


def test_expectations_read_only_the_trace_of_the_given_gpu(tmp_path: Path) -> None:
    gpu, other = "gpu1", "gpu10"
    folder = (
        EvidenceFolder(tmp_path)
        .trace("a mark", AccessKind.CONFIG_READ, gpu=gpu)
        .trace(IncidentKind.RESET, AccessKind.BAR_READ, "a mark", gpu=other)
    )

    expect.no_bar_access(folder.evidence, gpu=gpu)
    expect.gpu_reset(folder.evidence, gpu=other)
    with pytest.raises(ExpectationError):
        expect.no_bar_access(folder.evidence, gpu=other)
    with pytest.raises(ExpectationError):
        expect.gpu_reset(folder.evidence, gpu=gpu)
    expect.no_bar_access_before(folder.evidence, "a mark", gpu=gpu)
    expect.gpu_reset(folder.evidence, times=0, since="a mark", gpu=other)
    with pytest.raises(ExpectationError):
        expect.no_bar_access_before(folder.evidence, "a mark", gpu=other)
    with pytest.raises(ExpectationError):
        expect.bar_access_after(folder.evidence, "a mark", gpu=other)


VERSION_FILE = "files/proc/driver/nvidia/version"


def a_node(folder: Path, *, kernel: str = SHORT, version: str = OLD) -> EvidenceFolder:
    """Return the evidence of a driver for this kernel, on a node whose second kernel has no module."""
    other = LONG if kernel == SHORT else SHORT
    return (
        EvidenceFolder(folder)
        .command("uname-r", f"{kernel}\n")
        .command("dkms-status", f"nvidia/{version}, {kernel}, x86_64: installed\n")
        .command(f"modinfo-{kernel}", f"version: {version}\nvermagic: {kernel} SMP\n")
        .command(f"modinfo-{other}", NOT_FOUND, 1)
        .file(
            RECORD_PATH,
            f"kernel={kernel}\ndriver_version={version}\ndriver_kind=cuda\narch=x86_64\n",
        )
        .file(
            "/proc/driver/nvidia/version",
            f"NVRM version: NVIDIA UNIX x86_64 Kernel Module  {version}  Mon Aug  3 UTC 2026\n",
        )
        .file("/proc/stat", f"cpu 1 2 3\nbtime {BOOTED_AT_S}\n")
        .paths(
            f"d 755 0 1.0 /lib/modules/{kernel}",
            f"d 755 0 1.0 /lib/modules/{other}",
            f"f 644 0 1.0 /lib/modules/{kernel}/updates/dkms/nvidia.ko.zst",
            f"f 644 0 1.0 /var/lib/dkms/nvidia/{version}/{kernel}/x86_64/module/nvidia.ko",
            f"f 644 60 1.0 {RECORD_PATH}",
        )
    )


def judge_driver(kernel: str, version: str) -> dict[str, Expectation]:
    return {
        "kernel_running": lambda e: expect.kernel_running(e, kernel),
        "module_built_for": lambda e: expect.module_built_for(e, kernel, version=version),
        "module_built_before_boot": lambda e: expect.module_built_before_boot(e, kernel),
        "module_fits_kernel": expect.module_fits_kernel,
        "record_fits": expect.record_fits,
        "record_names": lambda e: expect.record_names(
            e, kernel=kernel, driver_version=version, arch="x86_64"
        ),
    }


def test_other_dkms_package_of_the_same_version_is_not_the_driver(tmp_path: Path) -> None:
    status = "".join(
        f"{name}/{OLD}, {SHORT}, x86_64: installed\n" for name in ("nvidia-fs", "nvidi")
    )
    folder = a_node(tmp_path).command("dkms-status", status)

    assert refusing(folder, judge_driver(SHORT, OLD)) == {"module_built_for"}
    expect.no_driver_artefact(folder.modules().paths().evidence)


def test_module_of_a_kernel_with_a_similar_name_is_ignored(tmp_path: Path) -> None:
    folder = a_node(tmp_path, kernel=LONG)

    expect.no_module_for(folder.evidence, SHORT)
    # kmod 30, of a file that was removed after depmod.
    removed = "could not get modinfo from 'nvidia': No such file or directory"
    listed = f"filename: {OLD}\nmodinfo: ERROR: {removed}\n"
    expect.no_module_for(folder.command(f"modinfo-{SHORT}", listed, 1).evidence, SHORT)
    unreadable = removed.replace("No such file or directory", "Input/output error")
    damaged = folder.command(f"modinfo-{SHORT}", f"modinfo: ERROR: {unreadable}\n", 1)
    with pytest.raises(HarnessError):
        expect.no_module_for(damaged.evidence, SHORT)


#: Changes of one source of evidence, given the expected kernel and another kernel, and who refuses it.
OTHER_KERNELS: dict[str, tuple[Callable[[EvidenceFolder, str, str], object], set[str]]] = {
    "runs": (
        lambda f, _kernel, other: f.command("uname-r", f"{other}\n").without(VERSION_FILE),
        {"kernel_running", "module_fits_kernel", "record_fits"},
    ),
    "vermagic": (
        lambda f, kernel, other: f.command(
            f"modinfo-{kernel}", f"version: {OLD}\nvermagic: {other} SMP\n"
        ),
        {"module_built_for", "module_fits_kernel"},
    ),
    "dkms": (
        lambda f, _kernel, other: f.command(
            "dkms-status", f"nvidia/{OLD}, {other}, x86_64: installed\n"
        ),
        {"module_built_for"},
    ),
    "dkms of another architecture": (
        lambda f, kernel, _other: f.command(
            "dkms-status",
            f"nvidia/{OLD}, {kernel}, x86_64: built\nnvidia/{OLD}, {kernel}, aarch64: installed\n",
        ),
        {"module_built_for"},
    ),
    "a file of dkms": (
        lambda f, kernel, _other: f.more_paths(
            *(
                f"f 644 0 1.0 /var/lib/dkms/nvidia/{OLD}/{kernel}/x86_64/module/{name}.ko"
                for name in ("nvidia", "nvidia-uvm")
            )
        ),
        {"module_built_for"},
    ),
    "a file of dkms in the folder of RHEL": (
        lambda f, kernel, _other: f.paths(
            *(
                f"f 644 0 1.0 /var/lib/dkms/nvidia/{OLD}/{kernel}/x86_64/module/{name}.ko.xz"
                for name in ("nvidia", "nvidia-uvm")
            ),
            f"d 755 0 1.0 /lib/modules/{kernel}",
            f"f 644 0 1.0 /lib/modules/{kernel}/extra/nvidia.ko.xz",
        ),
        {"module_built_for", "module_built_before_boot"},
    ),
    "record": (
        lambda f, _kernel, other: f.file(
            RECORD_PATH,
            f"kernel={other}\ndriver_version={OLD}\ndriver_kind=cuda\narch=x86_64\n",
        ),
        {"record_fits", "record_names"},
    ),
    "another key of the record": (
        lambda f, kernel, _other: f.file(
            RECORD_PATH,
            f"old_kernel={kernel}\ndriver_version={OLD}\ndriver_kind=cuda\narch=x86_64\n",
        ),
        {"record_fits", "record_names"},
    ),
    "files": (
        lambda f, _kernel, other: f.paths(
            f"d 755 0 1.0 /lib/modules/{other}",
            f"f 644 0 1.0 /lib/modules/{other}/updates/dkms/nvidia.ko",
        ).without(VERSION_FILE),
        {"module_built_before_boot", "module_fits_kernel"},
    ),
}


def test_node_is_refused_if_one_source_of_evidence_names_another_kernel(tmp_path: Path) -> None:
    assert refusing(a_node(tmp_path), judge_driver(SHORT, OLD)) == set()
    for kernel, other in ((SHORT, LONG), (LONG, SHORT)):
        for source, (change, refused) in OTHER_KERNELS.items():
            folder = a_node(tmp_path, kernel=kernel)
            change(folder, kernel, other)
            assert (source, refusing(folder, judge_driver(kernel, OLD))) == (source, refused)


#: Changes of one source of evidence to another version of the driver, and who refuses it.
OTHER_VERSIONS: dict[str, tuple[Callable[[EvidenceFolder, str], object], set[str]]] = {
    "dkms": (
        lambda f, other: f.command("dkms-status", f"nvidia/{other}, {SHORT}, x86_64: installed\n"),
        {"module_built_for"},
    ),
    "module": (
        lambda f, other: f.command(
            f"modinfo-{SHORT}", f"version: {other}\nvermagic: {SHORT} SMP\n"
        ),
        {"module_built_for", "module_fits_kernel"},
    ),
    "loaded": (
        lambda f, other: f.file(
            "/proc/driver/nvidia/version",
            f"NVRM version: NVIDIA UNIX x86_64 Kernel Module  {other}  Mon Aug\n",
        ),
        {"module_fits_kernel", "record_fits"},
    ),
    "record": (
        lambda f, other: f.file(
            RECORD_PATH,
            f"kernel={SHORT}\ndriver_version={other}\ndriver_kind=cuda\narch=x86_64\n",
        ),
        {"record_fits", "record_names"},
    ),
}


def test_node_is_refused_if_one_source_of_evidence_names_another_driver_version(
    tmp_path: Path,
) -> None:
    for version, other in ((OLD, NEW), (NEW, OLD)):
        for source, (change, refused) in OTHER_VERSIONS.items():
            folder = a_node(tmp_path, version=version)
            change(folder, other)
            assert (source, refusing(folder, judge_driver(SHORT, version))) == (source, refused)


FOLDER = f"/lib/modules/{SHORT}/updates/dkms"


def test_file_with_a_similar_name_is_not_the_module(tmp_path: Path) -> None:
    folder = a_node(tmp_path)
    names = ("nvidia-drm.ko.xz", "nvidia.kobj", "nvidia.o", "xnvidia.ko")
    for judge, modified in (
        (expect.module_built_before_boot, 1),
        (expect.module_built_since_boot, BOOTED_AT_S + 9),
    ):
        folder.paths(*(f"f 644 1 {modified}.0 {FOLDER}/{name}" for name in names))
        with pytest.raises(ExpectationError, match=r"'nvidia\.ko' .* was expected"):
            judge(folder.evidence, SHORT)


def test_build_time_of_a_module_from_another_package_is_ignored(tmp_path: Path) -> None:
    folder = a_node(tmp_path)
    others = (f"{FOLDER}/nvidia-fs.ko", f"{FOLDER}/nvidia-current.ko.xz")
    for judge, driver, other in (
        (expect.module_built_before_boot, -9, 9),
        (expect.module_built_since_boot, 9, -9),
    ):
        times = {f"{FOLDER}/nvidia.ko": driver, **dict.fromkeys(others, other)}
        folder.paths(*(f"f 644 1 {BOOTED_AT_S + after}.0 {path}" for path, after in times.items()))
        judge(folder.evidence, SHORT)


def test_modules_that_were_built_partly_before_and_partly_since_the_boot_are_refused(
    tmp_path: Path,
) -> None:
    folder = a_node(tmp_path)
    for late, suffix in (("nvidia.ko", ".zst"), ("nvidia-uvm.ko", "")):
        times = dict.fromkeys(("nvidia.ko", "nvidia-uvm.ko"), BOOTED_AT_S - 1)
        times[late] = BOOTED_AT_S
        folder.paths(
            *(f"f 644 1 {time}.0 {FOLDER}/{name}{suffix}" for name, time in times.items())
        )
        with pytest.raises(
            ExpectationError, match=f"'{FOLDER}/{late}{suffix}' .* older than the boot"
        ):
            expect.module_built_before_boot(folder.evidence, SHORT)
        with pytest.raises(
            ExpectationError, match="newer than the boot, but was modified 1 s before"
        ):
            expect.module_built_since_boot(folder.evidence, SHORT)


def test_each_loaded_module_of_the_driver_is_an_artefact(tmp_path: Path) -> None:
    folder = EvidenceFolder(tmp_path).paths()
    for name in DRIVER_MODULES:
        evidence = folder.modules("ext4", name).evidence
        for judge in (expect.no_module_loaded, expect.no_driver_artefact):
            with pytest.raises(ExpectationError, match=name):
                judge(evidence)


def test_kernel_module_with_a_name_similar_to_nvidia_is_not_the_driver(tmp_path: Path) -> None:
    names = ("nvidia_wmi_ec_backlight", "nvidiafb", "i2c_nvidia_gpu")
    evidence = a_stripped_node(tmp_path).modules(*names).evidence

    expect.no_module_loaded(evidence)
    expect.no_driver_artefact(evidence)


def test_program_with_a_similar_name_is_not_taken_for_the_drivers_program(tmp_path: Path) -> None:
    folder = a_stripped_node(tmp_path).paths(
        "f 4755 1 1.0 /usr/bin/nvidia-smi.old",
        "f 4755 1 1.0 /usr/bin/nvidia-container-runtime",
    )

    expect.no_driver_artefact(folder.evidence)
    for judge in (expect.driver_installed, expect.driver_tools_installed):
        with pytest.raises(ExpectationError, match="/usr/bin/nvidia-smi'"):
            judge(folder.evidence)


NEAR_IMAGES = (
    IMAGE.replace(".microsoft.", "xmicrosoft."),
    IMAGE.replace("580.126", "580x126"),
    f"{IMAGE}0",
    f"x{IMAGE}",
    IMAGE.rpartition(":")[0],
    IMAGE.upper(),
)


def test_image_with_a_similar_name_is_not_taken_for_the_expected_image(tmp_path: Path) -> None:
    listed = "\n".join(("mcr.example/first:1", *NEAR_IMAGES, ""))
    evidence = EvidenceFolder(tmp_path).command("container-images", listed).evidence

    expect.image_absent(evidence, IMAGE)
    with pytest.raises(ExpectationError):
        expect.image_present(evidence, IMAGE)
    for image in NEAR_IMAGES:
        expect.image_present(evidence, image)
        with pytest.raises(ExpectationError):
            expect.image_absent(evidence, image)


def test_unit_with_a_similar_name_is_not_taken_for_the_expected_unit(tmp_path: Path) -> None:
    units = ("a.service.d.mount", "xa.service", "a.serv.service", "a@1.service", "a.socket")
    listing = "".join(f"{unit} loaded active running A\n" for unit in units)
    evidence = EvidenceFolder(tmp_path).command("units", listing).evidence

    for unit in units:
        expect.unit_state(evidence, unit, active="active")
    with pytest.raises(ExpectationError, match=r"'a\.service' .* has not loaded it"):
        expect.unit_state(evidence, "a.service", active="active")


def test_unit_state_that_contains_the_expected_state_is_refused(tmp_path: Path) -> None:
    for seen in ("inactive", "active-ish"):
        folder = EvidenceFolder(tmp_path).command("units", f"a.service loaded {seen} active A\n")
        with pytest.raises(ExpectationError, match=f"but is '{seen}'"):
            expect.unit_state(folder.evidence, "a.service", active="active")


RUNNING = (
    "containerd.service loaded active running containerd\n"
    "nvidia-device-plugin.service loaded active running plugin\n"
)


def test_failed_unit_with_a_similar_name_is_not_a_gpu_service(tmp_path: Path) -> None:
    units = ("kubelet.service.d", "kubelet.servic", "my-kubelet.service")
    rows = "".join(f"{unit} loaded failed failed K\n" for unit in units)
    folder = a_serving_node(tmp_path).command("failed-units", rows)

    expect.gpu_services_up(folder.command("units", RUNNING + rows).evidence)


def test_starting_or_masked_unit_does_not_count_as_failed(tmp_path: Path) -> None:
    folder = a_serving_node(tmp_path)
    for row in (
        "kubelet.service loaded activating start K\n",
        "kubelet.service masked inactive dead K\n",
        "kubelet.service not-found inactive dead K\n",
        "kubelet.service loaded active running auto-restart\n",
        "a.service loaded activating auto-restart A\n",
    ):
        assert expect.gpu_services_up(folder.command("units", RUNNING + row).evidence)


FAILED_KUBELET = {
    "failed-units": [
        "\N{BLACK CIRCLE} kubelet.service loaded failed failed\n",
        "* kubelet.service loaded failed failed\n",
        "a.service loaded failed failed A\nkubelet.service loaded failed failed\n",
    ],
    "units": [
        "kubelet.service loaded failed failed\n",
        "* kubelet.service loaded failed failed\n",
        "kubelet.service loaded activating auto-restart\n",
        # This state exists since systemd 254.
        "kubelet.service loaded activating auto-restart-queued K\n",
        "kubelet.service bad-setting inactive dead\n",
        # systemd can't read the unit's file.
        "* kubelet.service error inactive dead K\n",
    ],
}


def test_failed_gpu_service_is_found_in_each_listing_of_systemd_units(tmp_path: Path) -> None:
    folder = a_serving_node(tmp_path)
    for name, listings in FAILED_KUBELET.items():
        folder.command("failed-units", "")
        for listing in listings:
            folder.command(name, RUNNING + listing if name == "units" else listing)
            with pytest.raises(ExpectationError, match=r"but \['kubelet\.service'\] have"):
                pytest.fail(f"{listing}: {expect.gpu_services_up(folder.evidence)}")


def test_failure_of_any_unit_that_serves_gpus_is_refused(tmp_path: Path) -> None:
    folder = a_serving_node(tmp_path)
    for unit in (
        "containerd.service",
        "kubelet.service",
        "nvidia-cdi-refresh.path",
        "nvidia-cdi-refresh.service",
        "nvidia-dcgm.service",
        "nvidia-dcgm-exporter.service",
        "nvidia-device-plugin.service",
        "dra-driver-nvidia-gpu.service",
        "nvidia-fabricmanager.service",
        "nvidia-imex.service",
        "nvidia-modprobe.service",
        "nvidia-persistenced.service",
    ):
        folder.command("failed-units", f"{unit} loaded failed failed x\n")
        with pytest.raises(ExpectationError, match=rf"but \['{unit}'\] have"):
            expect.gpu_services_up(folder.evidence)


def test_error_shows_all_failed_units(tmp_path: Path) -> None:
    rows = "nvidia-dcgm.service loaded failed failed x\nkubelet.service loaded failed failed x\n"

    with pytest.raises(
        ExpectationError,
        match=r"\['kubelet\.service', 'nvidia-dcgm\.service'\] have\. Read `journalctl -b -u kubelet\.service`",
    ):
        expect.gpu_services_up(a_serving_node(tmp_path).command("failed-units", rows).evidence)


def test_device_plugin_or_dra_driver_must_be_active(tmp_path: Path) -> None:
    folder = a_serving_node(tmp_path)
    containerd = RUNNING.splitlines()[0]
    for owner in ("nvidia-device-plugin.service", "dra-driver-nvidia-gpu.service"):
        folder.command("units", f"{containerd}\n{owner} loaded active running x\n")
        assert owner in expect.gpu_services_up(folder.evidence)

    folder.command("units", f"{containerd}\n{owner} loaded activating running x\n")
    with pytest.raises(ExpectationError, match="no pod gets a GPU"):
        expect.gpu_services_up(folder.evidence)


def _spec_without_device_nodes(kind: str, *names: str) -> str:
    devices = [{"name": name, "containerEdits": {"env": ["A=1"]}} for name in names]
    return json.dumps({"cdiVersion": "0.5.0", "kind": kind, "devices": devices})


def test_cdi_spec_of_any_nvidia_kind_offers_gpus(tmp_path: Path) -> None:
    folder = a_serving_node(tmp_path)
    for kind in (
        "k8s.device-plugin.nvidia.com/gpu",
        "k8s.gpu.nvidia.com/device",
        "k8s.gpu.nvidia.com/claim",
    ):
        folder.file("/run/cdi/nvidia.yaml", _spec_without_device_nodes(kind, "x"))
        offer = expect.cdi_offers_gpus(folder.evidence)
        assert offer == f"'/run/cdi/nvidia.yaml' offers {kind}=x."


@pytest.mark.parametrize(
    "spec",
    [
        "cdiVersion: 0.5.0\nkind: vendor.example/nic\ndevices: [\n",
        '{\n  "kind": "vendor.example/nic",\n  "devices": []\n}\n',
        '{"devices": [], "kind": "vendor.example/nic"}',
    ],
)
def test_broken_cdi_spec_of_another_vendor_is_mentioned_but_does_not_fail_the_verdict(
    tmp_path: Path, spec: str
) -> None:
    folder = a_serving_node(tmp_path).file("/etc/cdi/nic.yaml", spec)

    assert "'/etc/cdi/nic.yaml', of another vendor" in expect.cdi_offers_gpus(folder.evidence)
    folder.file("/etc/cdi/nic.yaml", spec.replace("vendor.example/nic", "nvidia.com/gpu"))
    with pytest.raises(ExpectationError, match=r"expected in .*nic"):
        expect.cdi_offers_gpus(folder.evidence)


def test_many_broken_specs_are_judged_within_the_time_limit(tmp_path: Path) -> None:
    folder = a_serving_node(tmp_path)
    for number in range(150):
        folder.file(f"/etc/cdi/{number}.yaml", "kind: vendor.example/nic\ndevices: [\n")
    began = time.process_time()

    expect.cdi_offers_gpus(folder.evidence)

    assert time.process_time() - began < 1


def test_verdict_on_a_missing_nvidia_runtime_is_unknown_if_another_runtime_runs_the_pods(
    tmp_path: Path,
) -> None:
    dump = CONTAINERD_CONFIG.replace("nvidia-container-runtime", "runc")
    folder = a_serving_node(tmp_path).command("containerd-config", dump)
    folder.command("units", "k3s.service loaded activating start x\n")
    with pytest.raises(ExpectationError, match="is not the program"):
        expect.runtime_hands_out_gpus(folder.evidence)

    folder.command("units", f"{RUNNING}k3s.service loaded active running x\n")
    with pytest.raises(HarnessError, match=r"The unit 'k3s\.service' runs the node's pods"):
        expect.runtime_hands_out_gpus(folder.evidence)


def test_unit_with_a_similar_name_does_not_serve_gpus(tmp_path: Path) -> None:
    folder = a_serving_node(tmp_path)
    for old, new in (
        ("containerd.service", "containerd.service.d"),
        ("nvidia-device-plugin.service", "nvidia-device-plugin.service.d"),
        (
            "nvidia-device-plugin.service loaded active",
            "nvidia-device-plugin.service loaded inactive",
        ),
    ):
        folder.command("units", RUNNING.replace(old, new))
        with pytest.raises(ExpectationError, match="was expected to be"):
            expect.gpu_services_up(folder.evidence)


def test_containerd_and_docker_must_be_active_if_docker_runs_the_pods(tmp_path: Path) -> None:
    """`cri-docker` uses Docker, which starts its containers through containerd."""
    units = f"{RUNNING}docker.service loaded active running x\ncri-docker.service loaded active running x\n"
    folder = a_serving_node(tmp_path)
    for unit in ("containerd.service", "docker.service"):
        assert unit in expect.gpu_services_up(folder.command("units", units).evidence)
        starting = units.replace(f"{unit} loaded active", f"{unit} loaded activating", 1)
        with pytest.raises(
            ExpectationError, match=f"'{unit}' was expected to be 'active', but is 'activating'"
        ):
            expect.gpu_services_up(folder.command("units", starting).evidence)


def test_inactive_or_failed_containerd_is_accepted_if_another_runtime_runs(
    tmp_path: Path,
) -> None:
    folder = a_serving_node(tmp_path)
    runtimes = dict.fromkeys(OTHER_RUNTIMES, "failed")
    del runtimes["cri-docker.service"]
    for unit, active in (("k3s.service", "inactive"), *runtimes.items()):
        units = RUNNING.replace(
            "containerd.service loaded active", f"containerd.service loaded {active}"
        )
        folder.command("units", f"{units}{unit} loaded active running x\n")
        assert unit in expect.gpu_services_up(folder.evidence)

    folder.command("units", f"{RUNNING}crio.service loaded failed failed x\n")
    assert "containerd.service" in expect.gpu_services_up(folder.evidence)


def test_error_mentions_the_runtime_that_is_not_active(tmp_path: Path) -> None:
    folder = a_serving_node(tmp_path)
    containerd = RUNNING.replace(
        "containerd.service loaded active", "containerd.service loaded inactive"
    )
    for rows, words in (
        ("crio.service loaded failed failed x\n", r"but \['crio\.service'\] have"),
        (
            "crio.service loaded activating start x\n",
            "'crio.service' was expected to be 'active', but is 'activating'",
        ),
        (
            "crio.service loaded inactive dead x\n",
            "'containerd.service' was expected to be 'active', but is 'inactive'",
        ),
        (
            "k3s.service loaded failed failed x\ncri-docker.service loaded activating start x\n",
            "'cri-docker.service' was expected to be 'active'",
        ),
    ):
        folder.command("units", containerd + rows)
        with pytest.raises(ExpectationError, match=words):
            expect.gpu_services_up(folder.evidence)


def test_nvidia_runtime_is_found_in_format_4_of_containerds_configuration(tmp_path: Path) -> None:
    """Formats after 3 have the same tables as format 3."""
    cri = 'plugins."io.containerd.cri.v1.runtime".containerd.runtimes.nvidia'
    configuration = (
        f'version = 4\n[{cri}]\nruntime_type = "io.containerd.runc.v2"\n'
        f'[{cri}.options]\nBinaryName = "/usr/bin/nvidia-container-runtime"\n'
    )
    folder = a_serving_node(tmp_path).command("containerd-config", configuration)

    assert "nvidia-container-runtime" in expect.runtime_hands_out_gpus(folder.evidence)


def test_cdi_device_of_another_kind_is_not_a_gpu(tmp_path: Path) -> None:
    folder = a_serving_node(tmp_path)
    for kind in ("nvidia.com/gpu2", "xnvidia.com/gpu", "nvidia.com/mig", "nvidiaxcom/gpu"):
        folder.file("/run/cdi/nvidia.yaml", _spec_without_device_nodes(kind, "0"))
        with pytest.raises(ExpectationError, match="offer none"):
            expect.cdi_offers_gpus(folder.evidence)


def test_cdi_spec_without_the_last_gpu_is_refused(tmp_path: Path) -> None:
    folder = a_serving_node(tmp_path).file("/run/cdi/nvidia.yaml", json.dumps(a_cdi_spec(10)))
    folder.more_paths(*(f"c 666 0 1.0 /dev/nvidia{number}" for number in range(1, 10)))
    expect.cdi_offers_gpus(folder.evidence)
    folder.more_paths("c 666 0 1.0 /dev/nvidia10", "d 755 0 1.0 /dev/nvidia-caps")

    with pytest.raises(ExpectationError, match=r"but \['/dev/nvidia10'\] are in none of"):
        expect.cdi_offers_gpus(folder.evidence)


def test_gpus_may_be_offered_by_several_specs_or_without_device_nodes(tmp_path: Path) -> None:
    folder = with_gpus(a_serving_node(tmp_path), 2)
    second = {"name": "1", "containerEdits": {"deviceNodes": [{"path": "/dev/nvidia1"}]}}
    folder.file(
        "/etc/cdi/x.json",
        json.dumps({"cdiVersion": "0.5.0", "kind": "nvidia.com/gpu", "devices": [second]}),
    )
    assert expect.cdi_offers_gpus(folder.evidence) == (
        "'/etc/cdi/x.json' offers nvidia.com/gpu=1. "
        "'/run/cdi/nvidia.yaml' offers nvidia.com/gpu=0, nvidia.com/gpu=all."
    )
    folder.without("files/etc/cdi/x.json")
    spec = _spec_without_device_nodes("nvidia.com/gpu", "all", "0")

    expect.cdi_offers_gpus(folder.file("/run/cdi/nvidia.yaml", spec).evidence)


def test_exit_code_with_similar_digits_is_refused(tmp_path: Path) -> None:
    folder = EvidenceFolder(tmp_path)
    for seen in ("8", "840", "-84"):
        folder.outcome(exit_code=84).file(EXIT_CODE_PATH, f"{seen}\n")
        with pytest.raises(ExpectationError):
            expect.provisioned(folder.evidence, exit_code=84)
        folder.outcome(exit_code=int(seen)).file(EXIT_CODE_PATH, "84\n")
        with pytest.raises(ExpectationError):
            expect.provisioned(folder.evidence, exit_code=84)


def test_similar_prebake_line_is_refused(tmp_path: Path) -> None:
    lines = (
        "event=decision action=install reason=kernel2",
        "event=decision action=install xreason=kernel",
        "event=decision action=install-skip-build reason=kernel",
        "event=decisions action=install reason=kernel",
        "event=decision action=install",
    )
    log = "".join(f"AKS_GPU_PREBAKE {line}\n" for line in lines)
    evidence = EvidenceFolder(tmp_path).file(CLOUD_INIT_OUTPUT_PATH, log).evidence

    with pytest.raises(ExpectationError):
        expect.prebake_line(evidence, event="decision", action="install", reason="kernel")


def test_step_or_event_with_a_similar_name_is_not_accepted(tmp_path: Path) -> None:
    steps = [{"name": "install-driver-2", "status": "failed", "duration_s": 1, "detail": None}]
    evidence = a_serving_node(tmp_path).outcome(steps=steps).event("2", "AKS.CSE.xy").evidence

    for judge in (expect.step_of, expect.step_failed):
        with pytest.raises(ExpectationError):
            judge(evidence, "install-driver")
    with pytest.raises(ExpectationError, match=r"\['AKS\.CSE\.x'\] were expected"):
        expect.events_recorded(evidence, "AKS.CSE.xy", "AKS.CSE.x")


def test_run_ended_at_refuses_an_error_that_only_resembles_the_failed_step(
    tmp_path: Path,
) -> None:
    steps = [{"name": "install-driver", "status": "failed", "duration_s": 1, "detail": None}]
    for error in (
        "Step 'install-driver-2' failed.",
        "Step 'install-driver' failed",
        "Step 'reinstall' failed. Step 'install-driver' failed.",
        "The time budget of the node is used up.\nStep 'install-driver' failed.",
        "step 'install-driver' failed.",
        "",
    ):
        folder = EvidenceFolder(tmp_path).outcome(steps=steps, exit_code=84, error=error)
        with pytest.raises(ExpectationError, match="expected to end at the step 'install-driver'"):
            expect.run_ended_at(folder.evidence, "install-driver")


def test_last_of_eight_driver_artefacts_is_found(tmp_path: Path) -> None:
    kernels = [f"6.1.0-{number}" for number in range(1, 9)]
    folders = [f"d 755 1 1.0 /lib/modules/{kernel}" for kernel in kernels]
    left = f"/lib/modules/{kernels[-1]}/updates/dkms/nvidia.ko.zst"
    folder = a_stripped_node(tmp_path).paths(*folders)
    expect.no_driver_artefact(folder.evidence)

    with pytest.raises(ExpectationError, match=r"nvidia\.ko\.zst"):
        expect.no_driver_artefact(folder.more_paths(f"f 644 1 1.0 {left}").evidence)
