"""Expectations on the NVIDIA driver: its files, its record, and its module for a kernel."""

from __future__ import annotations

import re
from fnmatch import fnmatchcase
from typing import TYPE_CHECKING

from harness.errors import BadInputError, ExpectationError, HarnessError
from harness.evidence import DRIVER_CONTAINER, OTHER_PROGRAM_FOLDERS, RECORD_PATH
from harness.expect.failure import failure, require
from harness.provisioning.nvidia import OTHER_DKMS_TREES

if TYPE_CHECKING:
    from collections.abc import Sequence

    from harness.evidence import Evidence
    from harness.evidence.node_state import DkmsBuild

DRIVER_MODULES = (
    *("nvidia_uvm", "nvidia_drm", "nvidia_modeset", "nvidia_peermem", "nvidia_vgpu_vfio"),
    "nvidia",
)
_MODULE_FILES = tuple(
    f"{name.replace('_', '-')}.ko{suffix}" for name in DRIVER_MODULES for suffix in ("", ".*")
)
#: Patterns of all paths that a teardown must remove.
DRIVER_ARTEFACTS = (
    "/var/lib/dkms/nvidia",
    "/usr/src/nvidia-*",
    "/lib/modules/*/updates/dkms/nvidia*.ko*",
    "/usr/bin/lib64",
    "/etc/ld.so.conf.d/nvidia.conf",
    "/usr/bin/nvidia-smi",
    "/usr/bin/nvidia-debugdump",
    "/usr/bin/nvidia-persistenced",
    "/usr/bin/nvidia-cuda-mps-control",
    "/usr/bin/nvidia-cuda-mps-server",
    "/usr/bin/nvidia-modprobe",
    "/usr/bin/nvidia-bug-report.sh",
    "/usr/bin/nvidia-powerd",
    "/usr/bin/nvidia-ngx-updater",
    "/usr/bin/nvidia-sleep.sh",
)
#: Matches sources of other modules with a similar name, such as `nvidia-fs`.
_OTHER_SOURCES = re.compile(r"/usr/src/nvidia-\D")
#: Patterns of the driver's names in DKMS. Some distributions' packages use other names than NVIDIA.
_DKMS_NAMES = ("nvidia", *OTHER_DKMS_TREES)
#: The folders where DKMS installs modules on Debian and Ubuntu, on SUSE, and on RHEL and Fedora.
_DKMS_FOLDERS = ("updates/dkms", "updates", "extra")
_TOOLS = ("/usr/bin/nvidia-smi", "/usr/bin/nvidia-modprobe")
_DEVICE_NODES = "/dev/nvidia*"


def kernel_running(evidence: Evidence, kernel: str) -> None:
    """Expect the node to run `kernel`."""
    require(
        evidence.running_kernel == kernel,
        f"The node was expected to run '{kernel}', but runs '{evidence.running_kernel}'.",
        evidence,
    )


def kernel_log_line(evidence: Evidence, text: str) -> None:
    """Expect the kernel to have logged a line that contains `text`."""
    require(
        text in evidence.kernel_log,
        f"A line with '{text}' was expected in the kernel log, but there was none.",
        evidence,
    )


def record_names(evidence: Evidence, **fields: str) -> None:
    """Expect a prebake record whose fields have the values in `fields`."""
    record = evidence.record
    require(record is not None, "A prebake record was expected, but there is none.", evidence)
    seen = {key: (record or {}).get(key) for key in fields}
    require(
        seen == fields,
        f"The prebake record was expected to have {fields}, but has {seen}.",
        evidence,
    )


def no_record(evidence: Evidence) -> None:
    """Expect no prebake record."""
    require(
        evidence.record is None,
        f"No prebake record was expected, but there is one: {evidence.record}.",
        evidence,
    )
    # A record that could not be read still exists.
    require(
        RECORD_PATH not in evidence.paths,
        f"No prebake record was expected, but '{RECORD_PATH}' is there.",
        evidence,
    )


