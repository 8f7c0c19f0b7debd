"""Common causes of failures are recognised in the logs of a node."""

from __future__ import annotations

import itertools
import json
import time
from dataclasses import replace
from typing import TYPE_CHECKING

from harness.evidence import CLOUD_INIT_OUTPUT_PATH
from harness.evidence.causes import CAUSES, explain, find_cause, find_causes, first_error_line
from harness.provisioner import EXIT_CODE_PATH, RUNS_FOLDER, Provisioner
from harness.provisioner.declaration import write_declaration
from harness.provisioner.outcome import LogPatterns, OutcomeDeclaration
from harness.provisioning.command import CommandResult

if TYPE_CHECKING:
    from pathlib import Path

#: A line of a real guest for each cause.
LINES = {
    "kernel panic": "[    4.71] Kernel panic - not syncing: VFS: Unable to mount root fs",
    "the root file system is not found": "ALERT!  /dev/vdz does not exist.  Dropping to a shell!",
    "no space on the guest's disk": "cp: error writing '/opt/x': No space left on device",
    "the guest ran out of memory": "[  61.0] Out of memory: Killed process 812 (cc1) total-vm:1",
    "dpkg is locked by another process": "E: Could not get lock /var/lib/dpkg/lock-frontend. It is "
    "held by process 391 (apt-get)",
    "the kernel's headers are missing": "Error! Your kernel headers for kernel 6.1.0-56 cannot be "
    "found at /lib/modules/6.1.0-56/build",
    "the guest's clock is wrong": "curl: (60) SSL certificate problem: certificate is not yet valid",
    "a name can't be resolved": "curl: (6) Could not resolve host: mcr.microsoft.com",
    "cloud-init can't read its user-data": "util.py[WARNING]: Failed loading yaml blob. Invalid format",
    "systemd went into emergency mode": "You are in emergency mode. After logging in, type",
    "no space on the host's disk": "QEMU could not write its disk (No space left on device); free",
    "a certificate has expired, or the guest's clock is ahead": "curl: (60) SSL certificate problem: "
    "certificate has expired",
    "there are no inotify watches left": "kubelet[811]: inotify_add_watch /sys/fs/cgroup: no space left "
    "on device",
    "a container or unit reached its own memory limit": "[ 61.0] Memory cgroup out of memory: Killed "
    "process 812 (python3) total-vm:1kB",
    "the GPU's infoROM is corrupted": "WARNING: infoROM is corrupted at gpu 0000:02:00.0",
    "the GPU is lost": "NVRM: Xid (PCI:0000:02:00): 79, pid=7, GPU has fallen off the bus.",
    "the GPU has to be reset": "Unable to determine the device handle for GPU0000:01:00.0: GPU requires reset",
    "the GPU has no power": "Unable to communicate with GPU because it is insufficiently powered.",
    "the driver's programs and module differ": "Failed to initialize NVML: Driver/library version mismatch",
    "the driver's module is not signed": "modprobe: ERROR: could not insert 'nvidia': Key was rejected "
    "by service",
    "the driver's module is not allowed": "modprobe: ERROR: could not insert 'nvidia': Permission denied",
    "the driver's module is for another kernel": "modprobe: ERROR: could not insert 'nvidia': Exec format "
    "error",
    "the driver's library is missing": "NVIDIA-SMI couldn't find libnvidia-ml.so library in your system.",
    "another driver is bound to the GPU": "ERROR: The Nouveau kernel driver is currently in use by your system.",
    "the driver's module is missing": "modprobe: FATAL: Module nvidia not found in directory /lib/modules/6",
}
#: A message of the driver about a GPU in the kernel's log, by the name of the cause.
DRIVER_LINES = {
    "the GPU's memory has errors": "NVRM: Xid (PCI:0000:02:00): 48, pid=7",
    "the GPU has to be reset": "NVRM: Xid (PCI:0000:02:00): 119, pid=7",
    "an NVSwitch has a fatal error": "nvidia-nvswitch1: SXid (PCI:0000:06:00.0): 20034, Fatal, Link 48",
    "the driver does not support the GPU": "NVRM: ignoring the legacy GPU 0000:01:00.0",
}
#: The same messages about GPUs in other PCI domains, and in other forms.
FORMS_OF_DRIVER = (
    ("the GPU's memory has errors", "NVRM: Xid (PCI:0001:00:00): 48, pid=7"),
    ("the GPU's memory has errors", "NVRM: Xid (PCI:10000:0a:00): 48"),
    ("the GPU has to be reset", "NVRM: Xid (PCI:000f:0b:00): 119, pid='<unknown>', name=<unknown>"),
    ("an NVSwitch has a fatal error", "nvidia-nvswitch12: SXid (PCI:0001:0a:00.0): 20034, Fatal, Link 8"),
    ("the driver does not support the GPU", "NVRM: ignoring the legacy GPU 0001:0a:00.0"),
)  # fmt: skip


def write(folder: Path, name: str, text: str) -> None:
    path = folder / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)


def test_cause_is_shown_with_its_log_line_and_a_remedy(tmp_path: Path) -> None:
    assert {cause.name for cause in CAUSES} == set(LINES)
    for name, line in LINES.items():
        write(tmp_path, "host/serial.log", f"[    1.0] all is well\r\n{line}\r\n")

        found = find_cause(tmp_path)

        assert found is not None, name
        assert (found.cause.name, found.source) == (name, "host/serial.log")
        assert found.line in line
        assert found.sentence() == f"{name}: {found.line}"
        assert found.remedy.startswith("remedy: ")
        assert explain(tmp_path, is_named=True) == []


def test_cause_is_recognised_in_a_message_of_the_driver(tmp_path: Path) -> None:
    for name, line in (*DRIVER_LINES.items(), *FORMS_OF_DRIVER):
        journal = f"Nov 23 06:22:52.1 node kernel: usb\nNov 23 06:22:53.1 node kernel: {line}\n"
        write(tmp_path, "commands/journal", journal)

        found = find_cause(tmp_path)

        assert found is not None, line
        assert found.sentence() == f"{name}: kernel: {line}"
        assert found.remedy.endswith("host/*-trace.txt has the last accesses to an emulated GPU.")


def test_cause_is_recognised_in_a_driver_message_of_several_lines(tmp_path: Path) -> None:
    said = (
        "NVRM: The NVIDIA GPU 0000:01:00.0 (PCI ID: 10de:1db4)",
        "NVRM: installed in this system is not supported by open",
        "NVRM: nvidia.ko because it does not include the required GPU",
        "NVRM: System Processor (GSP).",
    )
    lines = [f"Nov 23 06:22:5{at}.1 node kernel: {line}\n" for at, line in enumerate(said)]
    write(tmp_path, "commands/journal", "".join(lines))

    found = find_cause(tmp_path)

    assert found is not None
    assert found.cause.name == "the driver does not support the GPU"


