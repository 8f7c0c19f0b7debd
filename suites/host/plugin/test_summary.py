"""The summary at the end of a run, and runs that a wrong option ends at the start."""

from __future__ import annotations

import re
from importlib.metadata import entry_points
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from pathlib import Path

    from suites.host.plugin.inner_pytest import Inner

pytest_plugins = ["pytester"]

CAUSE = """
    import pytest
    from harness.errors import HarnessError
    from harness.plugin.report import kept_on_failure

    class Source:
        name = "node"

        def gather(self, folder, error):
            (folder / "host").mkdir(parents=True)
            (folder / "host/serial.log").write_text("cp: /opt/x: No space left on device\\n")
            yield folder, folder

    @pytest.fixture
    def full(pytestconfig):
        with kept_on_failure(pytestconfig, Source()):
            yield

    @pytest.mark.parametrize("image", ["an-image-whose-name-is-as-long-as-a-line-of-the-terminal"])
    def test_node_with_a_full_disk(full, image):
        raise HarnessError("Machine 'node' was expected to be up. Its last lines:\\nmany")
"""


def test_summary_shows_the_cause_and_the_remedy_of_a_failure_in_80_columns(
    inner: Inner, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "80")

    output = inner.run(CAUSE).outlines

    end = next(number for number, line in enumerate(output) if "short test summary info" in line)
    lines = output[end:]
    start = next(number for number, line in enumerate(lines) if line.startswith("why "))
    said = lines[start : start + 4]
    assert said[0].startswith("why test_node_with_a_full_disk[an-image")
    assert said[1].startswith("  no space on the guest's disk: cp: /opt/x: No space left on")
    assert any(line.startswith("  remedy: ") for line in said)
    assert all(len(line) <= 80 for line in said)


def test_failure_report_shows_the_cause_and_the_remedy(
    inner: Inner, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The line that pytest prints for a failure shows the cause in place of the error, if it fits."""
    monkeypatch.setenv("COLUMNS", "200")

    result = inner.run(CAUSE)

    result.stdout.fnmatch_lines(
        [
            "*- why -*",
            "no space on the guest's disk: cp: /opt/x: No space left on device",
            "remedy: *",
            "FAILED *- no space on the guest's disk: cp: /opt/x: No space left on device",
        ]
    )


def test_summary_shows_the_cause_of_a_failed_assertion(inner: Inner) -> None:
    """An assertion of a test often fails because of a full disk."""
    source = CAUSE.replace("raise HarnessError(", "assert 2 == 0, (")

    result = inner.run(source)

    result.stdout.fnmatch_lines(["why test_node_with_a_full_disk*", "  no space on the guest's*"])


def test_no_cause_is_shown_for_a_failed_test_without_a_machine(inner: Inner) -> None:
    result = inner.run("def test_text():\n    assert 'No space left on device' == ''\n")

    result.assert_outcomes(failed=1)
    result.stdout.no_fnmatch_line("why *")


def test_missing_requirements_are_listed_for_skipped_tests(inner: Inner) -> None:
    source = """
        from harness.errors import RequirementError
        from harness.plugin import SETTINGS
        from harness.plugin.select import requirements

        def test_kernel(pytestconfig):
            with requirements(pytestconfig.stash[SETTINGS]):
                raise RequirementError("There is no QEMU; install it.")
        """

    result = inner.run(source)

    result.assert_outcomes(skipped=1)
    result.stdout.fnmatch_lines(["skipped 1: There is no QEMU; install it."])


@pytest.mark.parametrize(
    ("option", "message"),
    [
        (
            "--image=debian-12,debian-21",
            r"no image 'debian-21' in the catalogue, only .*'debian-12'",
        ),
        ("--qemu=/nope", r"--qemu: There is no program '/nope' on this host"),
    ],
)
def test_missing_image_or_qemu_program_is_a_usage_error(
    inner: Inner, option: str, message: str
) -> None:
    result = inner.run("def test_kernel():\n    pass\n", option)

    assert result.ret == pytest.ExitCode.USAGE_ERROR
    assert re.search(message, result.stderr.str())


@pytest.mark.skipif(
    not entry_points(group="pytest11", name="gpu-node-harness"),
    reason="only options of an installed plugin are unknown when pytest looks for its ini file",
)
def test_option_path_after_a_blank_is_refused_if_it_makes_pytest_miss_the_ini_file(
    inner: Inner, tmp_path: Path
) -> None:
    (inner.folder / "pytest.ini").write_text("[pytest]\ntestpaths = tests\n")
    qemu = tmp_path / "qemu"
    qemu.symlink_to("/bin/sh")

    result = inner.run("def test_kernel():\n    pass\n", "--qemu", str(qemu))

    assert result.ret == pytest.ExitCode.USAGE_ERROR
    assert f"'{inner.folder}/pytest.ini'; write '--qemu={qemu}'" in result.stderr.str()
