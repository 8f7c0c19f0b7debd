"""The plugin in an inner pytest: kept evidence, options, images, and JUnit's file."""

from __future__ import annotations

import json
import re
import shutil
import sys
from typing import TYPE_CHECKING
from xml.etree import ElementTree as ET

import pytest
import yaml  # noqa: F401 - an inner run would import it anew, and its parser in C can't be

from suites.host.plugin.inner_pytest import MIXED

if TYPE_CHECKING:
    from suites.host.plugin.inner_pytest import Inner

pytest_plugins = ["pytester"]

FAILS = "def test_kernel(node):\n    assert False, 'no'\n"
PASSES = "def test_kernel(node):\n    pass\n"
KEPT = [f"test_inner.py-test_kernel/node/{name}" for name in ("host/argv.txt", "host/serial.log")]
ARCHIVE = f"test_inner.py-test_kernel{'.tar.zst' if shutil.which('zstd') else '.tar.gz'}"


def test_evidence_of_a_failed_test_is_kept(inner: Inner) -> None:
    result = inner.run("def test_kernel(node):\n    found = 41 + 1\n    assert found == 0\n")

    assert inner.kept() == [
        ARCHIVE,
        *KEPT,
        "test_inner.py-test_kernel/node/manifest.json",
        "test_inner.py-test_kernel/traceback.txt",
    ]
    text = (inner.folder / "evidence/test_inner.py-test_kernel/traceback.txt").read_text()
    assert "found      = 42" in text
    result.stdout.fnmatch_lines([f"*kept in '{inner.folder}/evidence/test_inner.py-test_kernel/*"])


FINDS_WRONG = """
    from pathlib import Path
    from harness.errors import ExpectationError
    def test_kernel(add):
        add("other")
        add("node", judged_twice=True)
        raise ExpectationError("Wrong kernel.", evidence=Path("/gone/evidence-1"))
    """


def test_error_message_has_the_path_of_the_kept_evidence(inner: Inner) -> None:
    """The evidence was in the machine's folder, which is removed when the machine ends."""
    sentence = (
        "ExpectationError: Wrong kernel. The evidence is in "
        f"'{inner.folder}/evidence/test_inner.py-test_kernel/node/earlier-1'."
    )

    result = inner.run(FINDS_WRONG, "--junitxml=junit.xml", "--alluredir=results")

    result.stdout.fnmatch_lines([f"E *{sentence}"])
    tree = ET.parse(inner.folder / "junit.xml")  # noqa: S314 - written by this very test
    (failure,) = tree.iter("failure")
    assert sentence in str(failure.get("message"))
    (allure,) = (inner.folder / "results").glob("*-result.json")
    assert sentence in json.loads(allure.read_text())["statusDetails"]["message"]


TOLD_WRONG = """
    from pathlib import Path
    from harness.errors import ExpectationError, HarnessError
    def wrong():
        return ExpectationError("Wrong kernel.", evidence=Path("/gone/evidence-1"))
    def test_chain(add):
        add("node", judged_twice=True)
        raise HarnessError("It hangs.") from wrong()
    def test_end(add):
        add("node", judged_twice=True)
        try:
            raise wrong()
        finally:
            raise KeyError("slip")
    def test_group(add):
        add("node", judged_twice=True)
        raise ExceptionGroup("all of them", [wrong(), wrong()])
    def test_full(add):
        add("node", judged_twice="full")
        raise wrong()
    """


@pytest.mark.skipif(sys.version_info < (3, 11), reason="Groups came with Python 3.11.")
def test_chained_and_grouped_errors_show_the_path_of_the_kept_evidence(inner: Inner) -> None:
    """The forms are an error, its cause, a group of errors, and an error with partly kept evidence."""
    result = inner.run(TOLD_WRONG)

    assert "The evidence is in '/gone" not in result.stdout.str()
    for name in ("chain", "end", "group", "full"):
        kept = f"{inner.folder}/evidence/test_inner.py-test_{name}/node/earlier-1"
        result.stdout.fnmatch_lines([f"*Wrong kernel. The evidence is in '{kept}'*"])


