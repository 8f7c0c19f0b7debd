"""The modules that `harness` imports to parse a command line."""

from __future__ import annotations

import sys

import pytest

from harness.provisioning.command import LocalRunner

#: Modules that each take longer to import than `harness --help` takes.
_HEAVY = {
    "allure", "asyncio", "harness.gpu", "harness.image", "harness.lab", "harness.machine", "harness.shell",
    "matplotlib", "pexpect", "pycdlib", "pydantic", "pytest", "qemu", "rich", "yaml",
}  # fmt: skip
#: Modules that `harness shell` does not need for a clone of a cached image.
_UNNEEDED_BY_CLONES = {
    "allure", "harness.evidence", "harness.expect", "harness.image.cloud.fetch", "harness.machine.libvirt",
    "harness.machine.uefi_firmware", "harness.provisioner.yaml_file", "harness.shared_store.client", "libvirt",
    "matplotlib", "pycdlib", "pytest", "rich", "urllib.request",
}  # fmt: skip
_HELP = """\
import sys
from harness.cli import main
try:
    main(sys.argv[1:])
except SystemExit:
    pass
print(*sorted(sys.modules))
"""
_CLONE = """\
import sys
from harness.cli import build_parser
build_parser("shell").parse_args(["shell", "--", "true"])
import harness.lab, harness.lab.saved_states
print(*sorted(sys.modules))
"""


def _modules(program: str, *argv: str) -> set[str]:
    """Return the modules that a Python program has imported when it ends."""
    result = LocalRunner().run([sys.executable, "-c", program, *argv], timeout_s=60.0)
    return set(result.check("The imports").stdout.splitlines()[-1].split())


@pytest.mark.parametrize("argv", [["--help"], ["-h"], ["unknown"], []], ids=" ".join)
def test_help_and_usage_errors_import_no_command_module(argv: list[str]) -> None:
    assert not _HEAVY & _modules(_HELP, *argv)


def test_shell_command_loads_no_modules_of_other_commands() -> None:
    assert not _UNNEEDED_BY_CLONES & _modules(_CLONE)
