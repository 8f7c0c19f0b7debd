"""Files that other users put into the pool's folder are reported, and have no other effect."""

from __future__ import annotations

import contextlib
import functools
import os
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from harness import reservation_folder, shared_folder
from harness.cli import build_parser, exit_code_of, host_gpus
from harness.gpu.passthrough import binding
from harness.gpu.passthrough.pool import GpuPool
from harness.lab import gpu_sources
from suites.fakes.pool_forgeries import FORGERIES, Forgery, Kept, Place
from suites.unit.gpu.passthrough.fake_host import NIC_CLASS, FakeHost, FakeKernel

if TYPE_CHECKING:
    from collections.abc import Iterator

_OTHER_USER = 65534
_OTHER_GROUP = 65533
_GPU = "0000:65:00.0"
_ADMINS = "0000:66:00.0"
_BUSY = "0000:67:00.0"
_FOREIGN = "0000:03:00.0"


@pytest.fixture
def host(tmp_path: Path) -> FakeHost:
    """Return a simulated host, which no forgery changes."""
    host = FakeHost(tmp_path / "host")
    for number, (address, driver) in enumerate(
        ((_GPU, "vfio-pci"), (_ADMINS, "vfio-pci"), (_BUSY, "nvidia")), 5
    ):
        host.add_function(address, group=number, driver=driver)
        (host.device(address) / "driver_override").write_text("vfio-pci\n")
    host.add_driver("pcieport")
    host.add_function(_FOREIGN, group=1, class_code=NIC_CLASS, driver="e1000e")
    for path in (
        *(host.root / "sys/bus/pci").glob("drivers/*/unbind"),
        host.root / "sys/bus/pci/drivers_probe",
        host.device(_GPU) / "driver_override",
    ):
        path.chmod(0o666)
    (host.device(_ADMINS) / "driver_override").chmod(0o444)
    return host


def a_place(host: FakeHost, folder: Path, monkeypatch: pytest.MonkeyPatch) -> Place:
    """Return a pool on the host, in the state in which forged files could do the most harm."""
    secret, pool = folder / "secret", folder / "pool"
    pool.mkdir(parents=True)
    secret.write_text("root:secret\n")
    if os.geteuid() == 0:
        os.chown(pool, 0, _OTHER_GROUP)
    else:
        # Without root, one user plays both the attacker and the owner of the pool.
        monkeypatch.setattr(shared_folder.SharedFile, "is_trusted", False)
    pool.chmod(0o2770)
    kernel = FakeKernel(host, matching={_GPU: "nvidia"})
    monkeypatch.setattr(
        host_gpus,
        "open_gpu_pool",
        lambda *_: GpuPool(pool, root=host.root, runner=kernel),
    )
    monkeypatch.setattr(gpu_sources, "INVENTORY", folder / "absent.yaml")
    monkeypatch.setattr(reservation_folder, "_LOCK_S", 0.05)
    monkeypatch.setattr(binding, "_LINK_S", 0.05)
    return Place(
        pool=str(pool),
        gpu=_GPU,
        admins=_ADMINS,
        busy=_BUSY,
        foreign=_FOREIGN,
        driver="nvidia",
        secret=str(secret),
        boot=host.boot_id,
    )


@contextlib.contextmanager
def done(forgery: Forgery, place: Place) -> Iterator[None]:
    """Run a forgery; if this user is root, give its files to another user."""
    names: dict[str, object] = {}
    exec(place.script(forgery), names)  # noqa: S102 - it is text of this repository
    if os.geteuid() == 0:
        for path in Path(place.pool).iterdir():
            os.chown(path, _OTHER_USER, _OTHER_GROUP, follow_symlinks=False)
    try:
        yield
    finally:
        for each in names["open_files"]:  # type: ignore[attr-defined]
            each.close()
        if "folder" in names:
            os.close(names["folder"])  # type: ignore[arg-type]


def _kept(kind: Kept, place: Place, host: FakeHost) -> object:
    pool, secret = Path(place.pool), Path(place.secret)
    match kind:
        case Kept.ROOTS_FILE:
            return secret.read_bytes(), secret.stat().st_mode, secret.stat().st_uid
        case Kept.DRIVERS:
            functions = (_GPU, _ADMINS, _BUSY, _FOREIGN)
            return [(host.driver_of(each), host.override_of(each)) for each in functions]
        case Kept.QUARANTINES:
            return sorted(each.name for each in pool.glob("quarantine-*"))
        case Kept.FILES:
            return sorted((each.name, each.lstat().st_ino) for each in pool.iterdir())


_parser = functools.cache(build_parser)


def run_by_root(action: str) -> int:
    arguments = _parser("gpu").parse_args(["gpu", "host", action])
    return exit_code_of(lambda: arguments.run(arguments), command="harness gpu")


@pytest.mark.usefixtures("fake_time")
def test_forged_pool_file_changes_nothing_and_is_reported(
    host: FakeHost,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    for number, forgery in enumerate(FORGERIES):
        place = a_place(host, tmp_path / str(number), monkeypatch)
        with done(forgery, place):
            before = {kind: _kept(kind, place, host) for kind in forgery.unchanged}
            codes = [run_by_root("restore"), run_by_root("ls")]
            after = {kind: _kept(kind, place, host) for kind in forgery.unchanged}

        printed = "".join(capsys.readouterr())
        assert forgery.says in printed, forgery.name
        assert "root:secret" not in printed, forgery.name
        assert "\x1b" not in printed, forgery.name
        assert {*codes} <= {0, 2}, forgery.name
        assert after == before, forgery.name
