"""Parts of a node's state, parsed from the output of tools and the kernel."""

from __future__ import annotations

import json
import struct

import pytest

from harness.evidence import state_parts
from suites.unit.evidence.states import a_file


def test_lines_with_a_file_name_prefix_are_grouped_by_file() -> None:
    text = "/proc/a\0one\n/proc/b:1\0two: three\n/proc/a\0\n"

    assert state_parts.parse_lines_by_file(text) == {
        "/proc/a": ["one", ""],
        "/proc/b:1": ["two: three"],
    }


def test_state_of_a_kernel_module_has_references_and_holders_and_version() -> None:
    files = {
        "/proc/modules": [
            "nvidia 1000 2 nvidia_uvm,nvidia_modeset, Live 0x0 (OE)",
            "ext4 5 1 - Live 0x0",
        ],
        "/sys/module/nvidia/version": ["580.1"],
        "/sys/module/ext4/srcversion": ["ABC"],
    }

    assert state_parts.modules(files) == {
        "nvidia": {
            "references": "2",
            "holders": "nvidia_modeset,nvidia_uvm",
            "version": "580.1",
        },
        "ext4": {"references": "1", "holders": "", "srcversion": "ABC"},
    }


def test_several_mounts_at_one_mount_point_are_numbered() -> None:
    lines = [
        r"27 1 254:0 / / rw,relatime shared:1 - ext4 /dev/vda rw",
        r"28 27 0:5 /sub /a\040b ro master:2 propagate_from:1 - tmpfs none rw,size=1k",
        r"29 28 0:6 / /a\040b rw - tmpfs none rw",
        r"30 29 0:7 / /a\040b ro - tmpfs third ro",
    ]

    found = list(state_parts.parse_mountinfo(lines))

    assert (found[1].target, found[1].root, found[1].device) == ("/a b", "/sub", "0:5")
    assert state_parts.mounts(found) == {
        "/": {"source": "/dev/vda", "kind": "ext4", "root": "/", "options": "rw,relatime;rw"},
        "/a b": {"source": "none", "kind": "tmpfs", "root": "/sub", "options": "ro;rw,size=1k"},
        "/a b #2": {"source": "none", "kind": "tmpfs", "root": "/", "options": "rw;rw"},
        "/a b #3": {"source": "third", "kind": "tmpfs", "root": "/", "options": "ro;ro"},
    }


def test_state_of_a_pci_function_has_its_driver_or_none() -> None:
    folder = "/sys/bus/pci/devices"
    files = {
        f"{folder}/0000:01:00.0/vendor": ["0x10de"],
        f"{folder}/0000:01:00.0/device": ["0x2330"],
        f"{folder}/0000:02:00.0/vendor": ["0x1af4"],
    }

    assert state_parts.pci_functions(files, "nvidia/0000:01:00.0\nother/0000:09:00.0\n") == {
        "0000:01:00.0": {"driver": "nvidia", "vendor": "0x10de", "device": "0x2330"},
        "0000:02:00.0": {"driver": "none", "vendor": "0x1af4"},
    }


def test_users_and_groups_are_read() -> None:
    assert state_parts.users(["root:x:0:0:root:/root:/bin/bash", "", "+::"]) == {
        "root": {"uid": "0", "gid": "0", "comment": "root", "home": "/root", "shell": "/bin/bash"}
    }
    assert state_parts.groups(["video:x:44:a,b"]) == {"video": {"gid": "44", "members": "a,b"}}


HEAD = "  sl  local_address rem_address   st tx_queue rx_queue tr tm->when retrnsmt   uid"
RANGE = {"/proc/sys/net/ipv4/ip_local_port_range": ["32768\t60999"]}


def socket_line(address: str, state: str, uid: int = 0) -> str:
    return (
        f"   0: {address} 00000000:0000 {state} 00000000:00000000 00:00000000 00000000  {uid} 0 1"
    )


def test_listening_ports_of_both_families_are_read() -> None:
    files = {
        **RANGE,
        "/proc/net/tcp": [
            HEAD,
            socket_line("0100007F:0016", "0A"),
            socket_line("0100007F:0017", "01"),
            socket_line("0100007F:8000", "0A"),
            socket_line("0100007F:EE47", "0A"),
        ],
        "/proc/net/tcp6": [HEAD, socket_line("00000000000000000000000001000000:1388", "0A", 101)],
        "/proc/net/udp": [
            HEAD,
            socket_line("0F02000A:0044", "07", 998),
            socket_line("00000000:8000", "07"),
            socket_line("00000000:0035", "01"),
        ],
    }

    assert state_parts.ports(files) == {
        "tcp 127.0.0.1:22": {"uid": "0"},
        "tcp 127.0.0.1:32768-60999": {"count": "2"},
        "tcp6 [::1]:5000": {"uid": "101"},
        "udp 10.0.2.15:68": {"uid": "998"},
    }


