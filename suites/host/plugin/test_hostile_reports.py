"""Reports are safe to show, complete and true, despite hostile text, odd tests and a full disk."""

from __future__ import annotations

import json
import sys
import xml.etree.ElementTree as ET
from typing import TYPE_CHECKING

import pytest

from harness.cli import main
from harness.provisioning.command import LocalRunner

if TYPE_CHECKING:
    from pathlib import Path

    from harness.provisioning.command import CommandResult
    from suites.host.plugin.inner_pytest import Inner

pytest_plugins = ["pytester"]

_HOSTILE = r'''
"""A module of tests whose texts come from a guest."""
import warnings

import allure
import pytest
from harness.api import ExpectationError, HarnessError

EVIL = "\x1b]0;owned\x07\x1b[2J\x9b31m\x00\x85\u202e\udce9\ufffe <script> é"

def test_assertion():
    assert EVIL == "x"

@pytest.mark.parametrize("error", [HarnessError, ExpectationError, ValueError, OSError])
def test_errors(error):
    raise error(EVIL)

class Named:
    def __repr__(self):
        return EVIL

@pytest.mark.parametrize("text", [EVIL, "\udce9", "\\udce9", "a\nb", Named()])
def test_parameters(text, record_property):
    record_property(EVIL, EVIL)

def test_output():
    print(EVIL)
    assert False

def test_allure():
    """Attaches, labels and takes steps."""
    allure.dynamic.title(EVIL)
    allure.dynamic.label(EVIL, EVIL)
    allure.dynamic.parameter(EVIL, EVIL)
    allure.dynamic.link(EVIL, name=EVIL)
    allure.attach(EVIL, name=EVIL, attachment_type=allure.attachment_type.TEXT)
    allure.attach(b"caf\xe9", name="bytes", attachment_type=allure.attachment_type.TEXT)
    with pytest.raises(ValueError), allure.step(EVIL):
        raise ValueError(EVIL)

def test_warning():
    warnings.warn(EVIL)

@pytest.mark.skip(reason=EVIL)
def test_skipped(): ...

@pytest.mark.xfail(reason=EVIL)
def test_expected():
    assert False

@pytest.fixture
def broken():
    yield
    raise ValueError(EVIL)

def test_teardown(broken): ...

def test_long():
    print("z" * 3_000_000)
    assert False, "y" * 3_000_000

def test_last(): ...
'''
#: The controller of xdist cannot import a module in this folder.
_OWN_WARNING = """
import warnings
class Own(UserWarning): ...
def test_own_warning():
    warnings.warn(Own("mine"))
"""
_SPEC = (
    b"Describe 'caf\xe9 \x1b]0;owned\x07'\n"
    b"  f() { printf 'caf\\351 \\033]0;owned\\007\\033[2J'; }\n"
    b"  It 'says \x1b[2J'\n    When call f\n    The output should equal 'x'\n  End\n"
    b"  It 'goes on'\n    When call true\n    The status should be success\n  End\n"
    b"End\n"
)


def run(
    project: Path, *arguments: str, prefix: tuple[str, ...] = (), env: dict[str, str] | None = None
) -> CommandResult:
    return LocalRunner().run(
        [
            *("env", "--chdir", str(project), *prefix, sys.executable, "-m", "pytest"),
            *("-p", "no:cacheprovider", "-p", "no:randomly", "-p", "no:hypothesispytest"),
            *("-W", "default"),
            *("--rootdir", str(project), *arguments),
        ],
        timeout_s=180,
        env=env,
    )


def strings_in(value: object) -> list[str]:
    if isinstance(value, dict):
        return [text for pair in value.items() for each in pair for text in strings_in(each)]
    if isinstance(value, list):
        return [text for each in value for text in strings_in(each)]
    return [value] if isinstance(value, str) else []


def require_visible(texts: list[str]) -> None:
    for text in texts:
        assert text.replace("\n", "").replace("\t", "").isprintable(), ascii(text[:500])


