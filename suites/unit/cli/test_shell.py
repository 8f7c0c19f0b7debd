"""`harness shell` and `ssh`: which machine they enter, and when GPUs are plugged."""

from __future__ import annotations

import contextlib
import dataclasses
import os
import shutil
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, NoReturn, cast

import pytest

from harness import gpu
from harness.cli import main, shell
from harness.cli.shell import saved_state_of
from harness.settings import Settings
from suites.unit.lab.builders import an_image

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from harness.image import Image

MODELS = Path(gpu.__file__).with_name("models")
H100, T4 = "h100-sxm5-80gb", "t4-16gb"


class Machine:
    """Plays a clone or a node; records the calls of its methods."""

    folder = Path("/runs/shell-1")

    def __init__(self, done: list[object]) -> None:
        self.done = done
        self.machine = self

    def hot_plug(self, model: Any) -> None:
        self.done.append(model.name)

    def wait_for_gpus(self) -> None:
        self.done.append("GPUs are there")

    def wait_until_provisioned(self) -> None:
        self.done.append("provisioned")


class LabWithAnImage:
    """Plays a lab whose machines are fakes."""

    def __init__(self, done: list[object]) -> None:
        self.done = done
        self.settings = Settings()
        self.roster = SimpleNamespace(find=lambda word: word)

    def node_image(self) -> Image:
        return an_image()

    @contextlib.contextmanager
    def boot(self, request: Any) -> Iterator[Machine]:
        self.done.append([model.name for model in request.gpus])
        yield Machine(self.done)


@pytest.fixture
def done(monkeypatch: pytest.MonkeyPatch) -> list[object]:
    """Return the recorded actions, in order; a command in a machine ends with exit code 7."""
    done: list[object] = []

    @contextlib.contextmanager
    def recent_clone(_lab: object, state: str, find: Any, *, name: str) -> Iterator[Machine]:
        assert name == "shell"
        done.append((state, find().name, find().slots))
        yield Machine(done)

    def run_in(
        machine: str, argv: object = (), *, before_input: Callable[[], None] | None = None
    ) -> int:
        done.append((machine, argv))
        if before_input is not None:
            before_input()
        return 7

    def open_lab(settings: Settings, _listener: object) -> object:
        lab = LabWithAnImage(done)
        lab.settings = settings
        return contextlib.nullcontext(lab)

    def bake_node(_lab: object, _name: str) -> Image:
        return dataclasses.replace(an_image(), name="baked")

    monkeypatch.setattr("harness.lab.Lab", SimpleNamespace(open=open_lab))
    monkeypatch.setattr("harness.lab.bakes.bake_node", bake_node)
    monkeypatch.setattr("harness.lab.recent_clones.recent_clone", recent_clone)
    monkeypatch.setattr(shell, "run_in", run_in)
    monkeypatch.setattr(shell, "roster_folder", lambda: Path("/roster"))
    monkeypatch.setattr(
        shell, "Roster", lambda _: SimpleNamespace(find=lambda word: f"found {word}")
    )
    return done


CLONE = ("cloud-init-done", "debian-12-cloud-init-done", 4)
ENTERED, COMMAND = ("shell-1", ()), ("shell-1", ["id", "-u"])
THERE = "GPUs are there"


def test_gpus_are_plugged_after_an_interactive_shell_starts_but_before_a_command_starts(
    done: list[object],
) -> None:
    rows: list[tuple[str, list[object]]] = [
        ("shell", [CLONE, ENTERED, H100, THERE]),
        ("shell -- id -u", [CLONE, H100, THERE, COMMAND]),
        ("shell --gpu none -- id -u", [CLONE, THERE, COMMAND]),
        (
            f"shell --state booted --gpu {T4} --gpu {H100}",
            [("booted", "debian-12-booted", 4), ENTERED, T4, H100, THERE],
        ),
        (
            "shell --state baked " + f"--gpu {T4} " * 5,
            [("baked-5-slots", "baked-booted", 5), ENTERED, *[T4] * 5, THERE],
        ),
        ("shell --state provisioned", [[H100], "provisioned", ("shell-1", [])]),
        ("shell --state provisioned --gpu none -- id -u", [[], "provisioned", COMMAND]),
        ("shell --machine one -- id -u", [("found one", ["id", "-u"])]),
    ]
    for words, expected in rows:
        done.clear()
        assert main(words.split()) == 7, words

        assert done == expected, words


def test_shell_accepts_a_users_gpu_model_and_refuses_an_unknown_model_before_a_machine_starts(
    done: list[object], capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    shutil.copy(MODELS / f"{T4}.yaml", tmp_path / "x100.yaml")

    assert main(["shell", "--gpu=x100"]) == 2
    assert "'x100'" in capsys.readouterr().err
    assert done == []
    assert main(["shell", "--gpu=x100", f"--gpu-models={tmp_path}"]) == 7
    assert done == [CLONE, ENTERED, "x100", THERE]


def test_shell_refuses_two_options_that_select_a_machine(
    done: list[object], capsys: pytest.CaptureFixture[str]
) -> None:
    for words in ("--machine=a --test=b", "--test=b --bundle=c", "--bundle=c --machine=a"):
        with pytest.raises(SystemExit, match=r"^2$"):
            main(["shell", *words.split()])

        assert "not allowed with argument" in capsys.readouterr().err, words
        assert done == [], words


@pytest.mark.usefixtures("done")
@pytest.mark.parametrize(
    ("words", "command"),
    [("", []), ("-- ls /a;b", ["ls '/a;b'"])],
)
def test_ssh_command_is_quoted_for_the_shell_of_the_guest(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], words: str, command: Any
) -> None:
    became: list[list[str]] = []

    def become(_program: str, argv: list[str]) -> NoReturn:
        became.append(argv)
        raise KeyboardInterrupt

    entry = SimpleNamespace(argv=lambda: ["ssh", "-p", "2222"])
    monkeypatch.setattr(shell, "ssh_entry_of", lambda machine: {"found one": entry}[machine])
    monkeypatch.setattr(os, "execvp", become)

    assert main(["ssh", "one", *words.split()]) == 130
    assert main(["ssh", "--print", "one", *words.split()]) == 0

    assert became == [["ssh", "-p", "2222", *command]]
    quoted = """ 'ls '"'"'/a;b'"'"''""" if command else ""
    assert capsys.readouterr().out == f"ssh -p 2222{quoted}\n"


def test_saved_state_has_at_least_four_slots_and_one_for_each_requested_gpu() -> None:
    """With 4 slots, a fifth `--gpu` failed: 'All 4 root ports of machine 'shell' are in use'."""
    for name in ("booted", "cloud-init-done"):
        lab = cast("Any", LabWithAnImage([]))

        assert saved_state_of(lab, name, 8).slots == 8, name
        assert saved_state_of(lab, name, 1).slots == 4, name
