"""Evidence that expectations accept, refuse, or can't judge, by the name of the expectation."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from harness import expect
from harness.evidence import (
    CLOUD_INIT_OUTPUT_PATH,
    CLOUD_INIT_RESULT_PATH,
    RECORD_PATH,
    Evidence,
)
from harness.fixtures.recordings import load_recording
from harness.gpu.trace import AccessKind, IncidentKind
from harness.provisioner import EXIT_CODE_PATH
from harness.provisioner.gpu_node import EVENTS_FOLDER, OUTCOME_PATH
from suites.unit.evidence.folders import (
    BOOTED_AT_S,
    IMAGE,
    KERNEL,
    MODULE,
    OTHER_KERNEL,
    VERSION,
    EvidenceFolder,
    a_gpu_node,
    a_stripped_node,
)

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    Change = Callable[[EvidenceFolder], EvidenceFolder]
    Expectation = Callable[[Evidence], object]

#: Expectations that have their own tests: on states and on a registry's log, which need no evidence
#: folder, and on units in the output of `systemctl show`.
TESTED_APART = {
    *("no_request", "pull_answered", "pulls_paused", "pulls_tried"),
    "unchanged",
    "driver_reports_health",
    *("unit_enablement", "unit_job", "unit_not_awaited", "unit_ready_before", "unit_runs"),
}
OUTCOME_FILE = f"files{OUTCOME_PATH}"
INFORMATION = "/proc/driver/nvidia/gpus/0000:01:00.0/information"
REFUSAL = load_recording("dmesg/2.38.1-nvidia-refusal").text


def as_it_is(folder: EvidenceFolder) -> EvidenceFolder:
    return folder


@dataclass(frozen=True)
class Case:
    """An expectation and its evidence; `message` is a part of the error."""

    expectation: Expectation
    change: Change = as_it_is
    node: Callable[[Path], EvidenceFolder] = a_gpu_node
    message: str = ""

    def judge(self, folder: Path) -> object:
        return self.expectation(self.change(self.node(folder)).evidence)


def with_loaded_driver(folder: EvidenceFolder) -> EvidenceFolder:
    """Write the trace of a GPU that was reset, found by the guest, and then read by its driver."""
    return folder.trace(
        IncidentKind.RESET,
        AccessKind.CONFIG_READ,
        "step install-driver done after 3.0 s",
        AccessKind.BAR_READ,
    )


def with_damaged_trace(folder: EvidenceFolder) -> EvidenceFolder:
    trace = folder.trace().root / "host/gpu0-trace.json"
    trace.write_text('{"accesses": [[1]]}')
    return folder


def with_xid(folder: EvidenceFolder) -> EvidenceFolder:
    return folder.command("dmesg", "[   9.1] NVRM: Xid (PCI:0000:01:00): 79, pid='<unknown>'\n")


ACCEPTED = {
    "provisioned": Case(expect.provisioned),
    "provisioned with a failure that was expected": Case(
        lambda e: expect.provisioned(e, exit_code=86),
        lambda f: f.outcome(exit_code=86).file(EXIT_CODE_PATH, "86\n"),
    ),
    "cloud_init_clean": Case(expect.cloud_init_clean),
    "cloud_init_reports_failure": Case(
        expect.cloud_init_reports_failure, lambda f: f.cloud_init("('scripts-user', …)")
    ),
    "decided": Case(lambda e: expect.decided(e, action="install-skip-build", reason="ok")),
    "prebake_line": Case(
        lambda e: expect.prebake_line(e, event="decision", reason="ok"),
        lambda f: f.file(
            CLOUD_INIT_OUTPUT_PATH,
            "AKS_GPU_PREBAKE event=decision reason=ok\nAKS_GPU_PREBAKE event=teardown\n",
        ),
    ),
    "log_line": Case(lambda e: expect.log_line(e, "Cloud-init v. 22")),
    "no_log_line": Case(lambda e: expect.no_log_line(e, "no such line")),
    "step_of": Case(lambda e: expect.step_of(e, "install-driver")),
    "step_failed": Case(lambda e: expect.step_failed(e, "restart-dcgm")),
    "run_ended_at": Case(
        lambda e: expect.run_ended_at(e, "restart-dcgm"),
        lambda f: f.outcome(
            exit_code=4, error="Step 'restart-dcgm' failed. It is slow.\nexit code"
        ),
    ),
    "kernel_running": Case(lambda e: expect.kernel_running(e, KERNEL)),
    "record_names": Case(lambda e: expect.record_names(e, KERNEL=KERNEL)),
    "no_record": Case(expect.no_record, node=a_stripped_node),
    "image_present": Case(lambda e: expect.image_present(e, IMAGE)),
    "image_absent": Case(lambda e: expect.image_absent(e, IMAGE), node=a_stripped_node),
    "module_built_for": Case(lambda e: expect.module_built_for(e, KERNEL, version=VERSION)),
    "no_module_for": Case(lambda e: expect.no_module_for(e, OTHER_KERNEL)),
    "module_built_before_boot": Case(lambda e: expect.module_built_before_boot(e, KERNEL)),
    "module_built_since_boot": Case(
        lambda e: expect.module_built_since_boot(e, KERNEL),
        lambda f: f.paths(f"f 644 1 {BOOTED_AT_S + 60}.0 {MODULE}"),
    ),
    "gpus_on_bus": Case(lambda e: expect.gpus_on_bus(e, "2330")),
    "gpus_on_bus when there are none": Case(expect.gpus_on_bus, node=a_stripped_node),
    "no_module_loaded": Case(expect.no_module_loaded, node=a_stripped_node),
    "unit_state": Case(lambda e: expect.unit_state(e, "nvidia-dcgm.service", active="active")),
    "gpu_bound": Case(lambda e: expect.gpu_bound(e, device="2330")),
    "gpus_driven": Case(lambda e: expect.gpus_driven(e, "2330")),
    "gpus_driven when there are none": Case(expect.gpus_driven, node=a_stripped_node),
    "driver_names_gpus": Case(lambda e: expect.driver_names_gpus(e, "NVIDIA H100 80GB HBM3")),
    "driver_names_gpus when there are none": Case(expect.driver_names_gpus, node=a_stripped_node),
    "gpus_refused": Case(
        lambda e: expect.gpus_refused(e, "2bb5"), lambda f: f.command("dmesg", REFUSAL)
    ),
    "gpus_refused when none is": Case(expect.gpus_refused),
    "no_gpu": Case(expect.no_gpu, node=a_stripped_node),
    "driver_installed": Case(expect.driver_installed),
    "no_driver_artefact": Case(expect.no_driver_artefact, node=a_stripped_node),
    "events_recorded": Case(lambda e: expect.events_recorded(e, "AKS.CSE.ensureGPUDrivers")),
    "no_event_recorded": Case(lambda e: expect.no_event_recorded(e, "AKS.CSE.cleanUpGPUDrivers")),
    "no_driver_artefact where one is allowed": Case(
        lambda e: expect.no_driver_artefact(e, allow=["/usr/bin/nvidia-*"]),
        lambda f: f.paths("f 755 9 1.0 /usr/bin/nvidia-smi"),
        node=a_stripped_node,
    ),
    "no_bar_access": Case(
        expect.no_bar_access, lambda f: f.trace(AccessKind.CONFIG_READ, IncidentKind.RESET)
    ),
    "no_bar_access_before": Case(
        lambda e: expect.no_bar_access_before(e, "step install-driver"), with_loaded_driver
    ),
    "bar_access_after": Case(
        lambda e: expect.bar_access_after(e, "step install-driver"), with_loaded_driver
    ),
    "gpu_reset": Case(expect.gpu_reset, with_loaded_driver),
    "gpu_reset since a mark": Case(
        lambda e: expect.gpu_reset(e, times=0, since="step install-driver"), with_loaded_driver
    ),
    "kernel_log_line": Case(
        lambda e: expect.kernel_log_line(e, "Xid (PCI:0000:01:00): 79"), with_xid
    ),
}

REFUSED = {
    "gpus_driven: another": Case(
        lambda e: expect.gpus_driven(e, "20b0"),
        message="bound to ['20b0'], but is bound to ['10de:2330']",
    ),
    "driver_names_gpus: a name it does not know": Case(
        lambda e: expect.driver_names_gpus(e, "Tesla T4"),
        lambda f: f.file(INFORMATION, "Model: \t\t Unknown\n"),
        message="name the GPUs ['Tesla T4'], but names ['Unknown']",
    ),
    "driver_names_gpus: a file without a name": Case(
        expect.driver_names_gpus, lambda f: f.file(INFORMATION, "IRQ: 22\n"), message="(no name)"
    ),
    "gpus_refused: none is": Case(
        lambda e: expect.gpus_refused(e, "2bb5"), message="['2bb5'], but its log lines name []"
    ),
    "gpus_refused: one that was not expected": Case(
        expect.gpus_refused, lambda f: f.command("dmesg", REFUSAL), message="name ['2bb5']"
    ),
    "no_bar_access: the driver read": Case(
        expect.no_bar_access, with_loaded_driver, message="'BAR read 0 0x0 -> 0x180000a1'"
    ),
    "no_bar_access_before: one came before": Case(
        lambda e: expect.no_bar_access_before(e, "install-driver"),
        lambda f: f.trace(AccessKind.BAR_WRITE, "step install-driver done after 3.0 s"),
        message="expected before 'step install-driver done after 3.0 s', but there was 'BAR write",
    ),
    "bar_access_after: none came": Case(
        lambda e: expect.bar_access_after(e, "install-driver"),
        lambda f: f.trace(AccessKind.BAR_READ, "step install-driver", AccessKind.CONFIG_READ),
        message="expected after 'step install-driver', but there was none",
    ),
    "gpu_reset: twice": Case(
        expect.gpu_reset,
        lambda f: f.trace(IncidentKind.RESET, IncidentKind.RESET),
        message="1 resets of 'gpu0' were expected, but there were 2",
    ),
    "gpu_reset: only before the mark": Case(
        lambda e: expect.gpu_reset(e, since="install-driver"),
        with_loaded_driver,
        message="expected since 'install-driver', but there were 0",
    ),
    "kernel_log_line: none": Case(
        lambda e: expect.kernel_log_line(e, "Xid (PCI:0000:01:00): 48"),
        with_xid,
        message="'Xid (PCI:0000:01:00): 48' was expected",
    ),
    "provisioned: another code": Case(
        expect.provisioned,
        lambda f: f.outcome(exit_code=84, exit_name="ERR_GPU_DRIVERS", error="no headers"),
        message="expected to end with 0 (OK), but it ended with 84 (ERR_GPU_DRIVERS): no headers",
    ),
    "provisioned: no outcome": Case(
        expect.provisioned,
        lambda f: f.without(OUTCOME_FILE),
        message="of provisioning was expected, but there is none",
    ),
    "provisioned: the shell saw another code": Case(
        expect.provisioned,
        lambda f: f.file(EXIT_CODE_PATH, "1\n"),
        message="The provisioner's command was expected to end with exit code 0, but ended with 1",
    ),
    "provisioned: the shell saw none": Case(
        expect.provisioned,
        lambda f: f.file(EXIT_CODE_PATH, "\n"),
        message="but ended with no exit code",
    ),
    "cloud_init_clean: errors": Case(
        expect.cloud_init_clean,
        lambda f: f.cloud_init("runcmd failed"),
        message="reported ['runcmd failed']",
    ),
    "cloud_init_clean: another source": Case(
        expect.cloud_init_clean,
        lambda f: f.cloud_init(datasource="DataSourceNone"),
        message="but used 'DataSourceNone'",
    ),
    "cloud_init_clean: no result": Case(
        expect.cloud_init_clean,
        lambda f: f.without(f"files{CLOUD_INIT_RESULT_PATH}"),
        message="A result of cloud-init was expected, but there is none",
    ),
    "cloud_init_reports_failure: none": Case(
        expect.cloud_init_reports_failure, message="reported none"
    ),
    "cloud_init_reports_failure: no result": Case(
        expect.cloud_init_reports_failure,
        lambda f: f.without(f"files{CLOUD_INIT_RESULT_PATH}"),
        message="expected to report an error",
    ),
    "decided: another action": Case(
        lambda e: expect.decided(e, action="install", reason="ok"),
        message="expected to be 'install' with reason 'ok', but it was 'install-skip-build' with reason 'ok'",
    ),
    "decided: another reason": Case(
        lambda e: expect.decided(e, action="install-skip-build", reason="kernel"),
        message="but it was 'install-skip-build' with reason 'ok'",
    ),
    "decided: the log line says otherwise": Case(
        lambda e: expect.decided(e, action="install-skip-build", reason="ok"),
        lambda f: f.file(
            CLOUD_INIT_OUTPUT_PATH, "AKS_GPU_PREBAKE event=decision action=install reason=kernel\n"
        ),
        message="by the log '/var/log/cloud-init-output.log' was expected to be 'install-skip-build' "
        "with reason 'ok', but it was 'install' with reason 'kernel'",
    ),
    "prebake_line: another value": Case(
        lambda e: expect.prebake_line(e, event="teardown"), message="An AKS_GPU_PREBAKE line"
    ),
    "prebake_line: fields of two lines": Case(
        lambda e: expect.prebake_line(e, event="decision", status="cleaned"),
        lambda f: f.file(
            CLOUD_INIT_OUTPUT_PATH,
            "AKS_GPU_PREBAKE event=decision reason=ok\n"
            "AKS_GPU_PREBAKE event=decision reason=kernel\n"
            "AKS_GPU_PREBAKE event=teardown status=cleaned\n",
        ),
        message="has 'status=(none)': 'event=decision reason=kernel'",
    ),
    "prebake_line: no log": Case(
        lambda e: expect.prebake_line(e, event="decision"),
        lambda f: f.without(f"files{CLOUD_INIT_OUTPUT_PATH}"),
        message="but there is none",
    ),
    "log_line": Case(lambda e: expect.log_line(e, "no such line"), message="'no such line'"),
    "no_log_line": Case(
        lambda e: expect.no_log_line(e, "Cloud-init v. 22"),
        message="but there is: Cloud-init v. 22",
    ),
    "step_of: not reached": Case(
        lambda e: expect.step_of(e, "teardown"),
        message="but the steps were ['install-driver', 'restart-dcgm']",
    ),
    "step_failed: done": Case(
        lambda e: expect.step_failed(e, "install-driver"), message="but its status is 'done'"
    ),
    "run_ended_at: an ignored failure": Case(
        lambda e: expect.run_ended_at(e, "restart-dcgm"), message="but the run's error is: none"
    ),
    "run_ended_at: a later step": Case(
        lambda e: expect.run_ended_at(e, "restart-dcgm"),
        lambda f: f.outcome(
            exit_code=4, error="Step 'start-kubelet' failed. It is slow.\nexit code"
        ),
        message="at the step 'restart-dcgm', but the run's error is: Step 'start-kubelet' failed. It is slow.",
    ),
    "run_ended_at: a step that has not failed": Case(
        lambda e: expect.run_ended_at(e, "install-driver"),
        lambda f: f.outcome(exit_code=84, error="Step 'install-driver' failed."),
        message="but its status is 'done'",
    ),
    "kernel_running": Case(
        lambda e: expect.kernel_running(e, OTHER_KERNEL), message=f"but runs '{KERNEL}'"
    ),
    "record_names: another value": Case(
        lambda e: expect.record_names(e, KERNEL=OTHER_KERNEL), message=f"'KERNEL': '{KERNEL}'"
    ),
    "record_names: no such field": Case(
        lambda e: expect.record_names(e, COLOUR="green"), message="{'COLOUR': None}"
    ),
    "record_names: no record": Case(
        lambda e: expect.record_names(e, KERNEL=KERNEL),
        node=a_stripped_node,
        message="but there is none",
    ),
    "no_record: a record": Case(expect.no_record, message="but there is one"),
    "no_record: a record that was not gathered": Case(
        expect.no_record,
        lambda f: f.paths(f"f 644 60 1699990000.0 {RECORD_PATH}"),
        node=a_stripped_node,
        message=f"'{RECORD_PATH}' is there",
    ),
    "image_present": Case(
        lambda e: expect.image_present(e, IMAGE), node=a_stripped_node, message="but has []"
    ),
    "image_absent": Case(lambda e: expect.image_absent(e, IMAGE), message="not to have"),
    "module_built_for: built, not installed": Case(
        lambda e: expect.module_built_for(e, KERNEL, version=VERSION),
        lambda f: f.command("dkms-status", f"nvidia/{VERSION}, {KERNEL}, x86_64: built\n"),
        message="'built'",
    ),
    "module_built_for: no vermagic": Case(
        lambda e: expect.module_built_for(e, KERNEL, version=VERSION),
        lambda f: f.command(f"modinfo-{KERNEL}", "vermagic:\n"),
        message="but has ''",
    ),
    "module_built_before_boot: another module only": Case(
        lambda e: expect.module_built_before_boot(e, KERNEL),
        lambda f: f.paths(f"f 644 1 1.0 {MODULE.replace('nvidia.ko', 'nvidia-uvm.ko')}"),
        message=f"but there are only ['{MODULE.replace('nvidia.ko', 'nvidia-uvm.ko')}'].",
    ),
    "module_built_for: no module": Case(
        lambda e: expect.module_built_for(e, KERNEL, version=VERSION),
        lambda f: f.command(
            f"modinfo-{KERNEL}", "modinfo: ERROR: Module nvidia not found.\n", 1
        ).paths(),
        message="but has None",
    ),
    "no_module_for": Case(
        lambda e: expect.no_module_for(e, KERNEL), message=f"there is one for '{KERNEL} SMP"
    ),
    "module_built_before_boot: compiled here": Case(
        lambda e: expect.module_built_before_boot(e, KERNEL),
        lambda f: f.paths(f"f 644 1 {BOOTED_AT_S + 60}.0 {MODULE}"),
        message="was modified 60 s after the boot: the file was compiled on this node",
    ),
    "module_built_before_boot: no module": Case(
        lambda e: expect.module_built_before_boot(e, OTHER_KERNEL), message="but there is none"
    ),
    "module_built_since_boot: older than the boot": Case(
        lambda e: expect.module_built_since_boot(e, KERNEL),
        message=f"'{MODULE}' was expected to be newer than the boot, but was modified 10000 s before",
    ),
    "gpus_on_bus: another": Case(
        lambda e: expect.gpus_on_bus(e, "20b0"), message="but there were ['10de:2330']"
    ),
    "no_module_loaded: a device node": Case(
        expect.no_module_loaded,
        lambda f: f.paths("c 666 0 1.0 /dev/nvidia-uvm"),
        node=a_stripped_node,
        message="['/dev/nvidia-uvm']",
    ),
    "unit_state: not loaded": Case(
        lambda e: expect.unit_state(e, "kubelet.service", active="active"),
        message="but systemd has not loaded it",
    ),
    "gpu_bound: another GPU": Case(
        lambda e: expect.gpu_bound(e, device="20b0"), message="A GPU 20b0 was expected"
    ),
    "gpu_bound: by another driver": Case(
        lambda e: expect.gpu_bound(e, device="2330"),
        lambda f: f.command(
            "lspci",
            "01:00.0 3D controller [0302]: NVIDIA H100 [10de:2330]\n"
            "\tKernel driver in use: nouveau\n",
        ),
        message="bound to 01:00.0, but 'nouveau' is",
    ),
    "no_gpu": Case(expect.no_gpu, message="No GPU was expected"),
    "driver_installed: a file is missing": Case(
        expect.driver_installed,
        lambda f: f.paths("f 4755 1 1.0 /usr/bin/nvidia-modprobe", "d 755 1 1.0 /usr/bin/lib64"),
        message="'/usr/bin/nvidia-smi' was expected",
    ),
    "no_driver_artefact: DKMS knows it": Case(
        expect.no_driver_artefact,
        lambda f: f.command("dkms-status", f"nvidia/{VERSION}: added\n"),
        node=a_stripped_node,
        message="No driver was expected in DKMS",
    ),
    "no_driver_artefact: DKMS knows it by the name of Debian's package": Case(
        expect.no_driver_artefact,
        lambda f: f.command("dkms-status", f"nvidia-current/{VERSION}: added\n"),
        node=a_stripped_node,
        message="No driver was expected in DKMS",
    ),
    "no_event_recorded": Case(
        lambda e: expect.no_event_recorded(e, "x", "AKS.CSE.ensureGPUDrivers"),
        message="No events named ['AKS.CSE.ensureGPUDrivers'] were expected",
    ),
    "no_driver_artefact: another than what is allowed": Case(
        lambda e: expect.no_driver_artefact(e, allow=["/usr/bin/nvidia-s"]),
        lambda f: f.paths("f 755 9 1.0 /usr/bin/nvidia-smi"),
        message="['/usr/bin/nvidia-smi']",
        node=a_stripped_node,
    ),
    "events_recorded: another": Case(
        lambda e: expect.events_recorded(e, "AKS.CSE.cleanUpGPUDrivers"),
        message="the names of all events are ['AKS.CSE.ensureGPUDrivers']",
    ),
    "events_recorded: named in another event's message": Case(
        lambda e: expect.events_recorded(e, "AKS.CSE.x"),
        lambda f: f.file(
            f"{EVENTS_FOLDER}/1.json", '{"TaskName": "other", "Message": "\\"AKS.CSE.x\\""}'
        ),
        message="['AKS.CSE.x'] were expected",
    ),
}

#: Without the evidence, the result is unknown, even for an expected absence.
UNDECIDED = {
    "provisioned: a damaged outcome": Case(
        expect.provisioned, lambda f: f.file(OUTCOME_PATH, "{half")
    ),
    "cloud_init_clean: a damaged result": Case(
        expect.cloud_init_clean, lambda f: f.file(CLOUD_INIT_RESULT_PATH, "[]")
    ),
    "no_record: nobody looked": Case(
        expect.no_record, lambda f: f.without("stat.txt"), node=a_stripped_node
    ),
    "image_absent: containerd did not answer": Case(
        lambda e: expect.image_absent(e, IMAGE),
        lambda f: f.command("container-images", "ctr: cannot connect", 1),
        node=a_stripped_node,
    ),
    "no_gpu: there is no lspci": Case(
        expect.no_gpu,
        lambda f: f.command("lspci", "sh: lspci: not found", 127),
        node=a_stripped_node,
    ),
    "no_module_for: modinfo hung": Case(
        lambda e: expect.no_module_for(e, OTHER_KERNEL),
        lambda f: f.command(f"modinfo-{OTHER_KERNEL}", "", 124),
    ),
    "no_module_for: nobody asked": Case(lambda e: expect.no_module_for(e, "5.0-unknown")),
    "no_module_loaded: no list of modules": Case(
        expect.no_module_loaded, lambda f: f.without("files/proc/modules"), node=a_stripped_node
    ),
    "no_driver_artefact: nobody looked": Case(
        expect.no_driver_artefact, lambda f: f.without("stat.txt"), node=a_stripped_node
    ),
    "no_driver_artefact: DKMS did not answer": Case(
        expect.no_driver_artefact,
        lambda f: f.command("dkms-status", "Terminated", 124),
        node=a_stripped_node,
    ),
    "module_built_before_boot: no time of the boot": Case(
        lambda e: expect.module_built_before_boot(e, KERNEL), lambda f: f.file("/proc/stat", "")
    ),
    "no_bar_access: no trace of this GPU": Case(
        expect.no_bar_access,
        lambda f: f.trace(gpu="gpu1"),
        message="no access trace of 'gpu0'; there are traces of ['gpu1']",
    ),
    "no_bar_access: a file that is not a trace": Case(
        expect.no_bar_access,
        with_damaged_trace,
        message="gpu0-trace.json' was expected to be",
    ),
    "no_bar_access_before: no such mark": Case(
        lambda e: expect.no_bar_access_before(e, "instal"),
        lambda f: f.trace("step probe-device done"),
        message="no mark with 'instal'; its marks are",
    ),
    "gpu_reset: a trace that dropped a reset": Case(
        lambda e: expect.gpu_reset(e, times=1025),
        lambda f: f.trace(*[IncidentKind.RESET] * 1025),
        message="dropped 1 incidents",
    ),
    "gpu_reset since a mark: a trace that dropped a reset": Case(
        lambda e: expect.gpu_reset(e, times=1025, since="a mark"),
        lambda f: f.trace(*[IncidentKind.RESET] * 1025),
        message="dropped 1 incidents",
    ),
    "bar_access_after: no such mark": Case(
        lambda e: expect.bar_access_after(e, "instal"), lambda f: f.trace(AccessKind.BAR_READ)
    ),
    "gpu_reset: no such mark": Case(
        lambda e: expect.gpu_reset(e, since="restart"), with_loaded_driver
    ),
    "step_failed: nobody reports it": Case(
        lambda e: expect.step_failed(e, "install-driver"),
        lambda f: f.outcome(steps=[{"name": "install-driver"}]),
    ),
    "run_ended_at: nobody reports how the step ended": Case(
        lambda e: expect.run_ended_at(e, "install-driver"),
        lambda f: f.outcome(
            steps=[{"name": "install-driver"}], error="Step 'install-driver' failed."
        ),
    ),
    "events_recorded: a damaged event": Case(
        lambda e: expect.events_recorded(e, "x"), lambda f: f.file(f"{EVENTS_FOLDER}/1.json", "{")
    ),
}
