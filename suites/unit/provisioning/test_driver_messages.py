"""Messages of the driver in the kernel's log."""

from __future__ import annotations

import time

from harness.provisioning.driver_messages import find_tool_words, parse_messages
from harness.provisioning.driver_words import CORRUPT_INFOROM, LOST_GPU, MISMATCH

REFUSAL = (
    "NVRM: The NVIDIA GPU 0000:03:00.0 (PCI ID: 10de:2bb1)",
    "NVRM: installed in this system requires use of the NVIDIA open kernel modules.",
)
LOST = "NVRM: GPU 0000:01:00.0: GPU has fallen off the bus."


def loaded(version: str) -> str:
    return f"[ 1.1] NVRM: loading NVIDIA UNIX x86_64 Kernel Module  {version}  Mon Nov 23 2026\n"


#: The forms in which a message of two lines is logged.
REFUSALS = {
    "dmesg": f"[    9.1] {REFUSAL[0]}\n               {REFUSAL[1]}\n",
    "each line": f"[    9.1] {REFUSAL[0]}\n[    9.1] {REFUSAL[1]}\n",
    "interleaved": f"[    9.1] {REFUSAL[0]}\n[    9.1] usb 1-1: new device\n[    9.1] {REFUSAL[1]}\n",
    "dmesg -T": f"[Fri Apr  5 21:29:39 2024] {REFUSAL[0]}\n{' ' * 27}{REFUSAL[1]}\n",
    "dmesg -x": f"kern  :err   : [    9.1] {REFUSAL[0]}\n{' ' * 15}{REFUSAL[1]}\n",
    "journal": f"Nov 23 06:22:52.1 node kernel: {REFUSAL[0]}\n{' ' * 31}{REFUSAL[1]}\n",
    "serial": f"{REFUSAL[0]}\r\n{REFUSAL[1]}\r\n",
}


def test_driver_message_on_two_lines_is_read_as_one_message() -> None:
    for log in REFUSALS.values():
        (message,) = parse_messages(log)
        assert message.words is not None
        assert message.words.is_refusal
        assert message.fields == {"address": "0000:03:00.0", "device": "10de:2bb1"}
        assert REFUSAL[0] in message.line


def test_driver_message_that_is_not_in_the_catalogue_is_unknown() -> None:
    for line in (
        "NVRM: something that no release has said yet",
        "NVRM: The NVIDIA GPU 0000:0b:00.0 (PCI ID: 10de:2bb5)",
        "NVRM: Xid (PCI:0000:66:00): abc, pid=2280636",
        "NVRM:",
        "nvidia-nvswitch0: SXid (PCI:0000:05:00.0): 99999, an error",
    ):
        (message,) = parse_messages(f"[    0.0] Linux\n[    9.1] {line}\n[    9.2] eth0: up\n")
        assert message.words is None
        assert not message.condemns_node
        assert message.describe() == f"The driver logged '[    9.1] {line}', an unknown message."


def test_kernel_log_line_without_a_driver_error_is_not_a_driver_message() -> None:
    for line in (
        "nvidia: loading out-of-tree module taints kernel.",
        "nvidia-uvm: Loaded the UVM driver, major device number 234.",
        "nvidia 0000:01:00.0: enabling device (0000 -> 0002)",
        "nvidia 0000:01:00.0: vgaarb: changed VGA decodes: olddecodes=io+mem,decodes=none:owns=none",
        "nvidia-modeset: the default mode is used",
        "nvidia-peermem is loaded",
        "python3[1017]: segfault at 1 ip 00007fdd31be1270 error 4 in libnvidia-ml.so.580.159.04",
        "EXT4-fs (vda1): error of another driver",
    ):
        assert parse_messages(f"[    9.1] {line}\n") == ()


