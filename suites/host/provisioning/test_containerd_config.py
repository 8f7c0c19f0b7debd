"""How containerd of three Debian releases reads each kind of configuration.

The simulated containerd of the unit suites must give the same answers.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import pytest

from harness.debian_packages import ensure_unpacked
from harness.plugin.select import requirements
from harness.provisioning.cdi import Engine, detect_support
from harness.provisioning.command import LocalRunner
from harness.provisioning.containerd_config import (
    CONTAINERD_CONFIG,
    cri_table,
    default_runtime,
    is_cri_disabled,
    read_runtimes,
)
from suites.unit.provisioning.containerd_files import KINDS, configure
from suites.unit.provisioning.fakes import make_node
from suites.unit.provisioning.simulated_containerd import Release
from suites.unit.provisioning.simulation import SimulatedNode

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from harness.provisioning.command import Argv, CommandResult
    from harness.provisioning.node_context import NodeContext
    from harness.settings import Settings

PROGRAM = "usr/bin/containerd"
RELEASES: Mapping[Release, str] = {
    Release.OLD: "bookworm",
    Release.MIDDLE: "trixie",
    Release.NEW: "sid",
}


@pytest.fixture(params=Release, ids=[f"containerd {each.value}" for each in Release])
def program(
    request: pytest.FixtureRequest,
    settings: Settings,
    lagging_mirror: None,  # noqa: ARG001 - for its effect
) -> tuple[Release, Path]:
    """Return a release and its containerd; unpack the program if the cache lacks it."""
    release: Release = request.param
    with requirements(settings):
        root = ensure_unpacked(
            (PROGRAM,),
            package="containerd",
            release=RELEASES[release],
            store=settings.cache / f"containerd-{RELEASES[release]}",
            runner=LocalRunner(),
            report=logging.getLogger(__name__).info,
        )
    return release, root / PROGRAM


@dataclass(frozen=True, kw_only=True)
class RealContainerd:
    """Runs the real containerd, with the configuration file below `top`.

    It runs again only if a file below `top` has changed, since a run takes a tenth of a second.
    """

    program: Path
    top: Path
    answers: dict[str, CommandResult] = field(default_factory=dict)

    def run(
        self,
        argv: Argv,
        *,
        timeout_s: float,
        stdin: str | None = None,
        env: Mapping[str, str] | None = None,
    ) -> CommandResult:
        assert argv[0] == "containerd"
        words = tuple(argv[1:])
        if words == ("config", "dump"):
            own = self.top / CONTAINERD_CONFIG.lstrip("/")
            words = ("--config", str(own if own.exists() else "/dev/null"), *words)
        files = {str(path): path.read_bytes() for path in self.top.rglob("*") if path.is_file()}
        key = repr((words, stdin, env, files))
        if key not in self.answers:
            self.answers[key] = LocalRunner().run(
                (str(self.program), *words), timeout_s=timeout_s, stdin=stdin, env=env
            )
        return self.answers[key]


def summary(node: NodeContext) -> object:
    """Return what provisioning reads from containerd's dump, or None if containerd fails."""
    dump = node.answer("containerd", "config", "dump")
    if dump is None:
        return None
    cri = cri_table(dump)
    if is_cri_disabled(dump):
        return "disabled"
    runtimes = {runtime.name: runtime.program for runtime in read_runtimes(dump, cri)}
    return runtimes, default_runtime(dump, cri), detect_support(Engine.CONTAINERD, dump=dump)


ROWS = [
    *((name, False) for name in KINDS),
    *((name, True) for name, kind in KINDS.items() if "nvidia" in (kind.main or "")),
]


@pytest.mark.parametrize(
    ("kind", "is_opted_out"),
    ROWS,
    ids=[f"{name}{', opted out' if is_out else ''}" for name, is_out in ROWS],
)
def test_simulated_containerd_gives_the_same_configuration_result_as_real_containerd(
    program: tuple[Release, Path], tmp_path: Path, kind: str, *, is_opted_out: bool
) -> None:
    release, path = program
    tops = {"real": tmp_path / "real", "simulated": tmp_path / "simulated"}
    nodes = {
        "real": make_node(RealContainerd(program=path, top=tops["real"]), tops["real"]),
        "simulated": make_node(
            SimulatedNode(tops["simulated"], containerd=release), tops["simulated"]
        ),
    }
    # The real containerd would read the files of this host that a pattern in `imports` matches.
    for name, text in KINDS[kind].texts.items():
        at = text.replace('"/etc/containerd/', f'"{tops["real"]}/etc/containerd/')
        nodes["real"].files.write(name, at)
        nodes["simulated"].files.write(name, text)
    before = nodes["real"].files.read(CONTAINERD_CONFIG)
    assert summary(nodes["simulated"]) == summary(nodes["real"])

    answers = {name: configure(node, is_opted_out=is_opted_out) for name, node in nodes.items()}

    expected = (KINDS[kind].opted_out if is_opted_out else KINDS[kind].gpu).get(release)
    for found in answers.values():
        assert (found is None) == (expected is None), found
        assert expected is None or expected in (found or ""), found
    assert summary(nodes["simulated"]) == summary(nodes["real"])
    if expected is not None:
        assert nodes["real"].files.read(CONTAINERD_CONFIG) == before
