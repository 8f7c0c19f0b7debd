"""Assertions on evidence; this module touches no machine.

Each raises ExpectationError, a sentence of what was expected and what was seen. Paths and names
are written out here from the contract and not shared with provisioning, which they judge.
"""

from __future__ import annotations

from fnmatch import fnmatch
from typing import TYPE_CHECKING

from harness.errors import ExpectationError, HarnessError
from harness.evidence import CLOUD_INIT_OUTPUT_PATH, RECORD_PATH
from harness.gpu.trace import IncidentKind

if TYPE_CHECKING:
    from harness.evidence import Evidence, ProvisioningOutcome, Step
    from harness.gpu.trace import AccessTrace, Incident

NVIDIA_VENDOR = "10de"

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


def _expect(condition: bool, sentence: str, evidence: Evidence) -> None:
    if not condition:
        raise ExpectationError(f"{sentence} The evidence lies in '{evidence.folder}'.")


def _outcome(evidence: Evidence) -> ProvisioningOutcome:
    outcome = evidence.outcome
    if outcome is None:
        raise ExpectationError(
            "Provisioning was expected to leave an outcome, but it left none: it did not run, or "
            f"died. cloud-init's output lies in the evidence in '{evidence.folder}'."
        )
    return outcome


def provisioned(evidence: Evidence, *, exit_code: int = 0) -> None:
    """Expect provisioning to have ended with `exit_code`, in its outcome and for the shell."""
    outcome = _outcome(evidence)
    _expect(
        outcome.exit_code == exit_code,
        f"Provisioning was expected to end with {exit_code}, but it ended with "
        f"{outcome.exit_code} ({outcome.exit_name}): {outcome.error or 'no error given'}.",
        evidence,
    )
    _expect(
        evidence.exit_code == exit_code,
        f"The shell was expected to see exit code {exit_code}, but saw {evidence.exit_code}.",
        evidence,
    )


def cloud_init_clean(evidence: Evidence) -> None:
    """Expect cloud-init to have run from the NoCloud seed without an error."""
    result = evidence.cloud_init
    _expect(result is not None, "cloud-init was expected to leave a result.", evidence)
    if result is not None:
        _expect(
            "NoCloud" in result.datasource,
            f"cloud-init was expected to use NoCloud, but used '{result.datasource}'.",
            evidence,
        )
        _expect(
            not result.errors,
            f"cloud-init was expected to report no error, but reported {list(result.errors)}.",
            evidence,
        )


def decided(evidence: Evidence, *, action: str, reason: str) -> None:
    """Expect the boot's decision, in the outcome and on the log line alike."""
    outcome = _outcome(evidence)
    _expect(
        (outcome.action, outcome.reason) == (action, reason),
        f"The decision was expected to be '{action}' for '{reason}', but it was "
        f"'{outcome.action}' for '{outcome.reason}'.",
        evidence,
    )
    prebake_line(evidence, event="decision", action=action, reason=reason)


def prebake_line(evidence: Evidence, **fields: str) -> None:
    """Expect an `AKS_GPU_PREBAKE` line with these fields."""
    lines = evidence.prebake_lines
    _expect(
        any(fields.items() <= line.items() for line in lines),
        f"An AKS_GPU_PREBAKE line with {fields} was expected, but there were {lines}.",
        evidence,
    )


def step_of(evidence: Evidence, name: str) -> Step:
    """Return the step `name`, which is expected to have been reached."""
    steps = _outcome(evidence).steps
    for step in steps:
        if step.name == name:
            return step
    raise ExpectationError(
        f"The step '{name}' was expected, but the steps were {[step.name for step in steps]}. "
        f"The evidence lies in '{evidence.folder}'."
    )


def kernel_running(evidence: Evidence, kernel: str) -> None:
    """Expect the node to run `kernel`."""
    _expect(
        evidence.running_kernel == kernel,
        f"The node was expected to run '{kernel}', but runs '{evidence.running_kernel}'.",
        evidence,
    )