PREFIXES = (
    *("", "[    9.1] ", "<4>[    9.1] ", "[Fri Apr  5 21:29:39 2024] ", "Nov 23 06:22:52.1 node kernel: "),
    *("[    9.1][  T845] ", "[    9.1] [   T845] ", "[    9.1][    C3] ", "node kernel: [    9.1] [T1] "),
    *("kern  :err   : [    9.1] ", "2024-04-05T21:29:39,123456+02:00 ", "[    9.1 <    0.000012>] "),
    *("[Apr 5 21:29] ", "[Nov28 10:00] ", "[  +0.000012] "),
)  # fmt: skip


def test_error_of_nvidia_or_drm_is_found_after_any_time_stamp_prefix() -> None:
    found = {
        prefix: [
            message.condemns_node
            for message in parse_messages(
                f"{prefix}nvidia: probe of 0000:01:00.0 failed with error -1\n"
                f"{prefix}[drm:nv_drm_load [nvidia_drm]] *ERROR* [nvidia-drm] [GPU ID 0x00000400] "
                "Failed to allocate NvKmsKapiDevice\n"
            )
        ]
        for prefix in PREFIXES
    }

    assert found == {prefix: [True, True] for prefix in PREFIXES}


SAID = (
    "an error", "it failed", "fatal", "invalid", "rejected", "refused", "denied", "disagrees", "unknown state",
        "could not start", "cannot start", "can not start", "can't start", "unable to start", "lost", "timed out",
        "time-out", "timeout", "time out", "uncorrectable", "corrupted", "missing", "duplicate", "bad state",
        "aborted", "SXid", "AN ERROR", "version mismatch", "IO_PAGE_FAULT", "halted", "not ready", "giving up",
        "buffer is full", "a storm", "exception", "blacklisted", "excluded",
)  # fmt: skip


PARTS = (
    "nvidia", "nvidia-modeset", "nvidia_uvm", "nvidia-nvswitch0", "nvidia 0000:01:00.0", "[drm] [nvidia-drm]",
    "nvidia-peermem nv_dma_map:313",
)  # fmt: skip


def test_driver_line_with_an_error_word_is_read_as_a_message() -> None:
    lines = [f"{part}: new: an error" for part in PARTS]
    lines += [f"nvidia: new: {said}" for said in SAID]

    messages = parse_messages("\n".join(lines))

    assert [message.line for message in messages] == lines
    assert {message.words for message in messages} == {None}


#: Beginnings of lines, and whether the driver logs such lines.
BEGINNINGS = {
    "NVRM: new words": 1,
    "NVRM new words": 1,
    "kernel:NVRM: new words": 1,
    "[    9.1]NVRM: new words": 1,
    "<4>[    9.1] NVRM: new words": 1,
    "Nov 26 06:22:52 node kernel: [    9.1] NVRM: new words": 1,
    "xNVRM: new words": 0,
    "NVRMx: new words": 0,
    "<3>[    9.1] nvidia: an error": 1,
    "[Thu Nov 26 21:29:39 2026] nvidia: an error": 1,
    "Nov 26 06:22:52 node kernel: nvidia: an error": 1,
    "2026-11-26T06:22:52.1+00:00 node kernel: [    9.1] nvidia: an error": 1,
    "Nov 26 06:22:52 node nvidia-persistenced[77]: an error": 0,
    "Nov 26 06:22:52 node systemd[1]: nvidia.service: an error": 0,
    "[    9.1] i915: nvidia: an error": 0,
    "[    9.1] nvidia-smi[1211]: segfault at 0 ip 00007fdd31be1270 error 4": 1,
    "[    9.1] [nvidia-vgpu-vfio] 334855e2-079b-11ee-9fc9-83e0dccb6713: start failed. status: 0x1": 1,
    "[    9.1] [nvidia-vgpu-vfio] 334855e2-079b-11ee-9fc9-83e0dccb6713: vGPU migration disabled": 0,
    "[    9.1] INFO: task nvidia-smi:1211 blocked for more than 120 seconds.": 1,
    "[    9.1] INFO: task irq/488-nvidia:45 blocked for more than 120 seconds.": 1,
    "[    9.1] INFO: task nv_queue:812 blocked for more than 120 seconds.": 1,
    "[    9.1] INFO: task nvme-wq:812 blocked for more than 120 seconds.": 0,
    "[    9.1] RIP: 0010:_raw_q_schedule+0x40/0x70 [nvidia_uvm]": 1,
    "[    9.1] IP: [<ffffffffc075549f>] _nv011745rm+0x1f/0x170 [nvidia]": 1,
    "[    9.1] pc : os_dump_stack+0x18/0x28 [nvidia]": 1,
    "[    9.1] RIP: 0010:ext4_lookup+0x40/0x70 [ext4]": 0,
    "[    9.1]  ? uvm_va_space_destroy+0x40/0x70 [nvidia_uvm]": 0,
}


