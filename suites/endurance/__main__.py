"""Runs a campaign: `./dev endure NAME|mix [--minutes M] [--seed S]`."""

from __future__ import annotations

import argparse
import secrets
import sys
import tempfile
from pathlib import Path

from harness.provisioning.wait import SYSTEM_CLOCK
from suites.endurance import surroundings
from suites.endurance.campaign import run
from suites.endurance.campaigns import CAMPAIGNS, MIX
from suites.endurance.operations import ensure_programs

_MIX = "mix"
_MINUTES = 5.0
_SUMMARIES = Path("evidence/endurance")


def build_parser() -> argparse.ArgumentParser:
    """Return the parser of the command line."""
    parser = argparse.ArgumentParser(
        prog="./dev endure",
        description="Disturb the harness, and check whether it keeps its promises.",
    )
    parser.add_argument(
        "campaign",
        choices=[*CAMPAIGNS, _MIX],
        help=f"the campaign; '{_MIX}' runs {', '.join(MIX)} for an equal time each",
    )
    parser.add_argument(
        "--minutes",
        type=float,
        default=_MINUTES,
        help="for how many minutes to begin tries; each campaign has at least one try "
        "(default: %(default)g)",
    )
    parser.add_argument(
        "--only",
        default="",
        metavar="WORDS",
        help="try only cases whose name contains these words, such as 'full disk'",
    )
    parser.add_argument("--seed", type=int, help="the seed of the order (default: a new seed)")
    parser.add_argument(
        "--summaries",
        type=Path,
        default=_SUMMARIES,
        metavar="DIR",
        help="the folder for the summaries (default: %(default)s)",
    )
    return parser


def main(argv: list[str] | None = None) -> int:
    """Return 0 if no promise was broken."""
    words = sys.argv[1:] if argv is None else argv
    parser = build_parser()
    arguments = parser.parse_args(words)
    if arguments.summaries.resolve().is_relative_to("/tmp"):  # noqa: S108 - the campaign mounts its own
        parser.error(
            "The campaign has a '/tmp' of its own, which is removed at its end: name another folder."
        )
    names = list(MIX) if arguments.campaign == _MIX else [arguments.campaign]
    if arguments.seed is None:
        arguments.seed = secrets.randbelow(10**6)
        words = [*words, f"--seed={arguments.seed}"]
    if not surroundings.are_entered():
        _say(f"seed {arguments.seed}")
        if any(CAMPAIGNS[name].is_apart for name in names):
            # Programs are fetched now, since the namespaces have no network.
            ensure_programs(report=_say)
            surroundings.enter([sys.executable, "-m", "suites.endurance", *words])
    broken = 0
    for name in names:
        with (
            tempfile.TemporaryDirectory(prefix="campaign-") as folder,
            CAMPAIGNS[name].opened(Path(folder)) as cases,
        ):
            summary = run(
                name,
                {each: case for each, case in cases.items() if arguments.only in each},
                seed=arguments.seed,
                minutes=arguments.minutes / len(names),
                clock=SYSTEM_CLOCK,
                report=_say,
                summaries=arguments.summaries,
            )
        _say(summary.render())
        broken += len(summary.found)
    return 1 if broken else 0


def _say(line: str) -> None:
    print(line, flush=True)  # noqa: T201


if __name__ == "__main__":
    sys.exit(main())