def test_evidence_of_a_strict_xfail_test_that_passed_is_kept(inner: Inner) -> None:
    inner.run(
        "import pytest\n@pytest.mark.xfail(strict=True)\ndef test_kernel(node):\n    pass\n"
    ).assert_outcomes(failed=1)

    assert KEPT[1] in inner.kept()


@pytest.mark.parametrize(
    ("source", "option"), [(FAILS, "--evidence=on-failure"), (PASSES, "--evidence=always")]
)
def test_junit_report_mentions_the_evidence_folder_once(
    inner: Inner, source: str, option: str
) -> None:
    inner.run(source, option, "--junitxml=junit.xml")

    tree = ET.parse(inner.folder / "junit.xml")  # noqa: S314 - written by this very test
    values = [
        each.get("value") for each in tree.iter("property") if each.get("name") == "evidence"
    ]
    assert values == [str(inner.folder / "evidence/test_inner.py-test_kernel/node")]


@pytest.mark.parametrize(
    ("option", "words"),
    [
        ("--accelerator=xen", r"--accelerator: invalid choice: 'xen' .*auto.*kvm.*tcg"),
        ("--image=noble,", r"--image: 'noble,' is not a list of images"),
        ("--evidence=never", r"--evidence: invalid choice: 'never' .*on-failure.*always"),
        ("--machine-shell=before -n 1", r"--machine-shell: .*add '-n 0'"),
    ],
)
def test_invalid_option_value_is_a_usage_error_that_says_what_is_allowed(
    inner: Inner, option: str, words: str
) -> None:
    result = inner.run(PASSES, *option.split())

    assert result.ret == pytest.ExitCode.USAGE_ERROR
    assert re.search(words, result.stderr.str())


def test_command_line_options_become_settings(inner: Inner) -> None:
    source = """
        def test_settings(settings, pytestconfig):
            assert (settings.accelerator.value, settings.qemu) == ("tcg", "sh")
            assert (settings.image, settings.evidence.value) == ("ubuntu-24.04", "always")
            assert settings.evidence_folder == pytestconfig.rootpath / "kept"
            assert settings.checkpoint_limit_mib == 512
        """

    inner.run(
        source,
        *("--accelerator=tcg", "--qemu=sh", "--image=ubuntu-24.04", "--evidence=always"),
        *("--evidence-dir=kept", "--checkpoint-limit-mib=512"),
    ).assert_outcomes(passed=1)


@pytest.mark.parametrize(("options", "word"), [([], "on-failure"), (["--pdb"], "never")])
def test_pdb_option_disables_the_failure_checkpoint(
    inner: Inner, options: list[str], word: str
) -> None:
    source = (
        f"def test_settings(settings):\n    assert settings.failure_checkpoint.value == {word!r}\n"
    )

    inner.run(source, *options).assert_outcomes(passed=1)


def test_provisioner_option_is_a_path_relative_to_the_pytest_root_directory(inner: Inner) -> None:
    (inner.folder / "mine").mkdir()
    (inner.folder / "mine/provisioner.yaml").write_text("schema: 1\nname: x\nrun: [/bin/true]\n")
    source = """
        pytest_plugins = ["fixtures.machines"]
        def test_settings(settings, pytestconfig):
            path = pytestconfig.rootpath / "mine/provisioner.yaml"
            assert settings.provisioner == str(path)
        """

    inner.run(source, "--provisioner=mine/provisioner.yaml").assert_outcomes(passed=1)


