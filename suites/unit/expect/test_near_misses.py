"""Near misses: the last of several GPUs is wrong, or a name only begins as the expected one does."""

from __future__ import annotations

import json
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
COUNTS = (1, 12)


def a_function(number: int, device: str = "10de:2330", driver: str | None = "nvidia") -> str:
    in_use = "" if driver is None else f"\tKernel driver in use: {driver}\n"
    return f"{number + 1:02x}:00.0 3D controller [0302]: NVIDIA GPU [{device}]\n{in_use}"


def with_gpus(folder: EvidenceFolder, count: int, last: str | None = None) -> EvidenceFolder:
    """Give the node so many GPUs, of which the last function may read otherwise; '' is none."""
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
    """Return the expectations that refuse the node; another error than a refusal is none."""
    return {name for name, judge in judges.items() if _refuses(judge, folder.evidence)}


def _refuses(judge: Expectation, evidence: Evidence) -> bool:
    try:
        judge(evidence)
    except ExpectationError:
        return True
    return False


BINDING = {"gpu_bound", "gpus_driven", "every_gpu_driven"}
ON_BUS = {"gpus_on_bus", "gpu_bound", "gpus_driven"}


@pytest.mark.parametrize("count", COUNTS)
def test_expected_number_of_gpus_is_accepted(tmp_path: Path, count: int) -> None:
    assert refusing(with_gpus(a_serving_node(tmp_path), count), judge_gpus(count)) == set()


@pytest.mark.parametrize("count", COUNTS)
@pytest.mark.parametrize("other", [2, 12])
def test_more_or_fewer_gpus_than_expected_are_refused(
    tmp_path: Path, count: int, other: int
) -> None:
    """Expectations that check every present GPU accept any number of GPUs."""
    expected = set() if count == other else {"gpus_on_bus", "gpus_driven", "driver_names_gpus"}

    assert refusing(with_gpus(a_serving_node(tmp_path), count), judge_gpus(other)) == expected


@pytest.mark.parametrize("count", COUNTS)
@pytest.mark.parametrize("driver", [None, "vfio-pci", "nvidia_uvm"])
def test_last_gpu_without_the_driver_is_refused(
    tmp_path: Path, count: int, driver: str | None
) -> None:
    last = a_function(count - 1, driver=driver)

    folder = with_gpus(a_serving_node(tmp_path), count, last)

    assert refusing(folder, judge_gpus(count)) == BINDING


@pytest.mark.parametrize("count", COUNTS)
def test_last_gpu_of_another_model_is_refused(tmp_path: Path, count: int) -> None:
    last = a_function(count - 1, device="10de:2331")

    assert refusing(with_gpus(a_serving_node(tmp_path), count, last), judge_gpus(count)) == ON_BUS


@pytest.mark.parametrize("count", COUNTS)
def test_last_gpu_that_is_not_on_the_bus_is_refused(tmp_path: Path, count: int) -> None:
    refused = {"gpus_on_bus", "gpus_driven"} | (
        {"gpu_bound", "every_gpu_driven"} if count == 1 else set()
    )

    assert refusing(with_gpus(a_serving_node(tmp_path), count, ""), judge_gpus(count)) == refused


@pytest.mark.parametrize("count", COUNTS)
@pytest.mark.parametrize("instead", [[], ["c /dev/nvidia10"], ["f /dev/nvidia{last}"]])
def test_last_gpu_without_its_device_node_is_refused(
    tmp_path: Path, count: int, instead: list[str]
) -> None:
    nodes = [f"c /dev/nvidia{number}" for number in range(count - 1)]
    others = [node.format(last=count - 1) for node in instead]

    folder = with_nodes(with_gpus(a_serving_node(tmp_path), count), *nodes, *others)

    assert refusing(folder, judge_gpus(count)) == {"gpu_bound", "every_gpu_driven"}


@pytest.mark.parametrize("name", [f"{NAME}e", "", NAME.split(maxsplit=1)[0]])
@pytest.mark.parametrize("count", COUNTS)
def test_last_gpu_with_another_model_name_is_refused(
    tmp_path: Path, count: int, name: str
) -> None:
    folder = with_gpus(a_serving_node(tmp_path), count)
    last = f"/proc/driver/nvidia/gpus/0000:{count:02x}:00.0/information"

    folder.file(last, f"Model: {name}\n")

    assert refusing(folder, judge_gpus(count)) == {"driver_names_gpus"}