def test_driver_message_without_a_known_cause_gives_no_cause(tmp_path: Path) -> None:
    for line in (
        "NVRM: Xid (PCI:0000:02:00): 31, pid=79, name=x: 79, MMU fault",
        "NVRM: Xid (PCI:0000:02:00): 13, pid=7, Graphics Exception",
        "NVRM: Xid (PCI:0000:02:00): 200, words that nobody knows",
        "NVRM: something that no release has said yet",
        "NVRM: loading NVIDIA UNIX x86_64 Kernel Module  580.126.09  Mon Nov 23 2026",
        # A consequence of a cause is not a cause.
        "NVRM: The NVIDIA probe routine failed for 1 device(s).",
    ):
        write(tmp_path, "commands/dmesg", f"[    9.1] {line}\n")

        assert find_cause(tmp_path) is None, line


_DISK, _HOST_DISK = "no space on the guest's disk", "no space on the host's disk"
_MEMORY, _OWN_MEMORY = (
    "the guest ran out of memory",
    "a container or unit reached its own memory limit",
)
_WATCHES, _LOCK = "there are no inotify watches left", "dpkg is locked by another process"
_CLOCK = "the guest's clock is wrong"
_EXPIRED = "a certificate has expired, or the guest's clock is ahead"
_NAME, _USER_DATA = "a name can't be resolved", "cloud-init can't read its user-data"
_HEADERS = "the kernel's headers are missing"
#: Each form of the messages about a cause, and lines that only resemble such messages.
FORMS = (
    ("qemu-img: error while writing: No space left on device", _HOST_DISK),
    ("QEMU could not write its disk (No space)", _HOST_DISK),
    ("dpkg: error: cannot copy extracted data: failed to write (No space left on device)", _DISK),
    ("bpf_create_map: No space left on device", None),
    ("libbpf: map 'x': failed to create: No space left on device(-28)", None),
    ("prog load, BPF map: No space left on device", None),
    ("mkdir x in the cgroup: No space left on device", None),
    ("write /proc/sys/x: No space left on device", None),
    ("mkdir /sys/fs/cgroup/x: No space left on device", None),
    ("cp: error writing 'x.bpf-1': No space left on device", None),
    ("cp: error writing '/opt/watcher.log': No space left on device", _DISK),
    ("write /srv/dispatcher/x: No space left on device", _DISK),
    ("Failed to watch x: No space left on device", _WATCHES),
    ("no watches for x: No space left on device", _WATCHES),
    ("file watcher: too many open files", _WATCHES),
    ("error while watching x: too many open files", _WATCHES),
    ("The limit of inotify watches was reached", _WATCHES),
    ("The limit of inotify instances was reached", _WATCHES),
    ("inotify_init: too many open files", _WATCHES),
    ("fsnotify: too many open files", _WATCHES),
    ("fs notify: too many open files", _WATCHES),
    ("ENOSPC: System limit for number of file watchers reached, watch '/x'", _WATCHES),
    ("accept: too many open files", None),
    ("kernel: Out of memory: Kill process 7 (x) score 9 or sacrifice child", _MEMORY),
    ("kernel: oom-kill:constraint=CONSTRAINT_MEMCG,nodemask=(null)", _OWN_MEMORY),
    ("bash: fork: retry: Cannot allocate memory", _MEMORY),
    ("bash: fork: Cannot allocate memory", _MEMORY),
    ("mmap: Cannot allocate memory", None),
    ("the pitchfork: Cannot allocate memory", None),
    ("Could not get lock /var/lib/apt/lists/lock - open (11)", _LOCK),
    ("E: Could not get lock /var/lib/dpkg/lock - open", _LOCK),
    ("dpkg: error: dpkg frontend lock was locked by another process with pid 7", _LOCK),
    ("E: Unable to lock the administration directory (/var/lib/dpkg/), is another process using it?", _LOCK),
    ("E: Could not get lock /var/cache/x", None),
    ("Could not open lock file /var/lib/dpkg/lock-frontend, are you root?", None),
    ("Your kernel headers for kernel 6.1.0-56 could not be found", _HEADERS),
    ("Error! kernel headers for target kernel 6.1 cannot be found", _HEADERS),
    ("kernel headers for kernel 6.1 can't be found", _HEADERS),
    ("Release file for http://x is not valid yet (invalid for another 5h)", _CLOCK),
    ("E: Release file of x is not valid yet", _CLOCK),
    ("x is not valid yet (invalid for another 3min)", _CLOCK),
    ("ping: x: Temporary failure in name resolution", _NAME),
    ("Temporary failure resolving 'deb.example'", _NAME),
    ("curl: (28) Resolving timed out after 5000 milliseconds", _NAME),
    ("dial tcp: lookup x: no such host", _NAME),
    ("dial tcp: lookup x on 10.0.2.3:53: read udp 10.0.2.15:1->10.0.2.3:53: i/o timeout", _NAME),
    ("wget: unable to resolve host address 'x'", _NAME),
    ("ssh: connect to x: Name or service not known", _NAME),
    (";; communications error to 10.0.2.3#53: no servers could be reached", _NAME),
    ("wget: bad address 'x'", _NAME),
    ("nslookup: can't resolve 'x'", _NAME),
    ("getaddrinfo EAI_AGAIN x", _NAME),
    ("curl: (28) Connection timed out after 5000 milliseconds", None),
    ("Invalid cloud-config provided: x", _USER_DATA),
    ("Failed at merging in cloud config part", _USER_DATA),
    ("Failed to merge x", None),
    ("ALERT! UUID=1 does not exist. Dropping to a shell!", "the root file system is not found"),
    ("the file x does not exist", None),
    ("mkdir /sys/fs/cgroup/memory/kubepods/pod79fe: no space left on device", None),
    ("Failed to watch file /etc/kubernetes/azure.json: no space left on device", _WATCHES),
    ("tail: inotify resources exhausted", _WATCHES),
    ("Error: failed to create FS watcher: too many open files", _WATCHES),
    ("kernel: Memory cgroup out of memory: Kill process 25169 (x) score 2109", _OWN_MEMORY),
    ("kernel: Task in /kubepods/pod1 killed as a result of limit of /kubepods/pod1", _OWN_MEMORY),
    ("Last State: Terminated, Reason: OOMKilled, Exit Code: 137", _OWN_MEMORY),
    ("kernel: oom-kill:constraint=CONSTRAINT_NONE,nodemask=(null),cpuset=/,global_oom", _MEMORY),
    ("libgomp.so.1: cannot allocate memory in static TLS block", None),
    ("Waiting for cache lock: Could not get lock /var/lib/dpkg/lock-frontend", None),
    ("E: Unable to acquire the dpkg frontend lock (/var/lib/dpkg/lock-frontend), are you root?", None),
    ("ERROR: Unable to find the kernel source tree for the currently running kernel.", _HEADERS),
    ("make[1]: *** /lib/modules/6.1.0-56-cloud-amd64/build: No such file or directory.  Stop.", _HEADERS),
    ("ls: cannot access '/lib/modules/6.1.0-56-cloud-amd64/build': No such file or directory", _HEADERS),
    ("Failed to install the Linux kernel headers", _HEADERS),
    ("cp: cannot stat '/lib/modules/6.1.0-56-cloud-amd64/builder': No such file or directory", None),
    ("certificate has expired or is not yet valid: current time 2026-11-26 is after 2026-11-01", _EXPIRED),
    ("certificate has expired or is not yet valid: current time 2020-01-01 is before 2026-11-01", _CLOCK),
    ("KERNEL PANIC - NOT SYNCING: x", "kernel panic"),
)  # fmt: skip


