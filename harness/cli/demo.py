"""`harness demo`: bakes a driver, boots three nodes, and checks the nodes."""

from __future__ import annotations

import concurrent.futures
import os
from dataclasses import dataclass
from typing import TYPE_CHECKING

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from harness import expect
from harness.cli.options import add_machine_options, settings_of
from harness.cli.progress import ElapsedLog, show_event
from harness.errors import ExpectationError, HarnessError
from harness.evidence.causes import explain
from harness.gpu.catalogue import load_catalogue
from harness.lab import Lab
from harness.lab.bakes import bake_evidence, bake_node
from harness.lab.node_request import NodeRequest
from harness.visible_text import visible

if TYPE_CHECKING:
    import argparse
    from collections.abc import Callable, Sequence

    from harness.cli.options import Commands
    from harness.evidence import Evidence
    from harness.image import Image

_MODEL = "h100-sxm5-80gb"


@dataclass(frozen=True, kw_only=True)
class Scenario:
    """A node to boot, and expectations on the node: each expectation is a sentence and a function."""

    title: str
    request: NodeRequest
    expectations: Sequence[tuple[str, Callable[[Evidence], None]]]


@dataclass(frozen=True, kw_only=True)
class Verdict:
    """The result of one expectation; `failure` is None if the expectation was met."""

    title: str
    expectation: str
    failure: str | None


def add_parser(commands: Commands) -> None:
    parser = commands.add_parser("demo")
    add_machine_options(parser)
    parser.set_defaults(run=_run)


def scenarios(baked: Image) -> tuple[Scenario, ...]:
    """Return the three nodes of the demonstration."""
    gpu = load_catalogue().get(_MODEL)
    device = f"{gpu.pci.device:04x}"
    newest, other = baked.newest_kernel.version, baked.other_kernel.version
    assert baked.driver is not None  # noqa: S101 - the image's recipe has a driver
    version, driver_image = baked.driver.version, baked.driver.reference
    return (
        Scenario(
            title="baked kernel",
            request=NodeRequest(name="fast-path", image=baked, gpus=[gpu]),
            expectations=[
                ("provisioning ends with 0", expect.provisioned),
                (f"runs {newest}", lambda e: expect.kernel_running(e, newest)),
                (
                    "decides for install-skip-build: ok",
                    lambda e: expect.decided(e, action="install-skip-build", reason="ok"),
                ),
                ("compiles nothing", lambda e: expect.module_built_before_boot(e, newest)),
                ("'nvidia' is bound to the H100", lambda e: expect.gpu_bound(e, device=device)),
                ("driver installed, nvidia-modprobe setuid", expect.driver_installed),
                ("driver image removed", lambda e: expect.image_absent(e, driver_image)),
            ],
        ),
        Scenario(
            title="other kernel",
            request=NodeRequest(
                name="full-build", image=baked, kernel=baked.other_kernel, gpus=[gpu]
            ),
            expectations=[
                ("provisioning ends with 0", expect.provisioned),
                (f"runs {other}", lambda e: expect.kernel_running(e, other)),
                (
                    "decides for install: kernel",
                    lambda e: expect.decided(e, action="install", reason="kernel"),
                ),
                ("compiles a module", lambda e: expect.module_built_since_boot(e, other)),
                (
                    "its vermagic is the running kernel's",
                    lambda e: expect.module_built_for(e, other, version=version),
                ),
                ("'nvidia' is bound to the H100", lambda e: expect.gpu_bound(e, device=device)),
            ],
        ),
        Scenario(
            title="no GPU",
            request=NodeRequest(name="no-gpu", image=baked),
            expectations=[
                ("provisioning ends with 0", expect.provisioned),
                ("no GPU on the bus", expect.no_gpu),
                (
                    "decides for teardown: opted_out",
                    lambda e: expect.decided(e, action="teardown", reason="opted_out"),
                ),
                ("no artefact of the driver is left", expect.no_driver_artefact),
                ("the prebake record is gone", expect.no_record),
                (
                    "logs event=teardown status=cleaned",
                    lambda e: expect.prebake_line(e, event="teardown", status="cleaned"),
                ),
            ],
        ),
    )


def judge(scenario: Scenario, evidence: Evidence) -> list[Verdict]:
    """Check every expectation of a scenario, even if an earlier expectation has failed."""
    verdicts: list[Verdict] = []
    for sentence, expectation in scenario.expectations:
        failure = None
        try:
            expectation(evidence)
        except ExpectationError as error:
            failure = error.sentence
        verdicts.append(Verdict(title=scenario.title, expectation=sentence, failure=failure))
    return verdicts


def _run(arguments: argparse.Namespace) -> int:
    settings = settings_of(arguments)
    log = ElapsedLog()
    with Lab.open(settings, show_event) as lab:
        log(f"accelerator: {lab.accelerator.reason}")
        node_image = lab.node_image()
        log(f"image '{node_image.name}' ready: {node_image.disk}")
        log("baking the driver on a machine without a GPU, unless the bake is cached")
        baked = bake_node(lab)
        record = bake_evidence(baked).record or {}
        log(f"baked: the record names kernel {record.get('kernel', '(none)')}")
        planned = scenarios(baked)
        workers = min(len(planned), os.cpu_count() or 1)
        with concurrent.futures.ThreadPoolExecutor(workers, thread_name_prefix="node") as pool:
            futures = [pool.submit(_boot, lab, scenario, log) for scenario in planned]
            try:
                verdicts = [verdict for future in futures for verdict in future.result()]
            except BaseException:
                # Without the two calls below, the pool would wait for threads that may wait
                # minutes for machines.
                for future in futures:
                    future.cancel()
                lab.kill_machines()
                raise
        log("all nodes are checked and have ended")
    return _show(verdicts)


def _boot(lab: Lab, scenario: Scenario, log: ElapsedLog) -> list[Verdict]:
    with lab.boot(scenario.request) as node:
        log(f"{scenario.title}: booting kernel {scenario.request.booted_kernel.version}")
        try:
            node.wait_until_provisioned(lambda line: log(f"{scenario.title}: {line}"))
        except HarnessError as error:
            error.evidence = lab.try_save_evidence(node, f"demo/{scenario.request.name}")
            raise
        log(f"{scenario.title}: cloud-init has finished; gathering evidence")
        evidence = node.evidence()
        outcome = evidence.outcome
        if outcome is not None:
            log(f"{scenario.title}: decided '{outcome.action}' because of '{outcome.reason}'")
        verdicts = judge(scenario, evidence)
        if any(verdict.failure for verdict in verdicts):
            kept = lab.save_evidence(evidence, f"demo/{scenario.request.name}")
            log(f"{scenario.title}: evidence kept in '{kept}'")
            for finding in explain(kept):
                log(f"{scenario.title}: {visible(finding)}")
        return verdicts


def _show(verdicts: Sequence[Verdict]) -> int:
    table = Table("node", "expected", "result")
    for verdict in verdicts:
        is_met = verdict.failure is None
        seen = "[green]ok[/]" if is_met else f"[red]{escape(str(verdict.failure))}[/]"
        table.add_row(verdict.title, escape(verdict.expectation), seen)
    Console().print(table)
    unmet = sum(verdict.failure is not None for verdict in verdicts)
    print(f"{len(verdicts) - unmet} of {len(verdicts)} expectations met")
    return 1 if unmet else 0
