"""Evidence that each expectation accepts."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from harness import expect
from harness.fixtures.recordings import load_recording
from harness.gpu.trace import AccessKind, IncidentKind
from harness.provisioner import EXIT_CODE_PATH
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

    from harness.evidence import Evidence

    Change = Callable[[EvidenceFolder], EvidenceFolder]
    Expectation = Callable[[Evidence], object]

REFUSAL = load_recording("dmesg/2.38.1-nvidia-refusal").text


def as_it_is(folder: EvidenceFolder) -> EvidenceFolder:
    return folder


def with_file(path: str) -> Change:
    return lambda folder: folder.paths(f"f 644 1 1.0 {path}")


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
    """Write the trace of a GPU that was reset and found, and then read by its driver."""
    return folder.trace(
        IncidentKind.RESET,
        AccessKind.CONFIG_READ,
        "step install-driver done after 3.0 s",
        AccessKind.BAR_READ,
    )


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
    "prebake_line": Case(lambda e: expect.prebake_line(e, event="decision", reason="ok")),
    "log_line": Case(lambda e: expect.log_line(e, "Cloud-init v. 22")),
    "step_of": Case(lambda e: expect.step_of(e, "install-driver")),
    "step_failed": Case(lambda e: expect.step_failed(e, "restart-dcgm")),
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