@pytest.mark.parametrize("count", COUNTS)
def test_single_gpu_among_nvlink_switches_is_found(tmp_path: Path, count: int) -> None:
    bridges = "".join(
        f"{number:02x}:00.0 Bridge [0680]: NVIDIA Corporation GH100 [10de:22a3]\n"
        for number in range(count)
    )
    folder = a_stripped_node(tmp_path).command("lspci", bridges)
    expect.no_gpu(folder.evidence)
    folder.command("lspci", bridges + a_function(count, driver=None))

    with pytest.raises(ExpectationError):
        expect.no_gpu(folder.evidence)


@pytest.mark.parametrize("count", COUNTS)
@pytest.mark.parametrize(
    "ones", ["(rev ff)", "(rev ff) (prog-if ff)\n\t!!! Unknown header type 7f"]
)
def test_last_gpu_whose_configuration_space_is_all_ones_is_refused(
    tmp_path: Path, count: int, ones: str
) -> None:
    """The kernel still shows the ids, the class and the driver that it read before."""
    last = a_function(count - 1).replace("]\n", f"] {ones}\n")
    folder = with_gpus(a_serving_node(tmp_path), count, last)
    judges = {**judge_gpus(count), "has_gpus": expect.has_gpus}

    assert refusing(folder, judges) == BINDING | ({"has_gpus"} if count == 1 else set())
    with pytest.raises(
        ExpectationError, match=rf"of 10de:2330 at {count:02x}:00\.0 reads all ones"
    ):
        expect.every_gpu_driven(folder.evidence)


