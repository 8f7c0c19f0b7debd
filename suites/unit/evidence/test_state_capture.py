"""A node's state is read from the blocks of its disk and the output of its tools."""

from __future__ import annotations

import contextlib
import hashlib
import json
from typing import TYPE_CHECKING

import pytest
from hypothesis import given
from hypothesis import strategies as st

from harness.errors import HarnessError
from harness.evidence.state import StateKind, Unknown
from harness.evidence.state_capture import take_state
from harness.provisioning.command import CommandResult
from harness.provisioning.wait import Deadline
from suites.unit.image.formats.small_ext4 import SmallExt4

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from harness.evidence.state import NodeState

BOOT_ID = "/proc/sys/kernel/random/boot_id"
MOUNTS = (
    "27 1 254:0 / / rw shared:1 - ext4 /dev/vda rw",
    "23 27 0:22 / /proc rw - proc proc rw",
    "24 27 0:5 / /dev rw - devtmpfs udev rw",
    "26 27 0:25 / /run rw - tmpfs tmpfs rw",
)
TEXTS = (
    *(BOOT_ID, "/proc/uptime", "/proc/self/mountinfo", "/proc/modules", "/proc/net/tcp"),
    *("/etc/passwd", "/etc/group", "/proc/sys/kernel/osrelease"),
)
NEW_NS = 1_800_000_000_000_000_000


class FakeNode:
    """A fake agent of a node; a test sets the output of the node's tools."""

    def __init__(self) -> None:
        self.disk = SmallExt4()
        self.disks = {"/dev/block/254:0": self.disk}
        self.disk.folder(2, {"usr": 12, "proc": 13, "etc": 14})
        self.disk.folder(12, {"old": 15, "new": 16})
        self.disk.folder(13, {"hidden": 15})
        self.disk.folder(14, {"conf": 17})
        self.disk.inode(15, 0o100755, size=5, ctime_ns=1_600_000_000_000_000_000)
        self.disk.inode(16, 0o104755, size=5, ctime_ns=NEW_NS, flags=0x80020)
        self.disk.inode(17, 0o100644, size=5, ctime_ns=1_600_000_000_000_000_000)
        self.texts = {
            BOOT_ID: ["boot-1"],
            "/proc/sys/kernel/osrelease": ["6.1"],
            "/proc/self/mountinfo": list(MOUNTS),
            "/proc/modules": ["nvidia 1 0 - Live 0x0"],
            "/proc/net/tcp": ["head"],
            "/proc/uptime": ["100.25 150.00"],
            "/etc/passwd": ["root:x:0:0:root:/root:/bin/sh"],
            "/etc/group": ["root:x:0:"],
        }
        self.complaints = "grep: /proc/net/tcp6: No such file or directory\n"
        self.answers: dict[str, tuple[int, str, str]] = {
            "find /dev": (
                0,
                (
                    "d 755 0 0 40 1.5 1.5 /dev\0\0c 666 0 44 0 1.5 1.5 /dev/null\0\0"
                    "f 600 0 0 3 1800000000.1250000000 1800000000.25 /run/cdi/a.yaml\0\0"
                    "l 777 0 0 4 1.5 1.5 /dev/fd\0/proc/self/fd\0"
                ),
                "find: '/run/nvidia': No such file or directory\n",
            ),
            "stat": (0, "1:1f /dev/null\0", ""),
            "systemctl": (
                0,
                json.dumps([{"unit": "a.service", "active": "active", "sub": "running"}]),
                "",
            ),
            "ldconfig": (0, "\tlibx.so (libc6) => /usr/lib/libx.so\n", ""),
            "dpkg-query": (0, "dkms:all 3 installed\n", ""),
            "ctr": (0, "REF TYPE DIGEST\nimage t sha256:1\n", ""),
            "find /sys/bus/pci/drivers": (0, "", ""),
            "grep": (
                0,
                (
                    "/proc/sys/kernel/osrelease\x006.1\n"
                    "/proc/sys/net/ipv4/ip_local_port_range\x001\t2\n"
                ),
                "",
            ),
        }
        self.now_ns = NEW_NS
        self.digested: list[str] = []
        self.searched: list[str] = []
        self.before_read: Callable[[], None] = lambda: None

    def run(self, argv: Sequence[str], *, timeout_s: float, **_: object) -> CommandResult:
        assert timeout_s > 0
        if argv[0] == "sh":
            assert argv[2].startswith("sync && "), "Times are set when data is written."
            lines = "".join(
                f"{path}\0{line}\n" for path, lines in self.texts.items() for line in lines
            )
            answer = (2, f"{self.now_ns}\n{lines}", self.complaints)
        elif argv[0] == "find" and argv[1] == "/run/cdi":
            answer = self.answers["find /dev"]
            self.searched = list(argv[1:-3])
        else:
            answer = self.answers.get(argv[0]) or self.answers[" ".join(argv[:2])]
        exit_code, stdout, stderr = answer
        return CommandResult(
            argv=tuple(argv), exit_code=exit_code, stdout=stdout, stderr=stderr, duration_s=0.0
        )

    def stream(
        self,
        argv: Sequence[str],
        *,
        timeout_s: float,
        stdin: bytes,
        on_stdout: Callable[[bytes], None],
    ) -> None:
        assert argv[-3:] == ["sha256sum", "-z", "--"]
        assert timeout_s > 0
        self.digested = stdin.decode().split("\0")[:-1]
        for path in self.digested:
            on_stdout(f"{hashlib.sha256(path.encode()).hexdigest()}  {path}\0".encode())

    def read_ranges(
        self, path: str, ranges: Sequence[tuple[int, int]], _deadline: Deadline
    ) -> list[bytes]:
        self.before_read()
        return self.disks[path].read(ranges)

    def state(self) -> NodeState:
        return take_state(
            self,  # type: ignore[arg-type] # what is used of an agent
            node="node",
            deadline=Deadline.after(60),
            folder=None,
        )