def test_each_wording_of_a_cause_is_recognised() -> None:
    found = {line: [each.cause.name for each in find_causes(line, [])] for line, _ in FORMS}

    assert found == {line: [] if name is None else [name] for line, name in FORMS}


PANIC = "Kernel panic - not syncing: x"
NO_SPACE = "cp: x: No space left on device"
SOURCES = (
    "files/var/log/azure/cluster-provision.log",
    "files/var/log/cloud-init-output.log",
    "commands/journal",
    "commands/dmesg",
    "host/serial.log",
    "files/var/log/cloud-init.log",
    "files/var/lib/dkms/nvidia/580.1/build/make.log",
    "files/var/lib/dkms/nvidia/make/build/make.log",
)


def test_first_matching_line_of_the_preferred_log_is_quoted(tmp_path: Path) -> None:
    for source in reversed(SOURCES):
        write(tmp_path, source, f"fine\n{NO_SPACE}\ncp: y: No space left on device\n")

        found = find_cause(tmp_path)

        assert found is not None
        assert (found.source, found.line) == (source, NO_SPACE)


#: An earlier cause is the reason for later causes, or is rarer than they are.
ORDER = (
    "kernel panic",
    "the root file system is not found",
    "no space on the host's disk",
    "no space on the guest's disk",
    "the guest ran out of memory",
    "dpkg is locked by another process",
    "the kernel's headers are missing",
    "the guest's clock is wrong",
    "a certificate has expired, or the guest's clock is ahead",
    "a name can't be resolved",
    "cloud-init can't read its user-data",
    "systemd went into emergency mode",
    "there are no inotify watches left",
    "a container or unit reached its own memory limit",
    "the GPU's infoROM is corrupted",
    "the GPU is lost",
    "the driver's programs and module differ",
    "the driver's module is not signed",
    "the driver's module is not allowed",
    "the driver's module is for another kernel",
    "another driver is bound to the GPU",
    "the driver's module is missing",
    "the GPU has to be reset",
)


def test_more_serious_of_two_causes_is_reported() -> None:
    lines = {**LINES, **DRIVER_LINES}
    named = [
        find_causes(f"{lines[second]}\n{lines[first]}\n", [])[0].cause.name
        for first, second in itertools.pairwise(ORDER)
    ]

    assert named == [*ORDER[:-1]]


def test_more_serious_cause_is_preferred_whichever_log_contains_it(tmp_path: Path) -> None:
    write(tmp_path, SOURCES[0], f"{NO_SPACE}\n{DRIVER_LINES['the GPU has to be reset']}\n")
    write(tmp_path, SOURCES[4], f"{PANIC}\n")

    found = find_cause(tmp_path)

    assert found is not None
    assert found.cause.name == "kernel panic"


def test_first_of_several_causes_in_driver_messages_is_reported(tmp_path: Path) -> None:
    reset, memory = (
        DRIVER_LINES[name] for name in ("the GPU has to be reset", "the GPU's memory has errors")
    )
    others = (
        "NVRM: None of the NVIDIA devices were initialized.",
        *(f"NVRM: Xid (PCI:0000:02:00): {xid}, pid=7" for xid in (31, 13)),
    )
    text = "".join(f"[ 1.1] {line}\n" for line in (*others, memory, reset))
    write(tmp_path, "commands/dmesg", text)

    found = find_cause(tmp_path)

    assert found is not None
    assert (found.cause.name, found.line) == ("the GPU's memory has errors", memory)
    assert found.source == "commands/dmesg"


def test_line_is_quoted_without_its_time_and_host_and_colour(tmp_path: Path) -> None:
    for prefix in (
        "[    9.12] ",
        "Nov 23 06:22:52.1 node ",
        "Nov  3 06:22:52 node ",
        "2026-11-23T06:22:52.1+00:00 node ",
        "\x1b[0;1;31m",
        "\x00\x07",
    ):
        write(tmp_path, "commands/journal", f"{prefix}{PANIC}\x1b[0m\n")

        found = find_cause(tmp_path)

        assert found is not None, prefix
        assert found.line == PANIC


def test_last_2_mib_of_a_log_are_searched_for_a_cause(tmp_path: Path) -> None:
    for size, line in (((2 << 20) - 100, PANIC), (2 << 20, NO_SPACE)):
        write(tmp_path, "commands/journal", f"{PANIC}\n{'x' * size}\n{NO_SPACE}\n")

        found = find_cause(tmp_path)

        assert found is not None
        assert found.line == line, size


def test_log_with_the_first_name_is_quoted_if_several_logs_have_the_cause(tmp_path: Path) -> None:
    versions = ("580.2", "470.1", "595.3", "535.9", "550.4")
    for version in versions:
        name = f"files/var/lib/dkms/nvidia/{version}/build/make.log"
        write(tmp_path, name, f"cp: {version}: No space left on device\n")

    found = find_cause(tmp_path)

    assert found is not None
    assert found.line == "cp: 470.1: No space left on device"


