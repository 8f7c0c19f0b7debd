"""Defects to plant in the example provisioner, each with the test on nodes that must catch it."""

from __future__ import annotations

import shutil
from dataclasses import dataclass
from pathlib import Path

FOLDER = Path(__file__).parent
SCRIPT = "provision.sh"
DECLARATION = "provisioner.yaml"


@dataclass(frozen=True, kw_only=True)
class Defect:
    """A defect replaces the only `before` in the script by `after`; then the test `caught_by` fails."""

    name: str
    before: str
    after: str
    caught_by: str

    def plant(self, folder: Path) -> Path:
        """Make a changed copy of the provisioner in `folder`, and return its declaration.

        Raises ValueError unless the text to replace occurs exactly once in the script.
        """
        text = (FOLDER / SCRIPT).read_text()
        if text.count(self.before) != 1:
            raise ValueError(
                f"'{self.name}' can't be planted: its text occurs {text.count(self.before)} times in "
                f"'{SCRIPT}', and has to occur once."
            )
        folder.mkdir(parents=True)
        shutil.copy(FOLDER / DECLARATION, folder)
        (folder / SCRIPT).write_text(text.replace(self.before, self.after))
        return folder / DECLARATION


BAKED = "test_baked_node_compiles_nothing_and_waits_for_its_device_plugin"
OTHER_KERNEL = "test_driver_is_built_for_a_running_kernel_that_is_not_the_newest"

DEFECTS = (
    Defect(
        name="wrong exit code",
        before="ERR_DEVICE_PLUGIN=86",
        after="ERR_DEVICE_PLUGIN=84",
        caught_by="test_device_plugin_that_never_starts_has_its_own_exit_code",
    ),
    Defect(
        name="record kept after teardown",
        before='  rm -f "$RECORD"\n  log "event=teardown status=cleaned"',
        after='  log "event=teardown status=cleaned"',
        caught_by="test_node_without_a_gpu_loses_the_driver",
    ),
    Defect(
        name="blocking service not awaited",
        before="systemctl restart nvidia-device-plugin",
        after="systemctl restart --no-block nvidia-device-plugin",
        caught_by=BAKED,
    ),
    Defect(
        name="DKMS for the wrong kernel",
        before='event buildDriver build_with_retries "$(uname -r)"',
        after='event buildDriver build_with_retries "$(newest_kernel)"',
        caught_by=OTHER_KERNEL,
    ),
    Defect(
        name="wrong file mode",
        before="chmod 4755 /usr/bin/nvidia-modprobe",
        after="chmod 0755 /usr/bin/nvidia-modprobe",
        caught_by=OTHER_KERNEL,
    ),
    Defect(
        name="missing event",
        before="event validateDriver validate_driver",
        after="validate_driver",
        caught_by=BAKED,
    ),
)
