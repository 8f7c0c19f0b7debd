"""Traces the bash scripts that systemd starts in a machine once cloud-init has begun.

cloud-init's first command sets BASH_ENV for everything that systemd starts from then on: the later
stages of cloud-init with the provisioner, and services. Since release 24.3, one process runs all
stages, so the script that cloud-init makes of `runcmd` exports BASH_ENV too. Each bash process
writes its own file.
"""

from __future__ import annotations

import hashlib
import json
import shlex
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import pydantic

from harness.errors import HarnessError
from harness.evidence.state_capture import SHELL_TRACE_FOLDER
from harness.shell.coverage import Hits, Place
from harness.shell.warm_shell.pool import TRACE
from harness.visible_text import shortened, visible_line

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from harness.lab.node_request import NodeRequest
    from harness.machine.channels.guest import Guest
    from harness.provisioner import Provisioner
    from harness.provisioning.command import Argv

FOLDER = SHELL_TRACE_FOLDER
_READER = Path(__file__).with_name("trace_reader.py")
_READ_S = 120.0
#: Anybody may write to the folder of traces, since services run as any user.
_SET_UP = """\
mkdir -p "$1/traces" && chmod 1777 "$1/traces" && printf %s "$2" >"$1/$3" || exit
shift 3
systemctl set-environment "$@"
"""


@dataclass(frozen=True)
class _TracedScript:
    sha256: str | None
    places: list[tuple[Annotated[int, pydantic.Field(gt=0)], int, int]]


#: A machine can name any number of files, with names of any length.
_MOST_REFUSED = 20
_SHOWN_BYTES = 512
_TRACED = pydantic.TypeAdapter(dict[str, _TracedScript])


def trace_environment(*, by_trap: bool) -> Mapping[str, str]:
    """Return the variables that make bash in a machine trace itself.

    By default, bash uses its own trace (`set -x`). With `by_trap`, bash uses a trap on DEBUG
    instead, so that the code under test can use `set -x` itself.
    """
    environment = {"BASH_ENV": f"{FOLDER}/{TRACE.name}"}
    return {**environment, "HX_TRACE_BY_TRAP": "1"} if by_trap else environment


def early_commands(environment: Mapping[str, str]) -> Sequence[Argv]:
    """Return the command that cloud-init has to run first, so that bash traces itself."""
    text = TRACE.read_text()
    return [["sh", "-c", _SET_UP, "trace", FOLDER, text, TRACE.name, *_assignments(environment)]]


def _assignments(environment: Mapping[str, str]) -> list[str]:
    return [f"{name}={value}" for name, value in environment.items()]


def traced(
    request: NodeRequest, provisioner: Provisioner, *, by_trap: bool = False
) -> NodeRequest:
    """Return the request, changed so that the node traces the scripts of provisioning and of the test."""
    environment = trace_environment(by_trap=by_trap)
    before = request.before
    # Without commands of the request there is no `runcmd`, or only the provisioner's own.
    if not request.skip_cloud_init and (before or request.command is not None):
        before = (["export", *_assignments(environment)], *before)
    return replace(
        request,
        early=(*early_commands(environment), *request.early),
        before=before,
        provisioner=replace(provisioner, environment={**provisioner.environment, **environment}),
    )


def read_hits(guest: Guest, scripts: Iterable[Path]) -> tuple[Hits, list[str]]:
    """Return the lines of `scripts` that ran in a machine, and a sentence about each ignored file.

    A script of the machine is recognized by its content, at any path. Raises HarnessError if
    the machine does not answer.
    """
    by_digest: dict[str, list[Path]] = {}
    for script in scripts:
        digest = hashlib.sha256(script.read_bytes()).hexdigest()
        by_digest.setdefault(digest, []).append(script)
    names = sorted({script.name for found in by_digest.values() for script in found})
    result = guest.run(
        *("python3", "-I", "-S", "-c", _READER.read_text(), f"{FOLDER}/traces"),
        timeout_s=_READ_S,
        stdin=json.dumps({"names": names, "digests": sorted(by_digest)}),
    )
    try:
        read = _TRACED.validate_json(result.stdout)
    except pydantic.ValidationError as error:
        reason = (result.stderr.strip() or "no reason given").splitlines()[-1]
        raise HarnessError(
            f"The traces of machine '{guest.name}' could not be read ({reason}).\n{result.render()}"
        ) from error
    hits: Hits = {}
    refused: list[str] = []
    for path, traced_script in sorted(read.items()):
        places = {Place(*place) for place in traced_script.places}
        known = by_digest.get(traced_script.sha256 or "", [])
        for script in known:
            hits.setdefault(str(script), set()).update(places)
        if not known:
            what = (
                "the file is gone"
                if traced_script.sha256 is None
                else "the file is another version of a script, or another script"
            )
            refused.append(
                f"Machine '{guest.name}' ran {_shown(path)}, but no script that '--shell-cov' measures has "
                f"the same content: {what}. The coverage lacks the lines of this file."
            )
    if len(refused) > _MOST_REFUSED:
        left_out = len(refused) - _MOST_REFUSED
        refused[_MOST_REFUSED:] = [
            f"Machine '{guest.name}' ran {left_out} more files whose lines the coverage lacks."
        ]
    return hits, refused


def _shown(path: str) -> str:
    return shlex.quote(shortened(visible_line(path), _SHOWN_BYTES))
