"""Runs another pytest with the plugin, inside the pytest that runs these tests."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pathlib import Path

    import pytest

CONFTEST = """
from pathlib import Path

import pytest
from harness.errors import ExpectationError, HarnessError, RequirementError
from harness.plugin import SETTINGS
from harness.plugin.report import kept_on_failure
from harness.plugin.select import requirements

class Source:
    def __init__(self, name, error=None, *, judged_twice=False):
        self.name = name
        self.error = error
        self.judged_twice = judged_twice

    def gather(self, folder, error):
        (folder / "host").mkdir(parents=True)
        (folder / "host" / "serial.log").write_text("Linux version 6.1\\n")
        (folder / "host" / "argv.txt").write_text("")
        (folder / "manifest.json").write_text("{}")
        if self.error:
            raise self.error
        yield Path("/gone/evidence-2"), folder
        if not self.judged_twice:
            return
        earlier = folder / "earlier-1"
        (earlier / "host").mkdir(parents=True)
        (earlier / "host" / "serial.log").write_text("Linux version 6.0\\n")
        yield Path("/gone/evidence-1"), earlier
        if self.judged_twice == "full":
            raise OSError("No space left on device")

@pytest.fixture
def add(pytestconfig):
    reporter = pytestconfig.pluginmanager.getplugin("harness-reporter")
    added = []
    def add(name, error=None, **kinds):
        added.append(Source(name, error, **kinds))
        reporter.add(added[-1])
    yield add
    for source in added:
        reporter.discard(source)

@pytest.fixture
def node(add):
    add("node")

@pytest.fixture(scope="module")
def module_node(pytestconfig):
    with kept_on_failure(pytestconfig, Source("node")):
        yield

@pytest.fixture
def settings(pytestconfig):
    return pytestconfig.stash[SETTINGS]
"""


class Inner:
    """Runs pytest with the plugin, in a folder of the test."""

    def __init__(self, pytester: pytest.Pytester, *, is_installed: bool) -> None:
        self.folder: Path = pytester.path
        self._pytester = pytester
        self._plugin = [] if is_installed else ["-p", "harness.plugin"]
        pytester.makeconftest(CONFTEST)

    def run(self, source: str, *options: str) -> pytest.RunResult:
        self._pytester.makepyfile(test_inner=source)
        return self._pytester.runpytest_inprocess(*self._options, *options)

    def run_apart(self, source: str, *options: str) -> pytest.RunResult:
        """Run pytest in another process: PyYAML can't be imported again by a later run in this process."""
        self._pytester.makepyfile(test_inner=source)
        return self._pytester.runpytest_subprocess(*self._options, *options)

    @property
    def _options(self) -> list[str]:
        return [*self._plugin, "-p", "no:cacheprovider", "-p", "no:randomly"]

    def kept(self) -> list[str]:
        """Return the paths of the files below the evidence folder, relative to that folder."""
        folder = self.folder / "evidence"
        return sorted(
            path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file()
        )


#: Failures of both families, at setup, call and teardown.
MIXED = """
    import pytest
    from harness.errors import ExpectationError, HarnessError, RequirementError
    def test_expectation():
        raise ExpectationError("wrong kernel")
    def test_assertion():
        assert 1 == 2
    def test_fail():
        pytest.fail("said so")
    def test_harness():
        raise HarnessError("QEMU died")
    def test_slip():
        {}["key"]
    @pytest.fixture
    def broken():
        raise RequirementError("There is no QEMU; install it.")
    def test_set_up(broken):
        pass
    @pytest.mark.xfail(strict=True, raises=HarnessError)
    def test_expected():
        raise HarnessError("known")
    """


def prepare(
    pytester: pytest.Pytester, pytestconfig: pytest.Config, monkeypatch: pytest.MonkeyPatch
) -> Inner:
    """Prepare an inner run that does not depend on the options of the outer run."""
    for name in ("CI", "BUILD_NUMBER", "PYTEST_ADDOPTS"):
        monkeypatch.delenv(name, raising=False)
    # An installed plugin is loaded by its entry point, and cannot be loaded twice.
    is_installed = pytestconfig.pluginmanager.hasplugin("gpu-node-harness")
    return Inner(pytester, is_installed=is_installed)
