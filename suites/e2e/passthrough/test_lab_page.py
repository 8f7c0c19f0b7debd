"""The set-up that docs/gpu-lab.md describes works on a host with real VFIO."""

from __future__ import annotations

from typing import TYPE_CHECKING

from harness.provisioning.wait import Observation, wait_for
from suites.docs.examples import system_file
from suites.docs.pages import read_pages
from suites.e2e.passthrough.holders import driver_of, gpu_addresses

if TYPE_CHECKING:
    from harness.lab.machine import LabMachine
    from suites.docs.pages import Block
    from suites.e2e.passthrough.conftest import StartHost

_SERVICE = "gpu-lab.service"
_PROGRAMS = "/srv/gpu-node-harness/.venv/bin"
#: Replaces the tests: leases a GPU as the tests do, and prints its permissions.
_NIGHT = """\
#!/bin/sh
exec harness gpu host run -- sh -c 'echo "$(id -un) runs $0 with $HARNESS_GPU_ADDRESSES; \
locks $(ulimit -l); leases $(stat -c %U:%G:%a /run/lock/gpu-node-harness)"' "$*"
"""
#: Makes the timer expire at once, without waiting for the night.
_SOON = "[Timer]\nOnCalendar=\nOnActiveSec=1s\nAccuracySec=1s\n"
_NIGHT_KVM_S = 20.0
_COMMANDS_S = 60.0


def test_timer_starts_the_nightly_run_as_an_ordinary_user(start_host: StartHost) -> None:
    host = start_host(1)
    (gpu,) = gpu_addresses(host)
    _leave_to_tests(host, gpu)
    _follow_the_page(host)
    for name, text in (("tox", _NIGHT), ("harness", '#!/bin/sh\nexec harness "$@"\n')):
        host.guest.output_of("mkdir", "--parents", _PROGRAMS)
        host.guest.write_text(f"{_PROGRAMS}/{name}", text)
        host.guest.output_of("chmod", "755", f"{_PROGRAMS}/{name}")
    host.guest.output_of("mkdir", "--parents", "/etc/systemd/system/gpu-lab.timer.d")
    host.guest.write_text("/etc/systemd/system/gpu-lab.timer.d/soon.conf", _SOON)
    host.guest.output_of("systemctl", "daemon-reload")

    host.guest.output_of("systemctl", "enable", "--now", "gpu-lab.timer")
    log = _log_of_the_night(host)

    assert (
        f"gpu-lab runs -e passthrough with {gpu}; locks unlimited; leases root:gpu-lab:2770" in log
    )
    assert driver_of(host, gpu) is None


def _leave_to_tests(host: LabMachine, gpu: str) -> None:
    """Unbind the driver from a GPU, and remove the permissions that this suite's hosts give the group."""
    device = f"/sys/bus/pci/devices/{gpu}"
    host.guest.output_of("sh", "-euc", f"echo {gpu} >{device}/driver/unbind")
    host.guest.output_of("sh", "-euc", "chmod 0200 /sys/bus/pci/drivers/*/unbind")
    host.guest.output_of(
        "sh", "-euc", f"cd {device}; chmod g-w driver_override reset reset_method"
    )
    host.guest.output_of("chmod", "0200", "/sys/bus/pci/drivers_probe")
    host.guest.output_of("rmdir", "/run/lock/gpu-node-harness")


def _follow_the_page(host: LabMachine) -> None:
    """Write the page's files, except the kernel's command line, and run the page's commands."""
    (page,) = (page for page in read_pages() if page.name == "docs/gpu-lab.md")
    for block in page.blocks:
        if block.language == "ini" and not system_file(block).startswith("/etc/default/"):
            host.guest.write_text(system_file(block), block.text)
    host.guest.output_of("useradd", "--create-home", "alice")
    host.guest.output_of("sh", "-euxc", _set_up(page.blocks), timeout_s=_COMMANDS_S)
    host.guest.output_of("udevadm", "settle")


def _set_up(blocks: tuple[Block, ...]) -> str:
    """Return the page's commands that put the files into effect."""
    (text,) = (block.text for block in blocks if block.text.startswith("groupadd "))
    return text


def _log_of_the_night(host: LabMachine) -> str:
    """Wait for the end of the service that the timer starts, and return the service's output."""

    def look() -> Observation[str]:
        show = host.guest.output_of(
            *(
                "systemctl",
                "show",
                _SERVICE,
                "--property=ActiveState,Result,InactiveEnterTimestamp",
            )
        )
        log = host.guest.output_of("journalctl", "--unit", _SERVICE, "--output=cat")
        facts = dict(line.partition("=")[::2] for line in show.splitlines())
        if not facts["InactiveEnterTimestamp"] and facts["ActiveState"] != "failed":
            return Observation(None, f"{show}\n{log}")
        assert (facts["ActiveState"], facts["Result"]) == ("inactive", "success"), log
        return Observation(log, "ended")

    return wait_for(f"the end of '{_SERVICE}'", look, host.deadline(_NIGHT_KVM_S), interval_s=0.5)
