"""Runs cloud-init in a machine, and waits until it has finished."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from harness.cloudinit import FINISHED, SEED_LABEL, write_seed
from harness.errors import HarnessError
from harness.lab.description import SEED
from harness.lab.guest_channels import HOT_PLUG_KVM_S
from harness.lab.machine_gpus import MachineGpuSlots
from harness.steps import consecutive, stepped

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from harness.cloudinit import CloudInitResult, SeedFiles
    from harness.provisioning.wait import (
        Deadline,
    )


#: The user-data makes cloud-init print FINISHED. If the user-data is unreadable, cloud-init prints
#: only its own message.
_END = rf"(?:{FINISHED}|Cloud-init v\. \S+ finished at)"
#: Matches the start of a stage of cloud-init on the console, which is reported as progress.
_STAGE = r"running '[a-z:-]+'"
_STAGE_NAME = re.compile(r"running '([a-z:-]+)'")
_CLOUD_INIT_KVM_S = 30.0
#: Seconds under KVM; cloud-init of a cloud image runs all modules of the distribution.
_CLOUD_INIT_OF_CLOUD_IMAGE_KVM_S = 90.0
_SEED_LABEL = f"/dev/disk/by-label/{SEED_LABEL}"
#: Stops networkd, which its socket unit has started. networkd must start again with the files that
#: cloud-init writes, and only the start of `network-pre.target` waits for those files.
_WITHDRAW_NETWORK = "systemctl stop systemd-networkd.socket systemd-networkd.service network.target network-pre.target"
#: Removes the result of `ds-identify` in /run; `ds-identify` runs again with systemd's generators.
START_CLOUD_INIT = (
    f"{_WITHDRAW_NETWORK}; "
    "cd /run/cloud-init 2>/dev/null && rm -f .ds-identify.result cloud.cfg disabled enabled; "
    "systemctl daemon-reload && systemctl start --no-block default.target"
)


def console_pattern(step: str | None) -> str:
    """Return the regular expression to wait for on a console while cloud-init runs.

    `step` is the pattern of a provisioner's steps. The pattern is matched only in complete lines
    before cloud-init's last message, since a match could otherwise consume that message.
    """
    if step is None:
        return f"{_END}|{_STAGE}"
    return rf"{_END}|{_STAGE}|(?={step})(?!(?s:.)*{_END})(?:{_without_names(step)})(?=[^\n]*\n)"


def _without_names(pattern: str) -> str:
    """Return the pattern without group names, which may not occur twice in a joined pattern."""
    return re.sub(r"\(\?P<\w+>", "(", pattern)


def ignore_progress(_line: str) -> None:
    """Ignore progress."""


class MachineCloudInit(MachineGpuSlots):
    """A machine in which cloud-init runs."""

    def plug_seed(self, seed: Path) -> None:
        """Plug a seed volume into the running machine, and wait until the guest sees its label."""
        self.vm.plug_seed(seed)
        self.agent.wait_for_file(_SEED_LABEL, self.deadline(HOT_PLUG_KVM_S))

    def start_cloud_init(self) -> None:
        """Continue the boot of a machine that stopped before cloud-init, and return immediately.

        All stages of cloud-init then run, including its search for a data source (in systemd's
        generator). The result of the earlier search, without a seed, is discarded.
        """
        self.guest.output_of("sh", "-c", START_CLOUD_INIT)

    @stepped("Wait for cloud-init of machine '{0.name}'")
    def wait_until_cloud_init_finished(
        self,
        deadline: Deadline,
        progress: Callable[[str], None] = ignore_progress,
        *,
        step: str | None = None,
    ) -> CloudInitResult:
        """Wait until cloud-init has finished, with or without errors, and return its result.

        `progress` is called with each boot stage that the console shows, and with each match of the
        regular expression `step`. Raises HarnessError at the deadline, or immediately if the guest
        can't finish any more.
        """
        with self._activity.during("waits for cloud-init", deadline):
            return self._wait_for_cloud_init(deadline, progress, step)

    def _wait_for_cloud_init(
        self, deadline: Deadline, progress: Callable[[str], None], step: str | None
    ) -> CloudInitResult:
        if not self._is_built:
            # The console of a cloud image may show any text, so the guest's agent waits for the
            # result.
            return self.guest.wait_for_cloud_init_result(deadline)
        expected = console_pattern(step)
        seen = ""
        with consecutive() as begin_step:
            while re.fullmatch(_END, seen) is None:
                seen = self.vm.console.wait_for(
                    expected,
                    deadline,
                    what="that cloud-init has finished",
                    failure=self.failure,
                )
                if not seen:
                    raise HarnessError(
                        f"The pattern {step!r} of the provisioner's steps matches an empty text, "
                        "so it would match without end; change it to match the name of a step."
                    )
                self.mark(seen)
                self._activity.note(f"waits for cloud-init, which printed: {seen.strip()}")
                progress(seen)
                if stage := _STAGE_NAME.fullmatch(seen):
                    begin_step(f"cloud-init: {stage[1]}")
        return self.guest.wait_for_cloud_init_result(deadline)

    def run_cloud_init(self, seed: SeedFiles) -> CloudInitResult:
        """Run all stages of cloud-init with `seed`, in a machine that stopped before cloud-init."""
        self.plug_seed(write_seed(seed, self.folder / SEED))
        self.start_cloud_init()
        kvm_s = _CLOUD_INIT_KVM_S if self._is_built else _CLOUD_INIT_OF_CLOUD_IMAGE_KVM_S
        return self.wait_until_cloud_init_finished(self.deadline(kvm_s, follows_progress=True))
