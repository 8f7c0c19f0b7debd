"""A saved state depends on the program of QEMU, and under KVM also on the processor."""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from harness.errors import RequirementError
from harness.machine.description.spec import Accelerator
from harness.machine.program_answers import ProgramAnswers
from harness.machine.qemu.driver import qemu_identity

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

PROCESSOR = {
    "processor": "0",
    "vendor_id": "GenuineIntel",
    "model name": "Xeon",
    "microcode": "0x1",
    "cpu MHz": "2000.0",
    "flags": "fpu sse",
}
VARYING = {"processor", "cpu MHz"}


@pytest.fixture(autouse=True)
def _nothing_remembered() -> Iterator[None]:
    qemu_identity.cache_clear()
    yield
    qemu_identity.cache_clear()


@pytest.fixture
def program(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return the only program of the host."""
    program = tmp_path / "bin" / "qemu"
    program.parent.mkdir()
    program.write_bytes(b"ELF")
    program.chmod(0o755)
    monkeypatch.setenv("PATH", str(program.parent))
    return program


@pytest.fixture
def processors(monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """Return a function that gives the host these processors."""
    read_text = Path.read_text
    shown: list[str] = []

    def read(path: Path, encoding: str | None = None, errors: str | None = None) -> str:
        return shown[-1] if str(path) == "/proc/cpuinfo" else read_text(path, encoding, errors)

    def have(*processors: dict[str, str]) -> None:
        shown.append(
            "".join(
                "".join(f"{key}\t: {value}\n" for key, value in each.items()) + "\n"
                for each in processors
            )
        )
        qemu_identity.cache_clear()

    monkeypatch.setattr(Path, "read_text", read)
    return have


def test_qemu_identity_is_the_digest_of_the_program_file(program: Path) -> None:
    assert qemu_identity("qemu", Accelerator.TCG) == hashlib.sha256(b"ELF").hexdigest()

    program.write_bytes(b"ELF 2")
    qemu_identity.cache_clear()

    assert qemu_identity("qemu", Accelerator.TCG) == hashlib.sha256(b"ELF 2").hexdigest()


@pytest.mark.usefixtures("program")
def test_error_for_a_missing_qemu_has_its_name() -> None:
    with pytest.raises(RequirementError, match="no QEMU 'qemu-that-is-not-there' on this host"):
        qemu_identity("qemu-that-is-not-there", Accelerator.TCG)


@pytest.mark.usefixtures("program")
def test_processor_is_part_of_the_identity_of_qemu_only_under_kvm(
    processors: Callable[..., None], tmp_path: Path
) -> None:
    for key, answers in (
        *((key, ProgramAnswers(tmp_path / key)) for key in PROCESSOR.keys() - VARYING),
        ("flags", None),
    ):
        processors(PROCESSOR)
        before = [qemu_identity("qemu", each, answers) for each in Accelerator]

        processors({**PROCESSOR, key: "other"})
        kvm, tcg = (qemu_identity("qemu", each, answers) for each in Accelerator)

        assert kvm != before[0]
        assert tcg == before[1]


@pytest.mark.usefixtures("program")
def test_qemu_identity_does_not_depend_on_the_current_cpu_frequency(
    processors: Callable[..., None],
) -> None:
    processors(PROCESSOR, {**PROCESSOR, "processor": "1"})
    before = qemu_identity("qemu", Accelerator.KVM)

    processors({**PROCESSOR, "cpu MHz": "3000.0"})

    assert qemu_identity("qemu", Accelerator.KVM) == before
