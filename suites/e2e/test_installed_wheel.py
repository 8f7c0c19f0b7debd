"""A new user's way: the wheel, `harness init` in an empty folder, and pytest."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from pathlib import Path

    from harness.lab import Lab
    from suites.installed_wheel import InstalledWheel

#: The image of the new project is built at first, and its machines boot without a checkpoint.
_FIRST_RUN_S = 1500.0


@pytest.mark.nightly
@pytest.mark.vm_driver("qemu", reason="the wheel is installed without the extra for libvirt")
def test_new_project_passes_all_of_its_tests(
    installed_wheel: InstalledWheel, lab: Lab, tmp_path: Path
) -> None:
    """Nothing of this repository is in reach: it is neither the root nor on any path."""
    installed_wheel.run("harness", "init", "my project", cwd=tmp_path).check("harness init")

    result = installed_wheel.run(
        *("pytest", "-v", "-rA", "--evidence=always"),
        f"--accelerator={lab.accelerator.accelerator.accel}",
        cwd=tmp_path / "my project",
        timeout_s=_FIRST_RUN_S,
    )

    assert "5 passed" in result.check("pytest").stdout
    kept = tmp_path / "my project/evidence"
    assert {path.name for path in kept.glob("*/*")} >= {"two-gpus", "no-gpu"}
