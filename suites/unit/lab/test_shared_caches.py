"""The shared caches of a run, and the hosts on which a shared checkpoint is valid."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from harness.errors import BadInputError
from harness.lab import shared_caches
from harness.lab.shared_caches import host_facts, open_shared_caches
from harness.machine.description.spec import Accelerator
from harness.settings import Settings
from harness.shared_store import Address
from harness.shell.mocks.scripted_runner import ScriptedRunner

if TYPE_CHECKING:
    from pathlib import Path

VERSION = "QEMU emulator version 7.2.22 (Debian)"


def test_shared_caches_have_the_store_address_and_write_permission_of_the_settings(
    tmp_path: Path,
) -> None:
    for is_writable in (False, True):
        settings = Settings(
            cache=tmp_path,
            store="http://127.0.0.1:5000/harness",
            is_store_writable=is_writable,
        )

        caches = open_shared_caches(settings)

        assert {"images", "checkpoints", "derived"} <= set(caches), is_writable
        assert {cache.is_writable for cache in caches.values()} == {is_writable}, is_writable
        assert {cache.partial.parent for cache in caches.values()} == {tmp_path}, is_writable
        assert {cache.client.address for cache in caches.values()} == {
            Address.parse("http://127.0.0.1:5000/harness")
        }, is_writable
    assert open_shared_caches(Settings(cache=tmp_path)) == {}
    with pytest.raises(BadInputError):
        open_shared_caches(Settings(cache=tmp_path, store="not an address"))


@pytest.fixture
def cpu_info(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    path = tmp_path / "cpuinfo"
    path.write_text("processor\t: 0\nmodel name\t: Some CPU @ 3 GHz\nflags\t: fpu\n")
    monkeypatch.setattr(shared_caches, "_CPU_INFO", path)
    return path


def facts(
    accelerator: Accelerator, stdout: str = f"{VERSION}\nCopyright\nAll rights reserved"
) -> dict[str, str]:
    with ScriptedRunner().expect(["my-qemu", "--version"], stdout=stdout) as runner:
        return host_facts("my-qemu", accelerator, runner)


@pytest.mark.usefixtures("cpu_info")
def test_saved_state_depends_on_the_qemu_version_and_only_under_kvm_on_the_processor() -> None:
    assert facts(Accelerator.KVM) == {"qemu": VERSION, "processor": "Some CPU @ 3 GHz"}
    assert facts(Accelerator.TCG) == {"qemu": VERSION, "processor": "any processor"}


def test_qemu_version_and_processor_that_cannot_be_read_are_shown_as_unknown(
    cpu_info: Path,
) -> None:
    cpu_info.write_text("")

    assert facts(Accelerator.KVM, "") == {
        "qemu": "unknown QEMU",
        "processor": "unknown processor",
    }
