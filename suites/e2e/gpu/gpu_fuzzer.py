"""Runs in a guest: reads and writes every GPU at random until the process is killed.

Arguments: a seed, and the ids of the GPUs to touch, as in sysfs ("0x10de:0x2330"). GPUs are
plugged and unplugged meanwhile, so errors of the kernel are ignored. If a GPU is unplugged while
its BAR is mapped, SIGBUS ends this process, and systemd restarts the process.
"""

from __future__ import annotations

import contextlib
import mmap
import os
import random
import sys
from pathlib import Path
from typing import Literal

_DEVICES = Path("/sys/bus/pci/devices")
_ROUNDS = Path("/run/wild-rounds")
_FORMATS: dict[int, Literal["B", "H", "I", "Q"]] = {1: "B", 2: "H", 4: "I", 8: "Q"}
#: The command register and the BARs are not written, so that the next round reaches registers.
_HEADER = range(0x04, 0x28)


def find(ids: str) -> list[Path]:
    """Return the GPUs that are present now."""
    return [device for device in sorted(_DEVICES.iterdir()) if _ids_of(device) == ids]


def _ids_of(device: Path) -> str | None:
    try:
        return ":".join((device / name).read_text().strip() for name in ("vendor", "device"))
    except OSError:
        return None


def touch_config(gpu: Path, chance: random.Random) -> None:
    with (gpu / "config").open("r+b", buffering=0) as config:
        for _ in range(50):
            offset, width = chance.randrange(256), chance.choice((1, 2, 4))
            if chance.random() < 0.7:
                os.pread(config.fileno(), width, offset)
            elif offset not in _HEADER:
                os.pwrite(config.fileno(), chance.randbytes(width), offset)


def touch_bar(gpu: Path, chance: random.Random) -> None:
    (gpu / "enable").write_text("1")
    file = chance.choice([path for path in gpu.glob("resource?") if path.stat().st_size])
    with file.open("r+b", buffering=0) as resource:
        size = os.fstat(resource.fileno()).st_size
        # For a BAR of 128 GiB, touching both ends is enough.
        length = min(size, 64 << 20)
        start = chance.choice((0, size - length))
        with mmap.mmap(resource.fileno(), length, offset=start) as window:
            for _ in range(50):
                width = chance.choice(tuple(_FORMATS))
                with memoryview(window) as octets, octets.cast(_FORMATS[width]) as view:
                    index = chance.randrange(length // width)
                    if chance.random() < 0.5:
                        chance.seed(chance.getrandbits(32) ^ view[index])
                    else:
                        view[index] = chance.getrandbits(8 * width)


def main(seed: str, ids: str) -> None:
    rounds = int(_ROUNDS.read_text()) if _ROUNDS.exists() else 0
    chance = random.Random(int(seed) + rounds)  # noqa: S311 - nobody is to be surprised by it
    while True:
        for gpu in find(ids):
            with contextlib.suppress(OSError, ValueError, IndexError):
                chance.choice((touch_config, touch_bar))(gpu, chance)
        rounds += 1
        # A new file is renamed, so that a reader never finds the file empty.
        beside = _ROUNDS.with_suffix(".new")
        beside.write_text(str(rounds))
        beside.replace(_ROUNDS)


if __name__ == "__main__":
    main(*sys.argv[1:])