def test_driver_message_is_recognised_by_the_start_of_its_line() -> None:
    assert {line: len(parse_messages(line)) for line in BEGINNINGS} == BEGINNINGS


def test_messages_of_several_lines_are_separated() -> None:
    bar = (
        "NVRM: This PCI I/O region assigned to your NVIDIA device is invalid:\n"
        "NVRM: BAR{} is 0M @ 0x0 (PCI:0000:0{}:00.0)\n"
    )
    log = "\n".join((*REFUSAL, bar.format(0, 5) + bar.format(1, 6) + LOST, *REFUSAL, LOST))

    messages = parse_messages(log)

    assert [message.fields.get("address") for message in messages] == [
        *("0000:03:00.0", "0000:05:00.0", "0000:06:00.0", None, "0000:03:00.0", None)
    ]
    assert [message.condemns_node for message in messages] == [True, True, False, True, True, True]
    assert messages[1].line == bar.partition("\n")[0]


def test_message_after_an_empty_serial_number_is_read_separately() -> None:
    serial, loss = parse_messages(f"[ 9.1] NVRM: GPU Board Serial Number: \n[ 9.2] {LOST}\n")

    assert serial.words is not None
    assert not serial.condemns_node
    assert loss.line == f"[ 9.2] {LOST}"
    assert loss.condemns_node


def test_missing_field_of_a_message_is_shown_as_a_question_mark() -> None:
    (message,) = parse_messages(
        "\n".join((REFUSAL[0], "NVRM: installed in this system is not supported by the"))
    )

    assert message.describe().startswith(
        "The NVIDIA driver ? does not support the GPU 0000:03:00.0 (10de:2bb1)"
    )


#: The releases that may have logged a message without a version, and whether the message counts for
#: 580.1.
RELEASES = {
    LOST: (set(), True),
    loaded("580.1") + LOST: ({"580.1"}, True),
    f"{LOST}\n{loaded('580.1')}": ({"580.1"}, True),
    f"{LOST}\n{loaded('470.1')}": ({"470.1"}, False),
    f"{loaded('580.1')}{LOST}\n{loaded('580.1')}": ({"580.1"}, True),
    f"{loaded('470.1')}{LOST}\n{loaded('580.1')}": ({"470.1", "580.1"}, False),
    loaded("470.1") + loaded("580.1") + LOST: ({"580.1"}, True),
    f"{loaded('1.1')}{loaded('580.1')}{LOST}\n{loaded('3.3')}{loaded('580.1')}": ({"580.1", "3.3"}, False),
}  # fmt: skip


def test_message_without_a_version_may_belong_to_each_driver_release_logged_nearby() -> None:
    seen = {}
    for log in RELEASES:
        (lost,) = [message for message in parse_messages(log) if message.condemns_node]
        seen[log] = (set(lost.releases), lost.is_of("580.1"))
        assert lost.is_of(None)

    assert seen == RELEASES