@pytest.mark.parametrize(
    ("word", "line"),
    [
        (
            "mine.yaml",
            "ERROR: */mine.yaml:3: key 'rnu': This key is not known here; the known keys are*",
        ),
        ("yours.yaml", "ERROR: */yours.yaml: The file cannot be read: *"),
        ("mine", "ERROR: --provisioner: There is no provisioner 'mine', only 'gpu-node'*"),
    ],
)
def test_wrong_provisioner_is_a_usage_error_of_one_line(
    inner: Inner, word: str, line: str
) -> None:
    (inner.folder / "mine.yaml").write_text("schema: 1\nname: x\nrnu: [/bin/true]\n")

    result = inner.run(PASSES, f"--provisioner={word}")

    assert result.ret == pytest.ExitCode.USAGE_ERROR
    result.stderr.fnmatch_lines([line])


OF_NODES = """
    import pytest

    def test_node(image_name):
        print(f"boots {image_name}")

    @pytest.mark.pin_image(reason="it is about the harness")
    def test_harness(image_name):
        print(f"takes {image_name}")

    def test_other():
        pass
    """


def test_test_that_uses_an_image_runs_with_both_default_images(inner: Inner) -> None:
    """Tests of the same image run together, so that few workers make the saved states of that image."""
    result = inner.run(OF_NODES, "-v", "-s")

    result.assert_outcomes(passed=4)
    result.stdout.fnmatch_lines(
        [
            "*test_node?debian-12?*boots debian-12*",
            "*test_harness?debian-12?*takes debian-12*",
            "*test_node?debian-13?*boots debian-13*",
        ]
    )


def test_tests_with_other_images_than_the_first_can_be_deselected_by_marker(inner: Inner) -> None:
    images = "debian-13,debian-12,ubuntu-22.04"

    result = inner.run(OF_NODES, "-v", f"--image={images}", "-m", "not further_image")

    result.assert_outcomes(passed=3, deselected=2)
    result.stdout.fnmatch_lines(["*test_node?debian-13? PASSED*"])


def test_gpu_model_folders_of_ini_file_and_options_are_combined(inner: Inner) -> None:
    (inner.folder / "pytest.ini").write_text("[pytest]\ngpu_models = ours\n")

    result = inner.run(
        """
        def test_folders(settings, pytestconfig):
            root = pytestconfig.rootpath
            assert settings.gpu_models == (root / "ours", root / "mine", root / "theirs")
        """,
        "--gpu-models=mine",
        "--gpu-models=theirs",
    )

    result.assert_outcomes(passed=1)


@pytest.mark.parametrize("workers", ["0", "1"])
def test_junit_has_a_failure_for_a_node_error_and_an_error_for_a_harness_error(
    inner: Inner, workers: str
) -> None:
    source = (
        MIXED
        + """
    @pytest.fixture
    def ends():
        yield
        raise HarnessError("no end")
    def test_wrong_and_no_end(ends):
        raise ExpectationError("wrong kernel")
    def test_broken_and_no_end(ends):
        raise HarnessError("QEMU died")
    """
    )

    inner.run(source, "--junitxml=junit.xml", "-n", workers)

    root = ET.parse(inner.folder / "junit.xml").getroot()  # noqa: S314 - written by this very test
    found: dict[str, list[str]] = {}
    for case in root.iter("testcase"):
        problems = [each.tag for each in case if each.tag in {"failure", "error"}]
        found.setdefault(str(case.get("name")), []).extend(problems)
    assert found == {
        "test_expectation": ["failure"],
        "test_assertion": ["failure"],
        "test_fail": ["failure"],
        "test_harness": ["error"],
        "test_slip": ["error"],
        "test_set_up": ["error"],
        "test_expected": [],
        "test_wrong_and_no_end": ["failure", "error"],
        "test_broken_and_no_end": ["error", "error"],
    }
    (suite,) = root.iter("testsuite")
    assert (suite.get("failures"), suite.get("errors")) == ("4", "6")
    names = {str(each.get("name")) for each in root.iter("property")}
    assert names == {"cause", "harness_could_not_tell"}
