"""Fixtures for tests with the host's GPUs."""

from __future__ import annotations

import contextlib
import os
import re
import time
from dataclasses import replace
from typing import TYPE_CHECKING, Protocol

import pytest

from harness.api import BadInputError, GpuChoice, HarnessError, NodeRequest, RequirementError
from harness.fixtures.machines import OPENED_GPU_IMAGES, REAL_DRIVER_IMAGE, settings_of
from harness.lab import Lab
from harness.lab.gpu_sources import open_gpu_pool
from harness.plugin.select import requirements
from harness.settings import GpuSource, Settings
from suites.passthrough.nights import GpuFacts, Night, StepTime, nights_file, read_nights, table_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from _pytest.terminal import TerminalReporter

    from harness.api import BootNode, Image, Node
    from harness.lab.gpu_sources import RequestedGpu
    from harness.progress import ProgressEvent

ANY = GpuChoice()
#: The memory of a node that only boots. VFIO locks all of this memory, and saved states contain it.
BUS_MEMORY_MIB = 512
NO_GPU = "These tests need GPUs that this host can hand to a machine by VFIO."
NIGHT: pytest.StashKey[Night] = pytest.StashKey()


class Step(Protocol):
    """Measures a step of the running test for the nightly report."""

    def __call__(self, name: str, /) -> contextlib.AbstractContextManager[None]: ...


class StartNode(Protocol):
    """Starts a node with GPUs for the running test, without provisioning; the node ends with the test."""

    def __call__(
        self, name: str, /, gpus: Sequence[RequestedGpu] = (ANY,), *, may_reboot: bool = False
    ) -> Node: ...


def passthrough_settings(config: pytest.Config) -> Settings:
    """Return the settings of the run; without `--gpu-source`, the GPUs are the host's."""
    settings = settings_of(config)
    if config.getoption("--gpu-source") is not None:
        return settings
    return replace(settings, gpu_source=GpuSource.HOST)


def require_gpus(config: pytest.Config, wanted: Sequence[GpuChoice]) -> None:
    """Skip the test if the host cannot provide these GPUs; with `--require-gpu`, fail."""
    __tracebackhide__ = True
    settings = passthrough_settings(config)
    if settings.gpu_source is not GpuSource.HOST:
        return
    try:
        open_gpu_pool(settings).require(wanted)
    except RequirementError as error:
        reason = f"{NO_GPU} {error} docs/gpu-lab.md says how to prepare a host."
    else:
        return
    if settings.is_gpu_required:
        raise HarnessError(reason)
    pytest.skip(reason)


@pytest.fixture(scope="session", autouse=True)
def gpu_of_the_host(pytestconfig: pytest.Config) -> None:
    """Skip all tests, with the reason, if no GPU can be leased; with `--require-gpu`, fail."""
    require_gpus(pytestconfig, [ANY])


@pytest.fixture(scope="session")
def lab(
    pytestconfig: pytest.Config,
    gpu_of_the_host: None,
    announce: Callable[[ProgressEvent], None],
) -> Iterator[Lab]:
    """Open a lab that uses the GPUs of the host."""
    del gpu_of_the_host
    settings = passthrough_settings(pytestconfig)
    with contextlib.ExitStack() as stack:
        with requirements(settings):
            opened = stack.enter_context(Lab.open(settings, announce))
        yield opened


@pytest.fixture(scope="session")
def driver_image(request: pytest.FixtureRequest, image_name: str) -> Image:
    """Return an image with a driver for its newest kernel: NVIDIA's own driver if `--image` has one."""
    has_driver = image_name in {REAL_DRIVER_IMAGE, *OPENED_GPU_IMAGES}
    name = "node_image" if has_driver else "baked_image"
    image: Image = request.getfixturevalue(name)
    return image


@pytest.fixture
def start_node(boot_node: BootNode, node_image: Image) -> StartNode:
    """Return a function that starts a node for tests of the PCI bus only."""

    def start(
        name: str, /, gpus: Sequence[RequestedGpu] = (ANY,), *, may_reboot: bool = False
    ) -> Node:
        return boot_node(
            NodeRequest(
                name=name,
                image=node_image,
                gpus=gpus,
                command=None,
                skip_cloud_init=True,
                may_reboot=may_reboot,
                memory_mib=BUS_MEMORY_MIB,
            )
        )

    return start


@pytest.fixture
def step(request: pytest.FixtureRequest, pytestconfig: pytest.Config) -> Step:
    """Return a function whose context manager measures a step for the nightly report."""
    night = pytestconfig.stash[NIGHT]

    @contextlib.contextmanager
    def measure(name: str, /) -> Iterator[None]:
        begin = time.monotonic()
        yield
        night.add(StepTime(test=request.node.name, step=name, seconds=time.monotonic() - begin))

    return measure


@pytest.fixture
def describe_gpu(pytestconfig: pytest.Config) -> Callable[[Node], GpuFacts]:
    """Return a function that queries a node's driver for facts about the GPU, for the nightly report."""
    night = pytestconfig.stash[NIGHT]

    def describe(node: Node) -> GpuFacts:
        facts = GpuFacts.of_node(node)
        night.gpu = facts
        return facts

    return describe


# This hook runs after the plugin's hook, which makes the settings.
@pytest.hookimpl(trylast=True)
def pytest_configure(config: pytest.Config) -> None:
    settings = settings_of(config)
    run = os.environ.get("PYTEST_XDIST_TESTRUNUID") or f"{os.getpid()}-{time.time_ns()}"
    config.stash[NIGHT] = Night(run=run, file=nights_file(settings.evidence_folder))


def _reasons(terminalreporter: TerminalReporter) -> set[str]:
    """Return the reasons why tests had no GPU; pytest itself shows skip reasons only with `-rs`."""
    reports = (*terminalreporter.getreports("skipped"), *terminalreporter.getreports("error"))
    found = (re.search(rf"{re.escape(NO_GPU)}.*", report.longreprtext) for report in reports)
    return {match[0].rstrip("')") for match in found if match is not None}


def pytest_terminal_summary(terminalreporter: TerminalReporter, config: pytest.Config) -> None:
    """Print why tests had no GPU, and compare the steps of this night with earlier nights."""
    if hasattr(config, "workerinput"):
        return
    for reason in sorted(_reasons(terminalreporter)):
        terminalreporter.section("no GPU of this host")
        terminalreporter.write_line(reason)
    night = config.stash[NIGHT]
    if not night.file.exists():
        return
    try:
        entries = read_nights(night.file)
    except BadInputError as error:
        # If the error were raised here, pytest would not print the test results.
        terminalreporter.section("GPUs of this host")
        terminalreporter.write_line(str(error))
        return
    table = table_of(entries, run=night.run)
    if table:
        terminalreporter.section("GPUs of this host")
        terminalreporter.write_line(table)
        terminalreporter.write_line(f"kept in '{night.file}'")