def test_volatile_kernel_parameters_are_left_out() -> None:
    files = {
        "/proc/sys/kernel/osrelease": ["6.1"],
        "/proc/sys/kernel/random/uuid": ["x"],
        "/proc/sys/fs/file-nr": ["1"],
        "/proc/sys/net/ipv4/conf/eth0.1/forwarding": ["1"],
        "/proc/sys/kernel/hostname": ["node"],
    }

    assert state_parts.sysctls(files) == {
        "kernel.osrelease": {"value": "6.1"},
        "net.ipv4.conf.eth0/1.forwarding": {"value": "1"},
        "kernel.hostname": {"value": "node"},
    }
    with pytest.raises(KeyError):
        state_parts.sysctls({})


def test_packages_and_libraries_and_images_are_read() -> None:
    assert state_parts.packages("dkms:all 3.0.10 installed\nx:amd64 1 config-files\n") == {
        "dkms:all": {"version": "3.0.10", "status": "installed"},
        "x:amd64": {"version": "1", "status": "config-files"},
    }
    listing = (
        "2 libs found in cache `/etc/ld.so.cache'\n"
        "\tlibcuda.so.1 (libc6,x86-64) => /usr/bin/lib64/libcuda.so.1\n"
        "\tlibcuda.so.1 (libc6,x86-64) => /usr/lib/libcuda.so.1\n"
        "Cache generated by: ldconfig (Debian GLIBC) stable release version 2.36\n"
    )
    assert state_parts.libraries(listing) == {
        "libcuda.so.1 (libc6,x86-64)": {
            "path": "/usr/bin/lib64/libcuda.so.1 /usr/lib/libcuda.so.1"
        }
    }
    table = "REF TYPE DIGEST SIZE PLATFORMS LABELS\na/b:1 application/x sha256:1 2.6 MiB linux/amd64 -\n"
    assert state_parts.images(table) == {"a/b:1": {"digest": "sha256:1"}}


def unit(name: str, active: str = "active", sub: str = "running") -> dict[str, str]:
    return {"unit": name, "load": "loaded", "active": active, "sub": sub}


def test_unit_has_its_state_and_enablement_and_drop_ins() -> None:
    etc, usr = "/etc/systemd/system", "/usr/lib/systemd/system"
    paths = {
        f"{usr}/ssh.service": a_file(),
        f"{etc}/sshd.service": a_file(kind="l", target=f"{usr}/ssh.service"),
        f"{etc}/multi-user.target.wants/ssh.service": a_file(kind="l", target="x"),
        f"{usr}/sysinit.target.wants/vendor.service": a_file(kind="l", target="x"),
        f"{etc}/ssh.service.d": a_file(kind="d"),
        f"{etc}/ssh.service.d/10-a.conf": a_file(),
        f"{etc}/ssh.service.d/notes": a_file(),
        f"{etc}/masked.service": a_file(kind="l", target="/dev/null"),
        f"{etc}/linked.service": a_file(kind="l", target="/opt/linked.service"),
        f"{etc}/notes.txt": a_file(),
        "/srv/other.service": a_file(),
    }
    listed = json.dumps([unit("ssh.service"), unit("-.mount", sub="mounted")])

    assert state_parts.units(listed, paths) == {
        "ssh.service": {
            "file": f"{usr}/ssh.service",
            "enabled": f"{etc}/multi-user.target.wants {etc}/sshd.service",
            "drop-ins": f"{etc}/ssh.service.d/10-a.conf",
            "active": "active",
            "sub": "running",
        },
        "sshd.service": {
            "link": f"{etc}/sshd.service to {usr}/ssh.service",
            "active": "inactive",
            "sub": "dead",
        },
        "masked.service": {"masked": f"{etc}/masked.service", "active": "inactive", "sub": "dead"},
        "linked.service": {
            "link": f"{etc}/linked.service to /opt/linked.service",
            "active": "inactive",
            "sub": "dead",
        },
        "-.mount": {"active": "active", "sub": "mounted"},
    }


def test_unloaded_unit_has_the_same_state_as_an_inactive_unit() -> None:
    paths = {"/usr/lib/systemd/system/a.service": a_file()}
    loaded = json.dumps(
        [unit("a.service", "inactive", "dead"), unit("gone.service", "inactive", "dead")]
    )

    assert state_parts.units(loaded, paths) == state_parts.units("[]", paths)


def test_failed_unit_without_a_unit_file_is_kept_and_device_units_are_left_out() -> None:
    listed = json.dumps([unit("x.service", "failed", "failed"), unit("sda.device")])

    assert state_parts.units(listed, {}) == {"x.service": {"active": "failed", "sub": "failed"}}


def test_file_capabilities_are_rendered_as_text() -> None:
    for value, text in (
        (struct.pack("<IIIII", 0x02000001, 1 << 13, 0, 0, 0), "cap_net_raw+ep"),
        (struct.pack("<IIIII", 0x02000000, 1 << 13 | 1, 0, 0, 0), "cap_chown,cap_net_raw+p"),
        (
            struct.pack("<IIIII", 0x02000000, 0, 1 << 12, 1 << 8, 1 << 0),
            "cap_checkpoint_restore+p cap_net_admin,cap_mac_override+i",
        ),
        (
            struct.pack("<IIIIII", 0x03000001, 1, 0, 1 << 31, 0, 1000),
            "cap_chown,cap_63+ep root user 1000",
        ),
        (struct.pack("<IIIII", 0x02000000, 0, 0, 0, 0), "none"),
    ):
        assert state_parts.render_capabilities(value) == text