def test_line_with_an_error_word_is_recognised_as_an_error(tmp_path: Path) -> None:
    words = (
        *("error", "failed", "failure", "fatal", "cannot", "can't", "unable to", "panic"),
        *("Traceback", "FAILED"),
    )
    harmless = (
        *("0 errors", "errors=remount-ro", "error_log", "no error", "ERST", "BERT", "EDAC"),
        *("failed_units", "without errors", "Condition check resulted in", "RAS: Correctable"),
        *("command line:", "panic=-1", "tsc: ", "module verification failed", "level=debug"),
        *("level=info", "level=warning", "failed to load cni during init", "step a skipped"),
        *("dkms: write error: Broken pipe", "Only needed after failure of", "[DEBUG]"),
    )
    errors = [*(f"x: {word} y" for word in words), "level=error msg=failed"]
    others = [
        *(f"x: {word} y: failed" for word in harmless),
        *("x: terrors y", "x: unable y", "x: well y"),
    ]

    found = []
    for line in (*errors, *others):
        write(tmp_path, "commands/journal", f"fine\n{line}\n")
        found += [line] if first_error_line(tmp_path) == line else []
    assert found == errors


def test_each_cause_is_reported_once_in_the_order_of_appearance(tmp_path: Path) -> None:
    lost = LINES["the GPU is lost"]
    rows: list[tuple[str, list[str], list[str]]] = [
        # A cause in several folders is listed once, if possible with the first line in the evidence.
        (PANIC, ["fine", f"{PANIC}1", f"{PANIC}2"], [f"{PANIC}1"]),
        (NO_SPACE, [PANIC], [NO_SPACE, PANIC]),
        (NO_SPACE, [PANIC, f"{NO_SPACE} of the evidence"], [f"{NO_SPACE} of the evidence", PANIC]),
        ("", [PANIC, lost, "fine"], [PANIC, lost]),
        # An error of the host says nothing about the guest.
        ("OSError: [Errno 28] No space left on device: '/var/cache/overlay.qcow2'", [], []),
        ("[Errno 12] Cannot allocate memory", [], []),
        (f"OSError: [Errno 28] No space left on device\n{NO_SPACE}y", [], [f"{NO_SPACE}y"]),
    ]
    for said, logs, lines in rows:
        folders = [tmp_path / str(number) for number in range(len(logs))]
        for folder, line in zip(folders, logs, strict=True):
            write(folder, "host/serial.log", f"{line}\n")

        found = find_causes(said, [*folders, tmp_path / "none"])

        assert [each.line for each in found] == lines, (said, logs)


def test_each_failed_unit_is_reported_with_its_own_journal_line(tmp_path: Path) -> None:
    write(
        tmp_path,
        "commands/failed-units",
        "a.service loaded failed failed A\n\nb.service loaded failed failed B\ncloud-final.service x\n",
    )
    write(
        tmp_path,
        "commands/journal",
        "Nov 23 06:22:51.1 node a[9]: first\n"
        "Nov 23 06:22:52.1 node a[9]: last\n"
        "Nov 23 06:22:52.2 node aa[9]: another's\n"
        "Nov 23 06:22:53.1 node systemd[1]: a.service: Failed with result 'exit'.\n"
        "Nov 23 06:22:53.2 node systemd[1]: b.service: Main process exited\n"
        "Nov 23 06:22:53.3 node systemd[1]: b.service: Failed with result 'signal'.\n",
    )

    assert explain(tmp_path) == [
        "unit 'a.service' failed: a[9]: last",
        "unit 'b.service' failed: systemd[1]: b.service: Failed with result 'signal'.",
        "unit 'cloud-final.service' failed: the journal has no line about it",
    ]


def test_first_error_in_the_journal_is_shown_if_no_cause_is_known(tmp_path: Path) -> None:
    journal = (
        "Nov 23 06:22:52.1 node kernel: EXT4-fs (vda): re-mounted. Opts: errors=remount-ro\n"
        "Nov 23 06:22:53.1 node mount[9]: mount: /x: unknown filesystem type; mount failed\n"
        "Nov 23 06:22:54.1 node x[9]: a later error\n"
    )
    write(tmp_path, "commands/journal", journal)

    line = "mount[9]: mount: /x: unknown filesystem type; mount failed"
    assert first_error_line(tmp_path) == line
    assert explain(tmp_path) == [f"the guest's first error: {line}"]


#: Lines that boots of healthy nodes print, from the evidence of such nodes.
SOUND = """\
kernel: Command line: root=/dev/vda rw console=ttyS0 panic=-1 net.ifnames=0 mitigations=off quiet
kernel: Kernel command line: root=/dev/vda rw console=ttyS0 panic=-1 net.ifnames=0 quiet
kernel: tsc: Unable to calibrate against PIT
kernel: tsc: Fast TSC calibration failed
kernel: nvidia: module verification failed: signature and/or required key missing - tainting kernel
dkms[321]: /usr/sbin/dkms: line 1134: echo: write error: Broken pipe
containerd[289]: time="2026-11-23T10:00:00.1Z" level=info msg="skip loading plugin \\"io.containerd.\
snapshotter.v1.aufs\\"..." error="aufs is not supported (modprobe aufs failed: exit status 1)"
containerd[289]: time="2026-11-23T10:00:00.2Z" level=warning msg="failed to load plugin io.containerd.\
snapshotter.v1.devmapper" error="devmapper not configured"
containerd[289]: time="2026-11-23T10:00:00.3Z" level=error msg="failed to load cni during init, please \
check CRI plugin status before setting up network for pods" error="cni config load failed"
install-driver skipped after 0.0 s: Only needed after failure of 'install-prebuilt-driver'.
cloud-init[401]: step install-driver skipped after 0.0 s: Only needed after failure of 'x'.
cc_rightscale_userdata.py[DEBUG]: Failed to get raw userdata in module rightscale_userdata
"""


def test_journal_of_a_healthy_boot_yields_no_error(tmp_path: Path) -> None:
    real = 'containerd[289]: level=error msg="failed to recover state"'
    journal = "".join(f"Nov 23 06:22:52.1 node {line}\n" for line in SOUND.splitlines())
    write(tmp_path, "commands/journal", journal)
    assert explain(tmp_path) == []

    write(tmp_path, "commands/journal", f"{journal}Nov 23 06:22:52.1 node {real}\n")
    assert first_error_line(tmp_path) == real


def test_cause_is_searched_in_the_output_of_a_command_but_not_in_its_command_line(
    tmp_path: Path,
) -> None:
    """The output of the test's command is only in the error, and not in the evidence."""
    write(tmp_path, "commands/journal", "Nov 23 06:22:52.1 node probe[9]: nothing is wrong\n")
    said = (
        "A command in machine 'node' failed.\n"
        "command: sh -c 'curl x\necho No space left on device'\n"
        "exit code: 6, after 0.1 s\n"
        "stdout: -\n"
        "stderr: curl: (6) Could not resolve host: x"
    )

    found = find_causes(said, [tmp_path])

    (one,) = found
    assert (one.source, one.line) == ("the error", "curl: (6) Could not resolve host: x")


