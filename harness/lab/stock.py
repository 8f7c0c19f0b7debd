"""What a distribution's own image is given, so that the harness can look into it."""

from __future__ import annotations

import base64
import shutil
from pathlib import Path
from typing import TYPE_CHECKING

from harness.cloudinit import UserData, render_seed
from harness.errors import BadInputError, RequirementError
from harness.machine.spec import Flash

if TYPE_CHECKING:
    from harness.cloudinit import SeedFiles, SshAccess

_OVMF = Path("/usr/share/OVMF")
_CODE, _VARIABLES = "OVMF_CODE_4M.fd", "OVMF_VARS_4M.fd"

#: Where built images have the same files, below the catalogue.
_AGENT_TREE = Path("debian-12/root")
_LOADER = Path("usr/lib/harness/agent-loader")
_UNIT = Path("etc/systemd/system/harness-agent.service")
#: systemd starts the agent by this link, as soon as the port is there.
_WANTS = "/etc/systemd/system/dev-virtio\\x2dports-harness.agent.device.wants"

_PUT = 'mkdir -p -- "${1%/*}" && printf %s "$2" | base64 -d >"$1.part" && chmod "$3" "$1.part" && mv -- "$1.part" "$1"'
#: Images that enable no serial console get the journal there, and a login.
_CONSOLE = (
    "grep -q 'console=ttyS0' /proc/cmdline && exit 0; "
    "mkdir -p /run/systemd/journald.conf.d && "
    "printf '[Journal]\\nForwardToConsole=yes\\nTTYPath=/dev/ttyS0\\n' "
    ">/run/systemd/journald.conf.d/harness.conf && "
    "systemctl restart systemd-journald.service && "
    "systemctl start --no-block serial-getty@ttyS0.service"
)


def ovmf(folder: Path) -> Flash:
    """Return OVMF with variables of a machine's own, which it keeps in `folder`.

    Raises RequirementError where the host has none.
    """
    for name in (_CODE, _VARIABLES):
        if not (_OVMF / name).is_file():
            raise RequirementError(
                f"Booting by UEFI needs '{_OVMF / name}', not found on this host; install with "
                "'apt-get install --no-install-recommends ovmf'."
            )
    return Flash(
        code=_OVMF / _CODE,
        variables=shutil.copyfile(_OVMF / _VARIABLES, folder / "ovmf-variables.fd"),
    )


def stock_seed(
    hostname: str, *, instance_id: str, images: Path, access: SshAccess | None = None
) -> SeedFiles:
    """Return a seed that brings the guest agent, and a serial console where there is none.

    Both come by `bootcmd`: it runs before cloud-init writes files, and so the agent is there for
    whatever goes wrong after. `images` is the catalogue, which has the agent's loader.
    """
    return render_seed(
        UserData(hostname=hostname, access=access, early=agent_commands(images / _AGENT_TREE)),
        instance_id=instance_id,
    )


def agent_commands(tree: Path) -> tuple[tuple[str, ...], ...]:
    """Return the commands that install and start the agent, whose files lie below `tree`."""
    try:
        loader, unit = (tree / _LOADER).read_bytes(), (tree / _UNIT).read_bytes()
    except OSError as error:
        raise BadInputError(
            f"The guest agent's loader cannot be read ({error.strerror}); point at the folder "
            "'images' of a checkout.",
            source=str(error.filename),
        ) from error
    return (
        ("sh", "-c", _CONSOLE),
        _put(f"/{_LOADER}", loader, mode="0755"),
        _put(f"/{_UNIT}", unit, mode="0644"),
        ("mkdir", "-p", _WANTS),
        ("ln", "-sf", f"../{_UNIT.name}", f"{_WANTS}/{_UNIT.name}"),
        ("systemctl", "daemon-reload"),
        ("systemctl", "start", "--no-block", _UNIT.name),
    )


def _put(path: str, content: bytes, *, mode: str) -> tuple[str, ...]:
    return ("sh", "-c", _PUT, "put", path, base64.b64encode(content).decode(), mode)
