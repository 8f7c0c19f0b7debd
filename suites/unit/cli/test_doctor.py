"""What `harness doctor` reports on hosts that lack programs, disk space, memory or rights."""

from __future__ import annotations

import json
import sys
from dataclasses import dataclass, field, replace
from types import SimpleNamespace
from typing import TYPE_CHECKING, NoReturn

import pytest

from harness import debian_packages
from harness.cli import doctor, main
from harness.cli.doctor import examine
from harness.errors import HarnessError, RequirementError
from harness.machine import accelerator
from harness.machine.capacity.broker import Demand, Entry
from harness.machine.requirement_check import RequirementCheck
from harness.provisioning.command import CommandResult
from harness.settings import AcceleratorOption, Settings
from suites.unit.image.cloud_image_folder import DIGEST, IMAGE

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

PROGRAMS = ("qemu-system-x86_64", "qemu-img", "mmdebstrap", "mke2fs", "ssh", "setpriv")
GIB = 1 << 30


@dataclass
class Host:
    """Simulates a host that has all required programs on PATH, and the output of these programs."""

    folder: Path
    qemu_version: str = "QEMU emulator version 7.2.22 (Debian 1:7.2)\n"
    devices: str = 'name "x-pci-proxy-dev", bus PCI\n'
    exit_codes: dict[str, int] = field(default_factory=dict)
    timed_out: set[str] = field(default_factory=set)

    def __post_init__(self) -> None:
        for name in PROGRAMS:
            (self.folder / name).write_text("#!/bin/sh\nexit 99\n")
            (self.folder / name).chmod(0o755)

    def remove(self, name: str) -> None:
        (self.folder / name).unlink()

    def run(
        self,
        argv: Sequence[str],
        *,
        timeout_s: float,
        stdin: str | None = None,
        env: Mapping[str, str] | None = None,
    ) -> CommandResult:
        del timeout_s, stdin, env
        name = argv[0].rpartition("/")[2]
        answers = {"-device": self.devices, "--version": f"{name} 1.0\n", "-V": ""}
        if name.startswith("qemu-system"):
            answers["--version"] = self.qemu_version
        return CommandResult(
            argv=tuple(argv),
            exit_code=self.exit_codes.get(name, 0),
            timed_out=name in self.timed_out,
            stdout=answers[argv[1]],
            stderr="cannot open shared object file"
            if self.exit_codes.get(name)
            else "Version 9\n",
        )


