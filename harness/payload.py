"""Packs the guest's programs into reproducible zipapps, whose file names contain their digests."""

from __future__ import annotations

import contextlib
import hashlib
import io
import secrets
import zipfile
from dataclasses import dataclass
from pathlib import Path

from harness import agent, provisioning
from harness.errors import RequirementError
from harness.lease import make_private_folder

#: The earliest date that a zip file can store; one date for all members makes the bytes reproducible.
_EPOCH = (1980, 1, 1, 0, 0, 0)
_MAIN = """\
import sys

from {package}.__main__ import main

sys.exit(main())
"""


@dataclass(frozen=True, kw_only=True)
class Payload:
    """A zipapp; its bytes depend only on the contents of the sources."""

    content: bytes
    digest: str
    package: str = "provisioning"

    @property
    def name(self) -> str:
        return f"{self.package}-{self.digest[:12]}.pyz"


def build_payload() -> Payload:
    """Pack the installed `harness.provisioning`."""
    return _pack("provisioning", provisioning.__file__)


def build_agent() -> Payload:
    """Pack the installed `harness.agent` into the zipapp that the loader in the guest requests."""
    return _pack("agent", agent.__file__)


def _pack(package: str, init: str) -> Payload:
    """Pack the package whose `__init__.py` is at the path `init`.

    The sources are sorted by name, have the same date, and are not compressed, so that the zipapp's
    bytes do not depend on the time or the version of zlib.
    """
    root = Path(init).parent
    members = {
        f"{package}/{source.relative_to(root).as_posix()}": source.read_bytes()
        for source in root.rglob("*.py")
    }
    members["__main__.py"] = _MAIN.format(package=package).encode()
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_STORED) as archive:
        for name in sorted(members):
            info = zipfile.ZipInfo(name, date_time=_EPOCH)
            info.external_attr = 0o644 << 16
            archive.writestr(info, members[name])
    content = b"#!/usr/bin/env python3\n" + buffer.getvalue()
    return Payload(content=content, digest=hashlib.sha256(content).hexdigest(), package=package)


def write_payload(payload: Payload, folder: Path) -> Path:
    """Write the zipapp into `folder` under the payload's name, and return the path of the file.

    Raises RequirementError if the file cannot be written.
    """
    target = make_private_folder(folder) / payload.name
    # The name is unique, since another process may be writing the same payload.
    beside = target.with_suffix(f".{secrets.token_hex(4)}.part")
    try:
        if not target.is_file() or target.read_bytes() != payload.content:
            beside.write_bytes(payload.content)
            beside.chmod(0o755)
            beside.replace(target)
    except OSError as error:
        with contextlib.suppress(OSError):
            beside.unlink(missing_ok=True)
        raise RequirementError(
            f"The payload '{target}' cannot be written ({error.strerror}); set XDG_CACHE_HOME to a "
            "folder that you may write to and that has free space."
        ) from error
    return target