@pytest.fixture
def node() -> FakeNode:
    return FakeNode()


def test_captured_state_of_a_node_has_no_unknown_part(node: FakeNode) -> None:
    state = node.state()

    assert state.unknown == ()
    assert (state.boot_id, state.taken_at_ns) == ("boot-1", NEW_NS)
    assert set(state.paths) == {
        *("/", "/usr", "/usr/old", "/usr/new", "/proc", "/etc", "/etc/conf"),
        *("/dev", "/dev/fd", "/run/cdi/a.yaml"),
    }
    assert state.of(StateKind.PATHS)["/dev/fd"]["target"] == "/proc/self/fd"
    assert state.of(StateKind.PATHS)["/usr/new"]["attributes"] == "a"
    assert state.of(StateKind.DEVICE_NODES) == {
        "/dev/null": {"kind": "c", "mode": "0666", "owner": "0:44", "number": "1:31"}
    }
    assert {kind for kind in StateKind if not state.of(kind)} == {
        StateKind.PORTS,
        StateKind.PCI_FUNCTIONS,
    }


def test_files_of_a_second_disk_have_paths_below_its_mount_point(
    node: FakeNode,
) -> None:
    data = node.disks["/dev/block/254:16"] = SmallExt4()
    data.superblock(264, "<I", 1_500_000_000)
    data.folder(2, {"x": 12, "proc": 13})
    data.inode(12, 0o100644, size=5, ctime_ns=1_600_000_000_000_000_000)
    data.folder(13, {"hidden": 12})
    node.texts["/proc/self/mountinfo"] += [
        # Of two mounts at one mount point, the later mount is visible.
        "29 27 254:0 / /data rw - ext4 /dev/vda rw",
        "30 27 254:16 / /data rw - ext4 /dev/vdb rw",
        "31 30 0:22 / /data/proc rw - proc proc rw",
    ]

    state = node.state()

    below = [path for path in state.paths if path.startswith("/data")]
    assert below == ["/data", "/data/x", "/data/proc"]
    assert "/usr/new" in node.digested
    assert not {"/usr/old", "/data/x"} & {*node.digested}


def test_malformed_system_file_raises_no_other_error_than_a_harness_error() -> None:
    rows: list[tuple[str, list[str]]] = [
        (BOOT_ID, []),
        ("/proc/uptime", ["x"]),
        ("/proc/uptime", ["1e400 1"]),
        ("/proc/self/mountinfo", ["x"]),
        ("/proc/self/mountinfo", ["27 1 254:0 / / rw shared:1"]),
        ("/proc/net/tcp", ["head", "x"]),
        ("/proc/net/tcp", ["head", " 0: 0100007F:1F90 00000000:0000 0A"]),
        ("/etc/passwd", ["a:b"]),
        ("/proc/modules", [""]),
    ]
    for path, lines in rows:
        node = FakeNode()
        node.texts[path] = lines

        with contextlib.suppress(HarnessError):
            node.state()


