"""The results that a run writes for Allure: names, steps, evidence, machines and the environment."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from suites.host.plugin.inner_pytest import Inner

pytest_plugins = ["pytester"]

STEPS = '''
    import pytest
    from harness.errors import ExpectationError, HarnessError
    from harness.steps import InnerStep, take_step

    @pytest.fixture(scope="module")
    def machine():
        with take_step("Start machine 'node'"):
            with take_step("Wait for the agent"):
                pass

    def test_wrong(machine):
        """A node has its own kernel: with a colon.

        The rest of it.
        """
        with take_step("Provision node 'node'") as taken:
            taken.report([InnerStep(title="early", start_s=1, stop_s=2)])
        told = InnerStep(title="install-driver", start_s=taken.start_s, stop_s=taken.stop_s,
                         error="no headers", inner=(InnerStep(title="apt", start_s=1, stop_s=2),))
        taken.report([told])
        with take_step("expect.kernel_running('6.1')"):
            raise ExpectationError("Wrong kernel.")

    def test_unknown(machine):
        with take_step("Reboot machine 'node'"):
            raise HarnessError("It hangs.")
    '''
VARIANTS = """
    import enum
    import pytest
    class Way(enum.Enum):
        COLD = "cold"
        CLONE = "clone"
    class Plain:
        pass
    {first}
    {second}
    def test_boot(image, way):
        pass
    @pytest.mark.parametrize("make", [lambda: 1, lambda: 2, Plain()])
    def test_of_values_without_a_text(make):
        pass
    """
WAY = '@pytest.mark.parametrize("way", Way)'
IMAGE = '@pytest.mark.parametrize("image", ["{root}/own.qcow2", "debian-12"])'


def results(inner: Inner) -> dict[str, Any]:
    """Return Allure's results by the name of the test function."""
    found = [json.loads(p.read_text()) for p in (inner.folder / "results").glob("*-result.json")]
    return {each["fullName"].partition("#")[2]: each for each in found}


def labels(result: dict[str, Any]) -> dict[str, str]:
    return {each["name"]: each["value"] for each in result["labels"]}


def outline(steps: list[dict[str, Any]]) -> list[object]:
    """Return the title and the status of each step, with its inner steps."""
    return [
        (each["name"], each["status"], *outline(each["steps"]))
        if "steps" in each
        else (each["name"], each["status"])
        for each in steps
    ]


def test_allure_result_has_the_machine_steps_and_the_docstring_as_its_name(
    inner: Inner,
) -> None:
    inner.run(STEPS, "--alluredir=results")

    found = results(inner)
    assert found["test_wrong"]["name"] == "A node has its own kernel: with a colon"
    assert found["test_wrong"]["description"] == "The rest of it."
    # A test without a docstring has the name of its function.
    assert found["test_unknown"]["name"] == "test_unknown"
    assert outline(found["test_wrong"]["steps"]) == [
        ("Provision node 'node'", "passed", ("install-driver", "failed", ("apt", "passed"))),
        ("expect.kernel_running('6.1')", "failed"),
    ]
    assert outline(found["test_unknown"]["steps"]) == [("Reboot machine 'node'", "broken")]
    containers = [
        json.loads(path.read_text())
        for path in (inner.folder / "results").glob("*-container.json")
    ]
    (before,) = [
        each for one in containers for each in one["befores"] if each["name"] == "machine"
    ]
    assert outline(before["steps"]) == [
        ("Start machine 'node'", "passed", ("Wait for the agent", "passed"))
    ]


def test_teardown_of_a_fixture_is_reported_under_the_fixture_name(inner: Inner) -> None:
    source = """
        import pytest
        @pytest.fixture
        def node(pytestconfig):
            yield
        def test_kernel(node):
            pass
        """

    inner.run(source, "--alluredir=results")

    ends = [
        each["name"]
        for path in (inner.folder / "results").glob("*-container.json")
        for each in json.loads(path.read_text()).get("afters", ())
    ]
    assert ends == ["node"]


