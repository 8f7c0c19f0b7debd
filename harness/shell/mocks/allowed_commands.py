"""The commands of the host that code under test may run, and scripts that report calls of other commands."""

from __future__ import annotations

import contextlib
import os
from pathlib import Path
from typing import TYPE_CHECKING

from harness.shell.mocks.scripts import denied_script

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

_COREUTILS = """
    [ arch b2sum base32 base64 basename basenc cat chcon chgrp chmod chown cksum comm cp csplit cut
    date df dir dircolors dirname du echo env expand expr factor false fmt fold groups head hostid
    id install join link ln logname ls md5sum mkdir mkfifo mknod mktemp mv nice nl nohup nproc
    numfmt od paste pathchk pinky pr printenv printf ptx pwd readlink realpath rm rmdir seq sha1sum
    sha224sum sha256sum sha384sum sha512sum shred shuf sleep sort split stat stdbuf stty sum sync
    tac tail tee test timeout touch tr true truncate tsort tty uname unexpand uniq unlink users
    vdir wc who whoami yes
"""
_SHELLS = "bash busybox dash sh"
_TEXT = """
    awk bc cmp col colrm column dc diff diff3 ed egrep envsubst fgrep find gawk getopt grep hexdump
    iconv jq mawk patch rev sdiff sed xargs xxd yq zgrep
"""
_ARCHIVES = """
    ar bunzip2 bzcat bzip2 cpio gunzip gzip lz4 lzma tar unlzma unxz unzip xz xzcat zcat zip zstd
    zstdcat
"""
_PROCESSES = "flock getconf kill locale pgrep pkill pidof ps setsid which"
ALLOWED_COMMANDS = frozenset(f"{_COREUTILS} {_SHELLS} {_TEXT} {_ARCHIVES} {_PROCESSES}".split())
"""Harmless commands: they act only on files and processes of the throw-away root."""

_KNOWN = """
    apk apt apt-cache apt-get apt-key apt-mark aptitude blkid chroot containerd crictl crio ctr
    curl dd depmod dkms dnf docker dpkg dpkg-query dracut fdisk findmnt firewall-cmd halt helm
    hostname hostnamectl init insmod ip iptables journalctl kubeadm kubectl kubelet ldconfig
    logger loginctl losetup lsblk lsmod lspci mkfs modinfo modprobe mokutil mount mountpoint nc
    nerdctl netplan nft nmcli nvidia-container-toolkit nvidia-ctk nvidia-installer
    nvidia-modprobe nvidia-persistenced nvidia-smi openssl oras parted passwd perl pip podman
    poweroff python python3 reboot resize2fs rmmod rpm rsync runc scp service shutdown snap ssh
    sudo swapoff swapon sysctl systemctl systemd-analyze systemd-run tdnf telinit timedatectl
    udevadm umount update-initramfs useradd userdel usermod wget yum zypper
"""
KNOWN_COMMANDS = tuple(_KNOWN.split())
"""Commands that are denied even if the host lacks them, and even if another program calls them."""


def write_denied_commands(folder: Path, names: Iterable[str]) -> None:
    """Write, for each command in `names`, a script that reports calls of the command.

    All scripts are hard links to one file.
    """
    folder.mkdir(parents=True, exist_ok=True)
    script = folder.parent / f".{folder.name}-script"
    if not script.exists():
        script.write_text(denied_script())
        script.chmod(0o755)
    for name in names:
        (folder / name).hardlink_to(script)


def command_folders(path: str, project: Path) -> list[Path]:
    """Return the host's directories with commands, from `path` and from the usual PATH.

    A directory that can't be listed is left out. The directory `project`, which contains code under
    test, and directories below `project` are left out too, except directories of a virtual
    environment.
    """
    usual = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
    found: dict[Path, None] = {}
    for name in f"{path}:{usual}".split(":"):
        if not name.startswith("/"):
            continue
        # RuntimeError: the symbolic links form a loop.
        with contextlib.suppress(OSError, RuntimeError):
            folder = Path(name).resolve()
            is_ours = project in folder.parents or folder == project
            if folder.is_dir() and (not is_ours or (folder.parent / "pyvenv.cfg").exists()):
                os.scandir(folder).close()
                found[folder] = None
    return list(found)


def searched_path(path: str) -> str:
    """Return `path` without directories that can't be listed, since their commands can't be denied."""

    def is_listed(name: str) -> bool:
        try:
            os.scandir(name or ".").close()
        except (FileNotFoundError, NotADirectoryError):
            # The host has no commands there, but the code under test may create the directory later.
            return True
        except OSError:
            return False
        return True

    return ":".join(name for name in path.split(":") if is_listed(name))


def denied_in(folder: Path, allowed: Iterable[str]) -> list[str]:
    """Return the commands of `folder` that are not allowed.

    If an allowed command is a symbolic link, its target is allowed too, such as mawk for awk.
    """
    kept = set(allowed)
    for name in allowed:
        kept.update(_names_behind(folder / name))
    with os.scandir(folder) as entries:
        return [
            entry.name
            for entry in entries
            if entry.name not in kept and os.access(entry.path, os.X_OK) and not entry.is_dir()
        ]


def _names_behind(path: Path) -> Iterator[str]:
    for _ in range(8):
        if not path.is_symlink():
            return
        path = path.parent / path.readlink()
        yield path.name
