"""The packages in which mutmut plants bugs, and the tests that have to detect the bugs."""

from __future__ import annotations

import json
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from harness.errors import BadInputError

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path


@dataclass(frozen=True, kw_only=True)
class Package:
    """Sources below `harness`, and the tests that run for each mutant of these sources.

    `left_out` are sources that are not mutated. If `only` has files, no other files are mutated. At
    least the share `least` of the mutants has to be killed.
    """

    source: str
    tests: tuple[str, ...]
    left_out: tuple[str, ...] = ()
    only: tuple[str, ...] = ()
    least: float = 0.95

    def of_modules(self, names: Sequence[str], repository: Path) -> Package:
        """Return this package with `only` these modules, such as `node` or `qemu.machine`.

        Raises BadInputError for a module that the package does not have.
        """
        files = tuple(f"{self.source}/{name.replace('.', '/')}.py" for name in names)
        for name, file in zip(names, files, strict=True):
            if not (repository / file).is_file():
                raise BadInputError(
                    f"'{self.source}' has no module '{name}': there is no '{file}'.",
                    source="--module",
                )
        return replace(self, only=files)

    def render_configuration(self) -> str:
        """Return the table `[tool.mutmut]` of `pyproject.toml` for this package."""
        values = {
            "source_paths": [self.source],
            "only_mutate": list(self.only),
            "do_not_mutate": list(self.left_out),
            "also_copy": ["harness", "suites", "fixtures", "conftest.py"],
            "pytest_add_cli_args_test_selection": list(self.tests),
            # pytest-timeout's signal would end the process that runs all mutants, so the plug-in is
            # off.
            "pytest_add_cli_args": ["-n", "0", "-p", "no:cacheprovider", "-p", "no:timeout"],
        }
        rows = (f"{key} = {json.dumps(value)}\n" for key, value in values.items())
        return f"\n[tool.mutmut]\n{''.join(rows)}"

    def write_configuration(self, top: Path) -> None:
        """Add this package's configuration of mutmut to the copy `top` of the repository."""
        with (top / "pyproject.toml").open("a") as file:
            file.write(self.render_configuration())


_EXPECT_TESTS = ("suites/unit/expect",)

PACKAGES = {
    "provisioning": Package(
        source="harness/provisioning",
        tests=("suites/unit/provisioning",),
        # The module kills process groups, so a mutant may kill processes of other programs.
        left_out=("harness/provisioning/command.py",),
        least=0.9,
    ),
    "expect": Package(
        source="harness/expect",
        tests=(*_EXPECT_TESTS, "suites/unit/test_entry_points.py"),
    ),
    "evidence": Package(source="harness/evidence", tests=("suites/unit/evidence", *_EXPECT_TESTS)),
    "lease": Package(source="harness/lease.py", tests=("suites/unit/test_lease.py",)),
    "machine": Package(
        source="harness/machine",
        tests=("suites/unit/machine", "suites/host/checkpoint"),
        # These modules kill processes by their ids, so a mutant may kill processes of other programs.
        left_out=(
            "harness/machine/libvirt/private_daemon.py",
            "harness/machine/libvirt/watchdog.py",
        ),
    ),
    "lab": Package(
        source="harness/lab", tests=("suites/unit/lab", "suites/unit/test_entry_points.py")
    ),
}
