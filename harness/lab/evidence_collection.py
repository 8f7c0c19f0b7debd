"""Gathers evidence of a running machine, or saves the files of a machine that did not start."""

from __future__ import annotations

import gzip
import json
import shutil
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

from harness.errors import HarnessError
from harness.evidence import BUSY_HOST, TRACE_SUFFIX, Evidence
from harness.evidence.collect import collect_guest, keep_host_files
from harness.evidence.gaps import NOT_COLLECTED
from harness.evidence.history import HISTORY, JOURNAL, PACKED_JOURNAL, history_request
from harness.evidence.request import (
    NOTHING_MORE,
    AdditionalEvidence,
    guest_request,
    result_request,
)
from harness.foreign_files import read_plain
from harness.gpu.trace_file import render_trace
from harness.lab.guest_channels import STATES
from harness.lease import make_private_folder
from harness.machine.channels.console_recording import RECORDING
from harness.provisioner.declaration import write_declaration
from harness.provisioning.wait import WaitTimeoutError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from harness.lab.machine import LabMachine
    from harness.provisioner import Provisioner

#: The suffixes of the logs of QEMU, libvirt and the guest in a machine's folder.
_LOGS = {".txt", ".log", ".xml"}


def collect(
    machine: LabMachine,
    folder: Path,
    *,
    kernels: Sequence[str] | None = None,
    additional: AdditionalEvidence = NOTHING_MORE,
    provisioner: Provisioner | None = None,
    is_booted: bool = True,
) -> Evidence:
    """Gather evidence of the guest and of the host into `folder`.

    If the guest does not answer, `folder` gets the host's evidence, and HarnessError is raised.
    Without `is_booted` the guest might still be booting, so the guest gets only a few seconds to
    answer. `kernels` are the kernel versions whose modules are examined, by default all kernel
    versions in the guest. The declaration of the `provisioner` adds files and commands, and says
    how the provisioner's result is read. Raises BadInputError if a command in `additional` has the
    name of another command.
    """
    # The names are checked first, so that the error is raised even if the guest does not answer.
    guest_request((), provisioner).extended(additional)
    if provisioner is not None:
        write_declaration(provisioner, make_private_folder(folder))
    try:
        if not is_booted:
            machine.require_answer()
        if kernels is None:
            kernels = machine.guest.output_of("ls", "/lib/modules").split()
        request = guest_request(kernels, provisioner).extended(additional)
        return collect_guest(machine.agent, request, folder, stretch=machine.time_stretch())
    finally:
        save_host_evidence(machine, folder)


def collect_result(machine: LabMachine, folder: Path, *, provisioner: Provisioner) -> Evidence:
    """Gather into `folder` only the results of the provisioner's runs."""
    write_declaration(provisioner, make_private_folder(folder))
    request = result_request(provisioner)
    return collect_guest(machine.agent, request, folder, stretch=machine.time_stretch())


def collect_available(
    machine: LabMachine,
    *,
    kernels: Sequence[str] | None = None,
    additional: AdditionalEvidence = NOTHING_MORE,
    provisioner: Provisioner | None = None,
) -> Evidence:
    """Gather the available evidence of a machine that might not answer, into a new folder.

    If the guest does not answer, `not-collected.txt` has the error.
    """
    folder = Path(tempfile.mkdtemp(prefix="evidence-", dir=machine.folder))
    try:
        return collect(
            machine,
            folder,
            kernels=kernels,
            provisioner=provisioner,
            additional=additional,
            is_booted=False,
        )
    except HarnessError as error:
        (folder / NOT_COLLECTED).write_text(f"{error}\n", errors="backslashreplace")
        return Evidence(folder)


def collect_history(machine: LabMachine, folder: Path) -> None:
    """Gather past events of the machine, with their times, into the evidence in `folder`.

    If the guest does not answer, or did not answer earlier, `history/not-collected.txt` has the
    reason.
    """
    history = folder / HISTORY
    shutil.rmtree(history, ignore_errors=True)
    reason = folder / NOT_COLLECTED
    if reason.is_file():
        # A second attempt would wait for the whole time limit again.
        shutil.copyfile(reason, make_private_folder(history) / NOT_COLLECTED)
        return
    try:
        collect_guest(machine.agent, history_request(), history, stretch=machine.time_stretch())
        journal = history / "commands" / JOURNAL
        (history / PACKED_JOURNAL).write_bytes(gzip.compress(read_plain(journal), 6))
        journal.unlink()
    except (HarnessError, WaitTimeoutError, OSError) as error:
        reason = make_private_folder(history) / NOT_COLLECTED
        reason.write_text(f"{error}\n", errors="backslashreplace")


def try_save_host_evidence(machine: LabMachine, folder: Path) -> Path | None:
    """Keep the remaining files of a machine that did not start, and return `folder`.

    If there are no files, or nothing can be written, this function returns None, so that the
    original error is not masked.
    """
    try:
        if machine.has_vm:
            save_host_evidence(machine, folder)
            return folder
        logs = {each.name: each for each in machine.folder.iterdir() if each.suffix in _LOGS}
        if not logs:
            return None
        keep_host_files(folder, logs, {})
    except (HarnessError, OSError):
        return None
    return folder


def save_host_evidence(machine: LabMachine, folder: Path) -> None:
    """Copy the host's evidence of a machine into `folder`. The machine may have ended."""
    if (machine.folder / STATES).is_dir():
        shutil.copytree(machine.folder / STATES, folder / STATES, dirs_exist_ok=True)
    vm = machine.vm
    recording = machine.folder / RECORDING
    busy = machine.busy_host()
    keep_host_files(
        folder,
        {**vm.logs, **({RECORDING: recording} if recording.exists() else {})},
        {
            "qmp-events.json": json.dumps(
                [
                    {"name": event.name, "at_s": event.at_s, "data": dict(event.data)}
                    for event in vm.events
                ],
                indent=2,
            ),
            **({BUSY_HOST: busy} if busy else {}),
            **{
                name: text
                for device_id, trace in machine.gpu_traces().items()
                for name, text in (
                    (f"{device_id}-trace.txt", trace.render()),
                    (f"{device_id}{TRACE_SUFFIX}", render_trace(trace)),
                )
            },
        },
    )