def test_folder_in_place_of_a_log_does_not_hide_other_logs(tmp_path: Path) -> None:
    (tmp_path / "commands/journal").mkdir(parents=True)
    write(tmp_path, "host/serial.log", "Kernel panic - not syncing: x\n")

    found = find_cause(tmp_path)

    assert found is not None
    assert found.cause.name == "kernel panic"


def test_unit_lists_that_are_symbolic_links_do_not_hide_other_findings(tmp_path: Path) -> None:
    write(tmp_path, "host/serial.log", "mount: failed\n")
    (tmp_path / "commands").mkdir()
    for name in ("failed-units", "units", "locks"):
        (tmp_path / "commands" / name).symlink_to(__file__)

    assert explain(tmp_path) == ["the guest's first error: mount: failed"]


def test_failure_of_a_unit_is_explained_only_by_the_result_line_of_systemd(
    tmp_path: Path,
) -> None:
    write(tmp_path, "commands/failed-units", "own.service loaded failed failed Own\n")
    write(
        tmp_path,
        "commands/journal",
        "Nov 23 06:22:53.1 node systemd[1]: own.service: Failed with result 'exit-code'.\n"
        "Nov 23 06:22:53.1 node systemd[1]: own.service: Consumed 2min 3.1s CPU time.\n"
        "Nov 23 06:22:53.1 node systemd[1]: own.service: Consumed 1s CPU time, 3M memory peak.\n"
        "Nov 23 06:22:53.1 node systemd[1]: own.service: Scheduled restart job, counter is at 1.\n",
    )

    said = "systemd[1]: own.service: Failed with result 'exit-code'."
    assert explain(tmp_path) == [f"unit 'own.service' failed: {said}"]


def write_foreign_run(
    folder: Path, *, log: str | None, printed: str = "", has_codes: bool = True
) -> None:
    outcome = OutcomeDeclaration(
        exit_codes={20: "no-region"} if has_codes else {},
        log=None if log is None else LogPatterns(path="/var/log/own.log"),
    )
    write_declaration(Provisioner(name="own", run=["/opt/own"], outcome=outcome), folder)
    runs = f"files{RUNS_FOLDER}/1"
    write(folder, f"{runs}/exit-code", "20\n")
    write(folder, f"files{EXIT_CODE_PATH}", "20\n")
    write(
        folder, f"files{CLOUD_INIT_OUTPUT_PATH}", f"\n-- run 1 of the provisioner: boot\n{printed}"
    )
    if log is not None:
        write(folder, "files/var/log/own.log", log)
    write(folder, "commands/failed-units", "cloud-final.service loaded failed failed Final\n")
    write(
        folder,
        "commands/journal",
        "Nov 23 06:22:53.1 node systemd[1]: cloud-final.service: Consumed 2min CPU time.\n",
    )


def test_failure_of_a_custom_provisioner_is_shown_with_the_end_of_its_log(
    tmp_path: Path,
) -> None:
    write_foreign_run(
        tmp_path, log="begin\nERROR: an earlier one\nERROR: no /etc/region\none\ntwo\n\nthree\n"
    )

    assert explain(tmp_path) == [
        "provisioner 'own' ended with 20 (no-region); its log '/var/log/own.log' ends with:",
        *("log: ERROR: no /etc/region", "log: one", "log: two", "log: three"),
    ]
    write_foreign_run(tmp_path, log="\n")
    assert explain(tmp_path, is_named=True) == [
        "provisioner 'own' ended with 20 (no-region); its log '/var/log/own.log' says nothing."
    ]


def test_failure_of_a_custom_provisioner_without_a_log_is_shown_with_its_output(
    tmp_path: Path,
) -> None:
    own_words = (
        "Cloud-init v. 22.4.2 finished at Fri, 27 Nov 2026 02:00:00 +0000. Up 61 seconds\n"
        "2026-11-27 02:00:00,123 - cc_scripts_user.py[WARNING]: Failed to run module scripts_user\n"
        "ci-info: no authorized SSH keys\n"
    )
    write_foreign_run(tmp_path, log=None, printed=f"no region is set\n{own_words}")

    assert explain(tmp_path) == [
        f"provisioner 'own' ended with 20 (no-region); its log '{CLOUD_INIT_OUTPUT_PATH}' ends with:",
        "log: no region is set",
    ]


def test_output_line_that_the_log_lacks_is_shown(tmp_path: Path) -> None:
    printed = "begin\nsysctl: cannot stat /proc/sys/x\n'/etc/x.conf' cannot be applied\n"
    write_foreign_run(tmp_path, log="begin\n'/etc/x.conf' cannot be applied\n", printed=printed)

    assert explain(tmp_path)[1:] == [
        *("log: begin", "log: '/etc/x.conf' cannot be applied"),
        "printed: sysctl: cannot stat /proc/sys/x",
    ]


def test_error_reason_is_quoted_instead_of_follow_up_messages_of_tools(
    tmp_path: Path,
) -> None:
    reason = "reason: /opt/x is not there"
    afterthoughts = (
        'See "systemctl status a.service" and "journalctl -xeu a.service" for details.',
        "Job for a.service failed because the control process exited with error code.",
        "E: Sub-process /usr/bin/dpkg returned an error code (1)",
        "Errors were encountered while processing:",
        "Consult /var/lib/dkms/nvidia/580/build/make.log for more information.",
        "make[1]: *** [Makefile:12: modules] Error 2",
        "make: Leaving directory '/usr/src/linux-headers-6.1.0'",
        "ERROR: Installation has failed.  Please see the file '/var/log/nvidia-installer.log' for details.",
    )
    printed = "".join(f"{line}\n" for line in (reason, *afterthoughts))
    write_foreign_run(tmp_path, log="begin\n", printed=printed)

    assert explain(tmp_path)[2:] == [f"printed: {reason}"]
    write_foreign_run(tmp_path, log="begin\n", printed=f"{afterthoughts[1]}\n")
    assert explain(tmp_path)[2:] == [f"printed: {afterthoughts[1]}"]


