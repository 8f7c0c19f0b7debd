"""The recipes for Slurm, run on a cluster of two nodes: shards, a dead node, cancellation, the merge."""

from __future__ import annotations

import sys
import xml.etree.ElementTree as ET
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from docs.generator.ci_recipes import FOLDER
from harness.errors import RequirementError
from harness.provisioning.wait import Deadline, Observation, wait_for
from suites.docs.pages import REPOSITORY
from suites.host.slurm.cluster import running_cluster

if TYPE_CHECKING:
    from collections.abc import Iterator

    from suites.host.slurm.cluster import Cluster

_SUITE = """\
import pathlib, pytest, time

@pytest.mark.parametrize("number", range(6))
def test_one(number):
    pathlib.Path(f"ran-{number}").touch()
    until = time.time() + 120
    while not pathlib.Path("go").exists() and time.time() < until:
        time.sleep(0.1)
"""
_RUN_S = 180.0


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    folder = tmp_path_factory.mktemp("slurm") / "cluster"
    try:
        with running_cluster(folder) as running:
            yield running
    except RequirementError as error:
        # `./dev setup` does not install Slurm, which is large and useless on most hosts.
        pytest.skip(str(error))


@pytest.fixture
def project(tmp_path: Path) -> Path:
    (tmp_path / "test_suite.py").write_text(_SUITE)
    return tmp_path


def submit(cluster: Cluster, project: Path, *, shards: int) -> None:
    """Submit the recipe for hosts without KVM, with this Python and the project's tests."""
    options = "-n0 -v -p no:cacheprovider -p no:randomly --rootdir ."
    cluster.run(
        *("env", "--chdir", str(project), str(REPOSITORY / FOLDER / "slurm-submit.sh")),
        str(REPOSITORY / FOLDER / "slurm-tcg.sh"),
        env={
            "SHARDS": str(shards),
            "PYTEST": f"{sys.executable} -m pytest",
            "TESTS": "test_suite.py",
            "OPTIONS": options,
            "HARNESS": f"{sys.executable} -m harness.cli",
        },
    ).check("Submitting")


def logs(project: Path) -> str:
    return "\n".join(
        f"== {path.name}\n{path.read_text(errors='replace')}"
        for path in sorted(project.glob("*.log"))
    )


def wait_for_files(project: Path, pattern: str, count: int) -> None:
    def poll() -> Observation[bool]:
        found = len(list(project.glob(pattern)))
        return Observation(True if found >= count else None, f"{found} {pattern}; {logs(project)}")

    wait_for(f"{count} of '{pattern}'", poll, Deadline.after(_RUN_S), interval_s=0.2)


def names_in(report: Path) -> list[str]:
    cases = ET.parse(report).getroot().iter("testcase")  # noqa: S314 - our own
    return sorted(case.get("name", "") for case in cases)


def processes_of(project: Path) -> list[str]:
    """Return the command lines of the processes whose working directory is the project's folder."""
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdecimal():
            try:
                if (entry / "cwd").readlink() == project:
                    found.append((entry / "cmdline").read_bytes().replace(b"\0", b" ").decode())
            except OSError:
                continue
    return found


def test_reports_of_slurm_shards_are_merged(cluster: Cluster, project: Path) -> None:
    (project / "go").touch()

    submit(cluster, project, shards=3)
    cluster.wait_until_over(_RUN_S)

    summary = (project / "reports-merged/summary.md").read_text()
    assert "**6 tests**: 6 passed" in summary, logs(project)
    assert names_in(project / "reports-merged/junit.xml") == [f"test_one[{n}]" for n in range(6)]
    assert len(list((project / "reports-merged/allure").glob("*-result.json"))) == 6


def test_shard_of_a_dead_node_runs_again_and_the_summary_counts_its_starts(
    cluster: Cluster, project: Path
) -> None:
    submit(cluster, project, shards=2)
    wait_for_files(project, "ran-*", 2)
    (node,) = {row[2] for row in cluster.jobs() if row[0].endswith("_1") and row[1] == "RUNNING"}

    cluster.kill_node(node)
    wait_until_pending(cluster)
    cluster.start_node(node)
    # Slurm lets a requeued job wait two minutes. The job must not start within the second in which the
    # node's daemon revoked the job's credential, since credentials record whole seconds.
    ((job, *_),) = [row for row in cluster.jobs() if row[0].endswith("_1")]
    cluster.output("scontrol", "update", f"JobId={job}", "StartTime=now+3")
    wait_for_files(project, "reports/1/start-2", 1)
    (project / "go").touch()
    cluster.wait_until_over(_RUN_S)

    summary = (project / "reports-merged/summary.md").read_text()
    assert "**6 tests**: 6 passed" in summary, logs(project)
    assert "Shard 2/2 was started 2 times" in summary
    assert len(set(names_in(project / "reports-merged/junit.xml"))) == 6
    wait_until_gone(project)


def test_cancelled_job_leaves_no_process(cluster: Cluster, project: Path) -> None:
    submit(cluster, project, shards=2)
    wait_for_files(project, "ran-*", 2)

    cluster.output("scancel", "--name=node-tests")
    cluster.wait_until_over(_RUN_S)

    wait_until_gone(project)
    merged = (project / "merge.log").read_text()
    # The run of each shard ended in its first test.
    assert "Shard 1/2 has no result of 3 of its 3 tests" in merged
    assert "Shard 2/2 has no result of 3 of its 3 tests" in merged
    summary = (project / "reports-merged/summary.md").read_text()
    assert "**0 tests**: 0 passed" in summary


def wait_until_pending(cluster: Cluster) -> None:
    def poll() -> Observation[bool]:
        rows = [row for row in cluster.jobs() if row[0].endswith("_1")]
        return Observation(True if rows and rows[0][1] == "PENDING" else None, str(rows))

    wait_for("the requeue of the shard", poll, Deadline.after(_RUN_S), interval_s=0.5)


def wait_until_gone(project: Path) -> None:
    def poll() -> Observation[bool]:
        left = processes_of(project)
        return Observation(None if left else True, f"processes left: {left}")

    wait_for("the end of the job's processes", poll, Deadline.after(60), interval_s=0.2)
