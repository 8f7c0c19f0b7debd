"""Each fake answers a dialogue as the real tool did in a machine, and leaves the same files."""

from __future__ import annotations

import shlex
import shutil
from typing import TYPE_CHECKING

from harness.fixtures.dialogues import (
    Action,
    Dialogue,
    RecordedStep,
    expect_same_step,
    load_dialogue,
    render,
)
from harness.fixtures.dialogues.containerd import CONTAINERD, IMAGE, SERVED
from harness.fixtures.dialogues.dkms import DKMS
from harness.fixtures.dialogues.kernel_modules import KERNEL_MODULES
from harness.fixtures.dialogues.metadata import METADATA
from harness.fixtures.dialogues.packages import PACKAGES
from harness.fixtures.dialogues.systemd import SYSTEMD
from harness.shell import fakes
from harness.shell.mocks.commands import Answer
from suites.unit.shell.fakes.calls import a_call

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from pathlib import Path

    from harness.shell.fakes.fake import Fake

RECORDED = "debian-12"


class Replay:
    """Runs a dialogue with fakes, whose files are in a folder of the test."""

    def __init__(self, dialogue: Dialogue, root: Path, *used: Fake) -> None:
        self.dialogue = dialogue
        self.fakes = [fake.use_root(root) for fake in used]
        self.root = root
        self.actions: dict[str, Callable[[], None]] = {}

    def write(self, path: str, text: str) -> None:
        target = self.root / path.lstrip("/")
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_text(text)

    def run(self) -> None:
        """Assert that each step has the recorded result."""
        for recorded in load_dialogue(self.dialogue.tool, RECORDED).steps:
            answer = Answer()
            if recorded.action is not None:
                self.actions[recorded.action]()
            else:
                answer = self._answer(shlex.split(recorded.command or ""))
            seen = RecordedStep(
                command=recorded.command,
                action=recorded.action,
                exit_code=answer.exit_code,
                stdout=answer.stdout,
                stderr=answer.stderr,
                paths=self._paths(),
            )
            expect_same_step(recorded, seen, self.dialogue)

    def _answer(self, argv: list[str]) -> Answer:
        if argv[0] == "cat":
            return Answer(stdout=(self.root / argv[1].lstrip("/")).read_text())
        fake = next(fake for fake in self.fakes if argv[0] in fake.commands)
        return fake.answer(a_call(*argv))

    def _paths(self) -> tuple[str, ...]:
        """Return the watched paths that exist, in the order in which a shell lists them."""
        return tuple(
            f"/{found.relative_to(self.root)}"
            for pattern in self.dialogue.watched
            for found in sorted(self.root.glob(pattern.lstrip("/")))
        )


def test_recordings_have_the_same_steps_as_the_dialogues_in_the_code() -> None:
    for dialogue in (SYSTEMD, KERNEL_MODULES, CONTAINERD, PACKAGES, METADATA, DKMS):
        recording = load_dialogue(dialogue.tool, RECORDED)

        assert [str(step) for step in recording.steps] == [
            f"({step.name})" if isinstance(step, Action) else render(step, recording.facts)
            for step in dialogue.steps
        ], "Record the dialogue again, as fixtures/data/recordings/README.md says."


def test_fake_of_systemctl_gives_the_recorded_answers(tmp_path: Path) -> None:
    wanted = "[Install]\nWantedBy=multi-user.target\n"
    oneshot = "[Service]\nType=oneshot\n"
    systemd = fakes.Systemd(
        {
            "demo": fakes.Unit(
                text=f"[Unit]\nDescription=A service of the dialogue\n[Service]\n{wanted}"
            ),
            "demo-once": fakes.Unit(text=oneshot),
            "demo-remain": fakes.Unit(text=f"{oneshot}RemainAfterExit=yes\n{wanted}"),
            "demo-broken": fakes.Unit(text=f"{oneshot}{wanted}", start_failures=fakes.ALWAYS),
        }
    )
    replay = Replay(SYSTEMD, tmp_path, systemd)
    new = "/etc/systemd/system/demo-new.service"
    text = "[Service]\nExecStart=/bin/sleep infinity\n[Install]\nWantedBy=multi-user.target\n"
    drop_in = "[Service]\nExecStart=\nExecStart=/bin/sleep 1000\n"
    replay.actions = {
        "write new.service": lambda: replay.write(new, text),
        "change new.service": lambda: replay.write(new, f"{text}# changed\n"),
        "write a drop-in": lambda: replay.write(f"{new}.d/10-demo.conf", drop_in),
        "change the drop-in": lambda: replay.write(
            f"{new}.d/10-demo.conf", f"{drop_in}# changed\n"
        ),
    }

    replay.run()


