"""The driver on a node: its files, its record, and its module for a kernel."""

from __future__ import annotations

from fnmatch import fnmatch
from typing import TYPE_CHECKING

from harness.evidence import RECORD_PATH
from harness.expect.claim import claim

if TYPE_CHECKING:
    from harness.evidence import Evidence

#: Everything that a teardown has to take away.
DRIVER_ARTEFACTS = (
    "/var/lib/dkms/nvidia",
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
DRIVER_MODULES = ("nvidia_uvm", "nvidia_drm", "nvidia_modeset", "nvidia_peermem", "nvidia")


def kernel_running(evidence: Evidence, kernel: str) -> None:
    """Expect the node to run `kernel`."""
    claim(
        evidence.running_kernel == kernel,
        f"The node was expected to run '{kernel}', but runs '{evidence.running_kernel}'.",
        evidence,
    )


def kernel_log_line(evidence: Evidence, text: str) -> None:
    """Expect the kernel to have logged a line that contains `text`."""
    claim(
        text in evidence.output_of("dmesg"),
        f"A line of the kernel's log with '{text}' was expected, but there was none.",
        evidence,
    )


def record_names(evidence: Evidence, **fields: str) -> None:
    """Expect a prebake record with exactly these values in these fields."""
    record = evidence.record
    claim(record is not None, "A prebake record was expected, but there is none.", evidence)
    seen = {key: (record or {}).get(key) for key in fields}
    claim(
        seen == fields,
        f"The prebake record was expected to say {fields}, but says {seen}.",
        evidence,
    )


def no_record(evidence: Evidence) -> None:
    """Expect no prebake record."""
    claim(
        evidence.record is None,
        f"No prebake record was expected, but there is one: {evidence.record}.",
        evidence,
    )
    # A record that could not be gathered is there all the same.
    claim(
        RECORD_PATH not in evidence.paths,
        f"No prebake record was expected, but '{RECORD_PATH}' is there.",
        evidence,
    )


def module_built_for(evidence: Evidence, kernel: str, *, version: str) -> None:
    """Expect a module of `version` for `kernel`: by DKMS, and by what the module itself says.

    DKMS alone is no proof: it says "installed" of a module that the next kernel refuses.
    """
    states = {
        build.kernel: build.state
        for build in evidence.dkms_builds
        if build.name == "nvidia" and build.version == version
    }
    claim(
        states.get(kernel) == "installed",
        f"DKMS was expected to have nvidia/{version} installed for '{kernel}', but says {states}.",
        evidence,
    )
    vermagic = evidence.vermagic_of(kernel)
    claim(
        (vermagic or "").split()[:1] == [kernel],
        f"The nvidia module for '{kernel}' was expected to have its vermagic, but has "
        f"{vermagic!r}.",
        evidence,
    )


def no_module_for(evidence: Evidence, kernel: str) -> None:
    """Expect `kernel` to have no nvidia module."""
    vermagic = evidence.vermagic_of(kernel)
    claim(
        vermagic is None,
        f"No nvidia module was expected for '{kernel}', but there is one for {vermagic!r}.",
        evidence,
    )


def module_built_before_boot(evidence: Evidence, kernel: str) -> None:
    """Expect the module file of `kernel` to be older than this boot: nothing was compiled."""
    files = _module_files(evidence, kernel)
    claim(bool(files), f"A module file for '{kernel}' was expected, but none is there.", evidence)
    booted = evidence.booted_at_s
    for path, modified in files.items():
        claim(
            modified < booted,
            f"'{path}' was expected to be older than the boot, but is {modified - booted:.0f} s "
            "younger: it was compiled on this node.",
            evidence,
        )


def module_built_since_boot(evidence: Evidence, kernel: str) -> None:
    """Expect the module file of `kernel` to be younger than this boot: it was compiled here."""
    files = _module_files(evidence, kernel)
    claim(
        any(modified >= evidence.booted_at_s for modified in files.values()),
        f"A module file for '{kernel}' compiled on this node was expected, but there were {files}.",
        evidence,
    )


def no_module_loaded(evidence: Evidence) -> None:
    """Expect no module of the driver in the kernel, and no device node of it."""
    loaded = [name for name in DRIVER_MODULES if name in evidence.loaded_modules]
    nodes = [path for path in evidence.paths if path.startswith("/dev/nvidia")]
    claim(
        not loaded and not nodes,
        f"No driver module and device node was expected, but there were {loaded} and {nodes}.",
        evidence,
    )


def driver_installed(evidence: Evidence) -> None:
    """Expect the driver's files, with `nvidia-modprobe` setuid."""
    for path in ("/usr/bin/nvidia-smi", "/usr/bin/nvidia-modprobe", "/usr/bin/lib64"):
        claim(path in evidence.paths, f"'{path}' was expected, but is not there.", evidence)
    claim(
        evidence.paths["/usr/bin/nvidia-modprobe"].is_setuid,
        "'/usr/bin/nvidia-modprobe' was expected to be setuid, but is not.",
        evidence,
    )


def no_driver_artefact(evidence: Evidence) -> None:
    """Expect none of the artefacts of a driver, on disk, in the kernel, or with DKMS."""
    left = sorted(
        path
        for path in evidence.paths
        if any(fnmatch(path, pattern) for pattern in DRIVER_ARTEFACTS)
    )
    claim(not left, f"No driver artefact was expected, but these were left: {left}.", evidence)
    loaded = [name for name in DRIVER_MODULES if name in evidence.loaded_modules]
    claim(not loaded, f"No driver module was expected, but these are loaded: {loaded}.", evidence)
    builds = [build for build in evidence.dkms_builds if build.name == "nvidia"]
    claim(not builds, f"DKMS was expected to know no driver, but knows {builds}.", evidence)


def _module_files(evidence: Evidence, kernel: str) -> dict[str, float]:
    return {
        path: state.modified_at_s
        for path, state in evidence.paths.items()
        if fnmatch(path, f"/lib/modules/{kernel}/updates/dkms/nvidia*.ko*")
    }
