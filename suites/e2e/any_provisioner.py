"""Adapts the promise tests to a provisioner that is not the harness's own.

`pytest suites/e2e/record --provisioner=FILE` runs the tests marked with `any_provisioner`. These
tests use the commands, exit codes and words of the contract, but not the configuration of the
harness's own provisioner.
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

#: Keys of our configuration that only save time; no test is about these keys.
_SAVE_TIME = frozenset({"config_gpu_driver_if_needed", "retry_budget_s"})


def is_own(provisioner: Provisioner | Declaration) -> bool:
    """Return whether the provisioner is `harness.provisioning`."""
    return provisioner.name == NAME


def config_for(provisioner: Provisioner, config: Mapping[str, object]) -> Mapping[str, object]:
    """Return a test's configuration, for a foreign provisioner without the keys that only save time."""
    if is_own(provisioner):
        return config
    return {key: value for key, value in config.items() if key not in _SAVE_TIME}


def expect_run_ended_at(evidence: Evidence, name: str) -> None:
    """Expect that the run ended at this step; with a foreign provisioner, expect nothing."""
    if is_own(evidence.provisioner):
        expect.run_ended_at(evidence, name)
