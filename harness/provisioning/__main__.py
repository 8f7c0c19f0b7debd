"""The command line of the zipapp; the zipapp runs as root on the node.

python3 -I -S provisioning.pyz boot --config /etc/gpu-node/config.json --outcome …/outcome.json
"""

from __future__ import annotations

import argparse
import contextlib
import functools
import io
import json
import os
import signal
import sys
import traceback
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, TextIO

from . import __version__, bake, boot
from .command import CommandError, LocalRunner
from .configuration import (
    WHOLE_LIMIT_MARGIN_S,
    Configuration,
    ConfigurationError,
    load_configuration,
)
from .driver import validate_plan
from .executor import Executor
from .exit_codes import ExitCode, ProvisioningError
from .facts import collect_facts, look_up_opt_out, teardown_scope
from .journal import Journal
from .mig import PROFILE_VARIABLE, UnknownProfileError, partition
from .node_context import LimitedRunner, NodeContext
from .node_files import NodeFiles, UnsafePathError
from .outcome import Outcome, StepReport, StepStatus
from .prebake import read_record
from .status import status
from .teardown import TeardownStatus, tear_down
from .wait import SYSTEM_CLOCK, Deadline

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from .command import Runner
    from .prebake import Decision
    from .wait import Clock


@dataclass(kw_only=True)
class Session:
    """One run of a command such as `boot`, with the facts that the run's outcome reports."""

    node: NodeContext
    configuration: Configuration
    environment: Mapping[str, str]
    program: Sequence[str]
    print_line: Callable[[str], None]
    executor: Executor
    decision: Decision | None = None
    kernel: str | None = None

    def bake(self) -> None:
        self.kernel = self.node.kernel()
        try:
            self.executor.run(bake.make_plan(self.node, self.configuration))
        except BaseException:  # a signal may end a build too
            if self._has_run("prepare-build"):
                bake.withdraw(self.node, self.configuration)
            raise

    def _has_run(self, step: str) -> bool:
        """Return whether a step ran.

        A failed step counts as run, since its first actions may have had an effect.
        """
        ran = {StepStatus.DONE, StepStatus.FAILED}
        return any(r.name == step and r.status in ran for r in self.executor.reports)

    def boot(self) -> None:
        facts = collect_facts(self.node, self.configuration, is_read_only=False)
        self.kernel, self.decision = facts.kernel, facts.decision
        if facts.decision is not None:
            self.node.journal.line(facts.decision.render_line())
        self.executor.run(boot.make_plan(self.configuration, facts, self.program))

    def plan(self) -> None:
        """Print the actions of `boot`, without changing the node."""
        facts = collect_facts(self.node, self.configuration, is_read_only=True)
        self.kernel, self.decision = facts.kernel, facts.decision
        if facts.decision is not None:
            self.print_line(f"# {facts.decision.render_line()}")
        self.print_line(boot.make_plan(self.configuration, facts, self.program).describe())

    def teardown(self) -> None:
        self.kernel = self.node.kernel()
        _, is_opted_out = look_up_opt_out(self.node, self.configuration)
        scope = teardown_scope(self.configuration, is_opted_out=is_opted_out)
        if tear_down(self.node, scope) is TeardownStatus.INCOMPLETE and not is_opted_out:
            raise ProvisioningError(
                ExitCode.GPU_DRIVERS_START_FAIL,
                "The driver was not completely removed; the log names the remaining parts.",
            )

    def validate(self) -> None:
        self.kernel = self.node.kernel()
        self.executor.run(validate_plan(self.configuration))

    def status(self) -> None:
        document = status(self.node, self.configuration)
        self.print_line(json.dumps(document, indent=2))

    def partition(self) -> None:
        """Partition the GPU; the systemd unit `mig-partition` runs this command."""
        try:
            partition(self.node.runner, self.environment.get(PROFILE_VARIABLE, ""))
        except (UnknownProfileError, CommandError) as error:
            raise ProvisioningError(ExitCode.COMMAND_FAILED, str(error)) from error


