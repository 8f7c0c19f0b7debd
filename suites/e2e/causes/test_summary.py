"""Tests of the pytest summary: for a machine with a common fault, the summary names the cause."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from harness.evidence.causes import CAUSES
from harness.provisioning.command import LocalRunner
from suites.e2e.inner import pytest_argv

if TYPE_CHECKING:
    from collections.abc import Mapping

    from harness.api import Lab

pytestmark = [
    pytest.mark.nightly,
    pytest.mark.pin_image(reason="the words are those of the kernel, systemd and Debian's tools"),
]

_MACHINES = Path(__file__).with_name("broken_machines.py")
_REMEDIES = {cause.name: cause.remedy for cause in CAUSES}
_COLUMNS = 80
_RUN_S = 600.0


@dataclass(frozen=True, kw_only=True)
class Words:
    """The beginning of the summary's line about a test, and the common cause, or None."""

    line: str
    cause: str | None = None


def cause(name: str, line: str) -> Words:
    """Return the words for a common cause; the guest's line about the cause begins with `line`."""
    return Words(line=f"{name}: {line}", cause=name)


#: The expected words, by the name of the test that fails.
WORDS: Mapping[str, Words] = {
    "test_boot_hangs": Words(line="the guest does not answer; its console ends with: "),
    "test_root_is_not_found": cause("the root file system is not found", "ALERT!  /dev/vdz does"),
    "test_unit_before_sshd_never_starts": Words(line="unit 'storage.service' is still starting"),
    "test_kernel_panics": cause("kernel panic", "Kernel panic - not syncing: sysrq triggered"),
    "test_disk_is_full": cause("no space on the guest's disk", "The log "),
    "test_memory_is_used_up": cause("the guest ran out of memory", "kernel: Out of memory"),
    "test_user_data_is_not_yaml": cause(
        "cloud-init can't read its user-data", "util.py[WARNING]: Failed loading"
    ),
    "test_gpu_falls_off_the_bus": cause("the GPU is lost", "validate-query failed after"),
    "test_dpkg_is_locked": cause("dpkg is locked by another process", "E: Could not get lock"),
    "test_headers_are_missing": cause(
        "the kernel's headers are missing", "Error! Your kernel headers"
    ),
    "test_clock_is_set_back": cause("the guest's clock is wrong", "curl: (60) SSL certificate"),
    "test_name_is_not_resolved": cause(
        "a name can't be resolved", "curl: (6) Could not resolve host"
    ),
}


@pytest.mark.parametrize(
    ("test", "words"), [pytest.param(*case, id=case[0]) for case in WORDS.items()]
)
def test_summary_names_the_cause(lab: Lab, tmp_path: Path, test: str, words: Words) -> None:
    """The line with the cause fits a terminal; the text of the failure has the remedy."""
    run = LocalRunner().run(
        [
            *pytest_argv(lab, _MACHINES),
            *("-k", test),
            # Clones take seconds, and this run has their saved states.
            "--machine-start=clone",
            "--failure-checkpoint=never",
            f"--evidence-dir={tmp_path / 'evidence'}",
        ],
        timeout_s=_RUN_S,
        env={"COLUMNS": str(_COLUMNS)},
    )

    text, _, summary = run.stdout.partition(" short test summary info ")
    lines = summary.splitlines()
    assert run.exit_code == pytest.ExitCode.TESTS_FAILED, run.render()
    assert any(line.startswith(f"  {words.line}") for line in lines), run.render()
    assert all(len(line) <= _COLUMNS for line in lines if line.startswith("  ")), run.render()
    if words.cause is not None:
        assert f"remedy: {_REMEDIES[words.cause]}" in text, run.render()