def module_built_for(evidence: Evidence, kernel: str, *, version: str) -> None:
    """Expect DKMS and the module files to show that `kernel` has the modules of driver `version`.

    DKMS's state alone is not sufficient: the state is "installed" even if the kernel refuses the
    module, or would load another module.
    """
    states: dict[str | None, set[str]] = {}
    for build in _driver_builds(evidence):
        if build.version == version:
            states.setdefault(build.kernel, set()).add(build.state)
    require(
        states.get(kernel) == {"installed"},
        f"DKMS was expected to have nvidia/{version} installed for '{kernel}', but DKMS's states "
        f"are {states}.",
        evidence,
    )
    vermagic = evidence.vermagic_of(kernel)
    require(
        (vermagic or "").split()[:1] == [kernel],
        f"The nvidia module for '{kernel}' was expected to have this kernel's vermagic, but has "
        f"{vermagic!r}.",
        evidence,
    )
    on_disk = evidence.module_version_of(kernel)
    require(
        on_disk == version,
        f"The nvidia module for '{kernel}' was expected to have version {version}, but has "
        f"{on_disk}.",
        evidence,
    )
    lost = _lost_modules(evidence, kernel, f"/var/lib/dkms/nvidia/{version}/{kernel}/*/module")
    require(
        not lost,
        f"DKMS was expected to have all modules of nvidia/{version} installed for '{kernel}', but "
        f"{lost} are missing. Install them again (`dkms install --force`).",
        evidence,
    )


def _driver_builds(evidence: Evidence) -> list[DkmsBuild]:
    return [
        build
        for build in evidence.dkms_builds
        if any(fnmatchcase(build.name, name) for name in _DKMS_NAMES)
    ]


def _loaded_modules(evidence: Evidence) -> list[str]:
    return [name for name in DRIVER_MODULES if name in evidence.loaded_modules]


def _lost_modules(evidence: Evidence, kernel: str, tree: str) -> list[str]:
    """Return the module files in DKMS's `tree` that the folder of the installed 'nvidia' lacks.

    Only the names of the files are compared, because DKMS may compress, strip or sign a file during
    the installation. The list is empty if no folder in _DKMS_FOLDERS has the module 'nvidia'.
    """
    paths = evidence.paths
    built = {_module_name(path) for path in paths.seen(f"{tree}/*") if ".ko" in path}
    for folder in (f"/lib/modules/{kernel}/{name}" for name in _DKMS_FOLDERS if built):
        files = paths.matching(f"{folder}/nvidia*.ko*")
        installed = {_module_name(path) for path in files if path.rpartition("/")[0] == folder}
        if "nvidia" in installed:
            return sorted(f"{folder}/{name}.ko" for name in built - installed)
    return []


def _module_name(path: str) -> str:
    return path.rpartition("/")[2].partition(".ko")[0]


def no_module_for(evidence: Evidence, kernel: str) -> None:
    """Expect `kernel` to have no nvidia module."""
    vermagic = evidence.vermagic_of(kernel)
    require(
        vermagic is None,
        f"No nvidia module was expected for '{kernel}', but there is one for {vermagic!r}.",
        evidence,
    )


def module_built_before_boot(evidence: Evidence, kernel: str) -> None:
    """Expect the module files of `kernel` to have been compiled before this boot."""
    files = _module_files(evidence, kernel)
    booted = evidence.booted_at_s
    for path, modified in files.items():
        require(
            modified < booted,
            f"'{path}' was expected to be older than the boot, but was modified "
            f"{modified - booted:.0f} s after the boot: the file was compiled on this node.",
            evidence,
        )


def module_built_since_boot(evidence: Evidence, kernel: str) -> None:
    """Expect the module files of `kernel` to have been compiled since the start of this boot."""
    files = _module_files(evidence, kernel)
    booted = evidence.booted_at_s
    for path, modified in files.items():
        require(
            modified >= booted,
            f"'{path}' was expected to be newer than the boot, but was modified "
            f"{booted - modified:.0f} s before the boot: the file was not compiled on this node.",
            evidence,
        )


def no_module_loaded(evidence: Evidence) -> None:
    """Expect that no module of the driver is loaded, and that no device node of a GPU exists."""
    loaded = _loaded_modules(evidence)
    paths = evidence.paths
    nodes = list(paths.seen(_DEVICE_NODES))
    require(
        not loaded and not nodes,
        f"No loaded driver module and no device node were expected, but there were {loaded} and "
        f"{nodes}.",
        evidence,
    )
    paths.matching(_DEVICE_NODES)  # this lookup raises HarnessError if a device node may exist


def driver_installed(evidence: Evidence) -> None:
    """Expect the driver's files to exist, and `nvidia-modprobe` to be setuid."""
    for path in ("/usr/bin/nvidia-smi", "/usr/bin/nvidia-modprobe", "/usr/bin/lib64"):
        require(path in evidence.paths, f"'{path}' was expected, but does not exist.", evidence)
    require(
        evidence.paths["/usr/bin/nvidia-modprobe"].is_setuid,
        "'/usr/bin/nvidia-modprobe' was expected to be setuid, but is not.",
        evidence,
    )