def record_names(evidence: Evidence, **fields: str) -> None:
    """Expect a prebake record with exactly these values in these fields."""
    record = evidence.record
    _expect(record is not None, "A prebake record was expected, but there is none.", evidence)
    seen = {key: (record or {}).get(key) for key in fields}
    _expect(
        seen == fields,
        f"The prebake record was expected to say {fields}, but says {seen}.",
        evidence,
    )


def no_record(evidence: Evidence) -> None:
    """Expect no prebake record."""
    _expect(
        evidence.record is None,
        f"No prebake record was expected, but there is one: {evidence.record}.",
        evidence,
    )
    # A record that could not be gathered is there all the same.
    _expect(
        RECORD_PATH not in evidence.paths,
        f"No prebake record was expected, but '{RECORD_PATH}' is there.",
        evidence,
    )


def image_present(evidence: Evidence, reference: str) -> None:
    """Expect containerd to have the image."""
    images = evidence.container_images
    _expect(
        reference in images,
        f"containerd was expected to have '{reference}', but has {images}.",
        evidence,
    )


def image_absent(evidence: Evidence, reference: str) -> None:
    """Expect containerd not to have the image."""
    _expect(
        reference not in evidence.container_images,
        f"containerd was expected to have '{reference}' no longer, but has it.",
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
    _expect(
        states.get(kernel) == "installed",
        f"DKMS was expected to have nvidia/{version} installed for '{kernel}', but says {states}.",
        evidence,
    )
    vermagic = evidence.vermagic_of(kernel)
    _expect(
        (vermagic or "").split()[:1] == [kernel],
        f"The nvidia module for '{kernel}' was expected to have its vermagic, but has "
        f"{vermagic!r}.",
        evidence,
    )


def no_module_for(evidence: Evidence, kernel: str) -> None:
    """Expect `kernel` to have no nvidia module."""
    vermagic = evidence.vermagic_of(kernel)
    _expect(
        vermagic is None,
        f"No nvidia module was expected for '{kernel}', but there is one for {vermagic!r}.",
        evidence,
    )


def module_built_before_boot(evidence: Evidence, kernel: str) -> None:
    """Expect the module file of `kernel` to be older than this boot: nothing was compiled."""
    files = _module_files(evidence, kernel)
    _expect(
        bool(files), f"A module file for '{kernel}' was expected, but none is there.", evidence
    )
    booted = evidence.booted_at_s
    for path, modified in files.items():
        _expect(
            modified < booted,
            f"'{path}' was expected to be older than the boot, but is {modified - booted:.0f} s "
            "younger: it was compiled on this node.",
            evidence,
        )


def module_built_since_boot(evidence: Evidence, kernel: str) -> None:
    """Expect the module file of `kernel` to be younger than this boot: it was compiled here."""
    files = _module_files(evidence, kernel)
    _expect(
        any(modified >= evidence.booted_at_s for modified in files.values()),
        f"A module file for '{kernel}' compiled on this node was expected, but there were {files}.",
        evidence,
    )


def _module_files(evidence: Evidence, kernel: str) -> dict[str, float]:
    return {
        path: state.modified_at_s
        for path, state in evidence.paths.items()
        if fnmatch(path, f"/lib/modules/{kernel}/updates/dkms/nvidia*.ko*")
    }


def gpus_on_bus(evidence: Evidence, *devices: str) -> None:
    """Expect exactly these NVIDIA device ids on the PCI bus."""
    seen = sorted(
        function.device for function in evidence.pci_functions if function.vendor == NVIDIA_VENDOR
    )
    _expect(
        seen == sorted(devices),
        f"The GPUs {sorted(devices)} were expected on the PCI bus, but there were {seen}.",
        evidence,
    )


def no_module_loaded(evidence: Evidence) -> None:
    """Expect no module of the driver in the kernel, and no device node of it."""
    loaded = [name for name in DRIVER_MODULES if name in evidence.loaded_modules]
    nodes = [path for path in evidence.paths if path.startswith("/dev/nvidia")]
    _expect(
        not loaded and not nodes,
        f"No driver module and device node was expected, but there were {loaded} and {nodes}.",
        evidence,
    )


def log_line(evidence: Evidence, text: str) -> None:
    """Expect provisioning to have logged a line that contains `text`."""
    log = evidence.file(CLOUD_INIT_OUTPUT_PATH) or ""
    _expect(text in log, f"A log line with '{text}' was expected, but there was none.", evidence)


def step_failed(evidence: Evidence, name: str) -> None:
    """Expect the step `name` to have failed."""
    step = step_of(evidence, name)
    _expect(
        step.status == "failed",
        f"The step '{name}' was expected to have failed, but it is '{step.status}'.",
        evidence,
    )


def cloud_init_reports_failure(evidence: Evidence) -> None:
    """Expect cloud-init to have passed on that provisioning failed."""
    result = evidence.cloud_init
    _expect(
        result is not None and bool(result.errors),
        "cloud-init was expected to report an error, but reported none.",
        evidence,
    )


def unit_state(evidence: Evidence, unit: str, *, active: str) -> None:
    """Expect a systemd unit in the active state `active`."""
    seen = evidence.unit_states.get(unit)
    _expect(
        seen == active,
        f"The unit '{unit}' was expected to be '{active}', but is '{seen}'.",
        evidence,
    )


def gpu_bound(evidence: Evidence, *, device: str) -> None:
    """Expect every NVIDIA function to be `device`, and the module `nvidia` to be bound to it."""
    functions = [found for found in evidence.pci_functions if found.vendor == NVIDIA_VENDOR]
    _expect(
        bool(functions) and all(found.device == device for found in functions),
        f"A GPU 10de:{device} was expected on the PCI bus, but there were {functions}.",
        evidence,
    )
    for function in functions:
        _expect(
            function.driver_in_use == "nvidia",
            f"The module 'nvidia' was expected to be bound to {function.slot}, but "
            f"'{function.driver_in_use}' is.",
            evidence,
        )
    _expect(
        "/dev/nvidia0" in evidence.paths and "/dev/nvidiactl" in evidence.paths,
        "'/dev/nvidia0' and '/dev/nvidiactl' were expected, but there are "
        f"{[path for path in evidence.paths if path.startswith('/dev/')]}.",
        evidence,
    )


def gpus_driven(evidence: Evidence, *devices: str) -> None:
    """Expect the module `nvidia` to be bound to GPUs of exactly these device ids."""
    seen = sorted(
        function.device
        for function in evidence.pci_functions
        if function.vendor == NVIDIA_VENDOR and function.driver_in_use == "nvidia"
    )
    _expect(
        seen == sorted(devices),
        f"The module 'nvidia' was expected to be bound to {sorted(devices)}, but is to {seen}.",
        evidence,
    )


def driver_names_gpus(evidence: Evidence, *names: str) -> None:
    """Expect the driver to call the GPUs that it is bound to by exactly these names."""
    seen = sorted(name or "(no name)" for name in evidence.driver_gpu_names.values())
    _expect(
        seen == sorted(names),
        f"The driver was expected to have the GPUs {sorted(names)}, but has {seen}.",
        evidence,
    )


def gpus_refused(evidence: Evidence, *devices: str) -> None:
    """Expect the driver to have called GPUs of exactly these device ids not supported."""
    seen = evidence.refused_gpus
    _expect(
        seen == sorted(devices),
        f"The driver was expected to refuse {sorted(devices)}, but its log lines name {seen}.",
        evidence,
    )


def no_gpu(evidence: Evidence) -> None:
    """Expect no NVIDIA function on the bus."""
    functions = [found for found in evidence.pci_functions if found.vendor == NVIDIA_VENDOR]
    _expect(not functions, f"No GPU was expected, but there were {functions}.", evidence)


def driver_installed(evidence: Evidence) -> None:
    """Expect the driver's files, with `nvidia-modprobe` setuid."""
    for path in ("/usr/bin/nvidia-smi", "/usr/bin/nvidia-modprobe", "/usr/bin/lib64"):
        _expect(path in evidence.paths, f"'{path}' was expected, but is not there.", evidence)
    _expect(
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
    _expect(not left, f"No driver artefact was expected, but these were left: {left}.", evidence)
    loaded = [name for name in DRIVER_MODULES if name in evidence.loaded_modules]
    _expect(
        not loaded, f"No driver module was expected, but these are loaded: {loaded}.", evidence
    )
    builds = [build for build in evidence.dkms_builds if build.name == "nvidia"]
    _expect(not builds, f"DKMS was expected to know no driver, but knows {builds}.", evidence)


def events_recorded(evidence: Evidence, *tasks: str) -> None:
    """Expect an event file for each task name."""
    recorded = evidence.event_tasks
    missing = [task for task in tasks if task not in recorded]
    _expect(
        not missing,
        f"Event files for {missing} were expected, but there are those for {recorded}.",
        evidence,
    )


def no_bar_access(evidence: Evidence, *, gpu: str = "gpu0") -> None:
    """Expect nobody to have read or written a BAR of an emulated GPU."""
    touched = _trace_of(evidence, gpu).bar_accesses()
    _expect(
        not touched,
        f"No BAR access of '{gpu}' was expected, but there were {len(touched)} or more, the first "
        f"of them '{touched[0] if touched else ''}'.",
        evidence,
    )


def no_bar_access_before(evidence: Evidence, mark: str, *, gpu: str = "gpu0") -> None:
    """Expect no BAR access of an emulated GPU before the first mark that contains `mark`.

    Steps of provisioning are marks, and what a test writes by `mark`.
    """
    trace = _trace_of(evidence, gpu)
    moment = _moment(evidence, trace, mark, gpu)
    early = [one for one in trace.bar_accesses() if one.sequence < moment.sequence]
    _expect(
        not early,
        f"No BAR access of '{gpu}' was expected before '{moment.words}', but there was "
        f"'{early[0] if early else ''}'.",
        evidence,
    )


def bar_access_after(evidence: Evidence, mark: str, *, gpu: str = "gpu0") -> None:
    """Expect a BAR access of an emulated GPU after the first mark that contains `mark`."""
    trace = _trace_of(evidence, gpu)
    moment = _moment(evidence, trace, mark, gpu)
    _expect(
        any(one.sequence > moment.sequence for one in trace.bar_accesses()),
        f"A BAR access of '{gpu}' was expected after '{moment.words}', but there was none.",
        evidence,
    )


def gpu_reset(
    evidence: Evidence, *, times: int = 1, since: str | None = None, gpu: str = "gpu0"
) -> None:
    """Expect an emulated GPU to have been reset so often, since a mark or since it was made."""
    trace = _trace_of(evidence, gpu)
    if trace.dropped_incidents:
        raise HarnessError(
            f"So much happened to '{gpu}' that {trace.dropped_incidents} incidents are not in its "
            f"trace, so its resets can't be counted. The evidence lies in '{evidence.folder}'."
        )
    start = -1 if since is None else _moment(evidence, trace, since, gpu).sequence
    seen = sum(one.sequence > start for one in trace.resets())
    when = "" if since is None else f" since '{since}'"
    _expect(
        seen == times,
        f"{times} resets of '{gpu}' were expected{when}, but there were {seen}.",
        evidence,
    )


def kernel_log_line(evidence: Evidence, text: str) -> None:
    """Expect the kernel to have logged a line that contains `text`."""
    _expect(
        text in evidence.output_of("dmesg"),
        f"A line of the kernel's log with '{text}' was expected, but there was none.",
        evidence,
    )


def _trace_of(evidence: Evidence, gpu: str) -> AccessTrace:
    traces = evidence.gpu_traces
    if gpu not in traces:
        raise HarnessError(
            f"The evidence in '{evidence.folder}' has no access trace of '{gpu}', but of "
            f"{sorted(traces)}."
        )
    return traces[gpu]


def _moment(evidence: Evidence, trace: AccessTrace, mark: str, gpu: str) -> Incident:
    moment = trace.find_mark(mark)
    if moment is None:
        marks = [one.words for one in trace.incidents_of(IncidentKind.MARK)]
        raise HarnessError(
            f"The access trace of '{gpu}' has no mark with '{mark}', but {marks}. The evidence "
            f"lies in '{evidence.folder}'."
        )
    return moment
