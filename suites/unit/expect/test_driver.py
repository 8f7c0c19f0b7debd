"""Expectations on the driver: files in other folders, and files of other packages."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from harness import expect
from harness.errors import ExpectationError, HarnessError
from harness.evidence import OTHER_PROGRAM_FOLDERS, RECORD_PATH
from suites.unit.evidence.folders import (
    BOOTED_AT_S,
    KERNEL,
    MODULE,
    OTHER_KERNEL,
    VERSION,
    EvidenceFolder,
    a_serving_node,
    a_stripped_node,
)

if TYPE_CHECKING:
    from pathlib import Path

VERSION_FILE = "files/proc/driver/nvidia/version"
CONTAINER = "f 755 0 1.0 /run/nvidia/driver/usr/bin/nvidia-smi"
OTHER_MODULE = f"version: 535.1.1\nvermagic: {KERNEL} SMP\n"


def test_module_of_another_version_beside_a_driver_container_makes_the_verdict_unknown(
    tmp_path: Path,
) -> None:
    folder = a_serving_node(tmp_path).more_paths(CONTAINER)

    assert "is loaded" in expect.module_fits_kernel(folder.evidence)
    folder.command(f"modinfo-{KERNEL}", OTHER_MODULE)
    with pytest.raises(HarnessError, match="has the files of a driver container"):
        expect.module_fits_kernel(folder.evidence)


def test_driver_container_does_not_change_the_module_verdict_if_no_driver_is_loaded(
    tmp_path: Path,
) -> None:
    folder = a_serving_node(tmp_path).without(VERSION_FILE).more_paths(CONTAINER)
    folder.command(f"modinfo-{KERNEL}", OTHER_MODULE)

    assert "535.1.1 is for the running kernel" in expect.module_fits_kernel(folder.evidence)


def test_folder_without_programs_is_not_a_driver_container(tmp_path: Path) -> None:
    paths = (
        "/run/nvidia/driver",
        "/run/nvidia/driver/usr/bin",
        "/run/nvidia/driver/usr/sbin/x",
        "/run/nvidia/driver-2/usr/bin/nvidia-smi",
        "/usr/local/nvidia/bin/nvidia-smi",
    )
    folder = a_serving_node(tmp_path).more_paths(*(f"d 755 0 1.0 {path}" for path in paths))
    folder.command(f"modinfo-{KERNEL}", OTHER_MODULE)

    with pytest.raises(ExpectationError, match=rf"but {VERSION} is loaded and 535\.1\.1 is on"):
        expect.module_fits_kernel(folder.evidence)


def test_wrong_kernel_of_a_module_is_reported_before_its_wrong_version(tmp_path: Path) -> None:
    folder = a_serving_node(tmp_path).more_paths(CONTAINER)
    folder.command(f"modinfo-{KERNEL}", f"version: 535.1.1\nvermagic: {KERNEL}-rt SMP\n")

    with pytest.raises(ExpectationError, match=rf"was built for '{KERNEL}-rt SMP'"):
        expect.module_fits_kernel(folder.evidence)


def with_programs(folder: EvidenceFolder, *paths: str) -> EvidenceFolder:
    lines = (folder.root / "stat.txt").read_text().splitlines()
    kept = (line for line in lines if "bin/nvidia-" not in line)
    return folder.paths(*kept, *(f"f 755 0 1.0 {path}" for path in paths))


def test_both_driver_programs_in_another_known_folder_are_accepted_if_a_driver_is_loaded(
    tmp_path: Path,
) -> None:
    folder = a_serving_node(tmp_path)
    for place in OTHER_PROGRAM_FOLDERS:
        both = (f"{place}/nvidia-smi", f"{place}/nvidia-modprobe")
        found = expect.driver_tools_installed(with_programs(folder, *both).evidence)
        assert found.endswith(f" in '{place}'.")

        for one in both:
            with pytest.raises(HarnessError, match="must be somewhere"):
                expect.driver_tools_installed(with_programs(folder, one).evidence)

    folder.without(VERSION_FILE)
    for place in OTHER_PROGRAM_FOLDERS:
        both = (f"{place}/nvidia-smi", f"{place}/nvidia-modprobe")
        with pytest.raises(ExpectationError, match=r"'/usr/bin/nvidia-modprobe'\] do not exist"):
            expect.driver_tools_installed(with_programs(folder, *both).evidence)


def test_driver_programs_in_two_different_folders_are_not_accepted(tmp_path: Path) -> None:
    paths = [
        f"{place}/{name}"
        for place, name in zip(
            OTHER_PROGRAM_FOLDERS, ("nvidia-smi", "nvidia-modprobe"), strict=False
        )
    ]

    with pytest.raises(HarnessError, match="must be somewhere"):
        expect.driver_tools_installed(with_programs(a_serving_node(tmp_path), *paths).evidence)


def test_error_shows_only_the_missing_programs(tmp_path: Path) -> None:
    folder = a_serving_node(tmp_path).without(VERSION_FILE)
    for left, missing in (("smi", "modprobe"), ("modprobe", "smi")):
        with_programs(folder, f"/usr/bin/nvidia-{left}")

        with pytest.raises(ExpectationError, match=rf"\['/usr/bin/nvidia-{missing}'\] do not"):
            expect.driver_tools_installed(folder.evidence)


FIELDS = {"kernel": KERNEL, "driver_version": VERSION, "driver_kind": "cuda", "arch": "x86_64"}


def with_record(folder: EvidenceFolder, **fields: str) -> EvidenceFolder:
    return folder.file(RECORD_PATH, "".join(f"{key}={value}\n" for key, value in fields.items()))


def test_prebake_record_without_a_value_for_each_key_is_refused(tmp_path: Path) -> None:
    loaded = a_serving_node(tmp_path / "loaded")
    not_loaded = a_serving_node(tmp_path / "not loaded").without(VERSION_FILE)
    for folder in (loaded, not_loaded):
        expect.record_fits(with_record(folder, **FIELDS, more="x y").evidence)
        for key, right in FIELDS.items():
            rest = {name: value for name, value in FIELDS.items() if name != key}
            expect.record_fits(with_record(folder, **{f"\ufeff{key}": right}, **rest).evidence)

            bad = ("", f"{right} x", *(f"{right}{end}" for end in ("\r", "\f", "\0", "\x85")))
            for fields in (rest, *({**rest, key: value} for value in bad)):
                with_record(folder, **fields)
                with pytest.raises(ExpectationError, match="have a value without spaces for each"):
                    expect.record_fits(folder.evidence)


def test_dkms_builds_under_other_nvidia_package_names_are_accepted(tmp_path: Path) -> None:
    folder = a_serving_node(tmp_path)
    for name in ("nvidia-current", "nvidia-current-open", "nvidia-srv", "nvidia-open"):
        folder.command("dkms-status", f"{name}/{VERSION}, {KERNEL}, x86_64: installed\n")

        expect.module_built_for(folder.evidence, KERNEL, version=VERSION)


def test_record_of_another_kernel_is_refused_if_no_driver_is_loaded(tmp_path: Path) -> None:
    folder = a_serving_node(tmp_path).without(VERSION_FILE)

    with pytest.raises(ExpectationError, match=r"was expected to have \{'kernel': "):
        expect.record_fits(with_record(folder, **{**FIELDS, "kernel": f"{KERNEL}2"}).evidence)


#: A copy of the product's table; a row that is missing there makes a test fail.
ARTEFACTS = (
    "/var/lib/dkms/nvidia",
    "/usr/src/nvidia-1",
    "/usr/src/nvidia-580.126.09",
    "/lib/modules/6.1/updates/dkms/nvidia.ko",
    "/lib/modules/6.1/updates/dkms/nvidia-peermem.ko.zst",
    "/usr/bin/lib64",
    "/etc/ld.so.conf.d/nvidia.conf",
    *(
        f"/usr/bin/nvidia-{name}"
        for name in (
            *("smi", "debugdump", "persistenced", "cuda-mps-control", "cuda-mps-server", "modprobe"),
            *("bug-report.sh", "powerd", "ngx-updater", "sleep.sh"),
        )
    ),
)  # fmt: skip


def test_error_lists_every_driver_artefact_on_the_node(tmp_path: Path) -> None:
    folder = a_stripped_node(tmp_path).paths(*(f"f 644 1 1.0 {path}" for path in ARTEFACTS))

    with pytest.raises(ExpectationError, match="these were left: ") as refused:
        expect.no_driver_artefact(folder.evidence)

    missed = [path for path in ARTEFACTS if f"'{path}'" not in str(refused.value)]
    assert missed == []


def test_file_of_another_package_is_not_an_artefact(tmp_path: Path) -> None:
    others = (
        "/usr/src/nvidia-fs-2.1",
        "/usr/src/nvidia",
        "/var/lib/dkms/nvidia-fs",
        "/lib/modules/6.1/kernel/drivers/nvidia.ko",
        "/lib/modules/6.1/updates/dkms/xnvidia.ko",
        "/lib/modules/6.1/updates/dkms/nvidia-fs.ko.zst",
        "/lib/modules/6.1/updates/dkms/nvidia-current.ko",
        "/usr/bin/nvidia-settings",
        "/etc/ld.so.conf.d/nvidia.conf.bak",
    )
    folder = a_stripped_node(tmp_path).paths(*(f"f 644 1 1.0 {path}" for path in others))
    expect.no_driver_artefact(folder.evidence)

    both = folder.more_paths("d 755 1 1.0 /usr/src/nvidia-580.1")
    with pytest.raises(ExpectationError, match=r"these were left: \['/usr/src/nvidia-580\.1'\]"):
        expect.no_driver_artefact(both.evidence)


def test_dkms_build_is_matched_by_its_name_and_its_version_and_its_kernel(tmp_path: Path) -> None:
    others = (
        f"nvidia/{VERSION}, {OTHER_KERNEL}, x86_64: built\n"
        f"nvidia/535.1.1, {KERNEL}, x86_64: built\n"
        f"nvidia-fs/{VERSION}, {KERNEL}, x86_64: built\n"
        f"nvidia/{VERSION}: added\n"
    )
    own = f"nvidia/{VERSION}, {KERNEL}, x86_64: installed\n"
    folder = a_serving_node(tmp_path)

    for status in (own + others, others + own):
        folder.command("dkms-status", status)
        expect.module_built_for(folder.evidence, KERNEL, version=VERSION)
    with pytest.raises(ExpectationError, match="DKMS was expected to have"):
        expect.module_built_for(
            folder.command("dkms-status", others).evidence, KERNEL, version=VERSION
        )


def test_build_time_ignores_modules_of_another_kernel_or_folder_or_name(tmp_path: Path) -> None:
    late = f"f 644 1 {BOOTED_AT_S + 9}.0"
    folder = a_serving_node(tmp_path).more_paths(
        f"{late} {MODULE.replace(KERNEL, OTHER_KERNEL)}",
        f"{late} {MODULE.replace('updates/dkms', 'extra')}",
        f"{late} {MODULE.replace('nvidia.ko', 'virtio-nvidia.ko')}",
        f"{late} {MODULE.replace('nvidia.ko', 'nvidia-uvm.kobj')}",
    )

    expect.module_built_before_boot(folder.evidence, KERNEL)
    expect.module_built_since_boot(folder.evidence, OTHER_KERNEL)


def test_no_module_loaded_ignores_modules_of_other_packages(tmp_path: Path) -> None:
    folder = a_stripped_node(tmp_path).modules("drm", "nvidia_cspmu", "nvidia_uvm_x")
    expect.no_module_loaded(folder.paths("c 666 0 1.0 /dev/nvram").evidence)

    with pytest.raises(ExpectationError, match=r"were \[\] and \['/dev/nvidia-caps'\]"):
        expect.no_module_loaded(folder.paths("d 755 0 1.0 /dev/nvidia-caps").evidence)


def test_file_with_a_similar_path_is_not_a_prebake_record(tmp_path: Path) -> None:
    folder = a_stripped_node(tmp_path)
    expect.no_record(folder.paths(f"f 644 1 1.0 {RECORD_PATH}.bak").evidence)

    with pytest.raises(ExpectationError, match="No prebake record was expected"):
        expect.no_record(folder.paths(f"f 644 0 1.0 {RECORD_PATH}").evidence)


def test_driver_is_not_installed_if_one_of_its_files_is_missing(tmp_path: Path) -> None:
    folder = a_serving_node(tmp_path)
    expect.driver_installed(folder.evidence)
    lines = (folder.root / "stat.txt").read_text().splitlines()

    for path in ("/usr/bin/nvidia-smi", "/usr/bin/nvidia-modprobe", "/usr/bin/lib64"):
        folder.paths(*(line for line in lines if not line.endswith(f" {path}")))
        with pytest.raises(ExpectationError, match=f"'{path}' was expected, but does not exist"):
            expect.driver_installed(folder.evidence)


def test_setuid_bit_of_another_program_does_not_count_for_nvidia_modprobe(
    tmp_path: Path,
) -> None:
    folder = a_serving_node(tmp_path)
    lines = (folder.root / "stat.txt").read_text().splitlines()
    for mode in ("755", "2755"):
        own = f"f {mode} 1 1.0 /usr/bin/nvidia-modprobe"
        folder.paths(*lines, "f 4755 1 1.0 /usr/bin/nvidia-smi", own)

        with pytest.raises(ExpectationError, match="expected to be setuid, but is not"):
            expect.driver_installed(folder.evidence)