@pytest.fixture
def host(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Host:
    programs = tmp_path / "bin"
    programs.mkdir()
    monkeypatch.setenv("PATH", str(programs))
    monkeypatch.setattr("shutil.disk_usage", lambda _: SimpleNamespace(free=100 * GIB))
    monkeypatch.setattr("os.geteuid", lambda: 0)
    monkeypatch.setattr(accelerator, "time_stamp_counter_khz", lambda _clock: None)
    memory = tmp_path / "meminfo"
    memory.write_text(f"MemTotal: 1 kB\nMemAvailable: {8 << 20} kB\n")
    monkeypatch.setattr(doctor, "_MEMORY_INFO", memory)
    monkeypatch.setattr(debian_packages, "KEYRING", memory)
    monkeypatch.setattr(doctor, "_reservations", list)
    monkeypatch.setattr(doctor, "examine_host_gpus", lambda _: [])
    monkeypatch.setattr(doctor, "examine_plugins", list)
    return Host(programs)


@pytest.fixture
def settings(tmp_path: Path) -> Settings:
    image = tmp_path / "node.qcow2"
    image.write_bytes(IMAGE)
    return Settings(accelerator=AcceleratorOption.TCG, cache=tmp_path / "cache", image=str(image))


def missing(findings: list[RequirementCheck]) -> dict[str, RequirementCheck]:
    return {each.requirement: each for each in findings if not each.is_met}


def test_host_with_all_programs_and_resources_meets_every_requirement(
    host: Host, settings: Settings
) -> None:
    findings = examine(settings, host)

    assert missing(findings) == {}
    assert [each.requirement for each in findings] == [
        *("QEMU", "accelerator", "emulated-GPU transport", "qemu-img", "mmdebstrap"),
        *("Debian's keys", "mke2fs", "OpenSSH client", "setpriv", "image", "disk", "memory"),
    ]
    assert not [each for each in findings if each.remedy]
    found = {each.requirement: each.found.partition(": ")[2] for each in findings}
    assert (found["OpenSSH client"], found["setpriv"]) == ("Version 9", "setpriv 1.0")
    # The version of a program need not be known.
    host.exit_codes["mke2fs"] = 1
    assert missing(examine(settings, host)) == {}


def test_missing_debian_keys_are_reported_with_their_package(
    host: Host, settings: Settings, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Ubuntu's mmdebstrap package does not install these keys."""
    monkeypatch.setattr(debian_packages, "KEYRING", tmp_path / "none")

    found = missing(examine(settings, host))

    assert list(found) == ["Debian's keys"]
    assert found["Debian's keys"].package == "debian-archive-keyring"


def test_each_missing_program_is_reported_with_its_package(host: Host, settings: Settings) -> None:
    # The doctor also finds mke2fs in this host's /usr/sbin, whatever PATH is.
    for program in set(PROGRAMS) - {"mke2fs"}:
        host.remove(program)

    packages = [each.package for each in examine(settings, host) if each.package is not None]

    assert packages == [
        *("qemu-system-x86", "qemu-utils", "mmdebstrap", "openssh-client", "util-linux")
    ]


def test_doctor_prints_one_command_that_installs_all_missing_packages(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Two requirements may need the same package."""
    for user, command in ((1000, "sudo apt-get"), (0, "apt-get")):
        found = [
            RequirementCheck(requirement="x", is_met=False, found="", package=package)
            for package in ("qemu-utils", None, "e2fsprogs", "qemu-utils")
        ]
        monkeypatch.setattr(doctor, "examine", lambda *_, found=found: found)
        monkeypatch.setattr("os.geteuid", lambda user=user: user)

        assert main(["doctor"]) == 2

        last = capsys.readouterr().out.splitlines()[-1]
        assert last == (
            f"To install all that is missing: {command} install --no-install-recommends "
            "qemu-utils e2fsprogs"
        )


def test_user_who_is_not_root_needs_user_namespaces(
    host: Host, settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("os.geteuid", lambda: 1000)
    monkeypatch.setattr("shutil.which", lambda name, **_: _which(name, host.folder))

    found = missing(examine(settings, host))

    assert list(found) == ["newuidmap"]
    assert "apt-get install --no-install-recommends uidmap" in str(found["newuidmap"].remedy)


def _which(name: str, folder: Path) -> str | None:
    return str(folder / name) if (folder / name).exists() else None


def test_checks_that_depend_on_qemu_are_skipped_if_qemu_is_missing(
    host: Host, settings: Settings
) -> None:
    host.remove("qemu-system-x86_64")

    found = missing(examine(settings, host))

    assert list(found) == ["QEMU", "accelerator", "emulated-GPU transport"]
    assert all(each.remedy for each in found.values())


def test_installed_program_that_cannot_run_does_not_meet_its_requirement(
    host: Host, settings: Settings
) -> None:
    for code, timed_out in ((-6, False), (126, False), (127, False), (1, True)):
        host.exit_codes["mmdebstrap"] = code
        host.timed_out = {"mmdebstrap"} if timed_out else set()

        found = missing(examine(settings, host))

        assert (
            f"ended with exit code {code}: cannot open shared object file"
            in found["mmdebstrap"].found
        ), code


def test_requested_but_unusable_accelerator_is_reported(
    host: Host, settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object, **__: object) -> NoReturn:
        raise RequirementError("KVM was requested, but there is no '/dev/kvm'.")

    monkeypatch.setattr(doctor, "choose_accelerator", refuse)

    found = missing(examine(settings, host))

    assert list(found) == ["accelerator", "emulated-GPU transport"]
    assert found["accelerator"].found == "KVM was requested, but there is no '/dev/kvm'."


def test_unavailable_image_is_reported(host: Host, settings: Settings) -> None:
    for image, sentence in (
        ("nope", "There is no image 'nope' in the catalogue, only 'debian-12"),
        ("nope.qcow2", "nope.qcow2: This file does not exist."),
        ("debian-12-nvidia", "--accept-licence=nvidia-debian-non-free"),
    ):
        found = missing(examine(replace(settings, image=f"debian-12,{image}"), host))

        assert list(found) == ["image"]
        assert sentence in found["image"].found


def test_requirement_for_images_is_met_by_a_recipe_and_a_cloud_image_and_a_file_and_a_url(
    host: Host, settings: Settings
) -> None:
    url = f"https://example.org/x.qcow2#sha256={DIGEST}"
    images = f"debian-12,ubuntu-24.04,{settings.image},{url}"

    assert missing(examine(replace(settings, image=images), host)) == {}


def test_too_little_disk_is_reported_with_a_remedy(
    host: Host, settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("shutil.disk_usage", lambda _: SimpleNamespace(free=GIB // 2))

    found = missing(examine(settings, host))["disk"]

    assert found.found.startswith("0.5 GiB free for")
    assert "XDG_CACHE_HOME" in str(found.remedy)


def test_unknown_image_and_unusable_cache_folder_do_not_hide_a_missing_program(
    host: Host, settings: Settings, tmp_path: Path
) -> None:
    (tmp_path / "file").touch()
    host.remove("mmdebstrap")

    found = missing(examine(replace(settings, cache=tmp_path / "file/cache", image="nope"), host))

    assert list(found) == ["mmdebstrap", "image", "disk"]
    assert "can't be created" in found["disk"].found


def test_too_little_memory_is_reported_with_a_remedy(host: Host, settings: Settings) -> None:
    doctor._MEMORY_INFO.write_text(f"MemAvailable: {1 << 20} kB\n")

    found = missing(examine(settings, host))["memory"]

    assert found.found.startswith("1.0 GiB available")
    assert "-n 1" in str(found.remedy)


def test_memory_check_mentions_the_machine_that_reserved_memory(
    host: Host, settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    demand = Demand(memory_mib=1536, cpus=1)
    entries = [
        Entry(who="node-a", process=7, demand=demand, is_granted=True),
        Entry(who="node-b", process=8, demand=demand),
    ]
    monkeypatch.setattr(doctor, "_reservations", lambda: entries)

    found = examine(settings, host)[-1].found

    assert found.endswith("Reserved by 'node-a' of process 7 (1536 MiB on 1 vCPU).")


def test_unreadable_reservations_are_reported(
    host: Host, settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse() -> list[Entry]:
        raise HarnessError("The broker's folder is a link.")

    monkeypatch.setattr(doctor, "_reservations", refuse)

    assert missing(examine(settings, host))["memory"].found == "The broker's folder is a link."


def test_libvirt_is_not_required_by_the_qemu_driver(
    host: Host, settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "libvirt", None)

    assert missing(examine(settings, host)) == {}


def test_exit_code_of_the_doctor_is_2_if_the_host_does_not_meet_a_needed_requirement(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    rows: list[tuple[list[tuple[bool, bool]], int, set[str]]] = [
        ([(True, True)], 0, {"ok"}),
        ([(False, False), (True, True), (True, False)], 0, {"ok", "optional"}),
        ([(True, True), (False, True), (True, True)], 2, {"ok", "missing"}),
    ]
    for findings, code, shown in rows:
        checks = [
            RequirementCheck(requirement="x", is_met=is_met, found="", is_needed=is_needed)
            for is_met, is_needed in findings
        ]
        monkeypatch.setattr(doctor, "examine", lambda *_, checks=checks: checks)

        assert main(["doctor"]) == code, findings
        assert {*capsys.readouterr().out.split()} & {"ok", "optional", "missing"} == shown, (
            findings
        )
        assert main(["doctor", "--json"]) == code, findings
        documents = json.loads(capsys.readouterr().out)
        assert [(each["is_met"], each["is_needed"]) for each in documents] == findings, findings


def test_doctor_escapes_markup_in_its_table(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A path may contain text that rich would interpret as markup."""
    findings = [RequirementCheck(requirement="disk", is_met=True, found="[/red] [bold]x")]
    monkeypatch.setattr(doctor, "examine", lambda *_: findings)

    assert main(["doctor"]) == 0

    assert "[/red] [bold]x" in capsys.readouterr().out
