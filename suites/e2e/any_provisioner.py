"""What rows of the families do for a provisioner that is not the harness's own.

`pytest suites/e2e/record --provisioner=FILE` runs the rows that have `any_provisioner` with it. They
use the commands, exit codes and words of the contract, and none of the harness's configuration.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from harness import expect
from harness.provisioner.gpu_node import NAME

if TYPE_CHECKING:
    from collections.abc import Mapping

    from harness.evidence import Evidence
    from harness.provisioner import Provisioner
    from harness.provisioner.declaration import Declaration

#: Keys of our configuration that save time, and that no row is about.
_SAVE_TIME = frozenset({"config_gpu_driver_if_needed", "retry_budget_s"})


def is_own(provisioner: Provisioner | Declaration) -> bool:
    """Return whether this is `harness.provisioning`."""
    return provisioner.name == NAME


def config_for(provisioner: Provisioner, config: Mapping[str, object]) -> Mapping[str, object]:
    """Return a row's configuration for a provisioner; another has no use for what only saves time."""
    if is_own(provisioner):
        return config
    return {key: value for key, value in config.items() if key not in _SAVE_TIME}


def expect_run_ended_at(evidence: Evidence, name: str) -> None:
    """Expect the run to have ended at this step; another provisioner has steps of its own, or none."""
    if is_own(evidence.provisioner):
        expect.run_ended_at(evidence, name)
