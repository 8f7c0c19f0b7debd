"""Gathers evidence: from a running guest by one script, from the host by copying files."""

from __future__ import annotations

import base64
import binascii
import io
import json
import shlex
import shutil
import tarfile
import zlib
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING

from harness.cloudinit import CONFIG_PATH, EXIT_CODE_PATH, OUTCOME_PATH
from harness.errors import HarnessError
from harness.evidence import (
    CLOUD_INIT_OUTPUT_PATH,
    CLOUD_INIT_RESULT_PATH,
    EVENTS_FOLDER,
    RECORD_PATH,
    Evidence,
)
from harness.evidence.nodestate import STAT_FORMAT
from harness.lease import make_private_folder

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from harness.provisioning.command import Runner

_FILE_LIMIT_KIB = 4096
_ARCHIVE_LIMIT_BYTES = 256 << 20
_SCRIPT_S = 180.0


@dataclass(frozen=True, kw_only=True)
class Request:
    """What to gather in a guest; paths and files may be shell patterns of `*` and `?`."""

    commands: Mapping[str, Sequence[str]]
    files: Sequence[str]
    paths: Sequence[str]


def node_request(kernels: Sequence[str]) -> Request:
    """Return what is gathered of every GPU node; `kernels` are those of its image.

    `nvidia-smi` is not among the commands: it loads the module, and looking must change nothing.
    """
    return Request(
        commands={
            "uname-r": ["uname", "-r"],
            "lspci": ["lspci", "-nnk"],
            "dkms-status": ["dkms", "status"],
            "container-images": ["ctr", "-n", "k8s.io", "images", "ls", "-q"],
            "failed-units": ["systemctl", "--failed", "--no-legend", "--plain"],
            "units": ["systemctl", "list-units", "--all", "--no-legend", "--plain"],
            "journal": ["journalctl", "-b", "--no-pager", "-o", "short-precise"],
            "dmesg": ["dmesg"],
            **{f"modinfo-{kernel}": ["modinfo", "-k", kernel, "nvidia"] for kernel in kernels},
        },
        files=[
            OUTCOME_PATH,
            EXIT_CODE_PATH,
            CONFIG_PATH,
            RECORD_PATH,
            CLOUD_INIT_RESULT_PATH,
            CLOUD_INIT_OUTPUT_PATH,
            "/run/cloud-init/status.json",
            "/var/log/cloud-init.log",
            "/var/log/azure/cluster-provision.log",
            f"{EVENTS_FOLDER}/*",
            "/var/log/nvidia-installer-*.log",
            "/var/lib/dkms/nvidia/*/*/*/log/make.log",
            "/var/lib/dkms/nvidia/*/build/make.log",
            "/proc/modules",
            "/proc/stat",
            "/proc/cmdline",
            "/proc/driver/nvidia/version",
            "/proc/driver/nvidia/gpus/*/information",
            "/etc/systemd/system/*.service.d/*.conf",
            "/etc/containerd/config.toml",
            "/run/cdi/*",
        ],
        paths=[
            "/dev/nvidia*",
            "/etc/ld.so.conf.d/nvidia.conf",
            "/lib/modules/*/build",
            "/lib/modules/*/updates/dkms/*",
            "/opt/gpu",
            "/opt/azure/aks-gpu/*",
            "/usr/bin/lib64",
            "/usr/bin/nvidia-*",
            "/usr/local/nvidia",
            "/var/lib/dkms/nvidia",
        ],
    )


def render_script(request: Request) -> str:
    """Render the shell script that gathers `request` and prints a tar archive as base64.

    It needs coreutils, findutils and tar alone, so that it also works on a node on which
    nothing else went well.
    """
    lines = [
        "umask 077",
        "d=$(mktemp -d) || exit 1; trap 'rm -rf \"$d\"' EXIT",
        'mkdir "$d/commands" "$d/files"',
    ]
    for name, argv in request.commands.items():
        quoted = shlex.quote(name)
        lines.append(
            f'timeout 60 {shlex.join(argv)} >"$d/commands/"{quoted} 2>&1 </dev/null; '
            f'echo $? >"$d/commands/"{quoted}.exit-code'
        )
    # Read by head and not copied: files below /proc have no size to go by.
    lines += [
        f'for f in {_pattern(pattern)}; do [ -f "$f" ] || continue; '
        'mkdir -p "$d/files$(dirname "$f")"; '
        f'head -c {_FILE_LIMIT_KIB}K "$f" >"$d/files$f"; done'
        for pattern in request.files
    ]
    patterns = " ".join(_pattern(pattern) for pattern in request.paths)
    lines += [
        (
            f'for f in {patterns}; do [ -e "$f" ] || [ -L "$f" ] || continue; '
            f'find "$f" -maxdepth 0 -printf {shlex.quote(STAT_FORMAT)}; done >"$d/stat.txt"'
        ),
        'tar -C "$d" -czf - . | base64',
    ]
    return "\n".join(lines) + "\n"


def _pattern(pattern: str) -> str:
    """Quote everything of a path pattern but its wildcards."""
    return "".join(
        part if part in {"*", "?"} else shlex.quote(part)
        for part in _split_wildcards(pattern)
        if part
    )


def _split_wildcards(pattern: str) -> list[str]:
    parts = [""]
    for character in pattern:
        if character in "*?":
            parts += [character, ""]
        else:
            parts[-1] += character
    return parts


def collect_guest(runner: Runner, request: Request, folder: Path) -> Evidence:
    """Run the script in the guest, and unpack what it gathered into the new `folder`.

    Raises HarnessError where the guest did not deliver; the folder then says so too.
    """
    make_private_folder(folder)
    result = runner.run(["sh", "-c", render_script(request)], timeout_s=_SCRIPT_S)
    try:
        archive = base64.b64decode(result.stdout, validate=False)
        with tarfile.open(fileobj=io.BytesIO(archive), mode="r:gz") as tar:
            _unpack(tar, folder)
    except (tarfile.TarError, binascii.Error, zlib.error, EOFError, OSError) as error:
        sentence = f"The guest did not deliver its evidence ({error}).\n{result.render()}"
        (folder / "not-collected.txt").write_text(sentence)
        raise HarnessError(sentence) from error
    return Evidence(folder)


def _unpack(tar: tarfile.TarFile, folder: Path) -> None:
    """Unpack regular files alone, below `folder` alone: the archive comes from a guest."""
    room = _ARCHIVE_LIMIT_BYTES
    for member in tar:
        path = PurePosixPath(member.name)
        if not member.isreg() or path.is_absolute() or ".." in path.parts:
            continue
        room -= member.size
        if room < 0:
            raise tarfile.TarError(f"it unpacks to more than {_ARCHIVE_LIMIT_BYTES >> 20} MiB")
        target = folder / path
        target.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        content = tar.extractfile(member)
        if content is not None:
            target.write_bytes(content.read())


def keep_host_files(folder: Path, files: Mapping[str, Path], texts: Mapping[str, str]) -> None:
    """Copy the host's side of a machine into `folder`/host, and say what was missing."""
    host = make_private_folder(folder / "host")
    missing: list[str] = []
    for name, source in files.items():
        if source.is_file():
            shutil.copyfile(source, host / name)
        else:
            missing.append(name)
    for name, text in texts.items():
        (host / name).write_text(text)
    manifest = {
        "schema": 1,
        "files": sorted(
            path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file()
        ),
        "missing": missing,
    }
    beside = folder / "manifest.json.part"
    beside.write_text(json.dumps(manifest, indent=2) + "\n")
    beside.replace(folder / "manifest.json")