def test_version_in_a_message_overrides_versions_in_nearby_lines() -> None:
    log = (
        loaded("580.1")
        + f"{REFUSAL[0]}\nNVRM: installed in this system is not supported by the\nNVRM: NVIDIA 470.1 driver release.\n"
        + loaded("580.1")
    )
    (refusal,) = [message for message in parse_messages(log) if message.condemns_node]

    assert refusal.is_of("470.1")
    assert not refusal.is_of("580.1")
    assert not refusal.is_of("470.12")


def test_most_severe_message_in_the_output_of_a_program_is_returned() -> None:
    expected = {
        "infoROM is corrupted\nGPU is lost": CORRUPT_INFOROM,
        "GPU is lost\ninfoROM is corrupted": CORRUPT_INFOROM,
        "Driver/library version mismatch\nGPU is lost": LOST_GPU,
        "DRIVER/LIBRARY VERSION MISMATCH": MISMATCH,
        "Driver/library\nversion mismatch": MISMATCH,
    }

    assert {output: find_tool_words(output) for output in expected} == expected


#: Processor seconds; each test below takes a tenth of this time.
_MOST_S = 0.7
#: Each is longer than the longest line that the driver logs.
_LONG_LINES = (
    "NVRM: Xid (PCI:0000:01:00): 154, " + " " * 9_000 + "x",
    "NVRM: The " + "GPU " * 2_000,
    "NVRM: " + "NVRM: " * 1_000,
    "nvidia: " + "\t" * 9_000 + "error",
    "[drm " + "[nvidia-drm] " * 1_000,
)


def test_very_long_line_is_read_within_the_time_limit() -> None:
    """A guest controls the content of its log."""
    began = time.process_time()

    for text in _LONG_LINES:
        assert len(parse_messages(f"{text}\n" * 2)) <= 2
    assert time.process_time() - began < _MOST_S


def test_very_many_lines_are_read_within_the_time_limit() -> None:
    """A lost GPU may fill the log."""
    for said in (
        "Xid (PCI:0000:01:00): 31, pid=1",
        "Xid (PCI:0000:01:00",
        "RmInitAdapter failed! (0x26",
    ):
        log = "".join(f"[ {n}.1] NVRM: {said}\n" for n in range(1_000))
        began = time.process_time()

        assert len(parse_messages(log)) == 1_000
        assert time.process_time() - began < _MOST_S, said


def test_long_output_of_a_program_is_read_within_the_time_limit() -> None:
    began = time.process_time()

    for said in (
        "could not insert nvidia " * 500,
        "Unable to determine the device handle for GPU " * 500,
        "|" + "Unknown Error " * 6_000,
    ):
        assert find_tool_words(said) is None
    assert time.process_time() - began < _MOST_S


def test_driver_line_above_the_length_limit_is_not_read() -> None:
    assert len(parse_messages(f"nvidia: {'x' * 4000} error")) == 1
    assert parse_messages(f"nvidia: {'x' * 4100} error") == ()


def test_each_driver_message_has_the_log_line_on_which_it_starts() -> None:
    expected = {
        f"  {LOST}  \n": [LOST],
        f"{LOST}\nnvidia: a notice\n{LOST}\n": [LOST, LOST],
        f"{REFUSAL[0]}\n{LOST}\n{REFUSAL[1]}\n": [REFUSAL[0], LOST, REFUSAL[1]],
        f"{REFUSAL[1]}\n{REFUSAL[0]}\n": [REFUSAL[1], REFUSAL[0]],
    }

    assert {log: [each.line for each in parse_messages(log)] for log in expected} == expected


def test_message_logged_between_two_driver_releases_may_belong_to_either_release() -> None:
    log = "\n".join((loaded("1.1").strip(), *REFUSAL, loaded("2.2").strip(), LOST))
    refusal, lost = [message for message in parse_messages(log) if message.condemns_node]

    assert refusal.releases == {"1.1", "2.2"}
    assert lost.releases == {"2.2"}
