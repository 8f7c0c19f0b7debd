"""Assertions on evidence; nothing here touches a machine.

Each raises ExpectationError, a sentence of what was expected and what was seen. Paths and names
are written out here from the contract and not shared with provisioning, which they judge.
"""

from __future__ import annotations

from harness.expect.driver import (
    driver_installed,
    kernel_log_line,
    kernel_running,
    module_built_before_boot,
    module_built_for,
    module_built_since_boot,
    no_driver_artefact,
    no_module_for,
    no_module_loaded,
    no_record,
    record_names,
)
from harness.expect.gpu_trace import (
    bar_access_after,
    gpu_reset,
    no_bar_access,
    no_bar_access_before,
)
from harness.expect.gpus import (
    driver_names_gpus,
    gpu_bound,
    gpus_driven,
    gpus_on_bus,
    gpus_refused,
    no_gpu,
)
from harness.expect.provisioning import (
    cloud_init_clean,
    cloud_init_reports_failure,
    decided,
    events_recorded,
    log_line,
    prebake_line,
    provisioned,
    step_failed,
    step_of,
)
from harness.expect.runtime import (
    image_absent,
    image_present,
    unit_state,
)

__all__ = [
    "bar_access_after",
    "cloud_init_clean",
    "cloud_init_reports_failure",
    "decided",
    "driver_installed",
    "driver_names_gpus",
    "events_recorded",
    "gpu_bound",
    "gpu_reset",
    "gpus_driven",
    "gpus_on_bus",
    "gpus_refused",
    "image_absent",
    "image_present",
    "kernel_log_line",
    "kernel_running",
    "log_line",
    "module_built_before_boot",
    "module_built_for",
    "module_built_since_boot",
    "no_bar_access",
    "no_bar_access_before",
    "no_driver_artefact",
    "no_gpu",
    "no_module_for",
    "no_module_loaded",
    "no_record",
    "prebake_line",
    "provisioned",
    "record_names",
    "step_failed",
    "step_of",
    "unit_state",
]
