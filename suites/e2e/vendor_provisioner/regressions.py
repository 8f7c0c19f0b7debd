"""Regressions to plant in the vendor's provisioner, with the test that fails and the causes shown."""

from __future__ import annotations

import shutil
from dataclasses import dataclass
from pathlib import Path

from suites.e2e.vendor_provisioner.staged import DECLARATION, FOLDER

_SCRIPTS = "halyard"


@dataclass(frozen=True, kw_only=True)
class Regression:
    """A regression that replaces the only `before` in `file` by `after`; the test `caught_by` then fails.

    Each of `causes` is a pattern for the beginning of a line of the summary about this test.
    """

    file: str
    before: str
    after: str
    caught_by: str
    causes: tuple[str, ...]

    def plant(self, folder: Path) -> Path:
        """Make a changed copy of the provisioner in `folder`, and return its declaration.

        Raises ValueError unless the text to replace occurs exactly once in the file.
        """
        text = (FOLDER / _SCRIPTS / self.file).read_text()
        if text.count(self.before) != 1:
            raise ValueError(
                f"'{self.before}' occurs {text.count(self.before)} times in '{self.file}', and has to "
                "occur once."
            )
        shutil.copytree(FOLDER / _SCRIPTS, folder / _SCRIPTS)
        (folder / _SCRIPTS / self.file).write_text(text.replace(self.before, self.after))
        return Path(shutil.copy(DECLARATION, folder))


_USED = "test_staged_driver_is_used"

REGRESSIONS = {
    "retry returns 0 after its last try": Regression(
        file="lib/retry.bash",
        before='  return "${code}"',
        after="  return 0",
        caught_by="test_unreachable_mirror_has_its_own_exit_code",
        causes=(
            r"Provisioning was expected to end with 30 \(fetch\), but it ended with 1",
            r"`set -e` ended the provisioner in line \d+ of '/opt/halyard/gpu/lib/fetch\.bash': mv ",
            "printed: mv: cannot stat '/var/cache/halyard/gpu/SHA256SUMS.part'",
        ),
    ),
    "a process keeps the lock": Regression(
        file="lib/services.bash",
        before=" 9>&- &",
        after=" &",
        caught_by="test_later_boot_reuses_the_driver_of_the_first_boot",
        causes=(
            "provisioning ended with 11: another run holds /run/halyard-gpu.lock",
            r"'/run/halyard-gpu\.lock' was locked by process \d+ .*/opt/halyard/gpu/bin/gpu-sampler",
        ),
    ),
    "apt does not wait for its lock": Regression(
        file="lib/packages.bash",
        before="    --option DPkg::Lock::Timeout=120 \\\n",
        after="",
        caught_by="test_tools_are_installed_although_unattended_upgrades_hold_the_dpkg_lock",
        causes=("dpkg is locked by another process: E: Could not get lock",),
    ),
    "the wrong module is disabled": Regression(
        file="lib/driver.bash",
        before="install nouveau /bin/false",
        after="install nvidia /bin/false",
        caught_by="test_module_is_loaded_if_udev_has_not_loaded_it",
        causes=(
            "provisioning ended with 40: the module nvidia can't be loaded",
            "printed: modprobe: ",
        ),
    ),
    "a value of TOML has no quotes": Regression(
        file="lib/runtime.bash",
        before='BinaryName = "${HAL_RUNTIME_PROGRAM}"',
        after="BinaryName = ${HAL_RUNTIME_PROGRAM}",
        caught_by=_USED,
        causes=(r"unit 'containerd\.service' failed.*: containerd: failed to load TOML",),
    ),
    "the first GPU is left out": Regression(
        file="lib/runtime.bash",
        before="for node in /dev/nvidia[0-9]*; do",
        after="for node in /dev/nvidia[1-9]*; do",
        caught_by=_USED,
        causes=(r"CDI specs were expected to offer each GPU, but \['/dev/nvidia0'\] are in none",),
    ),
    "a unit starts a program that is not there": Regression(
        file="lib/services.bash",
        before="bin/gpu-health --interval",
        after="bin/gpu-healthd --interval",
        caught_by=_USED,
        causes=(
            r"unit 'halyard-gpu-health\.service' failed.*: Failed at step EXEC spawning \S+gpu-healthd: No such",
        ),
    ),
    "a count from 0 ends the script": Regression(
        file="lib/nodes.bash",
        before='    arguments+=("-c${index}")\n    index=$((index + 1))',
        after='    arguments+=("-c${index}")\n    ((index++))',
        caught_by=_USED,
        causes=(
            "provisioning ended with 1: phase nodes was not finished",
            r"`set -e` ended the provisioner in line 25 of '/opt/halyard/gpu/lib/nodes\.bash': \(\(index\+\+\)\)",
        ),
    ),
    "a teardown leaves the driver's sources": Regression(
        file="lib/teardown.bash",
        before="rm -rf /var/lib/dkms/nvidia /usr/src/nvidia-[0-9]*",
        after="rm -rf /var/lib/dkms/nvidia",
        caught_by="test_teardown_leaves_the_machine_without_a_driver",
        causes=(r"No driver artefact was expected, but these were left: \['/usr/src/nvidia-",),
    ),
    "a failure of the installer is lost in a pipe": Regression(
        file="bin/gpu-node-setup",
        before="set -euo pipefail",
        after="set -eu",
        caught_by="test_installer_that_fails_ends_the_run",
        causes=(
            "the kernel's headers are missing: nvidia-installer: ERROR: Unable to find the kernel",
        ),
    ),
}
