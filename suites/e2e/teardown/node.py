"""Changes of the nodes before their teardown, and checks of a teardown's log lines and leftovers."""

from __future__ import annotations

from typing import TYPE_CHECKING

from harness import expect
from suites.e2e.any_provisioner import is_own
from suites.e2e.guest_script import shell
from suites.e2e.kernel_module import BAKED_VERSION

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from harness.api import Argv, Node
    from harness.evidence import Evidence


OPTED_OUT: Mapping[str, str] = {"SkipGpuDriverInstall": "true"}
DKMS = "/var/lib/dkms/nvidia"
PROBE = "/usr/bin/nvidia-modprobe"

#: Loads all modules of the driver, and makes the device nodes.
LOAD: Sequence[Argv] = (["nvidia-modprobe", "-u", "-c0"], ["nvidia-modprobe", "-c0", "-c255"])


#: Keeps the device open until the unit is stopped.
HOLD = shell(
    "systemd-run --quiet --unit holder sh -c 'exec sleep infinity </dev/nvidia0'; "
    "until grep -q '^nvidia [0-9]* [1-9]' /proc/modules; do sleep 0.1; done"
)
CUSTOMER_VERSION = "570.86.15"
#: Adds a driver version of the customer to DKMS, beside the baked version.
CUSTOMER = f"cp -a {DKMS}/{BAKED_VERSION} {DKMS}/{CUSTOMER_VERSION}"


def expect_line(evidence: Evidence, status: str, **fields: str) -> None:
    """Expect the log line of a teardown; for a foreign provisioner, compare only event and status."""
    if is_own(evidence.provisioner):
        expect.prebake_line(evidence, event="teardown", status=status, **fields)
    else:
        expect.log_line(evidence, f"event=teardown status={status}")


def listed_modules(node: Node) -> list[str]:
    """Return the lines of all `modules.dep` that name a module of the driver.

    `depmod` writes these files; `modprobe` and the condition of the refresh unit read them.
    """
    result = node.guest.run("sh", "-c", "cat /lib/modules/*/modules.dep")
    assert result.ok, f"The lists of modules could not be read: {result}."
    return [line for line in result.stdout.splitlines() if "updates/dkms/nvidia" in line]
