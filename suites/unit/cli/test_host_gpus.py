"""`harness gpu host` lists and leases the GPUs of a simulated host."""

from __future__ import annotations

import contextlib
import json
from dataclasses import dataclass
from types import SimpleNamespace
from typing import TYPE_CHECKING

import pytest

from harness.cli import host_gpus, main
from harness.gpu.passthrough import GpuChoice
from harness.gpu.passthrough.discovery import read_functions
from harness.gpu.passthrough.leases import GpuLease
from harness.gpu.passthrough.pool import GpuPool
from harness.gpu.passthrough.records import DeviceRecords
from harness.provisioning.wait import Deadline
from suites.unit.cli.gpu_host import AUDIO, GPU, SECOND

if TYPE_CHECKING:
    from pathlib import Path

    from suites.fakes.clock import FakeClock
    from suites.unit.gpu.passthrough.fake_host import FakeHost, FakeKernel


@pytest.mark.usefixtures("kernel")
def test_list_has_a_line_for_each_gpu_and_a_line_for_each_waiting_process(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    leases = [
        GpuLease(who=who, process=7, user="ann", since="noon", wanted=((GPU,),), taken=taken)
        for who, taken in (("one", (GPU,)), ("two", ()))
    ]
    monkeypatch.setattr(GpuPool, "leases", lambda _: leases)

    assert main(["gpu", "host", "ls"]) == 0

    header, first, second, waiting = capsys.readouterr().out.splitlines()
    assert waiting == "'two' of user ann (process 7, since noon) waits."
    assert header.split() == [
        "ADDRESS",
        "PCI",
        "ID",
        "MODEL",
        "GROUP",
        "DRIVER",
        "VERDICT",
        "REASON",
    ]
    words = first.split()
    assert (words[0], words[1], words[3:6]) == (GPU, "10de:2330", ["5", "nvidia", "usable"])
    assert "h100" in words[2]
    assert second.split()[3:6] == ["6", "-", "refused"]
    assert second.endswith(
        f"{SECOND}: The firmware chose this function for the console (boot_vga is 1)."
    )


@pytest.mark.usefixtures("kernel")
def test_json_list_has_each_gpu_with_its_pci_functions(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["gpu", "host", "ls", "--json"]) == 0

    document = json.loads(capsys.readouterr().out)
    gpu, other = document["gpus"]
    assert (gpu["address"], gpu["verdict"], gpu["is_usable"]) == (GPU, "usable", True)
    assert (gpu["iommu_group"], other["verdict"]) == (5, "refused")
    assert [each["address"] for each in gpu["functions"]] == [GPU, AUDIO]
    assert (gpu["functions"][0]["device"], gpu["functions"][0]["reset_methods"]) == (
        "2330",
        ["flr", "bus"],
    )
    assert document["leases"] == []


def test_list_on_a_host_without_gpus_says_that_the_host_has_no_gpus(
    host: FakeHost, kernel: FakeKernel, capsys: pytest.CaptureFixture[str]
) -> None:
    del kernel
    for address in (GPU, AUDIO, SECOND):
        host.remove(address)

    assert main(["gpu", "host", "ls"]) == 0

    assert capsys.readouterr().out == "This host has no GPU on its PCI bus.\n"


@pytest.mark.usefixtures("kernel")
def test_exit_code_is_2_for_an_invalid_key_in_the_inventory(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "gpus.yaml").write_text('gpus:\n  "0000:65:00.0": {modle: l4}\n')

    assert main(["gpu", "host", "ls", f"--gpu-inventory={tmp_path / 'gpus.yaml'}"]) == 2

    assert "gpus.yaml:2: key 'gpus.0000:65:00.0.modle'" in capsys.readouterr().err


@pytest.mark.usefixtures("kernel")
def test_default_inventory_of_the_host_is_read_without_an_option(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "absent.yaml").write_text('gpus:\n  "0000:65:00.0": {exclude: broken fan}\n')

    assert main(["gpu", "host", "ls"]) == 0

    assert "excludes the GPU: broken fan." in capsys.readouterr().out


@pytest.mark.usefixtures("kernel")
def test_gpu_that_cannot_be_leased_is_refused_with_the_reason(
    capfd: pytest.CaptureFixture[str],
) -> None:
    for arguments, message in (
        (
            [f"--address={GPU}", f"--address={SECOND}"],
            "The firmware chose this function for the console",
        ),
        (["--count=2"], "2 GPUs are requested together"),
    ):
        assert main(["gpu", "host", "run", *arguments, "--", "true"]) == 2

        assert message in capfd.readouterr().err


def test_gpu_host_run_waits_for_a_leased_gpu_as_long_as_the_wait_option_says(
    tmp_path: Path,
    host: FakeHost,
    kernel: FakeKernel,
    fake_time: FakeClock,
    capsys: pytest.CaptureFixture[str],
) -> None:
    pool = GpuPool(tmp_path / "leases", root=host.root, runner=kernel)

    with pool.lease([GpuChoice()], holder="a suite", deadline=Deadline.after(1)):
        assert main(["gpu", "host", "run", "--wait=2", "--", "true"]) == 2

    assert 2 <= fake_time.elapsed_s < 4
    assert "'a suite'" in capsys.readouterr().err


@dataclass
class EndedProcess:
    """A fake process of a command that has ended."""

    returncode: int

    def wait(self) -> int:
        return self.returncode


@pytest.mark.usefixtures("kernel")
def test_gpu_host_run_passes_gpu_addresses_to_the_command_and_exits_137_after_sigkill(
    monkeypatch: pytest.MonkeyPatch, host: FakeHost
) -> None:
    seen: list[tuple[list[str], str, object]] = []
    ended: list[int] = []

    def spawn(argv: list[str], *, env: dict[str, str], **_rest: object) -> EndedProcess:
        bound = read_functions(host.root)[GPU].driver
        seen.append((argv, env[host_gpus.ADDRESSES_VARIABLE], bound))
        return EndedProcess(-9)

    monkeypatch.setattr(host_gpus, "spawn", spawn)
    monkeypatch.setattr(host_gpus, "end", lambda process: ended.append(process.returncode))
    monkeypatch.setenv(host_gpus.ADDRESSES_VARIABLE, "of another run")

    assert main(["gpu", "host", "run", "--", "tool", "--flag"]) == 137

    assert ended == [-9]
    assert seen == [(["tool", "--flag"], f"{GPU},{AUDIO}", "vfio-pci")]


def test_gpu_host_run_passes_the_addresses_of_two_gpus_and_returns_the_exit_code(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    leased = [SimpleNamespace(addresses=("a.0", "a.1")), SimpleNamespace(addresses=("b.0",))]
    pool = SimpleNamespace(lease=lambda *_, **_named: contextlib.nullcontext(leased))
    told: list[str] = []

    def spawn(_argv: list[str], *, env: dict[str, str], **_rest: object) -> EndedProcess:
        told.append(env[host_gpus.ADDRESSES_VARIABLE])
        return EndedProcess(3)

    monkeypatch.setattr(host_gpus, "open_gpu_pool", lambda _settings: pool)
    monkeypatch.setattr(host_gpus, "spawn", spawn)
    monkeypatch.setattr(host_gpus, "end", lambda _process: None)

    assert main(["gpu", "host", "run", "--count=2", "--", "tool"]) == 3
    assert told == ["a.0,a.1 b.0"]


@pytest.mark.usefixtures("fake_time")
def test_quarantined_gpu_is_listed_and_released(
    host: FakeHost, kernel: FakeKernel, capsys: pytest.CaptureFixture[str]
) -> None:
    kernel.dies_at_reset.add(GPU)
    assert main(["gpu", "host", "run", "--wait=0.1", "--", "true"]) == 2
    capsys.readouterr()
    assert main(["gpu", "host", "ls"]) == 0
    listed = capsys.readouterr().out
    assert "refused  The GPU does not answer" in listed
    assert "The GPU has been quarantined since 20" in listed

    assert main(["gpu", "host", "release", GPU]) == 2
    assert f"{GPU} does not answer" in capsys.readouterr().err

    (host.device(GPU) / "config").write_bytes(b"\xde\x10\x30\x23")
    assert main(["gpu", "host", "release", "65:00.0"]) == 0
    assert capsys.readouterr().out == f"GPU {GPU} is released.\n"
    assert host.driver_of(GPU) == "nvidia"


@pytest.mark.usefixtures("kernel")
def test_release_is_refused_for_a_gpu_that_is_not_quarantined(
    capsys: pytest.CaptureFixture[str],
) -> None:
    for address in (GPU, "gpu0"):
        assert main(["gpu", "host", "release", address]) == 2, address

        error = capsys.readouterr().err
        assert "is not quarantined" in error or "is not a PCI address" in error, address


def test_restore_command_exits_with_0_only_if_each_gpu_is_restored(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    rows: list[tuple[list[bool], int]] = [([], 0), ([True, False], 2), ([False, True], 2)]
    for restored, code in rows:
        done = [
            SimpleNamespace(is_restored=each, sentence=f"GPU {number} \x1b[2J")
            for number, each in enumerate(restored)
        ]
        pool = SimpleNamespace(restore_abandoned=lambda done=done: done, strange_files=list)
        monkeypatch.setattr(
            "harness.cli.host_gpus.open_gpu_pool", lambda _settings, pool=pool: pool
        )

        assert main(["gpu", "host", "restore"]) == code

        lines = capsys.readouterr().out.splitlines()
        assert lines == [f"GPU {number} \\x1b[2J" for number, _ in enumerate(restored)]


def test_restore_command_rebinds_drivers_of_a_dead_holder_or_exits_with_2(
    host: FakeHost, kernel: FakeKernel, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "leases").mkdir()
    records = DeviceRecords(tmp_path / "leases", boot_id=host.boot_id)
    records.save_drivers(GPU, [read_functions(host.root)[GPU]])
    host.unbind(GPU)
    host.bind(GPU, "vfio-pci")
    assert main(["gpu", "host", "restore"]) == 0
    assert capsys.readouterr().out == f"{GPU} is bound to its earlier drivers again.\n"
    assert host.driver_of(GPU) == "nvidia"

    records.save_drivers(GPU, [read_functions(host.root)[GPU]])
    host.unbind(GPU)
    host.bind(GPU, "vfio-pci")
    kernel.broken["unbind"] = "Input/output error"
    assert main(["gpu", "host", "restore"]) == 2

    printed = capsys.readouterr().out
    assert f"{GPU} is not bound to its earlier drivers again: GPU {GPU} is quarantined:" in printed
    assert "Input/output error" in printed
