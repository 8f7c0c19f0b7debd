"""What other users put into the pool's folder has no effect but a sentence."""

from __future__ import annotations

import contextlib
import os
from typing import TYPE_CHECKING

import pytest

from harness import reservation_folder, shared_folder
from harness.cli import host_gpus, main
from harness.gpu.passthrough import binding
from harness.gpu.passthrough.pool import GpuPool
from harness.lab import gpu_sources
from suites.fakes.pool_forgeries import FORGERIES, Forgery, Kept, Place
from suites.unit.gpu.passthrough.fake_host import NIC_CLASS, FakeHost, FakeKernel

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

_OTHER_USER = 65534
_OTHER_GROUP = 65533


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Place:
    """Return a simulated host in the state in which forgeries could do most."""
    place = Place(
        pool=str(tmp_path / "pool"),
        gpu="0000:65:00.0",
        admins="0000:66:00.0",
        busy="0000:67:00.0",
        foreign="0000:03:00.0",
        driver="nvidia",
        secret=str(tmp_path / "secret"),
        boot=FakeHost.boot_id,
    )
    host = FakeHost(tmp_path / "host")
    for number, address in enumerate((place.gpu, place.admins, place.busy), 5):
        host.add_function(address, group=number, driver="vfio-pci")
        (host.device(address) / "driver_override").write_text("vfio-pci\n")
    host.unbind(place.busy)
    host.bind(place.busy, "nvidia")
    host.add_driver("pcieport")
    host.add_function(place.foreign, group=1, class_code=NIC_CLASS, driver="e1000e")
    for path in (
        *(host.root / "sys/bus/pci").glob("drivers/*/unbind"),
        host.root / "sys/bus/pci/drivers_probe",
        host.device(place.gpu) / "driver_override",
    ):
        path.chmod(0o666)
    (host.device(place.admins) / "driver_override").chmod(0o444)
    (tmp_path / "secret").write_text("root:secret\n")
    pool = tmp_path / "pool"
    pool.mkdir()
    if os.geteuid() == 0:
        os.chown(pool, 0, _OTHER_GROUP)
    else:
        # One user plays both.
        monkeypatch.setattr(shared_folder.SharedFile, "is_trusted", False)
    pool.chmod(0o2770)
    kernel = FakeKernel(host, matching={place.gpu: place.driver})
    monkeypatch.setattr(
        host_gpus,
        "open_gpu_pool",
        lambda *_: GpuPool(pool, root=host.root, runner=kernel),
    )
    monkeypatch.setattr(gpu_sources, "INVENTORY", tmp_path / "absent.yaml")
    monkeypatch.setattr(reservation_folder, "_LOCK_S", 0.05)
    monkeypatch.setattr(binding, "_LINK_S", 0.05)
    return place


@contextlib.contextmanager
def done(forgery: Forgery, place: Place, pool: Path) -> Iterator[None]:
    """Do what a forgery does, as another user where this one is root."""
    names: dict[str, object] = {}
    exec(place.script(forgery), names)  # noqa: S102 - it is text of this repository
    if os.geteuid() == 0:
        for path in pool.iterdir():
            os.chown(path, _OTHER_USER, _OTHER_GROUP, follow_symlinks=False)
    try:
        yield
    finally:
        for each in names["open_files"]:  # type: ignore[attr-defined]
            each.close()
        if "folder" in names:
            os.close(names["folder"])  # type: ignore[arg-type]


def _kept(kind: Kept, place: Place, root: Path) -> object:
    host = FakeHost(root / "host")
    match kind:
        case Kept.ROOTS_FILE:
            secret = root / "secret"
            return secret.read_bytes(), secret.stat().st_mode, secret.stat().st_uid
        case Kept.DRIVERS:
            functions = (place.gpu, place.admins, place.busy, place.foreign)
            return [(host.driver_of(each), host.override_of(each)) for each in functions]
        case Kept.QUARANTINES:
            return sorted(each.name for each in (root / "pool").glob("quarantine-*"))
        case Kept.FILES:
            return sorted((each.name, each.lstat().st_ino) for each in (root / "pool").iterdir())


@pytest.mark.usefixtures("fake_time")
@pytest.mark.parametrize("forgery", FORGERIES, ids=lambda forgery: forgery.name)
def test_forged_pool_file_changes_nothing_and_is_reported(
    forgery: Forgery, place: Place, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with done(forgery, place, tmp_path / "pool"):
        before = {kind: _kept(kind, place, tmp_path) for kind in forgery.unchanged}
        codes = [main(["gpu", "host", "restore"]), main(["gpu", "host", "ls"])]
        after = {kind: _kept(kind, place, tmp_path) for kind in forgery.unchanged}

    printed = "".join(capsys.readouterr())
    assert forgery.says in printed
    assert "root:secret" not in printed
    assert "\x1b" not in printed
    assert {*codes} <= {0, 2}
    assert after == before