@pytest.mark.parametrize("workers", ["0", "1"])
def test_reports_contain_no_control_characters(tmp_path: Path, workers: str) -> None:
    (tmp_path / "test_hostile.py").write_text(_HOSTILE)
    (tmp_path / "below").mkdir()
    (tmp_path / "below/test_own.py").write_text(_OWN_WARNING)
    (tmp_path / ".shellspec").write_text("--shell bash\n")
    (tmp_path / "a_spec.sh").write_bytes(_SPEC)
    for name in ("caf\udce9_spec.sh", "\x1b[2Jb_spec.sh"):
        (tmp_path / name).write_bytes(_SPEC.replace(b"goes on", b"goes on here"))
    (tmp_path / "test_\udce9.py").write_text("def test_it(): assert 0\n")

    result = run(tmp_path, "-n", workers, "-v", "-rA", "--report-dir=r")

    assert result.exit_code == 1, result.render()
    assert "INTERNALERROR" not in result.stdout
    assert "UnicodeEncodeError" not in result.stdout
    assert "Own: mine" in result.stdout
    require_visible([result.stdout, result.stderr])
    root = ET.parse(tmp_path / "r/start-1/junit.xml").getroot()  # noqa: S314 - our own
    cases = [case.get("name", "") for case in root.iter("testcase")]
    assert {"test_last", "goes on", "goes on here", "test_it"} <= set(cases)
    require_visible(
        [text for each in root.iter() for text in (*each.attrib.values(), each.text or "")]
    )
    results = list((tmp_path / "r/start-1/allure").glob("*.json"))
    # A test with an error in its body and another error in its teardown has two cases in JUnit's file.
    count = len([path for path in results if path.name.endswith("-result.json")])
    assert count == len(list(root.iter("testcase")))
    for path in results:
        require_visible(strings_in(json.loads(path.read_text())))
    for path in (tmp_path / "r/start-1/allure").glob("*.txt"):
        require_visible([path.read_text()])


def test_long_error_message_is_written_to_a_file_and_the_reports_mention_its_path(
    tmp_path: Path,
) -> None:
    (tmp_path / "test_a.py").write_text("def test_it():\n    assert False, 'y' * 3_000_000\n")

    result = run(tmp_path, "-n0", "--report-dir=r")

    (path,) = (tmp_path / "evidence").glob("*/message-call.txt")
    assert path.stat().st_size > 3_000_000
    assert len(result.stdout) < 30_000
    report = (tmp_path / "r/start-1/junit.xml").read_text()
    assert len(report) < 30_000
    assert str(path) in report
    assert str(path) in result.stdout
    (allure,) = (tmp_path / "r/start-1/allure").glob("*-result.json")
    assert allure.stat().st_size < 100_000


def merged(project: Path) -> int:
    return main(["report", "merge", str(project / "r"), "--to", str(project / "to")])


@pytest.mark.parametrize("workers", ["0", "1"])
def test_shard_json_has_the_exit_status_that_a_plugin_sets(
    tmp_path: Path, workers: str, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "test_a.py").write_text("def test_it(): ...\n")
    (tmp_path / "conftest.py").write_text(
        "import pytest\n"
        "@pytest.hookimpl(trylast=True)\n"
        "def pytest_sessionfinish(session):\n"
        "    if not hasattr(session.config, 'workerinput'): session.exitstatus = 1\n"
    )

    result = run(tmp_path, "-n", workers, "--shard=1/1", "--report-dir=r")

    assert result.exit_code == 1
    assert json.loads((tmp_path / "r/shard.json").read_text())["exit_status"] == 1
    assert merged(tmp_path) == 2
    assert "Shard 1/1 ended with exit status 1, although none" in capsys.readouterr().out


@pytest.mark.parametrize("workers", ["0", "1"])
def test_repeated_test_is_reported_with_the_outcome_of_its_last_run(
    tmp_path: Path, workers: str
) -> None:
    (tmp_path / "test_a.py").write_text(
        "import pathlib\n"
        "def test_it():\n"
        "    runs = pathlib.Path(__file__).with_name('runs')\n"
        "    with runs.open('a') as file: file.write('x')\n"
        "    assert runs.stat().st_size > 1\n"
        "def test_other(): ...\n"
    )

    result = run(tmp_path, "-n", workers, "--reruns=2", "--report-dir=r")

    assert result.exit_code == 0, result.render()
    assert json.loads((tmp_path / "r/shard.json").read_text())["repeated"] == [
        "test_a.py::test_it"
    ]
    assert merged(tmp_path) == 0


def test_merge_matches_every_kind_of_test_id_with_the_junit_report(
    tmp_path: Path,
) -> None:
    (tmp_path / "below").mkdir()
    (tmp_path / "below/test_a.py").write_text(
        "import pytest\n"
        "@pytest.mark.xdist_group('one')\n"
        "class TestIt:\n"
        "    @pytest.mark.parametrize('text', ['a::b', 'c[d]', 'e@f', 'g/h.py', 'i\\nj', 'é'])\n"
        "    def test_it(self, text): ...\n"
        "@pytest.fixture\n"
        "def broken():\n"
        "    yield\n"
        "    raise ValueError\n"
        "def test_both(broken):\n"
        "    assert False\n"
    )
    (tmp_path / "test_b.py").write_text(
        "import pytest; pytest.skip('no', allow_module_level=True)\n"
    )
    (tmp_path / "a_spec.sh").write_text(
        "Describe 'a [b] c::d'\n  It 'is at user@host [x'\n    When call true\n"
        "    The status should be success\n  End\nEnd\n"
    )
    (tmp_path / ".shellspec").write_text("--shell bash\n")

    result = run(tmp_path, "-n1", "--dist=loadgroup", "--junit-prefix=ci", "--report-dir=r")

    assert result.exit_code == 1, result.render()
    assert merged(tmp_path) == 1