def test_error_is_recognised_by_the_level_in_a_custom_log_format(tmp_path: Path) -> None:
    for line in (
        "06:01:03|88|E|fetch|HG30 the mirror is down",
        "[E] the mirror is down",
        "[ERR ] the mirror is down",
        "<CRIT> the mirror is down",
        "E: the mirror is down",
        "ERR: the mirror is down",
        "06:01:03\tE\tthe mirror is down",
    ):
        write_foreign_run(tmp_path, log=f"begin\n{line}\n" + "cleaning\n" * 3)

        assert explain(tmp_path)[1:] == [f"log: {line}", *["log: cleaning"] * 3]


def test_letter_e_outside_the_log_level_is_not_an_error(tmp_path: Path) -> None:
    lines = "06:01:03|88|I|fetch|E2E\n[I] node E is up\nDRIVE E is up\n"
    write_foreign_run(tmp_path, log=lines + "cleaning\n" * 3)

    assert explain(tmp_path)[1:] == ["log: cleaning"] * 3


def test_bash_x_is_suggested_only_for_a_failure_without_output(tmp_path: Path) -> None:
    for code, printed, has_codes, is_silent in (
        (1, "", True, True),
        (1, "mv: no x\n", True, False),
        (20, "", True, False),
        # If the provisioner declares no exit codes, any exit code may be its own.
        (1, "", False, False),
    ):
        output = f"begin\n{printed}"
        write_foreign_run(tmp_path, log="begin\n", printed=output, has_codes=has_codes)
        write(tmp_path, f"files{RUNS_FOLDER}/1/exit-code", f"{code}\n")
        write(tmp_path, f"files{EXIT_CODE_PATH}", f"{code}\n")

        assert any("`bash -x`" in line for line in explain(tmp_path)) is is_silent


def test_line_where_set_e_ended_the_script_is_reported(tmp_path: Path) -> None:
    write_foreign_run(tmp_path, log="begin\n")
    note = f"files{RUNS_FOLDER}/1/failed-command"
    write(tmp_path, note, "20\n26\n/opt/own/nodes.bash\n((index++))\n")

    assert explain(tmp_path)[0] == (
        "`set -e` ended the provisioner in line 26 of '/opt/own/nodes.bash': ((index++))"
    )

    write(tmp_path, f"files{EXIT_CODE_PATH}", "1\n")
    assert not any("set -e" in line for line in explain(tmp_path))
    write(tmp_path, note, "1\n26\n/opt/own/nodes.bash\n((index++))\n")
    assert not any("`bash -x`" in line for line in explain(tmp_path))


def test_output_is_shown_once_as_the_log_if_no_log_is_declared(
    tmp_path: Path,
) -> None:
    """The provisioner declares no log, so its output is shown as its log."""
    write_foreign_run(tmp_path, log=None, printed="no region\nHARNESS: cloud-init has finished\n")
    write(tmp_path, f"files{EXIT_CODE_PATH}", "9\n")

    assert [
        line for line in explain(tmp_path) if line.startswith(("log", "printed", "remedy"))
    ] == ["log: no region"]


LOCKS = (
    "7\t/run/own.lock\t/bin/bash /opt/own/sampler \n"
    "7\t/run/own.lock\t/bin/bash /opt/own/sampler \n"
    "8\t/run/own.lock.d\tother \n"
    "9\t/var/lib/dpkg/lock-frontend\tpython3 /run/upgrades \n"
    "10\t\t\n\nx\n"
)


def test_holder_of_a_lock_is_reported_if_the_log_mentions_the_lock(tmp_path: Path) -> None:
    log = (
        "ERROR another run holds /run/own.lock: unknown process\nsee /var/lib/dpkg/lock-frontend\n"
    )
    write_foreign_run(tmp_path, log=log)
    write(tmp_path, "commands/locks", LOCKS)

    assert [line for line in explain(tmp_path) if "locked" in line] == [
        "'/run/own.lock' was locked by process 7 when the evidence was gathered: /bin/bash /opt/own/sampler",
        (
            "'/var/lib/dpkg/lock-frontend' was locked by process 9 when the evidence was gathered: "
            "python3 /run/upgrades"
        ),
    ]


def test_holder_of_a_lock_is_not_reported_if_the_log_mentions_only_similar_paths(
    tmp_path: Path,
) -> None:
    log = "ERROR /run/own.lock/x x/run/own.lock /run/own.lock.old own.lock\n"
    write_foreign_run(tmp_path, log=log)
    write(tmp_path, "commands/locks", LOCKS)

    assert not [line for line in explain(tmp_path) if "locked" in line]


def test_many_locks_or_a_long_unit_name_do_not_slow_down_the_explanation(tmp_path: Path) -> None:
    """Any process of the guest can hold thousands of locks."""
    write_foreign_run(tmp_path, log="ERROR /run/own.lock is in the way\n")
    others = "".join(f"{each}\t/srv/{each:080}\tx\n" for each in range(20_000))
    write(tmp_path, "commands/locks", f"{LOCKS}{others}")
    write(tmp_path, "commands/failed-units", "a" * (1 << 20))

    began = time.process_time()
    found = explain(tmp_path)

    assert time.process_time() - began < 2
    assert len([line for line in found if "locked" in line]) == 1


def test_cause_is_found_in_the_declared_log_of_a_provisioner(tmp_path: Path) -> None:
    write_foreign_run(tmp_path, log="curl: (28) Resolving timed out after 5000 milliseconds\n")

    found = find_cause(tmp_path)

    assert found is not None
    assert found.cause.name == _NAME
    assert found.source == "files/var/log/own.log"


def write_outcome(folder: Path, *, error: str, detail: str) -> None:
    step = {"name": "build", "status": "failed", "duration_s": 1.0, "detail": detail}
    outcome = {"schema": 1, "exit_code": 84, "exit_name": "X", "error": error, "steps": [step]}
    write(folder, "files/var/lib/gpu-node/outcome.json", json.dumps(outcome))


def test_exit_code_and_last_line_of_a_failed_step_are_shown_before_its_command(
    tmp_path: Path,
) -> None:
    silent = CommandResult(argv=("ctr",), exit_code=1, stdout="", stderr="")
    rows = {
        "exit code 9; stderr: NVRM: d; command: ctr": replace(
            silent, exit_code=9, stdout="a\nb", stderr="c\nNVRM: d\n"
        ),
        "exit code 124 (time limit); stdout: b; command: ctr": replace(
            silent, exit_code=124, stdout="a\nb\n", timed_out=True
        ),
        "exit code 1; command: ctr": silent,
    }
    for line, result in rows.items():
        write_outcome(tmp_path, error="", detail=f"It is used up. {result.render()}")
        assert explain(tmp_path)[0] == f"step 'build' failed: It is used up. {line}"

        write_outcome(tmp_path, error="", detail=result.render())
        assert explain(tmp_path)[0] == f"step 'build' failed: {line}"


