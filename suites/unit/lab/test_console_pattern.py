"""The console pattern of a wait: no step pattern of a provisioner hides the end of cloud-init."""

from __future__ import annotations

import re

from harness.cloudinit import FINISHED
from harness.lab.machine_cloud_init import console_pattern
from harness.provisioner import gpu_node

END = f"[   30.1] cloud-init[305]: {FINISHED}\r\n"
STEP = r"step (?P<name>\S+) (?P<status>done|failed)"


def first(step: str | None, console: str) -> str | None:
    """Return the first match in the output that the console has printed so far."""
    found = re.search(console_pattern(step), console)
    return None if found is None else found[0]


def test_cloud_init_stages_and_final_message_are_matched_without_a_step_pattern() -> None:
    assert first(None, "Cloud-init running 'init-local' at") == "running 'init-local'"
    assert first(None, f"step x done\r\n{END}") == FINISHED


def test_cloud_inits_own_final_message_is_matched() -> None:
    """If user-data is not YAML, cloud-init ends with its own message."""
    line = "Cloud-init v. 22.4.2 finished at Mon, 23 Nov 2026 14:31:54 +0000. Datasource NoCloud"

    assert first(None, line) == first(STEP, line) == "Cloud-init v. 22.4.2 finished at"
    assert first(None, "Cloud-init v. 22.4.2 running 'init-local' at") == "running 'init-local'"


def test_step_is_matched_only_in_a_complete_line() -> None:
    assert first(STEP, "[ 1.0] step driver do") is None
    assert first(STEP, "[ 1.0] step driver done") is None
    assert first(STEP, "[ 1.0] step driver done\r\n") == "step driver done"


def test_failed_step_of_the_shipped_provisioner_is_matched() -> None:
    assert gpu_node.OUTCOME.log is not None
    line = "2026-08-21T12:00:01.500+00:00 step install-driver failed after 2.2 s: no headers\r\n"

    assert first(gpu_node.OUTCOME.log.step, line) == "step install-driver failed after 2.2 s"


def test_greedy_step_pattern_does_not_consume_the_final_message() -> None:
    for greedy in (r"(\S+): .*", r"([\s\S]+) has", r"(\w)\1"):
        console, found = "", list[str]()
        for character in f"[ 1.0] step driver done\r\n{END}":
            console += character
            while match := re.search(console_pattern(greedy), console):
                found.append(match[0])
                console = console[match.end() :]

        assert FINISHED in found, greedy
