"""The options of pytest that control how shell code runs."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import pytest


def _time_limit(word: str) -> float:
    seconds = float(word)
    # NaN is not more than 0 either.
    if not seconds > 0:
        raise argparse.ArgumentTypeError(
            f"'{word}' is not a time limit; give seconds, more than 0, or 'inf' for no limit."
        )
    return seconds


def pytest_addoption(parser: pytest.Parser) -> None:
    group = parser.getgroup("shell", "gpu-node-harness: shell code")
    group.addoption(
        "--shell-time",
        choices=("real", "virtual"),
        default=None,
        help="the time of shell code. virtual: sleep, timeout and date use a simulated clock, so "
        "no sleep waits; real: these commands use the host's clock (default: real for *_spec.sh files, "
        "virtual for the shell fixture)",
    )
    group.addoption(
        "--shell-timeout",
        type=_time_limit,
        default=120.0,
        metavar="SECONDS",
        help="time limit of an example of a *_spec.sh file (default: %(default)s)",
    )
    group.addoption(
        "--shell-sandbox",
        choices=("auto", "throwaway", "refuse", "off"),
        default="auto",
        help="how the host is protected from shell code. throwaway: shell code runs in namespaces with "
        "a temporary root file system, which is discarded; refuse: the kernel refuses writes "
        "outside the project and the temporary directory; auto: throwaway, or refuse if an "
        "ordinary user may not create namespaces; off: no protection (default: %(default)s)",
    )
    group.addoption(
        "--shell-network",
        choices=("loopback", "host"),
        default="loopback",
        help="the network of shell code in the throw-away root. loopback: a private loopback "
        "interface, without a connection to the host or the network; host: the host's network "
        "(default: %(default)s)",
    )
    group.addoption(
        "--shell-cov",
        action="append",
        type=Path,
        default=[],
        metavar="PATH",
        help="record which lines of the bash scripts at PATH run: in examples of *_spec.sh files, "
        "in tests with the shell fixture, and in machines",
    )
    group.addoption(
        "--shell-cov-data",
        type=Path,
        default=Path(".coverage.shell"),
        metavar="FILE",
        help="write the record to FILE, a data file of coverage.py that 'harness coverage' "
        "reports and combines with other files (default: %(default)s)",
    )
    group.addoption(
        "--shell-cov-lcov",
        type=Path,
        metavar="FILE",
        help="also write the record as an lcov tracefile",
    )
    parser.addini(
        "shell_allow",
        type="args",
        default=[],
        help="further commands of the host that shell code under test may run; harmless commands "
        "are always allowed",
    )
    group.addoption(
        "--shell-tag",
        action="append",
        default=[],
        metavar="TAG[:VALUE],...",
        help="run only the examples of *_spec.sh files that have one of the tags",
    )
    group.addoption(
        "--shell-focus",
        action="store_true",
        help="run only the focused examples (fIt, fDescribe) of *_spec.sh files",
    )
    group.addoption(
        "--no-warning-as-failure",
        action="store_true",
        help="let examples of *_spec.sh files pass if they have warnings but no failures",
    )
