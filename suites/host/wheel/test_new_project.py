"""A new user installs the wheel, runs `harness init` in a folder, and runs pytest."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from suites.installed_wheel import REPOSITORY
from suites.readme_scripts import INSTALL, lines_for_scripts, write_scripts

if TYPE_CHECKING:
    from suites.installed_wheel import InstalledWheel


@pytest.fixture
def project(tmp_path: Path, installed_wheel: InstalledWheel) -> Path:
    """Return the folder of a new project; the folder's path contains a space."""
    installed_wheel.run("harness", "init", "my project", cwd=tmp_path).check("harness init")
    return tmp_path / "my project"


def test_installed_wheel_is_not_imported_from_the_repository(
    installed_wheel: InstalledWheel, tmp_path: Path
) -> None:
    program = (
        "import harness.fixtures, sys; print(harness.fixtures.__file__, *sys.path, sep='\\n')"
    )

    places = installed_wheel.run("python", "-c", program, cwd=tmp_path).check("Python").stdout

    assert str(installed_wheel.venv) in places
    assert not any(place.startswith(str(REPOSITORY)) for place in places.splitlines())


def test_unit_tests_of_a_new_project_pass(installed_wheel: InstalledWheel, project: Path) -> None:
    result = installed_wheel.run("pytest", "tests/unit", cwd=project)

    assert "3 passed" in result.check("pytest").stdout


def test_node_tests_of_a_new_project_use_the_boot_node_fixture(
    installed_wheel: InstalledWheel, project: Path
) -> None:
    result = installed_wheel.run("pytest", "tests/e2e", "--setup-plan", cwd=project)

    plan = result.check("pytest").stdout
    assert "test_node_with_two_gpus_is_prepared[node] (fixtures used: " in plan
    assert "boot_node" in plan


@pytest.fixture
def without_qemu(tmp_path: Path) -> Path:
    """Return a folder for PATH with all programs of this host except QEMU's."""
    programs = tmp_path / "programs"
    programs.mkdir()
    for folder in ("/usr/bin", "/bin", "/usr/sbin", "/sbin"):
        for program in Path(folder).iterdir():
            target = programs / program.name
            if not program.name.startswith("qemu") and not target.is_symlink():
                target.symlink_to(program)
    return programs


def test_node_tests_are_skipped_with_a_remedy_on_a_host_without_qemu(
    installed_wheel: InstalledWheel, project: Path, without_qemu: Path
) -> None:
    result = installed_wheel.run("pytest", "tests/e2e", "-rs", cwd=project, path=[without_qemu])

    assert "2 skipped" in result.check("pytest").stdout
    assert "apt-get install qemu-system-x86" in result.stdout


def test_project_may_reuse_package_and_fixture_names_of_the_harness(
    installed_wheel: InstalledWheel, project: Path, without_qemu: Path
) -> None:
    """The project has packages `fixtures` and `images` on sys.path, and a fixture `settings`."""
    for name in ("fixtures", "images"):
        (project / name).mkdir(exist_ok=True)
        (project / name / "__init__.py").write_text(f"OWN = '{name}'\n")
    (project / "conftest.py").write_text(
        "import fixtures, images, pytest\n"
        "assert (fixtures.OWN, images.OWN) == ('fixtures', 'images')\n\n"
        "@pytest.fixture\ndef settings():\n    return 'ours'\n"
    )

    result = installed_wheel.run("pytest", "-rs", cwd=project, path=[without_qemu])

    assert "3 passed, 2 skipped" in result.check("pytest").stdout
    assert "apt-get install qemu-system-x86" in result.stdout


def test_readme_commands_create_a_project_with_scripts_and_a_node_test(
    installed_wheel: InstalledWheel, tmp_path: Path
) -> None:
    """`suites/e2e/test_installed_wheel.py` runs the same scripts on a machine."""
    write_scripts(tmp_path)
    first, *rest = lines_for_scripts()
    installed_wheel.run("sh", "-euc", first, cwd=tmp_path).check(first)
    broken, _, mended, _ = rest

    installed_wheel.run("sh", "-euc", broken, cwd=tmp_path).check(broken)
    failing = installed_wheel.run(*("sh", "-uc", "sh ops/scripts/install.sh"), cwd=tmp_path)
    installed_wheel.run("sh", "-euc", mended, cwd=tmp_path).check(mended)
    planned = installed_wheel.run("pytest", "tests/e2e", "--setup-plan", cwd=tmp_path)

    assert (failing.exit_code, failing.stdout) == (9, "no region\n")
    assert (tmp_path / "ops/scripts/install.sh").read_text() == INSTALL
    assert "test_node_is_provisioned[debian-12] (fixtures used: " in planned.check("pytest").stdout


def test_second_harness_init_is_refused_and_writes_nothing(
    installed_wheel: InstalledWheel, project: Path
) -> None:
    (project / "scripts/prepare_node.sh").write_text("ours\n")

    result = installed_wheel.run("harness", "init", cwd=project)

    assert result.exit_code == 2
    assert "'scripts/prepare_node.sh'" in result.stderr
    assert (project / "scripts/prepare_node.sh").read_text() == "ours\n"