def test_steps_of_other_threads_and_of_session_teardown_are_not_in_the_allure_result(
    inner: Inner,
) -> None:
    source = """
        import threading
        import pytest
        from harness.steps import take_step

        @pytest.fixture(scope="session")
        def ends():
            yield
            with take_step("End"):
                pass

        def test_threads(ends):
            def run():
                with take_step("Elsewhere"):
                    pass
            thread = threading.Thread(target=run)
            thread.start()
            thread.join()
        """

    inner.run(source, "--alluredir=results").assert_outcomes(passed=1)

    assert "steps" not in results(inner)["test_threads"]


def test_allure_decorators_of_a_test_override_the_title_and_suite_and_severity(
    inner: Inner,
) -> None:
    source = '''
        import allure

        @allure.title("Mine")
        @allure.suite("Ours")
        @allure.severity("minor")
        def test_own():
            """A sentence."""
        '''
    (inner.folder / "pytest.ini").write_text("[pytest]\nallure_severity = test_inner.py: critical")

    inner.run(source, "--alluredir=results")

    (result,) = results(inner).values()
    assert result["name"] == "Mine"
    assert labels(result)["suite"] == "Ours"
    assert labels(result)["severity"] == "minor"


def test_allure_severity_is_set_by_the_ini_file_and_the_allure_tag_by_the_marker(
    inner: Inner,
) -> None:
    (inner.folder / "pytest.ini").write_text("[pytest]\nallure_severity = test_inner.py: critical")

    inner.run(
        "import pytest\n@pytest.mark.nightly\ndef test_kernel():\n    pass\n",
        "--alluredir=results",
    )

    (result,) = results(inner).values()
    assert labels(result)["severity"] == "critical"
    assert labels(result)["tag"] == "nightly"
    assert labels(result)["suite"] == "inner"


def history(inner: Inner, source: str, *options: str) -> dict[tuple[str, ...], str]:
    """Return the history ids of the tests by the values of their parameters."""
    inner.run(source, "--alluredir=results", "--clean-alluredir", *options)
    found = [json.loads(p.read_text()) for p in (inner.folder / "results").glob("*-result.json")]
    return {
        tuple(sorted(each["value"] for each in one["parameters"])): one["historyId"]
        for one in found
    }


def test_allure_history_id_of_a_test_is_the_same_in_every_run(inner: Inner) -> None:
    """The id is also the same under xdist, with parameters in another order, and in another checkout."""
    image = IMAGE.format(root=inner.folder)

    plain = history(inner, VARIANTS.format(first=image, second=WAY))

    assert len(set(plain.values())) == len(plain) == 4 + 3
    assert ("clone", "own.qcow2") in plain
    turned = VARIANTS.format(first=WAY, second=image)
    assert history(inner, turned) == plain
    assert history(inner, turned, "-n", "2", "--dist=loadgroup") == plain


def test_allure_result_has_one_step_per_evidence_folder_with_its_files_attached(
    inner: Inner,
) -> None:
    source = """
        class Source:
            name = "node"

            def gather(self, folder, error):
                for path in (folder / "host", folder / "commands"):
                    path.mkdir(parents=True)
                (folder / "timeline.html").write_text("<p>")
                (folder / "host/serial.log").write_text("Linux")
                (folder / "host/argv.txt").write_text("")
                (folder / "host/serial.cast").write_text("{}")
                (folder / "commands/journal").write_text("-- Boot")
                yield folder, folder
                raise OSError("No space left on device")

        def test_kernel(pytestconfig):
            pytestconfig.pluginmanager.getplugin("harness-reporter").add(Source())
            assert False
        """

    inner.run(source, "--alluredir=results")

    (step,) = results(inner)["test_kernel"]["steps"]
    attached = {
        where: {each["name"]: each["type"] for each in within["attachments"]}
        for where, within in [("", step), *((each["name"], each) for each in step["steps"])]
    }
    assert step["name"] == "Evidence of 'node'"
    # The empty file argv.txt is not attached.
    assert attached == {
        "": {"timeline.html": "text/html"},
        "Host: console, command line, events, traces": {
            "serial.log": "text/plain",
            "serial.cast": "application/x-asciicast",
        },
        "Output of commands in the guest": {"journal": "text/plain"},
    }
    html = next(each for each in step["attachments"])
    assert (inner.folder / "results" / html["source"]).read_text() == "<p>"