def test_malformed_program_output_raises_no_other_error_than_a_harness_error() -> None:
    for program, said in (
        ("find /dev", "x\0\0"),
        ("find /dev", "d 755 0 0 " + "9" * 5000 + " 1.5 1.5 /dev\0\0"),
        ("find /dev", "f 755 0 0 1 x y /dev\0\0"),
        ("stat", "1 /dev/null\0"),
        ("stat", "x:y /dev/null\0"),
        ("stat", "1:3 /dev/other\0"),
        ("systemctl", "[" * 100_000),
        ("systemctl", '[{"unit": "a.service"}]'),
        ("systemctl", "[[]]"),
        ("dpkg-query", "one two\n"),
        ("ctr", "x\ny\n"),
        ("grep", "x"),
    ):
        node = FakeNode()
        node.answers[program] = (0, said, "")

        with contextlib.suppress(HarnessError):
            node.state()


@given(texts=st.dictionaries(st.sampled_from(TEXTS), st.lists(st.text(max_size=30), max_size=3)))
def test_arbitrary_system_files_raise_no_other_error_than_a_harness_error(
    texts: dict[str, list[str]],
) -> None:
    node = FakeNode()
    node.texts |= texts

    with contextlib.suppress(HarnessError):
        node.state()


def test_shell_trace_folder_of_the_harness_is_not_part_of_a_captured_state(node: FakeNode) -> None:
    node.disk.folder(2, {"usr": 12, "var": 18})
    node.disk.folder(18, {"lib": 19})
    node.disk.folder(19, {"harness-shell-trace": 20, "harness-shell-traces": 15})
    node.disk.folder(20, {"traces": 21, "trace.sh": 16})
    node.disk.folder(21, {"812": 16})

    paths = node.state().paths

    assert [path for path in paths if path.startswith("/var/lib/")] == [
        "/var/lib/harness-shell-traces"
    ]
    assert not [path for path in node.digested if "shell-trace/" in path]


def test_only_new_files_and_settings_are_read_for_a_checksum(node: FakeNode) -> None:
    state = node.state()

    assert set(node.digested) == {"/etc/conf", "/usr/new", "/run/cdi/a.yaml"}
    assert state.paths["/usr/new"].sha256 == hashlib.sha256(b"/usr/new").hexdigest()
    assert state.paths["/usr/old"].sha256 is None
    identity = state.paths["/run/cdi/a.yaml"].identity
    assert identity.mtime_ns == 1_800_000_000_125_000_000
    assert identity.ctime_ns == 1_800_000_000_250_000_000


def test_files_written_during_this_boot_are_read_even_if_the_clock_is_behind_the_image() -> None:
    """The uptime is 100.25 s, so by the node's clock, its own files are at most 100.25 s old."""
    for age_s, is_read in ((0, True), (100, True), (101, False), (-1, False)):
        node = FakeNode()
        node.now_ns = 1_500_000_000_000_000_000
        node.disk.inode(16, 0o100755, size=5, ctime_ns=node.now_ns - age_s * 1_000_000_000)

        node.state()

        assert ("/usr/new" in node.digested) == is_read, age_s
        assert "/usr/old" not in node.digested, age_s


def test_large_file_is_not_read(node: FakeNode) -> None:
    node.disk.inode(16, 0o100755, size=(4 << 20) + 1, ctime_ns=NEW_NS)

    node.state()

    assert "/usr/new" not in node.digested


