"""Renders cloud-init's user-data, meta-data and network-config, and writes a seed volume of these files."""

from __future__ import annotations

import base64
import functools
import gzip
import io
from dataclasses import dataclass, field
from enum import Enum
from typing import TYPE_CHECKING

import yaml

from harness.errors import HarnessError
from harness.foreign_json import parse_json

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path
    from typing import Any

    from harness.provisioning.command import Argv

#: The text that cloud-init's final module prints on the console after all other work.
FINISHED = "HARNESS: cloud-init has finished"

#: The MAC address of every machine. Machines can share this address because each machine has its
#: own network.
MAC_ADDRESS = "52:54:00:67:70:75"

#: The volume label by which the NoCloud data source finds its seed.
SEED_LABEL = "CIDATA"


@dataclass(frozen=True, kw_only=True)
class GuestFile:
    """A file that cloud-init writes into the guest, byte for byte."""

    path: str
    content: bytes
    mode: int = 0o644


@dataclass(frozen=True, kw_only=True)
class SshAccess:
    """The keys for logging in to the guest and for identifying the guest, in OpenSSH's text formats."""

    authorized_key: str
    host_private_key: str = field(repr=False)
    host_public_key: str


@dataclass(frozen=True, kw_only=True)
class UserData:
    """The settings and actions that cloud-init applies at a node's first boot.

    `commands` run in order as root, without a shell. The commands in `early` run at every boot, as
    cloud-init's `bootcmd`. Without `access`, nobody can log in by SSH.
    """

    hostname: str
    access: SshAccess | None = None
    files: Sequence[GuestFile] = ()
    commands: Sequence[Argv] = ()
    early: Sequence[Argv] = ()


@dataclass(frozen=True, kw_only=True)
class SeedFiles:
    """The three documents of a NoCloud seed volume."""

    user_data: str
    meta_data: str
    network_config: str


@dataclass(frozen=True, kw_only=True)
class CloudInitResult:
    """The result that cloud-init writes to `/run/cloud-init/result.json`."""

    datasource: str
    errors: tuple[str, ...]

    @classmethod
    def from_json(cls, text: str) -> CloudInitResult:
        """Parse the file's text.

        Raises HarnessError if the text does not have the format of cloud-init 22 to 26.
        """
        try:
            run = parse_json(text)["v1"]
            return cls(
                # The field is null if cloud-init found no data source.
                datasource="" if run["datasource"] is None else _text(run["datasource"]),
                errors=tuple(str(error) for error in _listed(run["errors"])),
            )
        except (ValueError, KeyError, TypeError) as error:
            raise HarnessError(
                f"cloud-init's result file has an unknown format ({error!r}): {text!r}."
            ) from error


class CloudInitStatus(Enum):
    """The final status of cloud-init; each value is an exit code of `cloud-init status` (23.4 or later)."""

    DONE = 0
    ERROR = 1
    RECOVERABLE = 2


@dataclass(frozen=True, kw_only=True)
class CloudInitReport:
    """The errors and warnings of all cloud-init stages, from `/run/cloud-init/status.json`.

    `recoverable` lists the warnings that do not affect the boot; each warning begins with its log
    level. cloud-init before 23.4 reports no warnings.
    """

    errors: tuple[str, ...]
    recoverable: tuple[str, ...]

    @property
    def status(self) -> CloudInitStatus:
        if self.errors:
            return CloudInitStatus.ERROR
        return CloudInitStatus.RECOVERABLE if self.recoverable else CloudInitStatus.DONE

    @classmethod
    def from_json(cls, text: str) -> CloudInitReport:
        """Parse the file's text.

        Raises HarnessError if the text does not have the format of cloud-init 22 to 26.
        """
        try:
            stages = _stages(parse_json(text)["v1"])
            return cls(
                errors=tuple(str(error) for stage in stages for error in _listed(stage["errors"])),
                recoverable=tuple(
                    f"{level}: {message}"
                    for stage in stages
                    for level, messages in stage.get("recoverable_errors", {}).items()
                    for message in _listed(messages)
                ),
            )
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise HarnessError(
                f"cloud-init's status file has an unknown format ({error!r}): {text!r}."
            ) from error


def _stages(run: Mapping[str, object]) -> list[dict[str, Any]]:
    """Return the stages in a status file; cloud-init lists all stages before the first stage runs.

    Raises ValueError if there is no stage.
    """
    stages = [each for each in run.values() if isinstance(each, dict)]
    if not stages:
        raise ValueError("the file has no stage")
    return stages


def _text(value: object) -> str:
    if not isinstance(value, str):
        raise TypeError(f"{value!r} is not a text")
    return value


def _listed(value: object) -> list[object]:
    if not isinstance(value, list):
        raise TypeError(f"{value!r} is not a list")
    return value


