"""Runs the provisioner's program in the guest with another time limit for installing the driver.

    python3 -I -S longer_limit.py SECONDS PROGRAM [ARGUMENT...]

In the guest, this file is a standalone script that imports the package in the zipapp or folder
PROGRAM.
"""

from __future__ import annotations

import dataclasses
import importlib
import sys
from typing import Any


def main() -> int:
    seconds, *sys.argv = sys.argv[1:]
    sys.path.insert(0, sys.argv[0])
    containerd: Any = importlib.import_module("provisioning.containerd")
    containerd.INSTALL = dataclasses.replace(containerd.INSTALL, timeout_s=float(seconds))
    code: int = importlib.import_module("provisioning.__main__").main()
    return code


if __name__ == "__main__":
    sys.exit(main())