def test_allure_result_has_a_separate_step_for_earlier_evidence(inner: Inner) -> None:
    source = """
        def test_kernel(add):
            add("other")
            add("node", judged_twice=True)
            assert False
        """

    inner.run(source, "--alluredir=results")

    names = [each["name"] for each in results(inner)["test_kernel"]["steps"]]
    assert names == [f"Evidence of '{name}'" for name in ("other", "node", "node/earlier-1")]


def test_allure_status_is_failed_for_a_node_error_and_broken_for_a_harness_error(
    inner: Inner,
) -> None:
    source = """
        import pytest
        from harness.errors import ExpectationError, HarnessError
        def test_failed():
            raise ExpectationError("wrong kernel")
        def test_broken():
            raise HarnessError("QEMU died")
        class Group(Exception):
            exceptions = (ExpectationError("a"), AssertionError("b"))
        def test_all_of_the_node():
            raise Group
        """

    inner.run(source, "--alluredir=results")

    assert {name: each["status"] for name, each in results(inner).items()} == {
        "test_failed": "failed",
        "test_broken": "broken",
        "test_all_of_the_node": "failed",
    }


@pytest.mark.parametrize("workers", ["0", "2"])
def test_run_writes_the_allure_categories_and_environment_files(
    inner: Inner, workers: str
) -> None:
    inner.run("def test_kernel():\n    pass\n", "--alluredir=results", "-n", workers)

    folder = inner.folder / "results"
    categories = json.loads((folder / "categories.json").read_text())
    assert {each["name"]: each["matchedStatuses"] for each in categories[1:]} == {
        "The node is wrong": ["failed"],
        "The harness could not tell": ["broken"],
    }
    environment = dict(
        line.split("=", 1) for line in (folder / "environment.properties").read_text().splitlines()
    )
    assert environment["machine_driver"] == "qemu"
    assert {"host", "harness", "python"} <= environment.keys()


MACHINES = """
    from types import SimpleNamespace
    import pytest
    from harness.machine.description.spec import Accelerator, DirectKernel

    @pytest.fixture
    def machine(pytestconfig):
        machine = SimpleNamespace(
            description=SimpleNamespace(
                source=SimpleNamespace(name="debian-12"), is_continued=True
            ),
            spec=SimpleNamespace(
                accelerator=Accelerator.TCG,
                kernel=DirectKernel(version="6.1", vmlinuz=None, initrd=None),
            ),
            gpus=SimpleNamespace(provided=[SimpleNamespace(title="h100-sxm5-80gb")]),
        )
        source = SimpleNamespace(name="node", machine=machine, gather=lambda *_: iter(()))
        reporter = pytestconfig.pluginmanager.getplugin("harness-reporter")
        reporter.add(source)
        yield
        reporter.discard(source)

    def test_kernel(machine):
        pass
    """
FACTS = {
    "image": "debian-12",
    "kernel": "6.1",
    "gpu": "h100-sxm5-80gb",
    "nvidia_driver": "none",
    "accelerator": "tcg",
    "start": "clone",
    "machine_driver": "qemu",
}


def test_allure_result_has_the_machine_facts_as_labels_and_excluded_parameters(
    inner: Inner,
) -> None:
    inner.run(MACHINES, "--alluredir=results", "-n", "1")

    (result,) = results(inner).values()
    assert FACTS.items() <= labels(result).items()
    # These parameters do not change the history id, since another host may have another accelerator.
    assert {
        each["name"]: each["value"] for each in result["parameters"] if each["excluded"]
    } == FACTS
    lines = (inner.folder / "results/environment.properties").read_text().splitlines()
    assert {"accelerator=tcg", "image=debian-12"} <= set(lines)
