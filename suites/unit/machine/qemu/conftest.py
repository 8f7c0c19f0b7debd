"""A QEMU that only answers."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from pathlib import Path


@pytest.fixture
def program(tmp_path: Path) -> Path:
    """Return a QEMU that lists one device, and notes each time that it runs."""
    program = tmp_path / "qemu"
    program.write_text(
        "#!/bin/sh\n"
        f"echo \"$*\" >>'{tmp_path}/calls'\n"
        """echo 'version 7.2.22'; echo 'name "x-pci-proxy-dev", bus PCI'\n"""
    )
    program.chmod(0o755)
    return program
