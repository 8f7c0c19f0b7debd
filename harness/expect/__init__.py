"""Assertions on evidence; no function of this package accesses a machine.

An expectation that is not met raises ExpectationError, whose message says what was expected and
what was found. The expectations have their own copies of the paths and names in the contract of
provisioning, and import none from the code under test (`harness.provisioning`).
"""

from __future__ import annotations

from harness.expect.as_step import as_step
from harness.expect.driver import (
    driver_installed,
    driver_tools_installed,
    kernel_log_line,
    kernel_running,
    module_built_before_boot,
    module_built_for,
    module_built_since_boot,
    module_fits_kernel,
    no_driver_artefact,
    no_module_for,
    no_module_loaded,
    no_record,
    record_fits,
    record_names,
)
from harness.expect.driver_report import driver_reports_health
from harness.expect.gpu_trace import (
    bar_access_after,
    gpu_reset,
    no_bar_access,
    no_bar_access_before,
)
from harness.expect.gpus import (
    driver_names_gpus,
    every_gpu_driven,
    gpu_bound,
    gpus_driven,
    gpus_on_bus,
    gpus_refused,
    has_gpus,
    no_gpu,
    no_gpu_error_logged,
)
from harness.expect.provisioning import (
    cloud_init_clean,
    cloud_init_reports_failure,
    decided,
    events_recorded,
    log_line,
    no_event_recorded,
    no_log_line,
    prebake_line,
    provisioned,
    run_ended_at,
    step_failed,
    step_of,
)
from harness.expect.registry import no_request, pull_answered, pulls_paused, pulls_tried
from harness.expect.runtime import (
    cdi_offers_gpus,
    gpu_services_up,
    image_absent,
    image_present,
    runtime_hands_out_gpus,
    unit_enablement,
    unit_job,
    unit_not_awaited,
    unit_ready_before,
    unit_runs,
    unit_state,
)
from harness.expect.state import unchanged

__all__ = [
    "bar_access_after",
    "cdi_offers_gpus",
    "cloud_init_clean",
    "cloud_init_reports_failure",
    "decided",
    "driver_installed",
    "driver_names_gpus",
    "driver_reports_health",
    "driver_tools_installed",
    "events_recorded",
    "every_gpu_driven",
    "gpu_bound",
    "gpu_reset",
    "gpu_services_up",
    "gpus_driven",
    "gpus_on_bus",
    "gpus_refused",
    "has_gpus",
    "image_absent",
    "image_present",
    "kernel_log_line",
    "kernel_running",
    "log_line",
    "module_built_before_boot",
    "module_built_for",
    "module_built_since_boot",
    "module_fits_kernel",
    "no_bar_access",
    "no_bar_access_before",
    "no_driver_artefact",
    "no_event_recorded",
    "no_gpu",
    "no_gpu_error_logged",
    "no_log_line",
    "no_module_for",
    "no_module_loaded",
    "no_record",
    "no_request",
    "prebake_line",
    "provisioned",
    "pull_answered",
    "pulls_paused",
    "pulls_tried",
    "record_fits",
    "record_names",
    "run_ended_at",
    "runtime_hands_out_gpus",
    "step_failed",
    "step_of",
    "unchanged",
    "unit_enablement",
    "unit_job",
    "unit_not_awaited",
    "unit_ready_before",
    "unit_runs",
    "unit_state",
]

# The report has a step for each expectation that a test calls, but no step for an expectation that
# another expectation calls.
for _name in __all__:
    globals()[_name] = as_step(_name, globals()[_name])