def render_user_data(user_data: UserData) -> str:
    """Render user-data as `#cloud-config`."""
    return render_cloud_config(cloud_config(user_data))


def render_cloud_config(document: Mapping[str, object]) -> str:
    """Render a document as YAML after the line `#cloud-config`."""
    # For files of some 100 KiB, libyaml is 40 times as fast as PyYAML's dumper in Python.
    dumper = yaml.CSafeDumper if yaml.__with_libyaml__ else yaml.SafeDumper
    return "#cloud-config\n" + yaml.dump(dict(document), Dumper=dumper, sort_keys=False)


def cloud_config(user_data: UserData) -> dict[str, object]:
    """Return user-data as the document that `render_cloud_config` renders.

    Files are encoded as base64, so that no content (quotes, newlines, binary data) can change the
    document. Commands are lists of words, so that no shell parses the commands. Clouds limit the
    size of user-data, and cloud-init parses the document seven times, so files that compress well
    are compressed.
    """
    document = {
        "hostname": user_data.hostname,
        "locale": "C.UTF-8",
        "disable_root": False,
        "ssh_pwauth": False,
        **_render_access(user_data.access),
        "ssh": {"emit_keys_to_console": False},
        "no_ssh_fingerprints": True,
        "write_files": [
            {"path": file.path, **_encode(file.content), "permissions": f"{file.mode:04o}"}
            for file in user_data.files
        ],
        "bootcmd": [list(argv) for argv in user_data.early],
        "runcmd": [list(argv) for argv in user_data.commands],
        "final_message": FINISHED,
    }
    # The schemas of cloud-init 22 do not allow an empty list.
    return {key: value for key, value in document.items() if value != []}


@functools.lru_cache(maxsize=4)  # the payload is the same for all nodes
def _encode(content: bytes) -> dict[str, str]:
    packed = gzip.compress(content, compresslevel=6, mtime=0)
    is_smaller = len(packed) < len(content)
    return {
        "encoding": "gz+b64" if is_smaller else "b64",
        "content": base64.b64encode(packed if is_smaller else content).decode(),
    }


def _render_access(access: SshAccess | None) -> dict[str, object]:
    if access is None:
        # Nobody logs in to this machine by SSH, and generating an RSA key takes a minute under
        # emulation.
        return {"ssh_genkeytypes": ["ed25519"]}
    return {
        "users": [{"name": "root", "ssh_authorized_keys": [access.authorized_key]}],
        "ssh_deletekeys": True,
        "ssh_keys": {
            "ed25519_private": access.host_private_key,
            "ed25519_public": access.host_public_key,
        },
    }


def render_meta_data(*, instance_id: str, hostname: str) -> str:
    """Render meta-data; if `instance_id` is new, cloud-init provisions the machine again."""
    return yaml.safe_dump({"instance-id": instance_id, "local-hostname": hostname})


def render_network_config() -> str:
    """Render a version 2 network-config: DHCP on the machine's one network card.

    The document selects the card by its MAC address and renames the card. A match by name would not
    work, because the networkd renderer of cloud-init 22 uses the key as the interface's name and
    ignores names in `match`.
    """
    card = {
        "match": {"macaddress": MAC_ADDRESS},
        "set-name": "eth0",
        "dhcp4": True,
        "dhcp6": False,
    }
    return yaml.safe_dump({"version": 2, "ethernets": {"eth0": card}})


def render_seed(user_data: UserData, *, instance_id: str) -> SeedFiles:
    """Render the three documents of the seed volume."""
    return SeedFiles(
        user_data=render_user_data(user_data),
        meta_data=render_meta_data(instance_id=instance_id, hostname=user_data.hostname),
        network_config=render_network_config(),
    )


def write_seed(seed: SeedFiles, at: Path) -> Path:
    """Write the NoCloud volume (ISO 9660 with Rock Ridge and Joliet names), and return its path."""
    import pycdlib  # noqa: PLC0415 - a clone after cloud-init needs no seed

    iso = pycdlib.PyCdlib()
    iso.new(interchange_level=3, joliet=3, rock_ridge="1.09", vol_ident=SEED_LABEL)
    for short, name, text in (
        ("USERDATA", "user-data", seed.user_data),
        ("METADATA", "meta-data", seed.meta_data),
        ("NETCONF", "network-config", seed.network_config),
    ):
        content = text.encode()
        iso.add_fp(
            io.BytesIO(content),
            len(content),
            f"/{short}.;1",
            rr_name=name,
            joliet_path=f"/{name}",
        )
    temporary = at.with_name(at.name + ".part")
    iso.write(str(temporary))
    iso.close()
    temporary.chmod(0o600)
    temporary.replace(at)
    return at