def test_provisioning_error_is_shown_unless_a_failed_step_already_shows_it(tmp_path: Path) -> None:
    write_outcome(tmp_path, error="Step 'build' failed. no compiler", detail="no compiler")
    assert explain(tmp_path) == ["step 'build' failed: no compiler"]

    write_outcome(tmp_path, error="The run was terminated.", detail="no compiler\nat all")
    assert explain(tmp_path) == [
        "step 'build' failed: no compiler",
        "provisioning ended with 84: The run was terminated.",
    ]


def test_error_outside_of_any_step_is_shown_with_the_exit_code(tmp_path: Path) -> None:
    outcome = {"exit_code": 84, "error": "It was terminated.", "steps": []}
    write(tmp_path, "files/var/lib/gpu-node/outcome.json", json.dumps(outcome))
    write(tmp_path, f"files{EXIT_CODE_PATH}", "84\n")
    write(tmp_path, f"files{CLOUD_INIT_OUTPUT_PATH}", "begin\n")

    error, end, log = explain(tmp_path)

    assert error == "provisioning ended with 84: It was terminated."
    assert end.startswith("provisioner 'gpu-node' ended with 84 ")
    assert log == "log: begin"


def test_status_mark_is_removed_from_the_name_of_a_reported_unit(tmp_path: Path) -> None:
    marks = {"a": "", "b": "* ", "c": "\N{BLACK CIRCLE} ", "d": "\N{MULTIPLICATION SIGN} "}
    for path, state in (("failed-units", "failed failed"), ("units", "activating start-post")):
        rows = [f"{mark}{name}.service loaded {state} A\n" for name, mark in marks.items()]
        write(tmp_path, f"commands/{path}", "".join(rows))
    journal = [f"Nov 23 06:22:51.1 node {name}[9]: mine\n" for name in marks]
    write(tmp_path, "commands/journal", "".join(journal))

    assert explain(tmp_path) == [
        f"unit '{name}.service' failed: {name}[9]: mine" for name in marks
    ]

    write(tmp_path, "commands/failed-units", "")
    assert explain(tmp_path) == [f"unit '{name}.service' is still starting" for name in marks]


def test_line_of_a_unit_with_a_longer_name_does_not_belong_to_the_unit(tmp_path: Path) -> None:
    for unit, other in (
        ("dcgm.service", "nvidia-dcgm.service"),
        ("a.service", "data.service"),
        ("a.service", "a.service.d"),
        ("x@1.service", "x@11.service"),
        ("x@1.service", "xx@1.service"),
        ("1.service", "x@1.service"),
        ("a.mount", "srv-a.mount"),
        ("a.mount", "srv\\x2da.mount"),
    ):
        write(tmp_path, "commands/failed-units", f"{unit} loaded failed failed A\n")
        own = f"Nov 23 06:22:51.1 node systemd[1]: {unit}: Failed with result 'signal'.\n"
        foreign = (
            f"Nov 23 06:22:52.1 node check[9]: {other} is broken\n"
            f"Nov 23 06:22:53.1 node systemd[1]: {other}: Failed with result 'exit'.\n"
        )
        write(tmp_path, "commands/journal", own + foreign)
        said = f"systemd[1]: {unit}: Failed with result 'signal'."
        assert explain(tmp_path) == [f"unit '{unit}' failed: {said}"]

        write(tmp_path, "commands/journal", foreign)
        assert explain(tmp_path) == [f"unit '{unit}' failed: the journal has no line about it"]


def test_journal_line_that_mentions_a_unit_belongs_to_the_unit(tmp_path: Path) -> None:
    write(tmp_path, "commands/failed-units", "a@1.service loaded failed failed A\n")
    for line in (
        "x[9]: Job for a@1.service failed.",
        "systemd[1]: Stopped a@1.service.",
        "systemd[1]: /etc/systemd/system/a@1.service:3: Unknown key",
        "systemd[1]: Failed to start a@1.service - A.",
    ):
        write(tmp_path, "commands/journal", f"Nov 23 06:22:51.1 node {line}\n")

        assert explain(tmp_path) == [f"unit 'a@1.service' failed: {line}"]


def test_unit_in_any_activating_state_is_reported_as_starting(tmp_path: Path) -> None:
    units = (
        "a.service loaded activating start A\n"
        "b.service loaded activating start-pre B\n"
        "c.service loaded activating start-post C\n"
        "d.service loaded active start D\n"
        "e.service loaded deactivating stop E\n"
        "f.service loaded failed failed F\n"
        "half a line\n"
    )
    write(tmp_path, "commands/units", units)

    assert explain(tmp_path) == [f"unit '{name}.service' is still starting" for name in "abc"]


def test_failed_unit_that_systemd_restarts_is_reported_beside_other_errors(
    tmp_path: Path,
) -> None:
    """Systemd does not list the unit as failed while it waits for its next start."""
    write(tmp_path, "commands/units", "watcher.service loaded activating auto-restart W\n")
    lines = (
        "Nov 23 06:22:50.1 node (watcher)[8]: watcher.service: Failed at step EXEC spawning /opt/watcherd: "
        "No such file or directory\n"
        "Nov 23 06:22:50.2 node systemd[1]: watcher.service: Main process exited, code=exited, status=203/EXEC\n"
        "Nov 23 06:22:50.3 node systemd[1]: watcher.service: Scheduled restart job, restart counter is at 3.\n"
        "Nov 23 06:22:51.1 node x[9]: an error\n"
    )
    write(tmp_path, "commands/journal", lines)
    told = (
        "unit 'watcher.service' failed and is started again: (watcher)[8]: watcher.service: Failed at step "
        "EXEC spawning /opt/watcherd: No such file or directory"
    )

    assert explain(tmp_path) == [
        told,
        (
            "the guest's first error: (watcher)[8]: watcher.service: Failed at step EXEC spawning "
            "/opt/watcherd: No such file or directory"
        ),
    ]
    assert explain(tmp_path, is_named=True) == [told]

    queued = "watcher.service loaded activating auto-restart-queued W\n"
    write(tmp_path, "commands/units", queued)
    write(tmp_path, "commands/failed-units", "a.service loaded failed failed A\n")
    assert explain(tmp_path) == ["unit 'a.service' failed: the journal has no line about it", told]


