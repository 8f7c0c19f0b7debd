"""Programs that run one operation of the harness: `python -m suites.endurance.programs NAME FOLDER`.

A campaign disturbs these programs if no command of `harness` runs only this operation.
"""

from __future__ import annotations

import secrets
import shutil
import sys
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from harness.cli import exit_code_of
from harness.errors import HarnessError
from harness.provisioning.wait import SYSTEM_CLOCK, Deadline

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from harness.machine.checkpoint.store import CheckpointPlace

_LONG_S = 120.0
_MIB = 1 << 20
_PATTERN, _PATTERNS = bytes(range(251)), 40_000


def _bundle(folder: Path) -> None:
    from harness.evidence.archive import opened, write_archive  # noqa: PLC0415

    archive = write_archive(folder / "evidence/t.py-test")
    with opened(archive, folder / "runs") as found:
        if not any(found.rglob("serial.log")):
            raise HarnessError(f"The bundle '{archive}' lacks the console.")


def _make(place: CheckpointPlace) -> Mapping[str, str]:
    with place.ram.open("wb") as ram:
        ram.truncate(16 * _MIB)
        ram.write(_PATTERN * _PATTERNS)
    place.state.write_text("state")
    place.disk.write_text("disk")
    return {"qemu": "QEMU 7.2", "processor": "any processor"}


def checkpoint(
    folder: Path, address: str | None = None, *, is_writable: bool = False, image: str = "one"
) -> None:
    """Make a checkpoint, or pull it from a registry; push a new one if the registry is writable."""
    from harness.machine.checkpoint.store import CheckpointStore  # noqa: PLC0415
    from harness.shared_store import Address  # noqa: PLC0415
    from harness.shared_store.client import Patience, RegistryClient  # noqa: PLC0415
    from harness.shared_store.source import SharedCache  # noqa: PLC0415

    shared = None
    if address is not None:
        shared = SharedCache(
            client=RegistryClient(Address.parse(address), patience=Patience(tries=2, pause_s=0.1)),
            repository="checkpoints",
            partial=folder / "cache/partial-pulls",
            is_writable=is_writable,
        )
    store = CheckpointStore(folder / "cache/checkpoints", limit_mib=1000, source=shared)
    with store.use(
        "booted",
        {"image": image},
        _make,
        memory_mib=16,
        deadline=Deadline.after(_LONG_S),
        listener=lambda event: print(event.message, flush=True),  # noqa: T201
    ) as checkpoint:
        if not checkpoint.ram.read_bytes().startswith(_PATTERN * _PATTERNS):
            raise HarnessError(f"The checkpoint '{checkpoint.folder}' has other memory.")
        damaged = [each.damage for each in store.verify() if each.damage is not None]
        if damaged:
            raise HarnessError(f"A checkpoint is damaged: {damaged}.")


def _push(folder: Path, address: str) -> None:
    for pushed in folder.glob("cache/checkpoints/[!.]*"):
        shutil.rmtree(pushed)
    # Each checkpoint is new, since a checkpoint that is already in the registry is not pushed
    # again.
    checkpoint(folder, address, is_writable=True, image=secrets.token_hex(8))


def _image_build(folder: Path) -> None:
    from suites.unit.image.fake_store import Cache, FakeBuilder  # noqa: PLC0415

    cache = Cache(folder, FakeBuilder(lambda: SYSTEM_CLOCK.sleep(0.2)))
    if not cache.ensure().disk.read_bytes().startswith(b"QFI"):
        raise HarnessError("The image has no disk.")


def _image_fetch(folder: Path, server: str) -> None:
    from harness.image.cloud.store import CloudImageStore  # noqa: PLC0415
    from suites.unit.image.cloud_image_folder import a_cloud_image_recipe  # noqa: PLC0415

    store = CloudImageStore(folder / "images")
    recipe = a_cloud_image_recipe(folder / "catalogue", folder=server)
    store.ensure(recipe, deadline=Deadline.after(_LONG_S), listener=lambda _event: None)


def _machine(_folder: Path, driver: str) -> None:
    from harness.lab import Lab  # noqa: PLC0415
    from harness.machine.capacity.broker import Demand  # noqa: PLC0415
    from harness.machine.description.spec import Firmware  # noqa: PLC0415
    from harness.settings import MachineDriver, Settings  # noqa: PLC0415
    from suites.e2e.boot_sector import BOOT_MESSAGE, firmware_machine  # noqa: PLC0415

    settings = Settings()
    if driver == "libvirt":
        settings = replace(
            settings, machine_driver=MachineDriver.LIBVIRT, machine_uri="qemu:///session"
        )
    deadline = Deadline.after(_LONG_S)
    with (
        Lab.open(settings, lambda event: print(event.message, flush=True)) as lab,  # noqa: T201
        lab.broker.reserve("endurance", Demand(memory_mib=256, cpus=1), deadline=deadline),
        firmware_machine(lab, lab.folder, Firmware()) as machine,
    ):
        line = BOOT_MESSAGE.decode().strip()
        machine.console.wait_for(line, deadline, what="the line of its boot sector")


PROGRAMS: Mapping[str, Callable[..., None]] = {
    "bundle": _bundle,
    "checkpoint": checkpoint,
    "push": _push,
    "pull": checkpoint,
    "image-build": _image_build,
    "image-fetch": _image_fetch,
    "machine": _machine,
}


def main(name: str, folder: str, *words: str) -> int:
    """Run a program, and print its errors as the commands of `harness` do."""

    def act() -> int:
        PROGRAMS[name](Path(folder), *words)
        return 0

    return exit_code_of(act, command=name)


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