def test_refusal_of_one_of_two_equal_gpus_is_not_a_refusal_of_the_second_gpu(
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


@pytest.mark.parametrize("bus", ["01", "08"])
def test_xid_of_any_gpu_is_reported(tmp_path: Path, bus: str) -> None:
    log = f"[    0.0] Linux\n[ 9.1] NVRM: Xid (PCI:0000:{bus}:00): 79, pid=1\n[ 9.2] eth0: up\n"
    evidence = a_serving_node(tmp_path).command("dmesg", log).evidence

    with pytest.raises(ExpectationError, match="the last is"):
        expect.no_gpu_error_logged(evidence)


@pytest.mark.parametrize(("gpu", "other"), [("gpu0", "gpu1"), ("gpu1", "gpu10")])
def test_expectations_read_only_the_trace_of_the_given_gpu(
    tmp_path: Path, gpu: str, other: str
) -> None:
    folder = (
        a_serving_node(tmp_path)
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
    """Return a node with this kernel and driver, and with a second kernel without a module."""
    other = LONG if kernel == SHORT else SHORT
    return (
        a_serving_node(folder)
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
        .more_paths(
            f"d 755 0 1.0 /lib/modules/{kernel}",
            f"d 755 0 1.0 /lib/modules/{other}",
            f"f 644 0 1.0 /lib/modules/{kernel}/updates/dkms/nvidia.ko",
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


def test_node_is_accepted_if_all_sources_agree_on_the_kernel_and_the_version(
    tmp_path: Path,
) -> None:
    assert refusing(a_node(tmp_path), judge_driver(SHORT, OLD)) == set()


@pytest.mark.parametrize(("kernel", "other"), [(SHORT, LONG), (LONG, SHORT)])
def test_kernel_with_a_similar_name_is_refused(tmp_path: Path, kernel: str, other: str) -> None:
    folder = a_node(tmp_path, kernel=other)

    expect.no_module_for(folder.evidence, kernel)
    # kmod 30, of a file that was removed after depmod.
    removed = "could not get modinfo from 'nvidia': No such file or directory"
    listed = f"filename: {OLD}\nmodinfo: ERROR: {removed}\n"
    expect.no_module_for(folder.command(f"modinfo-{kernel}", listed, 1).evidence, kernel)
    unreadable = removed.replace("No such file or directory", "Input/output error")
    damaged = folder.command(f"modinfo-{kernel}", f"modinfo: ERROR: {unreadable}\n", 1)
    with pytest.raises(HarnessError):
        expect.no_module_for(damaged.evidence, kernel)
    folder.command(f"modinfo-{kernel}", NOT_FOUND, 1)
    assert refusing(folder, judge_driver(kernel, OLD)) == {
        "kernel_running",
        "module_built_for",
        "module_built_before_boot",
        "record_names",
    }


@pytest.mark.parametrize(("version", "other"), [(OLD, NEW), (NEW, OLD)])
def test_driver_with_a_similar_version_is_refused(
    tmp_path: Path, version: str, other: str
) -> None:
    assert refusing(a_node(tmp_path, version=other), judge_driver(SHORT, version)) == {
        "module_built_for",
        "record_names",
    }


@pytest.mark.parametrize(("kernel", "other"), [(SHORT, LONG), (LONG, SHORT)])
@pytest.mark.parametrize(
    ("change", "refused"),
    [
        (
            lambda f, _kernel, other: f.command("uname-r", f"{other}\n").without(VERSION_FILE),
            {"kernel_running", "module_fits_kernel", "record_fits"},
        ),
        (
            lambda f, kernel, other: f.command(
                f"modinfo-{kernel}", f"version: {OLD}\nvermagic: {other} SMP\n"
            ),
            {"module_built_for", "module_fits_kernel"},
        ),
        (
            lambda f, _kernel, other: f.command(
                "dkms-status", f"nvidia/{OLD}, {other}, x86_64: installed\n"
            ),
            {"module_built_for"},
        ),
        (
            lambda f, kernel, _other: f.command(
                "dkms-status",
                f"nvidia/{OLD}, {kernel}, x86_64: built\n"
                f"nvidia/{OLD}, {kernel}, aarch64: installed\n",
            ),
            {"module_built_for"},
        ),
        (
            lambda f, _kernel, other: f.file(
                RECORD_PATH,
                f"kernel={other}\ndriver_version={OLD}\ndriver_kind=cuda\narch=x86_64\n",
            ),
            {"record_fits", "record_names"},
        ),
        (
            lambda f, kernel, _other: f.file(
                RECORD_PATH,
                f"old_kernel={kernel}\ndriver_version={OLD}\ndriver_kind=cuda\narch=x86_64\n",
            ),
            {"record_fits", "record_names"},
        ),
        (
            lambda f, _kernel, other: f.paths(
                f"d 755 0 1.0 /lib/modules/{other}",
                f"f 644 0 1.0 /lib/modules/{other}/updates/dkms/nvidia.ko",
            ).without(VERSION_FILE),
            {"module_built_before_boot", "module_fits_kernel"},
        ),
    ],
    ids=["runs", "vermagic", "dkms", "dkms-arch", "record", "record-key", "files"],
)
def test_another_kernel_in_one_source_of_evidence_is_refused(
    tmp_path: Path,
    kernel: str,
    other: str,
    change: Callable[[EvidenceFolder, str, str], EvidenceFolder],
    refused: set[str],
) -> None:
    folder = change(a_node(tmp_path, kernel=kernel), kernel, other)

    assert refusing(folder, judge_driver(kernel, OLD)) == refused


@pytest.mark.parametrize(("version", "other"), [(OLD, NEW), (NEW, OLD)])
@pytest.mark.parametrize(
    ("change", "refused"),
    [
        (
            lambda f, other: f.command(
                "dkms-status", f"nvidia/{other}, {SHORT}, x86_64: installed\n"
            ),
            {"module_built_for"},
        ),
        (
            lambda f, other: f.command(
                f"modinfo-{SHORT}", f"version: {other}\nvermagic: {SHORT} SMP\n"
            ),
            {"module_built_for", "module_fits_kernel"},
        ),
        (
            lambda f, other: f.file(
                "/proc/driver/nvidia/version",
                f"NVRM version: NVIDIA UNIX x86_64 Kernel Module  {other}  Mon Aug\n",
            ),
            {"module_fits_kernel", "record_fits"},
        ),
        (
            lambda f, other: f.file(
                RECORD_PATH,
                f"kernel={SHORT}\ndriver_version={other}\ndriver_kind=cuda\narch=x86_64\n",
            ),
            {"record_fits", "record_names"},
        ),
    ],
    ids=["dkms", "module", "loaded", "record"],
)
def test_another_driver_version_in_one_source_of_evidence_is_refused(
    tmp_path: Path,
    version: str,
    other: str,
    change: Callable[[EvidenceFolder, str], EvidenceFolder],
    refused: set[str],
) -> None:
    folder = change(a_node(tmp_path, version=version), other)

    assert refusing(folder, judge_driver(SHORT, version)) == refused


@pytest.mark.parametrize("name", ["nvidia-fs", "nvidi"])
def test_other_dkms_package_of_the_same_version_is_not_the_driver(
    tmp_path: Path, name: str
) -> None:
    status = f"{name}/{OLD}, {SHORT}, x86_64: installed\n"

    assert refusing(a_node(tmp_path).command("dkms-status", status), judge_driver(SHORT, OLD)) == {
        "module_built_for"
    }
    expect.no_driver_artefact(
        a_stripped_node(tmp_path / "stripped").command("dkms-status", status).evidence
    )


FOLDER = f"/lib/modules/{SHORT}/updates/dkms"


@pytest.mark.parametrize("name", ["nvidia-drm.ko.xz", "nvidia.kobj", "nvidia.o", "xnvidia.ko"])
def test_file_with_a_similar_name_is_not_the_module(tmp_path: Path, name: str) -> None:
    folder = a_node(tmp_path)
    folder.paths(f"f 644 1 1.0 {FOLDER}/{name}")
    with pytest.raises(ExpectationError, match=r"'nvidia\.ko' .* was expected"):
        expect.module_built_before_boot(folder.evidence, SHORT)
    folder.paths(f"f 644 1 {BOOTED_AT_S + 9}.0 {FOLDER}/{name}")
    with pytest.raises(ExpectationError, match=r"'nvidia\.ko' .* was expected"):
        expect.module_built_since_boot(folder.evidence, SHORT)


def test_module_of_another_package_may_be_of_any_age(tmp_path: Path) -> None:
    folder = a_node(tmp_path)
    others = (f"{FOLDER}/nvidia-fs.ko", f"{FOLDER}/nvidia-current.ko.xz")
    for judge, driver, other in (
        (expect.module_built_before_boot, -9, 9),
        (expect.module_built_since_boot, 9, -9),
    ):
        times = {f"{FOLDER}/nvidia.ko": driver, **dict.fromkeys(others, other)}
        folder.paths(*(f"f 644 1 {BOOTED_AT_S + after}.0 {path}" for path, after in times.items()))
        judge(folder.evidence, SHORT)


@pytest.mark.parametrize("suffix", ["", ".zst"])
@pytest.mark.parametrize("late", ["nvidia.ko", "nvidia-uvm.ko"])
def test_modules_that_were_built_partly_before_and_partly_since_the_boot_are_refused(
    tmp_path: Path, late: str, suffix: str
) -> None:
    times = {"nvidia.ko": BOOTED_AT_S - 1, "nvidia-uvm.ko": BOOTED_AT_S - 1, late: BOOTED_AT_S}
    folder = a_node(tmp_path)
    folder.paths(*(f"f 644 1 {time}.0 {FOLDER}/{name}{suffix}" for name, time in times.items()))

    with pytest.raises(
        ExpectationError, match=f"'{FOLDER}/{late}{suffix}' .* older than the boot"
    ):
        expect.module_built_before_boot(folder.evidence, SHORT)
    with pytest.raises(ExpectationError, match="newer than the boot, but was modified 1 s before"):
        expect.module_built_since_boot(folder.evidence, SHORT)


@pytest.mark.parametrize("name", DRIVER_MODULES)
def test_each_loaded_module_of_the_driver_is_an_artefact(tmp_path: Path, name: str) -> None:
    evidence = a_stripped_node(tmp_path).modules("ext4", name).evidence

    for judge in (expect.no_module_loaded, expect.no_driver_artefact):
        with pytest.raises(ExpectationError, match=name):
            judge(evidence)


@pytest.mark.parametrize("name", ["nvidia_wmi_ec_backlight", "nvidiafb", "i2c_nvidia_gpu"])
def test_kernels_own_module_with_a_similar_name_is_not_the_driver(
    tmp_path: Path, name: str
) -> None:
    evidence = a_stripped_node(tmp_path).modules(name).evidence

    expect.no_module_loaded(evidence)
    expect.no_driver_artefact(evidence)


@pytest.mark.parametrize("path", ["/usr/bin/nvidia-smi.old", "/usr/bin/nvidia-container-runtime"])
def test_program_with_a_similar_name_is_not_taken_for_the_drivers_program(
    tmp_path: Path, path: str
) -> None:
    line = f"f 4755 1 1.0 {path}"

    expect.no_driver_artefact(a_stripped_node(tmp_path / "a").paths(line).evidence)
    evidence = a_serving_node(tmp_path / "b").paths(line).without(VERSION_FILE).evidence
    for judge in (expect.driver_installed, expect.driver_tools_installed):
        with pytest.raises(ExpectationError, match="/usr/bin/nvidia-smi'"):
            judge(evidence)


NEAR_IMAGES = (
    IMAGE.replace(".microsoft.", "xmicrosoft."),
    IMAGE.replace("580.126", "580x126"),
    f"{IMAGE}0",
    f"x{IMAGE}",
    IMAGE.rpartition(":")[0],
    IMAGE.upper(),
)


@pytest.mark.parametrize("image", NEAR_IMAGES)
def test_image_with_a_similar_name_is_not_taken_for_the_expected_image(
    tmp_path: Path, image: str
) -> None:
    listed = f"mcr.example/first:1\n{image}\n"
    evidence = a_serving_node(tmp_path).command("container-images", listed).evidence

    expect.image_present(evidence, image)
    expect.image_absent(evidence, IMAGE)
    with pytest.raises(ExpectationError):
        expect.image_present(evidence, IMAGE)
    with pytest.raises(ExpectationError):
        expect.image_absent(evidence, image)


NEAR_UNITS = ("a.service.d.mount", "xa.service", "a.serv.service", "a@1.service", "a.socket")


@pytest.mark.parametrize("unit", NEAR_UNITS)
def test_unit_with_a_similar_name_is_not_taken_for_the_expected_unit(
    tmp_path: Path, unit: str
) -> None:
    listing = f"{unit} loaded active running A\n"
    evidence = a_serving_node(tmp_path).command("units", listing).evidence

    expect.unit_state(evidence, unit, active="active")
    with pytest.raises(ExpectationError, match=r"'a\.service' .* has not loaded it"):
        expect.unit_state(evidence, "a.service", active="active")


@pytest.mark.parametrize("seen", ["inactive", "activating", "active-ish"])
def test_unit_state_that_contains_the_expected_state_is_refused(tmp_path: Path, seen: str) -> None:
    listing = f"a.service loaded {seen} active A\n"

    with pytest.raises(ExpectationError, match=f"but is '{seen}'"):
        expect.unit_state(
            a_serving_node(tmp_path).command("units", listing).evidence,
            "a.service",
            active="active",
        )


RUNNING = (
    "containerd.service loaded active running containerd\n"
    "nvidia-device-plugin.service loaded active running plugin\n"
)


@pytest.mark.parametrize("unit", ["kubelet.service.d", "kubelet.servic", "my-kubelet.service"])
def test_failed_unit_with_a_similar_name_is_not_a_gpu_service(tmp_path: Path, unit: str) -> None:
    row = f"{unit} loaded failed failed K\n"
    folder = a_serving_node(tmp_path).command("failed-units", row)

    expect.gpu_services_up(folder.command("units", RUNNING + row).evidence)


@pytest.mark.parametrize(
    "row",
    [
        "kubelet.service loaded activating start K\n",
        "kubelet.service masked inactive dead K\n",
        "kubelet.service not-found inactive dead K\n",
        "kubelet.service loaded active running auto-restart\n",
        "a.service loaded activating auto-restart A\n",
    ],
)
def test_unit_that_starts_or_is_masked_has_not_failed(tmp_path: Path, row: str) -> None:
    folder = a_serving_node(tmp_path).command("units", RUNNING + row)

    assert expect.gpu_services_up(folder.evidence)


@pytest.mark.parametrize(
    "change",
    [
        lambda f: f.command(
            "failed-units", "\N{BLACK CIRCLE} kubelet.service loaded failed failed\n"
        ),
        lambda f: f.command("failed-units", "* kubelet.service loaded failed failed\n"),
        lambda f: f.command("units", f"{RUNNING}kubelet.service loaded failed failed\n"),
        lambda f: f.command("units", f"{RUNNING}* kubelet.service loaded failed failed\n"),
        lambda f: f.command(
            "failed-units",
            "a.service loaded failed failed A\nkubelet.service loaded failed failed\n",
        ),
        lambda f: f.command("units", f"{RUNNING}kubelet.service loaded activating auto-restart\n"),
        lambda f: f.command(
            "units", f"{RUNNING}kubelet.service loaded activating auto-restart-queued K\n"
        ),
        lambda f: f.command("units", f"{RUNNING}kubelet.service bad-setting inactive dead\n"),
        lambda f: f.command("units", f"{RUNNING}* kubelet.service error inactive dead K\n"),
    ],
    ids=[
        *("circle", "star", "only in the list of all", "starred in the list of all", "second"),
        *("restarting", "restarting since 254", "bad setting", "file that can't be read"),
    ],
)
def test_failed_gpu_service_is_found_in_each_form_of_its_listing(
    tmp_path: Path, change: Change
) -> None:
    with pytest.raises(ExpectationError, match=r"but \['kubelet\.service'\] have"):
        expect.gpu_services_up(change(a_serving_node(tmp_path)).evidence)


@pytest.mark.parametrize(
    "unit",
    [
        "containerd.service",
        "kubelet.service",
        "nvidia-cdi-refresh.path",
        "nvidia-cdi-refresh.service",
        "nvidia-dcgm.service",
        "nvidia-dcgm-exporter.service",
        "nvidia-device-plugin.service",
        "dra-driver-nvidia-gpu.service",
        "nvidia-fabricmanager.service",
        "nvidia-modprobe.service",
        "nvidia-persistenced.service",
    ],
)
def test_failure_of_any_unit_that_serves_gpus_is_refused(tmp_path: Path, unit: str) -> None:
    folder = a_serving_node(tmp_path).command("failed-units", f"{unit} loaded failed failed x\n")

    with pytest.raises(ExpectationError, match=rf"but \['{unit}'\] have"):
        expect.gpu_services_up(folder.evidence)


def test_error_shows_all_failed_units(tmp_path: Path) -> None:
    rows = "nvidia-dcgm.service loaded failed failed x\nkubelet.service loaded failed failed x\n"

    with pytest.raises(
        ExpectationError,
        match=r"\['kubelet\.service', 'nvidia-dcgm\.service'\] have\. Read `journalctl -b -u kubelet\.service`",
    ):
        expect.gpu_services_up(a_serving_node(tmp_path).command("failed-units", rows).evidence)


@pytest.mark.parametrize(
    ("owner", "active"),
    [
        ("nvidia-device-plugin.service", "active"),
        ("dra-driver-nvidia-gpu.service", "active"),
        ("dra-driver-nvidia-gpu.service", "activating"),
    ],
)
def test_device_plugin_or_dra_driver_must_be_active(
    tmp_path: Path, owner: str, active: str
) -> None:
    units = f"{RUNNING.splitlines()[0]}\n{owner} loaded {active} running x\n"
    folder = a_serving_node(tmp_path).command("units", units)

    if active == "active":
        assert owner in expect.gpu_services_up(folder.evidence)
        return
    with pytest.raises(ExpectationError, match="no pod gets a GPU"):
        expect.gpu_services_up(folder.evidence)


@pytest.mark.parametrize(
    "kind",
    [
        "k8s.device-plugin.nvidia.com/gpu",
        "k8s.gpu.nvidia.com/device",
        "k8s.gpu.nvidia.com/claim",
    ],
)
def test_cdi_spec_of_each_nvidia_kind_offers_gpus(tmp_path: Path, kind: str) -> None:
    spec = json.dumps({"cdiVersion": "0.5.0", "kind": kind, "devices": [{"name": "x"}]})
    folder = a_serving_node(tmp_path).file("/run/cdi/nvidia.yaml", spec)

    assert expect.cdi_offers_gpus(folder.evidence) == f"'/run/cdi/nvidia.yaml' offers {kind}=x."


def test_error_shows_a_broken_spec_beside_a_valid_spec(tmp_path: Path) -> None:
    folder = a_serving_node(tmp_path).file("/etc/cdi/broken.yaml", "kind: [")

    with pytest.raises(ExpectationError, match=r"expected in \['/etc/cdi/broken\.yaml'\], but"):
        expect.cdi_offers_gpus(folder.evidence)


def test_cdi_spec_that_is_not_for_gpus_is_not_listed(tmp_path: Path) -> None:
    other = json.dumps(
        {"cdiVersion": "0.5.0", "kind": "vendor.example/nic", "devices": [{"name": "0"}]}
    )
    folder = a_serving_node(tmp_path).file("/etc/cdi/a.json", other)

    assert "vendor.example" not in expect.cdi_offers_gpus(folder.evidence)


def test_verdict_on_a_missing_nvidia_runtime_is_unknown_if_another_runtime_runs_the_pods(
    tmp_path: Path,
) -> None:
    dump = CONTAINERD_CONFIG.replace("nvidia-container-runtime", "runc")
    folder = a_serving_node(tmp_path).command("containerd-config", dump)
    folder.command("units", "k3s.service loaded activating start x\n")
    with pytest.raises(ExpectationError, match="is not there"):
        expect.runtime_hands_out_gpus(folder.evidence)

    folder.command("units", f"{RUNNING}k3s.service loaded active running x\n")
    with pytest.raises(HarnessError, match=r"The unit 'k3s\.service' runs the node's pods"):
        expect.runtime_hands_out_gpus(folder.evidence)


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("containerd.service", "containerd.service.d"),
        ("nvidia-device-plugin.service", "nvidia-device-plugin.service.d"),
        (
            "nvidia-device-plugin.service loaded active",
            "nvidia-device-plugin.service loaded inactive",
        ),
    ],
)
def test_unit_with_a_similar_name_does_not_serve_gpus(tmp_path: Path, old: str, new: str) -> None:
    with pytest.raises(ExpectationError, match="was expected to be"):
        expect.gpu_services_up(
            a_serving_node(tmp_path).command("units", RUNNING.replace(old, new)).evidence
        )


@pytest.mark.parametrize("unit", ["containerd.service", "docker.service"])
def test_containerd_and_docker_must_be_active_if_docker_runs_the_pods(
    tmp_path: Path, unit: str
) -> None:
    """`cri-docker` uses Docker, which starts its containers through containerd."""
    units = f"{RUNNING}docker.service loaded active running x\ncri-docker.service loaded active running x\n"
    folder = a_serving_node(tmp_path).command("units", units)
    assert unit in expect.gpu_services_up(folder.evidence)
    folder.command("units", units.replace(f"{unit} loaded active", f"{unit} loaded activating", 1))

    with pytest.raises(
        ExpectationError, match=f"'{unit}' was expected to be 'active', but is 'activating'"
    ):
        expect.gpu_services_up(folder.evidence)


@pytest.mark.parametrize(
    ("unit", "active"),
    [
        ("k3s.service", "inactive"),
        *((each, "failed") for each in OTHER_RUNTIMES if each != "cri-docker.service"),
    ],
)
def test_inactive_or_failed_containerd_is_accepted_if_another_runtime_runs(
    tmp_path: Path, unit: str, active: str
) -> None:
    units = RUNNING.replace(
        "containerd.service loaded active", f"containerd.service loaded {active}"
    )
    folder = a_serving_node(tmp_path)
    folder.command("units", f"{units}{unit} loaded active running x\n")

    assert unit in expect.gpu_services_up(folder.evidence)


@pytest.mark.parametrize(
    ("rows", "words"),
    [
        ("crio.service loaded failed failed x\n", r"but \['crio\.service'\] have"),
        ("crio.service loaded activating start x\n", "'crio.service' was expected to be 'active', but is 'activating'"),
        ("", "'containerd.service' was expected to be 'active', but is 'inactive'"),
        ("crio.service loaded inactive dead x\n", "'containerd.service' was expected to be 'active'"),
        (
            "k3s.service loaded failed failed x\ncri-docker.service loaded activating start x\n",
            "'cri-docker.service' was expected to be 'active'",
        ),
    ],
)  # fmt: skip
def test_error_mentions_the_runtime_that_is_not_active(
    tmp_path: Path, rows: str, words: str
) -> None:
    units = RUNNING.replace(
        "containerd.service loaded active", "containerd.service loaded inactive"
    )
    folder = a_serving_node(tmp_path).command("units", units + rows)

    with pytest.raises(ExpectationError, match=words):
        expect.gpu_services_up(folder.evidence)


def test_failed_cri_o_is_not_a_fault_while_containerd_runs(tmp_path: Path) -> None:
    folder = a_serving_node(tmp_path).command(
        "units", f"{RUNNING}crio.service loaded failed failed x\n"
    )

    assert "containerd.service" in expect.gpu_services_up(folder.evidence)


def test_nvidia_runtime_is_found_in_format_4_of_containerds_configuration(tmp_path: Path) -> None:
    """Formats after 3 have the same tables as format 3."""
    cri = 'plugins."io.containerd.cri.v1.runtime".containerd.runtimes.nvidia'
    configuration = (
        f'version = 4\n[{cri}]\nruntime_type = "io.containerd.runc.v2"\n'
        f'[{cri}.options]\nBinaryName = "/usr/bin/nvidia-container-runtime"\n'
    )
    folder = a_serving_node(tmp_path).command("containerd-config", configuration)

    assert "nvidia-container-runtime" in expect.runtime_hands_out_gpus(folder.evidence)


@pytest.mark.parametrize(
    "kind", ["nvidia.com/gpu2", "xnvidia.com/gpu", "nvidia.com/mig", "nvidiaxcom/gpu"]
)
def test_cdi_device_of_another_kind_is_not_a_gpu(tmp_path: Path, kind: str) -> None:
    spec = json.dumps({"cdiVersion": "0.5.0", "kind": kind, "devices": [{"name": "0"}]})

    with pytest.raises(ExpectationError, match="offer none"):
        expect.cdi_offers_gpus(
            a_serving_node(tmp_path).file("/run/cdi/nvidia.yaml", spec).evidence
        )


@pytest.mark.parametrize("count", COUNTS)
def test_cdi_spec_without_the_last_gpu_is_refused(tmp_path: Path, count: int) -> None:
    folder = with_gpus(a_serving_node(tmp_path), count)
    expect.cdi_offers_gpus(
        folder.file("/run/cdi/nvidia.yaml", json.dumps(a_cdi_spec(count))).evidence
    )
    folder.more_paths(f"c 666 0 1.0 /dev/nvidia{count}", "d 755 0 1.0 /dev/nvidia-caps")

    with pytest.raises(ExpectationError, match=rf"but \['/dev/nvidia{count}'\] are in none of"):
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
    spec = {
        "cdiVersion": "0.5.0",
        "kind": "nvidia.com/gpu",
        "devices": [{"name": "all"}, {"name": "0"}],
    }

    expect.cdi_offers_gpus(folder.file("/run/cdi/nvidia.yaml", json.dumps(spec)).evidence)


@pytest.mark.parametrize("seen", ["8", "840", "-84", "0"])
def test_exit_code_with_similar_digits_is_refused(tmp_path: Path, seen: str) -> None:
    folder = a_serving_node(tmp_path).outcome(exit_code=84).file(EXIT_CODE_PATH, f"{seen}\n")
    with pytest.raises(ExpectationError):
        expect.provisioned(folder.evidence, exit_code=84)
    folder.outcome(exit_code=int(seen)).file(EXIT_CODE_PATH, "84\n")
    with pytest.raises(ExpectationError):
        expect.provisioned(folder.evidence, exit_code=84)


@pytest.mark.parametrize(
    "line",
    [
        "event=decision action=install reason=kernel2",
        "event=decision action=install xreason=kernel",
        "event=decision action=install-skip-build reason=kernel",
        "event=decisions action=install reason=kernel",
        "event=decision action=install",
    ],
)
def test_similar_prebake_line_is_refused(tmp_path: Path, line: str) -> None:
    evidence = a_serving_node(tmp_path).file(CLOUD_INIT_OUTPUT_PATH, f"AKS_GPU_PREBAKE {line}\n")
    wanted = {"event": "decision", "action": "install", "reason": "kernel"}

    with pytest.raises(ExpectationError):
        expect.prebake_line(evidence.evidence, **wanted)


def test_step_and_event_with_a_similar_name_are_refused(tmp_path: Path) -> None:
    steps = [{"name": "install-driver-2", "status": "failed", "duration_s": 1, "detail": None}]
    evidence = a_serving_node(tmp_path).outcome(steps=steps).event("2", "AKS.CSE.xy").evidence

    for judge in (expect.step_of, expect.step_failed):
        with pytest.raises(ExpectationError):
            judge(evidence, "install-driver")
    with pytest.raises(ExpectationError, match=r"\['AKS\.CSE\.x'\] were expected"):
        expect.events_recorded(evidence, "AKS.CSE.xy", "AKS.CSE.x")


@pytest.mark.parametrize(
    "error",
    [
        "Step 'install-driver-2' failed.",
        "Step 'install-driver' failed",
        "Step 'reinstall' failed. Step 'install-driver' failed.",
        "The time budget of the node is used up.\nStep 'install-driver' failed.",
        "step 'install-driver' failed.",
        "",
    ],
)
def test_run_that_ended_with_a_merely_similar_error_does_not_meet_the_expectation(
    tmp_path: Path, error: str
) -> None:
    steps = [{"name": "install-driver", "status": "failed", "duration_s": 1, "detail": None}]
    evidence = a_serving_node(tmp_path).outcome(steps=steps, exit_code=84, error=error).evidence

    with pytest.raises(ExpectationError, match="expected to end at the step 'install-driver'"):
        expect.run_ended_at(evidence, "install-driver")


def test_last_of_eight_driver_artefacts_is_found(tmp_path: Path) -> None:
    kernels = [f"6.1.0-{number}" for number in range(1, 9)]
    folders = [f"d 755 1 1.0 /lib/modules/{kernel}" for kernel in kernels]
    left = f"/lib/modules/{kernels[-1]}/updates/dkms/nvidia.ko.zst"
    folder = a_stripped_node(tmp_path).paths(*folders)
    expect.no_driver_artefact(folder.evidence)

    with pytest.raises(ExpectationError, match=r"nvidia\.ko\.zst"):
        expect.no_driver_artefact(folder.more_paths(f"f 644 1 1.0 {left}").evidence)
