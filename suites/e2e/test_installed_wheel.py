"""A new user installs the wheel, runs `harness init` in an empty folder, and runs pytest."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from suites.readme_scripts import lines_for_scripts, write_scripts

if TYPE_CHECKING:
    from pathlib import Path

    from harness.lab import Lab
    from suites.installed_wheel import InstalledWheel

#: The time limit: the new project builds its image first, and its machines boot without
#: checkpoints.
_FIRST_RUN_S = 1500.0


@pytest.mark.nightly
@pytest.mark.vm_driver("qemu", reason="the wheel is installed without the extra for libvirt")
def test_new_project_passes_all_of_its_tests(
    installed_wheel: InstalledWheel, lab: Lab, tmp_path: Path
) -> None:
    """The repository is neither the pytest root nor on any path."""
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


@pytest.mark.nightly
@pytest.mark.vm_driver("qemu", reason="the wheel is installed without the extra for libvirt")
def test_test_of_a_users_scripts_in_the_readme_fails_and_passes_after_the_repair(
    installed_wheel: InstalledWheel, lab: Lab, tmp_path: Path
) -> None:
    """The test runs the commands of the README in their order."""
    write_scripts(tmp_path)
    accelerator = f"PYTEST_ADDOPTS=--accelerator={lab.accelerator.accelerator.accel}"

    results = [
        installed_wheel.run(
            *("env", accelerator, "sh", "-euc", line), cwd=tmp_path, timeout_s=_FIRST_RUN_S
        )
        for line in lines_for_scripts()
    ]

    assert [result.exit_code for result in results] == [0, 0, 1, 0, 0]
    failed, passed = results[2].stdout, results[4].stdout
    assert "1 failed" in failed
    assert "ended with" in failed
    assert "9" in failed.partition("ended with")[2][:40]
    assert "no region" in failed.partition("short test summary")[2]
    assert "1 passed" in passed