COMMANDS: dict[str, tuple[str, Callable[[Session], None]]] = {
    "bake": ("build the driver into this image", Session.bake),
    "boot": ("provision this node", Session.boot),
    "teardown": ("remove a baked driver", Session.teardown),
    "status": ("print what is installed and what a boot would decide, as JSON", Session.status),
    "plan": ("print what boot would do", Session.plan),
    "validate": ("check whether the driver works", Session.validate),
    "mig-partition": (
        "partition the GPU; the command of the unit mig-partition",
        Session.partition,
    ),
}
_READ_ONLY = frozenset({"status", "plan"})


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command on this machine and return the exit code."""
    if isinstance(sys.stdout, io.TextIOWrapper):
        # cloud-init's locale may lack characters that a tool prints.
        sys.stdout.reconfigure(errors="backslashreplace")
    # timeout(1) ends a run with SIGTERM. The signal becomes an exception, so that the running command
    # is killed and the outcome is written.
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    code = run(
        sys.argv[1:] if argv is None else argv,
        runner=LocalRunner(),
        clock=SYSTEM_CLOCK,
        environment=os.environ,
        print_line=lambda line: print(line, flush=True),
        program=(sys.executable, "-I", "-S", str(Path(sys.argv[0]).resolve())),
    )
    _drop_unwritten_text()
    return code


def _drop_unwritten_text() -> None:
    """Drop text that stdout or stderr refused, since Python would otherwise exit with 120."""
    streams: tuple[TextIO | None, ...] = (sys.stdout, sys.stderr)
    for number, stream in enumerate(streams, 1):
        # A stream is None if the caller closed it.
        if stream is None:
            continue
        try:
            stream.flush()
        except OSError:
            os.dup2(os.open(os.devnull, os.O_WRONLY), number)


def run(
    argv: Sequence[str],
    *,
    runner: Runner,
    clock: Clock,
    environment: Mapping[str, str],
    print_line: Callable[[str], None],
    program: Sequence[str],
) -> int:
    """Run one command on the given machine, write the outcome, and return the exit code."""
    arguments = _parser().parse_args(argv)
    command: str = arguments.command
    files = NodeFiles(arguments.root)
    is_read_only = command in _READ_ONLY
    journal = Journal(files, clock, print_line)
    session: Session | None = None
    code, error = ExitCode.OK, None
    try:
        configuration = load_configuration(arguments.config, environment)
        budget_s = configuration.budget_s(is_bake=command == "bake")
        multiplier = configuration.time_limit_multiplier
        whole = Deadline.after(budget_s + WHOLE_LIMIT_MARGIN_S * multiplier, clock)
        node = NodeContext(
            runner=LimitedRunner(runner, whole, multiplier=multiplier),
            clock=clock,
            files=files,
            journal=journal,
            retries=Deadline.after(budget_s, clock),
            time_limit_multiplier=multiplier,
        )
        session = Session(
            node=node,
            configuration=configuration,
            environment=environment,
            program=program,
            print_line=print_line,
            executor=Executor(node),
        )
        COMMANDS[command][1](session)
    except ProvisioningError as failed:
        code, error = failed.exit_code, str(failed)
    except ConfigurationError as failed:
        code, error = ExitCode.INVALID_CONFIGURATION, str(failed)
    except KeyboardInterrupt:
        code, error = ExitCode.TERMINATED, "The run was terminated by a signal."
    except Exception:  # every error must be in the outcome
        code, error = ExitCode.INTERNAL_ERROR, traceback.format_exc()
    if error is not None:
        _report_error(error, None if is_read_only else journal)
    if arguments.outcome is not None:
        try:
            _write_outcome(arguments.outcome, _outcome(command, code, error, session))
        except (OSError, RuntimeError, UnsafePathError) as failed:
            # On a full or read-only disk the exit code still has to name the cause. Before Python
            # 3.13, resolving a link to itself raises RuntimeError.
            sentence = (
                f"The outcome '{arguments.outcome}' cannot be written: {str(failed).rstrip('.')}."
            )
            _print_error(sentence)
    return int(code)


def _report_error(error: str, journal: Journal | None) -> None:
    if journal is None:
        _print_error(error)
    else:
        journal.line(error)


def _print_error(text: str) -> None:
    with contextlib.suppress(OSError):
        print(text, file=sys.stderr)


def _outcome(command: str, code: ExitCode, error: str | None, session: Session | None) -> Outcome:
    steps: list[StepReport] = [] if session is None else session.executor.reports
    return Outcome(
        command=command,
        exit_code=code,
        error=error,
        decision=None if session is None else session.decision,
        steps=tuple(steps),
        record=(
            None
            if session is None
            else read_record(session.node.files, session.configuration.gpu_dkms_marker_file)
        ),
        kernel=None if session is None else session.kernel,
        version=__version__,
    )


def _write_outcome(path: Path, outcome: Outcome) -> None:
    """Write the outcome; if the path is a symbolic link, write the file to which the link leads."""
    target = path.resolve()
    NodeFiles(target.parent).write(f"/{target.name}", outcome.to_json())


@functools.cache
def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="provisioning", description="Provision a GPU node.")
    parser.add_argument("--version", action="version", version=__version__)
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
    for name, (summary, _) in COMMANDS.items():
        command = commands.add_parser(name, help=summary, description=summary)
        command.add_argument(
            "--config", type=Path, help="JSON file; environment variables override it"
        )
        command.add_argument(
            "--outcome", type=Path, help="file to which the outcome is written, as JSON"
        )
        command.add_argument(
            "--root", type=Path, default=Path("/"), help="folder to use instead of /"
        )
    return parser


if __name__ == "__main__":
    sys.exit(main())
