"""Attaches the files of kept evidence to a test's Allure result, in one step for each folder."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

import allure
from allure_commons.types import AttachmentType

from harness.errors import HarnessError
from harness.foreign_files import read_plain_text

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from harness.provisioner.declaration import Declaration

#: Files that readers of a report look for first; all other files stay in the evidence folder only.
_ATTACHED = (
    # Pages made from the evidence, such as a timeline.
    "*.html",
    "*.svg",
    "*.png",
    "host/serial.log",
    "host/serial.cast",
    "host/argv.txt",
    "host/domain.xml",
    "host/busy-host.txt",
    "host/stderr.log",
    "host/qmp-events.json",
    "host/*-trace.txt",
    "states/difference-*.txt",
    "commands/journal",
    "commands/dmesg",
    "commands/lspci",
    "commands/dkms-status",
    "files/run/cloud-init/*.json",
    "files/var/log/cloud-init.log",
    "files/var/log/cloud-init-output.log",
    "files/var/lib/gpu-node/outcome.json",
    "files/var/log/azure/cluster-provision.log",
    "files/var/log/azure/Microsoft.Azure.Extensions.CustomScript/events/*",
    "files/var/lib/dkms/nvidia/**/make.log",
    "files/var/log/nvidia-installer-*.log",
    "files/opt/azure/aks-gpu/dkms-marker",
    "provisioner.json",
    "manifest.json",
    "not-collected.txt",
    "checkpoint/not-saved.txt",
    # The evidence of a registry, not of a node.
    "requests.txt",
)
#: The titles of the folders of evidence.
_FOLDERS = {
    "host": "Host: console, command line, events, traces",
    "commands": "Output of commands in the guest",
    "files": "Files of the guest",
    "states": "Differences between states of the node",
    "checkpoint": "The saved machine",
}
_GUEST_FOLDERS = ("commands", "files")
_TYPES = {
    ".json": AttachmentType.JSON,
    ".html": AttachmentType.HTML,
    ".svg": AttachmentType.SVG,
    ".png": AttachmentType.PNG,
    ".xml": AttachmentType.XML,
}
#: Terminal players recognise a recording by this suffix; Allure has no type for recordings.
_RECORDING = ".cast"
_RECORDING_TYPE = "application/x-asciicast"


def attach(folder: Path, name: str) -> None:
    """Attach the files of the evidence folder called `name`, with one Allure step for each subfolder."""
    declaration = _declaration(folder)
    found: dict[str, list[Path]] = {}
    for path in _attached(folder, declaration):
        top, *below = path.relative_to(folder).parts
        found.setdefault(top if below else "", []).append(path)
    if not found:
        return
    with allure.step(f"Evidence of '{name}'"):
        for path in found.pop("", ()):
            _attach_file(path, path.name, is_of_guest=False)
        for top, paths in found.items():
            with allure.step(_FOLDERS.get(top, top)):
                taken: Counter[str] = Counter()
                for path in paths:
                    shown = _name(path, folder / top, declaration)
                    taken[shown] += 1
                    number = f" ({taken[shown]})" if taken[shown] > 1 else ""
                    _attach_file(path, shown + number, is_of_guest=top in _GUEST_FOLDERS)


def _attached(folder: Path, declaration: Declaration | None) -> Iterator[Path]:
    patterns = (*_ATTACHED, *_declared(declaration))
    # A file that the provisioner declares may match an earlier pattern too.
    for path in dict.fromkeys(path for each in patterns for path in sorted(folder.glob(each))):
        # An empty stderr of QEMU is information; other empty files are not.
        if path.is_file() and (path.stat().st_size or path.name == "stderr.log"):
            yield path


def _attach_file(path: Path, name: str, *, is_of_guest: bool) -> None:
    kind = _TYPES.get(path.suffix, AttachmentType.TEXT)
    if is_of_guest and kind is not AttachmentType.JSON:
        # A guest wrote the file, so a browser must not run it as a page.
        kind = AttachmentType.TEXT
    if path.suffix == _RECORDING:
        allure.attach.file(  # type: ignore[no-untyped-call]
            str(path), name=name, attachment_type=_RECORDING_TYPE, extension=_RECORDING[1:]
        )
        return
    allure.attach.file(str(path), name=name, attachment_type=kind)  # type: ignore[no-untyped-call]


def _name(path: Path, top: Path, declaration: Declaration | None) -> str:
    """Return a file's title: the names of its events, or its path in the guest or in the folder."""
    relative = path.relative_to(top).as_posix()
    if top.name != "files":
        return relative
    if path.stem.isdigit() and declaration is not None and declaration.outcome.events is not None:
        from harness.evidence.outcome import parse_events  # noqa: PLC0415 - as in _declaration

        try:
            names = parse_events(read_plain_text(path), declaration.outcome.events, path.name)
        except (HarnessError, OSError):
            names = []
        return f"event: {', '.join(names) or 'not readable'}"
    return f"/{relative}"


def _declaration(folder: Path) -> Declaration | None:
    """Return the provisioner's declaration from the evidence, or None if the declaration is damaged."""
    # The import is inside the function, since a run of specs has no evidence and should not load
    # pydantic.
    from harness.provisioner.declaration import read_declaration  # noqa: PLC0415

    try:
        return read_declaration(folder)
    except HarnessError:
        return None


def _declared(declaration: Declaration | None) -> Iterator[str]:
    """Yield patterns for the paths of evidence files that the provisioner's declaration names."""
    if declaration is None:
        return
    for path in (*declaration.outcome.paths, *declaration.files):
        yield "files" + path.replace("[", "[[]")
    for name in declaration.commands:
        yield f"commands/{name}"