def test_file_count_limit_prefers_settings_and_the_newest_files(
    node: FakeNode, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("harness.evidence.state_capture._MOST_FILES_READ", 3)
    node.disk.folder(12, {"old": 15, "new": 16, "newer": 18})
    node.disk.inode(18, 0o100755, size=5, ctime_ns=NEW_NS + 1)

    node.state()

    assert set(node.digested) == {"/etc/conf", "/run/cdi/a.yaml", "/usr/newer"}


def test_contents_are_read_up_to_a_maximum_total_size(
    node: FakeNode, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("harness.evidence.state_capture._MOST_READ", 12)

    node.state()

    assert node.digested == ["/run/cdi/a.yaml", "/etc/conf"]


def test_part_of_a_state_is_unknown_if_its_tool_fails() -> None:
    for tool, code, kind in (
        ("systemctl", 127, StateKind.UNITS),
        ("ldconfig", 127, StateKind.LIBRARIES),
        ("dpkg-query", 127, StateKind.PACKAGES),
        ("ctr", 1, StateKind.IMAGES),
        ("find /sys/bus/pci/drivers", 1, StateKind.PCI_FUNCTIONS),
    ):
        node = FakeNode()
        node.answers[tool] = (code, "", "first\nno answer\n")

        state = node.state()

        assert state.unknown == (
            Unknown(
                kind, "*", f"'{tool.split(maxsplit=1)[0]}' ended with exit code {code}: no answer"
            ),
        ), tool


def test_node_without_containerd_has_no_images(node: FakeNode) -> None:
    node.answers["ctr"] = (127, "", "ctr: No such file or directory\n")

    state = node.state()

    assert (state.unknown, state.of(StateKind.IMAGES)) == ((), {})


def test_part_of_a_state_is_unknown_if_the_output_of_its_tool_is_malformed() -> None:
    for tool, stdout, kinds in (
        ("systemctl", "no JSON", {StateKind.UNITS}),
        ("dpkg-query", "one two\n", {StateKind.PACKAGES}),
        ("grep", "", {StateKind.SYSCTLS, StateKind.PORTS}),
    ):
        node = FakeNode()
        node.answers[tool] = (0, stdout, "")

        assert {each.kind for each in node.state().unknown} == kinds, tool


def test_paths_are_unknown_if_find_fails_with_or_without_a_message(
    node: FakeNode,
) -> None:
    for said, name, reason in (
        ("find: '/dev/secret': Permission denied\n", "/dev/secret", "Permission denied"),
        ("", "*", "find: exit code 1"),
    ):
        node.answers["find /dev"] = (1, "", said)

        assert node.state().unknown == (Unknown(StateKind.PATHS, name, reason),)


def test_paths_of_a_file_system_that_is_not_ext4_are_unknown(node: FakeNode) -> None:
    node.texts["/proc/self/mountinfo"].append("30 27 8:1 / /data rw - xfs /dev/sda1 rw")

    assert node.state().unknown == (
        Unknown(
            StateKind.PATHS,
            "/data",
            "it has the file system 'xfs', and only ext4 can be read",
        ),
    )


def test_overlay_mounts_and_bind_mounts_are_skipped(node: FakeNode) -> None:
    node.texts["/proc/self/mountinfo"] += [
        "30 27 0:9 / /var/lib/c rw - overlay overlay rw",
        "31 27 254:0 /usr /bind rw - ext4 /dev/vda rw",
        "32 26 0:9 / /run/c rw - tmpfs tmpfs rw",
    ]

    alone = set(FakeNode().state().paths)
    state = node.state()

    assert state.unknown == ()
    assert set(state.paths) == alone
    assert node.searched[-1] == "/dev"
    assert "/run" not in node.searched


def test_disk_that_changes_during_the_read_is_read_again(node: FakeNode) -> None:
    """A file is deleted between the reads of its inode and of its folder."""
    damaged = bytes(node.disk.content)
    node.disk.inode(15, 0, links=0)
    broken, whole = bytearray(node.disk.content), bytearray(damaged)
    reads = iter([broken] * 4)

    def before_read() -> None:
        node.disk.content = next(reads, whole)

    node.before_read = before_read

    state = node.state()

    assert state.unknown == ()
    assert "/usr/old" in state.paths


def test_paths_of_a_damaged_disk_are_unknown(node: FakeNode) -> None:
    node.disk.inode(15, 0, links=0)

    (unknown,) = node.state().unknown

    assert (unknown.kind, unknown.name) == (StateKind.PATHS, "/")
    assert "can't be read: it refers to a missing part" in unknown.reason


def test_error_output_of_grep_or_sync_makes_the_state_unreadable(node: FakeNode) -> None:
    for complaint in ("grep: /etc/group: Permission denied\n", "sync: I/O error\n"):
        node.complaints = complaint

        with pytest.raises(HarnessError, match="state of 'node' could not be read"):
            node.state()


def test_missing_basic_system_file_is_an_error(node: FakeNode) -> None:
    del node.texts[BOOT_ID]

    with pytest.raises(HarnessError, match="files that every Linux system has"):
        node.state()