def test_failed_unit_hides_starting_units_and_the_first_error(
    tmp_path: Path,
) -> None:
    write(tmp_path, "commands/units", "b.service loaded activating start B\n")
    write(tmp_path, "commands/journal", "Nov 23 06:22:51.1 node x[9]: an error\n")
    less = ["unit 'b.service' is still starting", "the guest's first error: x[9]: an error"]
    assert explain(tmp_path) == less
    assert explain(tmp_path, is_named=True) == []

    write(tmp_path, "commands/failed-units", "a.service loaded failed failed A\n")
    for is_named in (True, False):
        assert explain(tmp_path, is_named=is_named) == [
            "unit 'a.service' failed: the journal has no line about it"
        ]


def test_first_guest_error_is_shown_instead_of_the_end_of_the_console(tmp_path: Path) -> None:
    write(tmp_path, "not-collected.txt", "The agent did not answer.\n")
    write(tmp_path, "host/serial.log", "[ 1.0] x: an error\n[ 2.0] the end\n\n")

    assert explain(tmp_path) == ["the guest's first error: x: an error"]


def test_only_a_step_with_an_error_status_is_reported_as_failed(tmp_path: Path) -> None:
    steps = [
        {"name": f"{status}-{detail}", "status": status, "duration_s": 1.0, "detail": detail}
        for status, detail in (
            ("done", "x"),
            ("failed", "no compiler"),
            ("error", "no compiler"),
            ("failed", None),
            ("skipped", "no compiler"),
        )
    ]
    outcome = {"schema": 1, "exit_code": 84, "exit_name": "X", "error": None, "steps": steps}
    write(tmp_path, "files/var/lib/gpu-node/outcome.json", json.dumps(outcome))

    assert explain(tmp_path) == [
        "step 'failed-no compiler' failed: no compiler",
        "step 'error-no compiler' failed: no compiler",
        "step 'failed-None' failed",
    ]


def test_run_error_that_repeats_a_failed_step_is_left_out(tmp_path: Path) -> None:
    steps = [
        {"name": name, "status": "failed", "duration_s": 1.0, "detail": detail}
        for name, detail in (("probe", "it is slow"), ("build", None))
    ]
    outcome = {"schema": 1, "exit_code": 84, "exit_name": "X", "steps": steps}
    told = ["step 'probe' failed: it is slow", "step 'build' failed"]
    for error, more in (
        ("Step 'build' failed.", []),
        ("Step 'probe' failed. it is slow", []),
        ("Stopped.\nBy hand.", ["provisioning ended with 84: Stopped."]),
    ):
        text = json.dumps({**outcome, "error": error})
        write(tmp_path, "files/var/lib/gpu-node/outcome.json", text)
        assert explain(tmp_path) == [*told, *more]


def test_cause_is_found_in_the_output_between_two_commands_of_an_error() -> None:
    for label in ("", "stdout: ", "stderr: "):
        said = (
            f"command: sh -c 'echo {NO_SPACE}'\nexit code: 6, after 0.1 s\n{label}{PANIC}\n"
            f"command: sh -c 'echo\n{NO_SPACE}'\nexit code: 7, after 0.1 s\nstderr: -"
        )

        (found,) = find_causes(said, [])

        assert (found.cause.name, found.line) == ("kernel panic", PANIC)


def test_damaged_outcome_does_not_hide_a_failed_unit(tmp_path: Path) -> None:
    write(tmp_path, "files/var/lib/gpu-node/outcome.json", "{half")
    write(tmp_path, "commands/failed-units", "a.service loaded failed failed A\n")

    assert explain(tmp_path) == ["unit 'a.service' failed: the journal has no line about it"]


def test_failed_step_is_shown_before_a_failed_unit(tmp_path: Path) -> None:
    write_outcome(tmp_path, error="x\ny", detail="no compiler")
    write(tmp_path, "commands/failed-units", "a.service loaded failed failed A\n")

    assert explain(tmp_path) == [
        "step 'build' failed: no compiler",
        "provisioning ended with 84: x",
        "unit 'a.service' failed: the journal has no line about it",
    ]


def test_journal_line_of_the_program_of_a_unit_explains_the_failed_unit(tmp_path: Path) -> None:
    for unit, program in (("a.service", "a"), ("a.timer", "a.timer"), ("a@1.service", "a@1")):
        write(tmp_path, "commands/failed-units", f"{unit} loaded failed failed A\n")
        write(
            tmp_path,
            "commands/journal",
            f"Nov 23 06:22:50.1 node {program}[9]: the reason\n"
            f"Nov 23 06:22:51.1 node x{program}[9]: another program\n"
            f"Nov 23 06:22:51.2 node {program}x[9]: another program\n"
            f"Nov 23 06:22:53.1 node systemd[1]: {unit}: Failed with result 'exit'.\n",
        )

        assert explain(tmp_path) == [f"unit '{unit}' failed: {program}[9]: the reason"]


def test_failed_timer_is_not_explained_by_lines_of_dmesg_or_of_its_service(
    tmp_path: Path,
) -> None:
    write(tmp_path, "commands/failed-units", "a.timer loaded failed failed A\n")
    told = ["unit 'a.timer' failed: the journal has no line about it"]

    write(tmp_path, "commands/dmesg", "[ 1.1] a.timer[9]: in the kernel's log\n")
    assert explain(tmp_path) == told
    write(tmp_path, "commands/journal", "Nov 23 06:22:51.1 node a[9]: of the service\n")
    assert explain(tmp_path) == told


def test_only_the_first_4096_characters_of_a_log_line_are_searched(tmp_path: Path) -> None:
    write(tmp_path, "commands/journal", f"{PANIC:x>4096}\n")
    found = find_cause(tmp_path)
    assert found is not None
    assert len(found.line) == 4096

    write(tmp_path, "commands/journal", f"{'x' * 4096}{PANIC}\n")
    assert find_cause(tmp_path) is None


def test_last_console_line_of_a_hanging_guest_is_quoted(tmp_path: Path) -> None:
    write(tmp_path, "commands/dmesg", "[ 9.0] of the kernel\n")
    write(tmp_path, "host/serial.log", "[ 1.0] first\r\n[ 2.0] last\r\n\x1b[0m\r\n \r\n")
    assert explain(tmp_path) == []

    write(tmp_path, "not-collected.txt", "The agent did not answer.\n")
    assert explain(tmp_path) == ["the guest does not answer; its console ends with: last"]

    write(tmp_path, "host/serial.log", "\r\n")
    assert explain(tmp_path) == []


def test_only_a_limited_number_of_failed_units_is_reported(tmp_path: Path) -> None:
    units = "".join(f"u{n}.service loaded failed failed U\n" for n in range(101))
    write(tmp_path, "commands/failed-units", units)

    assert len(explain(tmp_path)) == 100
