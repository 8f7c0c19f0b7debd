"""Parsing and interpretation of the output of DKMS, modinfo and the kernel."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

from harness.fixtures.recordings import load_recording
from harness.provisioning.kernel_modules import (
    DkmsEntry,
    DkmsState,
    LoadedModule,
    ModuleFile,
    ModuleProof,
    driver_modules,
    installed_files,
    is_busy,
    kernels,
    newest_kernel_with_headers,
    parse_dkms_status,
    parse_modinfo,
    parse_proc_modules,
    prove_module,
    read_loaded,
    read_resident_version,
    version_key,
)
from harness.provisioning.node_files import NodeFiles
from harness.shell.mocks.scripted_runner import ScriptedRunner

from .fakes import KERNEL, OTHER_KERNEL, VERSION

if TYPE_CHECKING:
    from pathlib import Path

INSTALLED = DkmsEntry(
    module="nvidia", version=VERSION, kernel=KERNEL, arch="x86_64", state=DkmsState.INSTALLED
)


def test_dkms_status_line_of_each_dkms_release_is_parsed() -> None:
    for line in (
        f"nvidia, {VERSION}, {KERNEL}, x86_64: installed",
        f"  nvidia/{VERSION},{KERNEL},x86_64:installed",
        f"nvidia/{VERSION}, {KERNEL}, x86_64: installed (original_module exists)",
        # DKMS misses its own copy below /var/lib/dkms; the kernel's folder has the modules.
        f"nvidia/{VERSION}, {KERNEL}, x86_64: installed (WARNING! Missing some built modules!)",
        f"nvidia/{VERSION}, {KERNEL}, x86_64: installedDeprecated feature: REMAKE_INITRD\n\n",
    ):
        assert parse_dkms_status(line) == (INSTALLED,), line


def test_states_in_the_output_of_dkms_are_distinguished() -> None:
    text = (
        f"nvidia/{VERSION}: added\n"
        f"nvidia/{VERSION}, {KERNEL}, x86_64: built\n"
        "Deprecated feature: REMAKE_INITRD (/var/lib/dkms/nvidia/1/source/dkms.conf)\n"
        "Error! Could not locate dkms.conf file.\n"
        "wireguard/1.0, 6.1, aarch64: installed\n"
        "nvidia/1.0, 6.1, x86_64: installedish\n"
        "nvidia/1.0, 6.1, x86_64: broken\n"
    )

    entries = parse_dkms_status(text)

    assert [(e.module, e.version, e.kernel, e.arch, e.state) for e in entries] == [
        ("nvidia", VERSION, None, None, DkmsState.ADDED),
        ("nvidia", VERSION, KERNEL, "x86_64", DkmsState.BUILT),
        ("wireguard", "1.0", "6.1", "aarch64", DkmsState.INSTALLED),
    ]


def test_version_and_kernel_are_parsed_from_modinfo() -> None:
    file = parse_modinfo(
        "filename:       /lib/modules/x/nvidia.ko\n"
        "version:        1:580.126.09\n"
        "srcversion:     ABC:DEF\n"
        f"vermagic:       {KERNEL} SMP preempt mod_unload modversions \n"
        "version:        later\n"
        "not a field\n"
    )

    assert file == ModuleFile(
        version="1:580.126.09", vermagic=f"{KERNEL} SMP preempt mod_unload modversions"
    )
    assert file.kernel == KERNEL


def test_module_without_vermagic_has_no_kernel() -> None:
    file = parse_modinfo("version:\nvermagic:\n")

    assert file == ModuleFile(version=None, vermagic=None)
    assert file.kernel is None
    assert ModuleFile(version=None, vermagic=" ").kernel is None


def test_dkms_module_is_installed_only_if_each_field_of_its_entry_matches() -> None:
    rows = {
        INSTALLED: True,
        replace(INSTALLED, module="nvidia-fs"): False,
        replace(INSTALLED, version="1.2"): False,
        replace(INSTALLED, kernel="6.1"): False,
        replace(INSTALLED, arch="aarch64"): False,
        replace(INSTALLED, state=DkmsState.BUILT): False,
    }

    assert {
        entry: ModuleProof(is_linker_ready=True, file=None, dkms=(entry,)).is_installed(
            version=VERSION, kernel=KERNEL, arch="x86_64"
        )
        for entry in rows
    } == rows


def test_check_of_a_module_runs_ldconfig_and_dkms_and_modinfo_once(tmp_path: Path) -> None:
    with (
        ScriptedRunner()
        .expect("ldconfig", timeout_s=60)
        .expect(
            "dkms status", timeout_s=60, stdout=f"nvidia/{VERSION}, {KERNEL}, x86_64: installed"
        )
        .expect(
            f"modinfo -k {KERNEL} nvidia",
            timeout_s=60,
            stdout=f"version: {VERSION}\nvermagic: {KERNEL} SMP\n",
        ) as runner
    ):
        proof = prove_module(runner, NodeFiles(tmp_path), KERNEL, is_read_only=False)

    assert proof == ModuleProof(
        is_linker_ready=True,
        file=ModuleFile(version=VERSION, vermagic=f"{KERNEL} SMP"),
        dkms=(INSTALLED,),
    )


def test_read_only_check_of_a_module_does_not_write_the_linker_cache(tmp_path: Path) -> None:
    with (
        ScriptedRunner()
        .expect("ldconfig -N -X", timeout_s=60, exit_code=1)
        .expect("dkms status", exit_code=127, stdout=f"nvidia/{VERSION}, {KERNEL}, x86_64: built")
        .expect(f"modinfo -k {KERNEL} nvidia", exit_code=1, stdout="version: 1") as runner
    ):
        proof = prove_module(runner, NodeFiles(tmp_path), KERNEL, is_read_only=True)

    assert proof == ModuleProof(is_linker_ready=False, file=None, dkms=())


@pytest.mark.parametrize(
    ("state", "kept", "lost"),
    [
        ("installed", ("nvidia.ko.zst", "nvidia-new.ko.zst"), ()),
        ("installed", ("nvidia.ko",), ("nvidia-new",)),
        # Another distribution's folder has all modules, or nobody has installed them.
        ("installed", (), ()),
        ("built", ("nvidia.ko",), ()),
    ],
)
def test_installed_dkms_module_without_its_file_is_reported_as_lost(
    tmp_path: Path, state: str, kept: tuple[str, ...], lost: tuple[str, ...]
) -> None:
    """A later branch of the driver may have a module that the harness does not know."""
    files = NodeFiles(tmp_path)
    for name in ("nvidia.ko", "nvidia-new.ko"):
        files.write(f"/var/lib/dkms/nvidia/{VERSION}/{KERNEL}/x86_64/module/{name}", "")
    for name in kept:
        files.write(f"/lib/modules/{KERNEL}/updates/dkms/{name}", "")
    runner = (
        ScriptedRunner()
        .expect("ldconfig")
        .expect("dkms status", stdout=f"nvidia/{VERSION}, {KERNEL}, x86_64: {state}\n")
        .expect(f"modinfo -k {KERNEL} nvidia", stdout=f"version: {VERSION}\n")
    )

    assert prove_module(runner, files, KERNEL, is_read_only=False).lost == lost


PROC_MODULES = (
    "nvidia_uvm 1540096 0 - Live 0x0000000000000000 (POE)\n"
    "nvidia_drm 77824 0 - Live 0x0000000000000000 (POE)\n"
    "nvidia_modeset 1306624 1 nvidia_drm, Live 0x0000000000000000 (POE)\n"
    "nvidia 56717312 2 nvidia_uvm,nvidia_modeset, Live 0x0000000000000000 (POE)\n"
    "nvidia_wmi_ec_backlight 16384 0 - Live 0x0000000000000000\n"
)


def test_parsed_loaded_modules_have_the_names_of_the_modules_that_use_them() -> None:
    modules = parse_proc_modules(f"garbage\nx 1 y -\nx 1 2\n{PROC_MODULES}nouveau 1 - -\n")

    assert modules[3] == LoadedModule(
        name="nvidia", references=2, holders=("nvidia_uvm", "nvidia_modeset")
    )
    assert modules[0] == LoadedModule(name="nvidia_uvm", references=0, holders=())
    assert modules[5] == LoadedModule(name="nouveau", references=0, holders=())
    assert len(modules) == 6


def test_modules_are_ordered_with_dependents_before_their_dependencies(tmp_path: Path) -> None:
    modules = (
        *reversed(parse_proc_modules(PROC_MODULES)),
        LoadedModule(name="nvidia_peermem", references=0, holders=()),
    )

    assert [module.name for module in driver_modules(modules)] == [
        "nvidia_uvm",
        "nvidia_drm",
        "nvidia_modeset",
        "nvidia_peermem",
        "nvidia",
    ]
    files = NodeFiles(tmp_path)
    assert read_loaded(files) == ()
    files.write("/proc/modules", PROC_MODULES)
    assert read_loaded(files) == driver_modules(parse_proc_modules(PROC_MODULES))


def _nvidia(references: int, *holders: str) -> tuple[LoadedModule, ...]:
    others = [name for name in holders if name.startswith("nvidia")]
    return (
        *(LoadedModule(name=name, references=0, holders=()) for name in others),
        LoadedModule(name="nvidia", references=references, holders=holders),
    )


def test_driver_is_busy_if_a_process_or_a_foreign_module_uses_it() -> None:
    rows = {
        (): False,
        _nvidia(0): False,
        _nvidia(1): True,
        _nvidia(2, "nvidia_uvm", "nvidia_modeset"): False,
        _nvidia(3, "nvidia_uvm", "nvidia_modeset"): True,
        _nvidia(1, "gdrdrv"): True,
        _nvidia(2, "nvidia_uvm", "gdrdrv"): True,
        (
            LoadedModule(name="nvidia_uvm", references=1, holders=()),
            LoadedModule(name="nvidia", references=1, holders=("nvidia_uvm",)),
        ): True,
    }

    assert {modules: is_busy(modules) for modules in rows} == rows


def test_driver_version_in_sys_is_preferred_to_the_version_in_proc(tmp_path: Path) -> None:
    files = NodeFiles(tmp_path)
    assert read_resident_version(files) is None

    files.write("/proc/driver/nvidia/version", "GCC version: 12.2.0\n")
    assert read_resident_version(files) is None

    files.write(
        "/proc/driver/nvidia/version",
        "NVRM version: NVIDIA UNIX x86_64 Kernel Module  570.86.15  Tue Jan  7 2025\n"
        "GCC version:  gcc version 12.2.0\n",
    )
    assert read_resident_version(files) == "570.86.15"

    files.write("/proc/driver/nvidia/version", "NVRM version: NVIDIA UNIX Kernel Module  570.9.1")
    assert read_resident_version(files) == "570.9.1"

    files.write("/sys/module/nvidia/version", "580.126.09\n")
    assert read_resident_version(files) == "580.126.09"


def test_only_files_of_driver_modules_are_listed_as_installed(tmp_path: Path) -> None:
    files = NodeFiles(tmp_path)
    for name in ("nvidia.ko", "nvidia-uvm.ko.zst", "zfs.ko"):
        files.write(f"/lib/modules/{KERNEL}/updates/dkms/{name}", "")

    assert installed_files(files, KERNEL) == (
        f"/lib/modules/{KERNEL}/updates/dkms/nvidia-uvm.ko.zst",
        f"/lib/modules/{KERNEL}/updates/dkms/nvidia.ko",
    )
    assert kernels(files) == (KERNEL,)


def test_newest_kernel_with_headers_is_chosen_by_version_number(tmp_path: Path) -> None:
    files = NodeFiles(tmp_path)
    assert newest_kernel_with_headers(files) is None

    for kernel in ("6.1.0-9-amd64", "6.1.0-56-amd64"):
        files.write(f"/lib/modules/{kernel}/build/Makefile", "")
    files.make_directory("/lib/modules/6.1.0-99-amd64")
    removed = tmp_path / "lib/modules/6.1.0-98-amd64"
    removed.mkdir()
    (removed / "build").symlink_to("/usr/src/linux-headers-6.1.0-98-amd64")

    assert newest_kernel_with_headers(files) == "6.1.0-56-amd64"


def test_versions_are_sorted_by_number() -> None:
    versions = [
        "6.1.0-56",
        "5.15.0-1041-azure",
        "6.1.0-9",
        "6.1.0",
        "6.10.0-1",
        "6.10~rc2-1",
        "6²1",
        "6.5.0-060500-generic",
        "6.5.0-060500rc5-generic",
    ]

    assert sorted(versions, key=version_key) == [
        "5.15.0-1041-azure",
        "6.1.0",
        "6.1.0-9",
        "6.1.0-56",
        "6.5.0-060500rc5-generic",
        "6.5.0-060500-generic",
        "6.10~rc2-1",
        "6.10.0-1",
        "6²1",
    ]


# -- as real tools print it ---------------------------------------------------------------------


def test_recorded_dkms_status_is_parsed() -> None:
    rows: dict[str, list[tuple[str | None, DkmsState]]] = {
        "added": [(None, DkmsState.ADDED)],
        "built": [(KERNEL, DkmsState.BUILT)],
        "installed": [(KERNEL, DkmsState.INSTALLED)],
        "installed-and-built": [(OTHER_KERNEL, DkmsState.BUILT), (KERNEL, DkmsState.INSTALLED)],
    }

    for case, states in rows.items():
        entries = parse_dkms_status(load_recording(f"dkms/3.0.10-{case}").text)
        assert [(entry.kernel, entry.state) for entry in entries] == states, case
        assert {(entry.module, entry.version) for entry in entries} == {("nvidia", VERSION)}


def test_recorded_dkms_and_modinfo_output_shows_an_installed_module(tmp_path: Path) -> None:
    """DKMS 3.0 and kmod 30 of Debian 12; DKMS 3.2, kmod 34 and a kernel with a plus sign of Debian 13."""
    newer = "6.12.117+deb13-cloud-amd64"
    for kernel, other, dkms, modinfo in (
        (KERNEL, OTHER_KERNEL, "3.0.10-installed-and-built", "30-module"),
        (newer, KERNEL, "3.2.2-installed", "34-module"),
    ):
        with (
            ScriptedRunner()
            .expect("ldconfig")
            .expect("dkms status", stdout=load_recording(f"dkms/{dkms}").text)
            .expect(
                f"modinfo -k {kernel} nvidia", stdout=load_recording(f"modinfo/{modinfo}").text
            ) as runner
        ):
            proof = prove_module(runner, NodeFiles(tmp_path), kernel, is_read_only=False)

        assert proof.file is not None
        assert (proof.file.version, proof.file.kernel) == (VERSION, kernel)
        assert proof.is_installed(version=VERSION, kernel=kernel, arch="x86_64")
        assert not proof.is_installed(version=VERSION, kernel=other, arch="x86_64")