@pytest.mark.parametrize("workers", ["0", "1"])
def test_full_disk_is_reported_in_a_sentence_and_fails_the_run(
    tmp_path: Path, workers: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """A limit on the size of files simulates a full disk."""
    (tmp_path / "conftest.py").write_text(
        "import resource\n"
        "def pytest_sessionstart():\n"
        "    resource.setrlimit(resource.RLIMIT_FSIZE, (2000, -1))\n"
    )
    (tmp_path / "test_a.py").write_text(
        "import allure, pytest\n"
        "@pytest.mark.parametrize('number', range(60))\n"
        "def test_it(number): allure.dynamic.description('x' * 3000)\n"
    )

    result = run(tmp_path, "-n", workers, "--report-dir=r")

    assert result.exit_code == pytest.ExitCode.INTERNAL_ERROR, result.render()
    assert "60 passed" in result.stdout
    for name in ("allure", "junit.xml"):
        assert f"start-1/{name}' could not be written" in result.stdout
    assert "Traceback" not in result.stdout + result.stderr
    assert not (tmp_path / "r/start-1/junit.xml").exists()
    assert not list((tmp_path / "r/start-1/allure").glob("*.tmp"))
    assert merged(tmp_path) == 2
    assert "wrote no 'shard.json'" in capsys.readouterr().err


def test_missing_report_folder_is_reported_without_a_traceback(tmp_path: Path) -> None:
    (tmp_path / "test_a.py").write_text(
        "from pathlib import Path\ndef test_it(): Path('r').rename('moved'); Path('r').touch()\n"
    )

    result = run(tmp_path, "-n0", "--junitxml=r/junit.xml")

    assert result.exit_code == pytest.ExitCode.INTERNAL_ERROR, result.render()
    assert "1 passed" in result.stdout
    assert "r/junit.xml' could not be written" in result.stdout
    assert "Traceback" not in result.stdout + result.stderr


@pytest.mark.parametrize("option", ["--report-dir", "--alluredir", "--junitxml"])
def test_unusable_folder_for_reports_is_refused_before_the_run(
    tmp_path: Path, option: str
) -> None:
    (tmp_path / "test_a.py").write_text("def test_it(): ...\n")
    (tmp_path / "file").touch()

    result = run(tmp_path, "-n0", f"{option}=file/below/it")

    assert result.exit_code == pytest.ExitCode.USAGE_ERROR
    assert option in result.stderr
    assert "Not a directory" in result.stderr
    assert "Traceback" not in result.stderr


def test_each_run_of_a_repeated_test_keeps_its_evidence(inner: Inner) -> None:
    inner.run_apart("def test_it(node): assert False\n", "-n0", "--reruns=1")

    folders = {path.partition("/")[0] for path in inner.kept() if "serial.log" in path}

    assert len(folders) == 2
    assert "test_inner.py-test_it" in folders


@pytest.mark.parametrize("place", ["/dev/stdout", "link.xml", "a/b.xml"])
def test_junit_report_can_be_written_to_a_symbolic_link_or_a_device(
    tmp_path: Path, place: str
) -> None:
    (tmp_path / "test_a.py").write_text("def test_it(): ...\n")
    (tmp_path / "link.xml").symlink_to("target.xml")

    result = run(tmp_path, "-n0", f"--junitxml={place}")

    assert result.exit_code == 0, result.render()
    if place.startswith("/"):
        assert '<testcase classname="test_a" name="test_it"' in result.stdout
    else:
        assert ET.parse(tmp_path / place).getroot().tag == "testsuites"  # noqa: S314 - our own
    assert (tmp_path / "link.xml").is_symlink()


def test_non_ascii_test_ids_are_reported_and_merged_in_the_c_locale(
    tmp_path: Path,
) -> None:
    (tmp_path / "test_a.py").write_text(
        "import pytest\n"
        "@pytest.mark.parametrize('text', ['\u2603'])\n"
        "def test_it(text): assert text == 'x'\n"
    )
    ascii_only = {"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"}

    result = run(tmp_path, "-n0", "--report-dir=r/1", "--shard=1/1", env=ascii_only)
    merged = LocalRunner().run(
        [
            sys.executable,
            "-m",
            "harness.cli",
            "report",
            "merge",
            f"{tmp_path}/r",
            f"--to={tmp_path}/m",
        ],
        timeout_s=60,
        env=ascii_only,
    )

    assert (result.exit_code, merged.exit_code) == (1, 1), merged.render()
    assert "\u2603" in (tmp_path / "m/summary.md").read_text(encoding="utf-8")
