"""`harness shell`, `console` and `ssh`: enter a new clone or a running machine."""

from __future__ import annotations

import functools
import os
import shlex
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from harness.cli.command_words import add_command_words
from harness.cli.options import (
    add_gpu_options,
    add_machine_options,
    settings_of,
)
from harness.cli.progress import show_event
from harness.cli.tests import shell_of_test
from harness.machine.entrance.client import attach_console, run_in, ssh_entry_of
from harness.machine.entrance.roster import Roster, roster_folder

if TYPE_CHECKING:
    import argparse
    from collections.abc import Sequence

    from harness.cli.options import Commands
    from harness.gpu import GpuModel
    from harness.lab import Lab
    from harness.lab.saved_states import SavedState
    from harness.provisioning.command import Argv

_PROVISIONED = "provisioned"
#: The words of `--state`, each with a description of the state.
STATES = {
    "booted": "just before cloud-init",
    "cloud-init-done": "after cloud-init, nothing provisioned",
    "baked": "the driver baked in, just before cloud-init",
    _PROVISIONED: "a node with the driver baked in, booted and provisioned with the GPUs",
}
_DEFAULT_STATE = "cloud-init-done"
_DEFAULT_GPU = "h100-sxm5-80gb"
_NO_GPU = "none"


def add_parser(commands: Commands) -> None:
    """Add `shell`, `console` and `ssh` to the commands of `harness`."""
    shell = commands.add_parser("shell")
    add_machine_options(shell)
    add_gpu_options(shell)
    shell.add_argument(
        "--state",
        choices=list(STATES),
        default=_DEFAULT_STATE,
        help="the state from which the clone starts: "
        + "; ".join(f"{name}: {words}" for name, words in STATES.items())
        + " (default: %(default)s)",
    )
    shell.add_argument(
        "--gpu",
        action="append",
        metavar="MODEL",
        help=f"the model of an emulated GPU of the clone, as `harness gpu ls` lists it, or {_NO_GPU}; "
        f"may be repeated (default: {_DEFAULT_GPU})",
    )
    instead = shell.add_mutually_exclusive_group()
    instead.add_argument(
        "--machine",
        metavar="MACHINE",
        help="enter this running machine, and start no clone; the machine's id or name, as `harness ps` "
        "shows it",
    )
    instead.add_argument(
        "--test",
        metavar="NODEID",
        help="start and enter the first machine of this test, with the test's image, GPUs and saved state; "
        "the test does not run",
    )
    instead.add_argument(
        "--bundle",
        type=Path,
        metavar="DIR",
        help="resume and enter the machine that a failed test saved in this folder or archive, as "
        "`harness resume` does",
    )
    console = commands.add_parser("console")
    ssh = commands.add_parser("ssh")
    ssh.add_argument(
        "--print", action="store_true", help="print the ssh command instead of running it"
    )
    for each in (console, ssh):
        each.add_argument(
            "machine", metavar="MACHINE", help="the machine's id or name in `harness ps`"
        )
    for each in (shell, ssh):
        add_command_words(each, metavar="CMD", about="a command and its arguments, after --")
    shell.set_defaults(run=_shell)
    console.set_defaults(run=_console)
    ssh.set_defaults(run=_ssh)


def _shell(arguments: argparse.Namespace) -> int:
    if arguments.machine is not None:
        return run_in(Roster(roster_folder()).find(arguments.machine), arguments.argv)
    if arguments.test is not None:
        shell_of_test(arguments.test, arguments.argv)
    if arguments.bundle is not None:
        from harness.cli.resume import resume  # noqa: PLC0415

        return resume(settings_of(arguments), arguments.bundle, arguments.argv)
    return _in_clone(arguments)


def _in_clone(arguments: argparse.Namespace) -> int:
    # Loading the machines' packages takes longer than running a command in a running machine.
    from harness.lab import Lab  # noqa: PLC0415

    settings = settings_of(arguments)
    with Lab.open(settings, show_event) as lab:
        if arguments.state == _PROVISIONED:
            return _in_node(lab, _models(arguments.gpu, lab), arguments.argv)
        # Refuse a wrong name before the machine starts. The default model needs no check, and
        # loading it takes time.
        named = None if arguments.gpu is None else _models(arguments.gpu, lab)
        # These modules take time to load too, so they are imported after the check.
        from harness.lab.recent_clones import recent_clone  # noqa: PLC0415
        from harness.machine.description.spec import DEFAULT_SLOTS  # noqa: PLC0415

        slots = max(DEFAULT_SLOTS, len(named or ()))
        state = arguments.state if slots == DEFAULT_SLOTS else f"{arguments.state}-{slots}-slots"
        find = functools.partial(saved_state_of, lab, arguments.state, slots)
        with recent_clone(lab, state, find, name="shell") as machine:

            def plug() -> None:
                for model in _models(None, lab) if named is None else named:
                    machine.hot_plug(model)
                machine.wait_for_gpus()

            entered = lab.roster.find(machine.folder.name)
            if not arguments.argv:
                # The shell shows its prompt at once, and receives typed text after the GPU is plugged.
                return run_in(entered, before_input=plug)
            plug()
            return run_in(entered, arguments.argv)


def _in_node(lab: Lab, models: Sequence[GpuModel], argv: Argv) -> int:
    """Provision a node and enter the node; no saved state contains a provisioned node."""
    from harness.lab.bakes import bake_node  # noqa: PLC0415 - most shells need no node
    from harness.lab.node_request import NodeRequest  # noqa: PLC0415

    request = NodeRequest(name="shell", image=bake_node(lab, lab.settings.images[0]), gpus=models)
    with lab.boot(request) as node:
        node.wait_until_provisioned()
        return run_in(lab.roster.find(node.machine.folder.name), argv)


def saved_state_of(lab: Lab, name: str, slots: int) -> SavedState:
    """Return the saved state that `--state` selects, with `slots` slots for GPUs."""
    from harness.lab.saved_states import booted, cloud_init_done  # noqa: PLC0415

    if name == "baked":
        from harness.lab.bakes import bake_node  # noqa: PLC0415 - most shells need no bake

        return booted(bake_node(lab, lab.settings.images[0]), slots=slots)
    state = booted(lab.node_image(), slots=slots)
    return state if name == "booted" else cloud_init_done(state)


def _models(words: Sequence[str] | None, lab: Lab) -> list[GpuModel]:
    names = [_DEFAULT_GPU] if words is None else [word for word in words if word != _NO_GPU]
    if not names:
        return []
    from harness.gpu.catalogue import find_model  # noqa: PLC0415 - not every shell needs a model

    return [find_model(name, *lab.settings.gpu_models) for name in names]


def _console(arguments: argparse.Namespace) -> int:
    machine = Roster(roster_folder()).find(arguments.machine)
    if sys.stdin.isatty():
        print(f"The console of '{machine.id}'; Ctrl-] leaves.", file=sys.stderr)
    attach_console(machine)
    return 0


def _ssh(arguments: argparse.Namespace) -> int:
    """Replace this process by ssh, or only print the ssh command if `--print` is given."""
    entry = ssh_entry_of(Roster(roster_folder()).find(arguments.machine))
    argv = [*entry.argv(), *([shlex.join(arguments.argv)] if arguments.argv else [])]
    if not arguments.print:
        os.execvp(argv[0], argv)  # noqa: S606 - ssh replaces this process
    print(shlex.join(argv))
    return 0
