"""A fake QEMU that only answers queries."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from pathlib import Path


@pytest.fixture
def program(tmp_path: Path) -> Path:
    """Return a fake QEMU that prints its version and one device, and logs each call."""
    program = tmp_path / "qemu"
    program.write_text(
        "#!/bin/sh\n"
        f"echo \"$*\" >>'{tmp_path}/calls'\n"
        """echo 'version 7.2.22'; echo 'name "x-pci-proxy-dev", bus PCI'\n"""
    )
    program.chmod(0o755)
    return program