def no_driver_artefact(evidence: Evidence, *, allow: Sequence[str] = ()) -> None:
    """Expect no artefact of a driver on disk, in the kernel, or in DKMS.

    Paths that match a pattern in `allow` may exist, for example a program of the image itself:
    `allow=["/usr/bin/nvidia-container-*"]`. `*` matches any text, including slashes.
    """
    if isinstance(allow, str):
        raise BadInputError(
            "A list of patterns was expected, but this is a string.",
            source="no_driver_artefact",
            key="allow",
        )
    paths = evidence.paths
    left = sorted(
        path
        for path in paths.seen(*DRIVER_ARTEFACTS)
        if not _is_of_others(path) and not any(fnmatchcase(path, pattern) for pattern in allow)
    )
    require(not left, f"No driver artefact was expected, but these were left: {left}.", evidence)
    loaded = _loaded_modules(evidence)
    require(
        not loaded, f"No driver module was expected, but these are loaded: {loaded}.", evidence
    )
    builds = _driver_builds(evidence)
    require(not builds, f"No driver was expected in DKMS, but it has {builds}.", evidence)
    paths.matching(*DRIVER_ARTEFACTS)  # this lookup raises HarnessError if an artefact may be left


def _is_of_others(path: str) -> bool:
    """Return whether a path belongs to another package with a similar name, such as `nvidia-fs`."""
    if path.startswith("/lib/modules/"):
        return not any(fnmatchcase(path.rpartition("/")[2], name) for name in _MODULE_FILES)
    return _OTHER_SOURCES.match(path) is not None


def module_fits_kernel(evidence: Evidence) -> str:
    """Expect the module on disk to fit the running kernel, and to have the loaded module's version.

    If the driver was updated while its module was loaded, the new libraries do not work with the
    loaded module, because the versions of libraries and module differ.
    """
    kernel, loaded = evidence.running_kernel, evidence.driver_version
    if f"/lib/modules/{kernel}" not in evidence.paths:
        raise part_not_found(
            evidence,
            f"modules for the running kernel '{kernel}'",
            f"Modules for the running kernel '{kernel}' were expected, but there is no "
            f"'/lib/modules/{kernel}', so no driver can be loaded. Install the kernel's modules and "
            "headers, or boot a kernel that has them.",
        )
    vermagic = evidence.vermagic_of(kernel)
    if vermagic is None:
        raise part_not_found(
            evidence,
            f"a module 'nvidia' for the running kernel '{kernel}'",
            f"A module 'nvidia' for the running kernel '{kernel}' was expected, but modinfo finds "
            "none. Install the driver, or build its module for this kernel (`dkms autoinstall`).",
        )
    require(
        vermagic.split()[:1] == [kernel] or _is_weak_module(evidence, kernel, vermagic),
        f"The module 'nvidia' was expected to be for the running kernel '{kernel}', but was built "
        f"for {vermagic!r}. Build it for this kernel (`dkms autoinstall`).",
        evidence,
    )
    on_disk = evidence.module_version_of(kernel)
    if loaded is not None and on_disk != loaded and _has_driver_container(evidence):
        raise HarnessError(
            f"The driver {loaded} is loaded, and '{DRIVER_CONTAINER}' has the files of a driver "
            f"container, so the module {on_disk} on the node's disk may not be the loaded module.",
            evidence=evidence.folder,
        )
    require(
        loaded is None or on_disk == loaded,
        f"The loaded driver was expected to be the installed driver, but {loaded} is loaded and "
        f"{on_disk} is on disk. Reboot the node, or unload the old modules.",
        evidence,
    )
    is_loaded = "not loaded" if loaded is None else "loaded"
    return (
        f"The module 'nvidia' {on_disk} is for the running kernel '{kernel}' and is {is_loaded}."
    )


def _is_weak_module(evidence: Evidence, kernel: str, vermagic: str) -> bool:
    """Return whether `kernel` has a link to a module that was built for another kernel.

    RHEL and SUSE link a module of one kernel into another kernel's folder if both kernels have the
    symbols that the module needs. A kernel with `modversions` checks the versions of the module's
    symbols, not the version of the kernel for which the module was built.
    """
    path = evidence.module_path_of(kernel) if "modversions" in vermagic.split() else None
    # Where /lib is a link to /usr/lib, kmod may have been built to use /usr/lib.
    return (path or "").removeprefix("/usr").startswith(f"/lib/modules/{kernel}/weak-updates/")