def test_fakes_of_kernel_module_tools_give_the_recorded_answers(tmp_path: Path) -> None:
    kernel = load_dialogue(KERNEL_MODULES.tool, RECORDED).facts["kernel"]
    folder = f"/lib/modules/{kernel}/kernel"

    def module(path: str, *needs: str, fields: Mapping[str, str] | None = None) -> fakes.Module:
        return fakes.Module(path=f"{folder}/{path}.ko", needs=needs, fields=fields or {})

    modules = fakes.KernelModules(
        {
            "8021q": module(
                "net/8021q/8021q",
                "mrp",
                "garp",
                fields={"license": "GPL", "version": "1.8", "depends": "mrp,garp"},
            ),
            "garp": module("net/802/garp", "stp", "llc"),
            "mrp": module("net/802/mrp"),
            "stp": module("net/802/stp", "llc"),
            "llc": module("net/llc/llc"),
            "binfmt_misc": module("fs/binfmt_misc"),
        },
        kernel=kernel,
        in_proc=True,
    )
    replay = Replay(KERNEL_MODULES, tmp_path, modules)
    replay.actions = {
        "use binfmt_misc": lambda: modules.hold("binfmt_misc"),
        "release binfmt_misc": lambda: modules.release("binfmt_misc"),
    }

    replay.run()


def test_fake_of_ctr_gives_the_recorded_answers(tmp_path: Path) -> None:
    config = next(
        line
        for line in load_dialogue(CONTAINERD.tool, RECORDED).steps[0].stdout.splitlines()
        if line.startswith("sha256:")
    )
    containerd = fakes.Containerd([IMAGE, config], registry=[SERVED])

    def program(run: fakes.ContainerRun) -> Answer | None:
        script = run.arguments[-1]
        if script.startswith("echo out"):
            return Answer(stdout="out\n", stderr="err\n", exit_code=3)
        return Answer(stdout="hello\n") if script.startswith("echo hello") else None

    containerd.on_run(SERVED, program)

    Replay(CONTAINERD, tmp_path, containerd).run()


def test_fake_of_curl_gives_the_recorded_answers(tmp_path: Path) -> None:
    metadata = fakes.InstanceMetadata(
        {
            "compute": {
                "location": "westeurope",
                "vmSize": "Standard_ND96isr_H100_v5",
                "tagsList": [{"name": "SkipGpuDriverInstall", "value": "false"}],
            }
        }
    )
    (tmp_path / "run/dialogue-metadata").mkdir(parents=True)
    replay = Replay(METADATA, tmp_path, metadata)
    replay.actions = {
        "service is slow": lambda: setattr(metadata, "is_slow", True),
        "service is quick": lambda: setattr(metadata, "is_slow", False),
        "service stops": lambda: setattr(metadata, "is_up", False),
    }

    replay.run()


def test_fakes_of_dpkg_and_apt_give_the_recorded_answers(tmp_path: Path) -> None:
    def package(name: str, version: str, *depends: str) -> fakes.Package:
        return fakes.Package(
            name=name,
            version=version,
            depends=depends,
            architecture="all",
            description="package of a dialogue",
            files={f"/usr/share/hx/{name}": f"{name} {version}\n"},
            configuration={f"/etc/hx/{name}.conf": "setting=1\n"},
        )

    repository = [
        package("hx-lib", "1.0"),
        package("hx-app", "1.0", "hx-lib (>= 1.0)"),
        package("hx-app", "2.0", "hx-lib (>= 1.0)"),
        package("hx-other", "1.0"),
        package("hx-broken", "1.0", "hx-no-such"),
    ]
    packages = fakes.Packages(
        repository=repository,
        archives={f"/srv/dialogue/{each.file_name}": each for each in repository},
        has_lists=False,
    )
    replay = Replay(PACKAGES, tmp_path, packages)
    replay.actions = {"lock": packages.lock, "unlock": packages.unlock}

    replay.run()


def test_fake_of_dkms_gives_the_recorded_answers(tmp_path: Path) -> None:
    kernel = load_dialogue(DKMS.tool, RECORDED).facts["kernel"]
    modules = fakes.KernelModules(kernel=kernel)
    dkms = fakes.Dkms(
        [
            fakes.Source(name="hxdemo", version="1.0"),
            fakes.Source(name="hxdemo", version="2.0"),
        ],
        kernels=[kernel],
        modules=modules,
    )
    dkms.fail_builds("hxdemo", "2.0", fakes.ALWAYS)
    replay = Replay(DKMS, tmp_path, dkms, modules)
    replay.actions = {"delete the tree": lambda: shutil.rmtree(tmp_path / "var/lib/dkms/hxdemo")}

    replay.run()
