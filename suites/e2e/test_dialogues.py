"""Real tools in a machine behave as in recorded dialogues, by which unit tests check the fakes.

`--record-dialogues` records new dialogues in place of the comparison.
"""

from __future__ import annotations

import shlex
from typing import TYPE_CHECKING

import pytest

from harness.errors import RequirementError
from harness.fixtures.dialogues import (
    Action,
    Dialogue,
    DialogueRecording,
    RecordedStep,
    expect_same_step,
    load_dialogue,
    recording_path,
    render,
)
from harness.fixtures.dialogues.containerd import CONTAINERD
from harness.fixtures.dialogues.dkms import DKMS
from harness.fixtures.dialogues.kernel_modules import KERNEL_MODULES
from harness.fixtures.dialogues.metadata import METADATA
from harness.fixtures.dialogues.packages import PACKAGES
from harness.fixtures.dialogues.systemd import SYSTEMD
from harness.plugin.select import requirements

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from harness.fixtures.saved_states import CloneState
    from harness.lab.saved_states import SavedState
    from harness.machine.channels.guest import Guest
    from harness.settings import Settings

DIALOGUES = (SYSTEMD, KERNEL_MODULES, CONTAINERD, PACKAGES, METADATA, DKMS)

_ENVIRONMENT = {
    "DEBIAN_FRONTEND": "noninteractive",
    "LC_ALL": "C.UTF-8",
    "PATH": "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin",
}
_STEP_S = 300.0


def run_dialogue(guest: Guest, dialogue: Dialogue, image: str) -> DialogueRecording:
    """Run a dialogue in a guest, and return its results as a recording."""
    if dialogue.prepare:
        guest.output_of("env", *_assignments(), "sh", "-ec", dialogue.prepare, timeout_s=_STEP_S)
    facts = {name: guest.output_of(*shlex.split(line)) for name, line in dialogue.facts.items()}
    return DialogueRecording(
        tool=dialogue.tool,
        image=image,
        versions={
            name: guest.output_of(*shlex.split(line)) for name, line in dialogue.versions.items()
        },
        facts=facts,
        steps=tuple(_steps(guest, dialogue, facts)),
    )


def _steps(guest: Guest, dialogue: Dialogue, facts: dict[str, str]) -> Iterator[RecordedStep]:
    watch = " ".join(dialogue.watched)
    for step in dialogue.steps:
        if isinstance(step, Action):
            guest.output_of("env", *_assignments(), "sh", "-ec", step.script, timeout_s=_STEP_S)
            yield RecordedStep(action=step.name, paths=_paths(guest, watch))
            continue
        command = render(step, facts)
        result = guest.run(*shlex.split(command), timeout_s=_STEP_S, env=_ENVIRONMENT)
        yield RecordedStep(
            command=command,
            exit_code=result.exit_code,
            stdout=result.stdout,
            stderr=result.stderr,
            paths=_paths(guest, watch),
        )


def _assignments() -> list[str]:
    return [f"{name}={value}" for name, value in _ENVIRONMENT.items()]


def _paths(guest: Guest, watch: str) -> tuple[str, ...]:
    if not watch:
        return ()
    script = f'for path in {watch}; do [ ! -e "$path" ] && [ ! -h "$path" ] || echo "$path"; done'
    return tuple(guest.output_of("sh", "-c", script).splitlines())


@pytest.fixture
def is_recording(pytestconfig: pytest.Config) -> bool:
    return bool(pytestconfig.getoption("--record-dialogues", default=False))


@pytest.fixture
def recording(
    dialogue: Dialogue, image_name: str, settings: Settings, *, is_recording: bool
) -> Path:
    """Return the path of the recording of a dialogue on this image."""
    path = recording_path(dialogue.tool, image_name)
    with requirements(settings):
        if not is_recording and not path.is_file():
            raise RequirementError(
                f"There is no recording '{path.name}' of a machine of the image '{image_name}'; "
                "see fixtures/data/recordings/dialogues/README.md for how to make one."
            )
    return path


@pytest.mark.nightly
@pytest.mark.pin_image(reason="the fakes answer as the tools of one image do")
@pytest.mark.parametrize("dialogue", DIALOGUES, ids=lambda dialogue: dialogue.tool)
def test_tool_behaves_as_recorded(
    clone: CloneState,
    cloud_init_done: SavedState,
    dialogue: Dialogue,
    recording: Path,
    *,
    is_recording: bool,
) -> None:
    image = recording.parent.name

    seen = run_dialogue(clone(cloud_init_done).guest, dialogue, image)

    if is_recording:
        recording.parent.mkdir(parents=True, exist_ok=True)
        recording.write_text(seen.to_json())
        return
    recorded = load_dialogue(dialogue.tool, image)
    assert [str(step) for step in seen.steps] == [str(step) for step in recorded.steps]
    for was, now in zip(recorded.steps, seen.steps, strict=True):
        expect_same_step(was, now, dialogue)
