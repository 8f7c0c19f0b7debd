"""`--machine-plan` lists the images and states that the selected tests need, and runs no test."""

from __future__ import annotations

import json
import re
import shutil
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from suites.host.plugin.inner_pytest import Inner

pytest_plugins = ["pytester"]

pytestmark = pytest.mark.skipif(
    shutil.which("qemu-system-x86_64") is None, reason="needs QEMU, which decides on checkpoints"
)

_TESTS = """
    import pytest
    from pathlib import Path
    from harness.fixtures.saved_states import saved_state

    @saved_state(parent="cloud_init_done")
    def with_tools(machine):
        Path("made").touch()

    @pytest.fixture(scope="session")
    def own(lab):
        Path("made").touch()

    def test_of_no_machine():
        Path("ran").touch()
    def test_of_a_clone(clone, with_tools):
        Path("ran").touch()
    def test_of_a_node(boot_node, node_image):
        Path("ran").touch()
    def test_of_a_bake(boot_node, baked_image):
        Path("ran").touch()
    def test_of_an_own_fixture(own):
        Path("ran").touch()
    """


@pytest.fixture
def empty_cache(inner: Inner, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(inner.folder / "cache"))


@pytest.mark.usefixtures("empty_cache")
@pytest.mark.parametrize("workers", ["0", "2"])
def test_machine_plan_lists_the_uncached_images_and_checkpoints_and_runs_no_test(
    inner: Inner, workers: str
) -> None:
    result = inner.run_apart(_TESTS, "--machine-plan", "--image=debian-12", "-n", workers)

    assert result.ret == 0
    result.stdout.fnmatch_lines_random(
        [
            "machine plan: 4 of 5 tests need machines or images",
            "  machines by `boot_node`: 2 tests",
            "  machines by `clone`: 1 test",
            "  image      debian-12 *  1 test  not cached: 'debian-12' is not cached",
            "  bake       debian-12 *  1 test  not cached: *",
            "  checkpoint with_tools of debian-12 *  1 test  not cached: *",
            "  checkpoint driver_baked of debian-12 *  1 test  not cached: *",
            "  checkpoint node_booted of debian-12 *  1 test  not cached: *",
            "  fixture    own *  1 test  unknown: *",
            "time: unknown, *",
        ]
    )
    assert not (inner.folder / "ran").exists()
    assert not (inner.folder / "made").exists()


@pytest.mark.usefixtures("empty_cache")
def test_machine_plan_estimates_the_time_from_recorded_durations_and_worker_count(
    inner: Inner,
) -> None:
    durations = {
        f"test_inner.py::test_of_a_{kind}[debian-12]": 60.0 for kind in ("clone", "node", "bake")
    }
    (inner.folder / ".test_durations").write_text(json.dumps(durations))

    result = inner.run_apart(
        _TESTS, "--machine-plan", "-n", "2", "-k", "of_a_", "--image=debian-12"
    )

    result.stdout.fnmatch_lines(
        [
            "time: about 1 min 30 s with 2 workers from the durations of 3 of 3 tests in '.test_durations'*"
        ]
    )


_OF_A_BAKE = """
    def test_of_a_bake(boot_node, baked_image):
        raise AssertionError("it was begun")
    """
#: This fixture fails in place of the build with which the first test would begin.
_NO_BUILD = """
    import pytest
    from harness.lab.images import LabImages

    @pytest.fixture(scope="session")
    def lab():
        raise AssertionError("it was begun")
    """


@pytest.mark.usefixtures("empty_cache")
@pytest.mark.parametrize("workers", ["0", "2"])
def test_run_with_an_empty_cache_first_prints_the_items_to_make_and_their_estimated_time(
    inner: Inner, workers: str
) -> None:
    result = inner.run_apart(_NO_BUILD + _OF_A_BAKE, "--image=debian-12", "-n", workers)

    output = f"{result.stderr}\n{result.stdout}" if workers != "0" else str(result.stdout)
    assert "first use: this run makes 3 items first, which takes about " in output
    assert re.search(
        r"^  image debian-12 +about \d+ \w+, estimated from its recipe", output, re.MULTILINE
    )
    assert re.search(
        r"^  bake debian-12 +about \d+ \w+, estimated from its recipe", output, re.MULTILINE
    )
    assert output.index("first use") < output.index("it was begun")