def driver_tools_installed(evidence: Evidence) -> str:
    """Expect the driver's programs to exist, however they were installed."""
    missing = [path for path in _TOOLS if path not in evidence.paths]
    if not missing:
        return f"The driver's programs exist: {', '.join(_TOOLS)}."
    elsewhere = _programs_elsewhere(evidence)
    if elsewhere is not None:
        return f"The driver's programs exist in '{elsewhere}'."
    raise part_not_found(
        evidence,
        f"the driver's programs {missing}",
        f"The driver's programs were expected, but {missing} do not exist. Install the driver's "
        "userspace in the same version as the driver's module.",
    )


def _programs_elsewhere(evidence: Evidence) -> str | None:
    """Return the folder other than /usr/bin that contains the loaded driver's programs, or None."""
    if evidence.driver_version is None:
        return None
    names = [path.rpartition("/")[2] for path in _TOOLS]
    return next(
        (
            folder
            for folder in OTHER_PROGRAM_FOLDERS
            if all(evidence.paths.seen(f"{folder}/{name}") for name in names)
        ),
        None,
    )


def _has_driver_container(evidence: Evidence) -> bool:
    return bool(evidence.paths.seen(f"{DRIVER_CONTAINER}/usr/bin/*"))


def part_not_found(
    evidence: Evidence, what: str, sentence: str
) -> HarnessError | ExpectationError:
    """Return the error for a missing part of the driver: a HarnessError if a driver is loaded.

    Debian calls the driver `nvidia-current`. The GPU operator's driver is in a container, with its
    files below /run/nvidia/driver. Some distributions install the driver in other folders.
    """
    loaded = evidence.driver_version
    if loaded is None:
        return failure(sentence, evidence)
    return HarnessError(
        f"The driver {loaded} is loaded, so {what} must be somewhere, but the evidence does not show where. "
        "Somebody else may have installed the driver, for example in a container; look at the node.",
        evidence=evidence.folder,
    )


def record_fits(evidence: Evidence) -> str:
    """Expect a prebake record that matches the running kernel and the loaded driver."""
    loaded, record = evidence.driver_version, evidence.record
    if record is None:
        why = (
            "no driver was baked into the node's image or installed by provisioning, or a "
            "teardown removed it. Provision the node."
            if loaded is None
            else f"provisioning did not install the loaded driver {loaded}. If this is intended, "
            "ignore this result."
        )
        raise failure(
            f"A prebake record was expected in '{RECORD_PATH}', but there is none: {why}", evidence
        )
    seen = {key: record.get(key) for key in ("kernel", "driver_version", "driver_kind", "arch")}
    corrupt = [
        key
        for key, value in seen.items()
        if not value or value.split() != [value] or not value.isprintable()
    ]
    require(
        not corrupt,
        f"The prebake record in '{RECORD_PATH}' was expected to have a value without spaces for each "
        f"key, but has {seen}. Provision the node; that rebuilds the driver.",
        evidence,
    )
    wanted = {
        "kernel": evidence.running_kernel,
        "driver_version": loaded or seen["driver_version"],
    }
    require(
        wanted.items() <= seen.items(),
        f"The prebake record in '{RECORD_PATH}' was expected to have {wanted}, the state of the "
        f"node, but has {seen}. The driver or the kernel was changed later; if this was not "
        "intended, provision the node.",
        evidence,
    )
    return (
        f"The prebake record names the driver {seen['driver_version']} ({seen['driver_kind']}) and the "
        "running kernel."
    )


def _module_files(evidence: Evidence, kernel: str) -> dict[str, float]:
    """Return the modification time of each of the driver's module files for `kernel`.

    Raises ExpectationError if there is no module `nvidia`, even if the driver's other modules
    exist.
    """
    folder = f"/lib/modules/{kernel}/updates/dkms"
    files = evidence.paths.matching(*(f"{folder}/{name}" for name in _MODULE_FILES))
    require(
        any(path.startswith(f"{folder}/nvidia.ko") for path in files),
        f"A module file 'nvidia.ko' for '{kernel}' was expected in '{folder}', but there "
        f"{f'are only {sorted(files)}' if files else 'is none'}.",
        evidence,
    )
    return {path: state.modified_at_s for path, state in files.items()}
