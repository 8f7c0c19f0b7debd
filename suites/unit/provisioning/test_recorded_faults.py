"""The table of driver messages contains the recorded faults of NVIDIA's driver.

See `nvidia-module/550.163.01-*` in `fixtures/data/recordings/README.md`.
"""

from __future__ import annotations

from harness.fixtures.recordings import load_recording
from harness.provisioning.driver_messages import DriverMessage, parse_messages
from harness.provisioning.driver_words import Severity


def _messages(case: str) -> tuple[DriverMessage, ...]:
    return parse_messages(load_recording(f"nvidia-module/550.163.01-a100-{case}").text)


def _severity(message: DriverMessage) -> Severity | None:
    return None if message.words is None else message.words.severity


def test_each_recorded_xid_has_the_expected_severity() -> None:
    found = {
        each.fields["xid"]: _severity(each) for each in _messages("xids") if "xid" in each.fields
    }

    assert found == {
        **dict.fromkeys(("13", "31", "43"), Severity.APPLICATION),
        **dict.fromkeys(("48", "63", "64", "74", "79", "94", "95"), Severity.FAULT),
        "92": Severity.NOTICE,
    }


def test_fault_is_recognised_from_the_output_of_the_driver() -> None:
    for case, meaning in (
        ("hang", "Xid 119: A GPU does not work until it is reset."),
        ("hang", "The system processor (GSP) of a GPU does not answer."),
        ("off-the-bus", "Xid 79: A GPU has fallen off the bus"),
        ("off-the-bus-unopened", "The driver could not initialise a GPU."),
        ("wrong-boot42", "The GPU 0000:01:00.0 (10de:20b0) has no system processor (GSP)"),
    ):
        faults = [each.describe() for each in _messages(case) if _severity(each) is Severity.FAULT]
        assert [each for each in faults if meaning in each] != [], faults


def test_every_recorded_line_of_a_failed_start_or_an_xid_is_known() -> None:
    for case in ("xids", "off-the-bus-unopened", "wrong-boot42"):
        assert [each.line for each in _messages(case) if each.words is None] == []
