"""Hosts that share checkpoints and images through a real registry, and a registry that fails."""

from __future__ import annotations

import os
import threading
from typing import TYPE_CHECKING

import pytest

from harness.artifact_cache import MANIFEST
from harness.cli import main
from harness.progress import Progress, Stage
from harness.provisioning.command import LocalRunner
from harness.registry import PullFault
from harness.shared_store import StoreError
from suites.host.shared_store.conftest import MEMORY
from suites.unit.image.fake_store import FakeBuilder

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from suites.host.shared_store.conftest import Host, Shop


@pytest.fixture
def filled(shop: Shop) -> Shop:
    first = shop.host("first", is_writable=True)
    first.have()
    assert first.made == 1
    return shop


def pull(host: Host) -> str:
    """Pull strictly, and return the sentence with which it failed."""
    name = next(iter(host.shared.client.tags("checkpoints")))
    into = host.folder / "into"
    into.mkdir(parents=True)
    with pytest.raises(StoreError) as caught:
        host.shared.pull(name, into, progress=Progress("x"))
    return str(caught.value)


def test_second_host_pulls_artifacts_that_the_first_host_pushed(filled: Shop) -> None:
    second = filled.host("second")

    checkpoint = second.have()

    assert second.made == 0
    assert checkpoint.state.read_text() == "state of first"
    assert MEMORY in checkpoint.ram.read_bytes()
    assert checkpoint.ram.stat().st_blocks * 512 < 3 << 20, "Zeros take space on the disk."
    assert list((second.folder / "partial-pulls").iterdir()) == []


def test_host_that_may_only_read_the_store_pushes_nothing(shop: Shop) -> None:
    reader = shop.host("reader")

    reader.have()

    assert reader.made == 1
    assert shop.host("other").shared.ls() == []
    assert all(request.method in {"GET", "HEAD"} for request in shop.log.requests)


def test_store_list_shows_the_qemu_version_and_processor_that_a_checkpoint_needs(
    filled: Shop,
) -> None:
    (artifact,) = filled.host("other").shared.ls()

    assert artifact.needs == "QEMU 7.2, any processor"


def test_host_with_another_qemu_makes_its_own_checkpoint_and_reports_why(filled: Shop) -> None:
    other = filled.host("other")

    other.have({"qemu": "8.2", "image": "one"})

    assert other.made == 1
    said = other.said(Stage.CHECK)
    assert "which was made with another QEMU or processor (QEMU 7.2, any processor)" in said
    assert "; this host makes '" in said


@pytest.mark.parametrize(
    ("status", "sentence"),
    [
        (401, "log in by `docker login 127.0.0.1"),
        (429, "the registry limits the number of requests; try later"),
        (500, "look into the registry's log"),
    ],
)
def test_host_makes_the_artifact_itself_if_the_registry_refuses_the_pull(
    filled: Shop, status: int, sentence: str
) -> None:
    filled.log.disturb_all(PullFault(status=status))
    second = filled.host("second")

    second.have()

    assert second.made == 1
    said = second.said(Stage.REFUSED)
    assert f"answered {status} " in said
    assert sentence in said
    assert "\n" not in said


def test_pull_continues_where_a_cut_connection_ended(filled: Shop) -> None:
    size = filled.blob().stat().st_size
    filled.log.disturb_all(PullFault(cut_after_bytes=size // 2))
    second = filled.host("second")

    sentence = pull(second)

    assert f"after {size // 2} of {size} bytes, 2 times in a row" in sentence
    assert "the next pull continues there" in sentence
    filled.log.disturb_all(PullFault())
    before = len(filled.log.requests)
    second.have()
    assert second.made == 0
    fetched = sum(each.body_bytes for each in filled.log.requests[before:] if each.is_blob)
    assert fetched < size


def test_error_for_a_truncated_blob_mentions_the_file_that_the_blob_contains(filled: Shop) -> None:
    blob = filled.blob()
    content = blob.read_bytes()
    blob.write_bytes(content[: len(content) // 2])
    second = filled.host("second")

    second.have()

    assert second.made == 1
    assert "The file 'ram' of 'booted-" in second.said(Stage.REFUSED)
    assert "is truncated: it has at most" in second.said(Stage.REFUSED)
    assert second.leftovers() == [second.have().folder.name]


def test_blob_with_a_wrong_digest_is_deleted_and_the_error_mentions_the_file(
    filled: Shop,
) -> None:
    blob = filled.blob()
    content = bytearray(blob.read_bytes())
    content[len(content) // 2] ^= 1
    blob.write_bytes(content)
    second = filled.host("second")

    sentence = pull(second)

    assert "The file 'ram' of 'booted-" in sentence
    assert "is damaged: its digest is sha256:" in sentence
    kept = [path.name for path in (second.folder / "partial-pulls").iterdir()]
    assert not any(blob.parent.name[:16] in name for name in kept)
    second.have()
    assert second.made == 1


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    if os.geteuid() != 0:
        pytest.skip("A small file system is mounted by root only.")
    folder = tmp_path / "small"
    folder.mkdir()
    runner = LocalRunner()
    runner.run(
        ["mount", "-t", "tmpfs", "-o", "size=400k", "tmpfs", str(folder)], timeout_s=10
    ).check("Mounting a small file system")
    yield folder
    runner.run(["umount", str(folder)], timeout_s=10).check("Unmounting it")


def test_full_disk_is_reported_in_one_sentence_and_nothing_is_kept(
    filled: Shop, small_disk: Path
) -> None:
    second = filled.host("small")
    assert second.folder == small_disk

    sentence = pull(second)

    assert "became full while the artifact 'booted-" in sentence
    assert list((small_disk / "partial-pulls").iterdir()) == []


def test_simultaneous_pulls_fetch_each_blob_once(filled: Shop) -> None:
    hosts = [filled.host("second"), filled.host("second")]
    before = len(filled.log.requests)
    threads = [threading.Thread(target=host.have) for host in hosts]

    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    assert [host.made for host in hosts] == [0, 0]
    blobs = [each for each in filled.log.requests[before:] if each.is_blob]
    assert len(blobs) == len({each.path for each in blobs})


def test_unreachable_registry_is_reported_in_one_sentence(filled: Shop) -> None:
    second = filled.host("second")
    second.shared.client.address = type(filled.address)(
        scheme="http", host="127.0.0.1:9", path="gpu"
    )

    second.have()

    assert second.made == 1
    assert "can't be reached for the manifest of 'booted-" in second.said(Stage.REFUSED)


def test_store_commands_list_and_pull_and_push_and_remove_artifacts(
    filled: Shop,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "xdg"))
    monkeypatch.setenv("HARNESS_STORE", f"http://{filled.address}")

    assert main(["store", "ls"]) == 0
    listed = capsys.readouterr().out
    assert main(["store", "pull", "booted"]) == 0
    assert main(["checkpoints", "verify"]) == 0
    assert main(["store", "push"]) == 0
    pushed = capsys.readouterr().out
    assert main(["store", "gc", "--older-than-days=0"]) == 0

    assert "QEMU 7.2, any processor" in listed
    assert "the store has it" in pushed
    assert filled.host("other").shared.ls() == []


def test_image_that_another_host_pushed_is_not_built_again(
    shop: Shop,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    builder = FakeBuilder()
    monkeypatch.setattr("harness.image.build.builder.MmdebstrapBuilder", lambda: builder)
    argv = ["image", "build", "--image=debian-12", f"--store=http://{shop.address}"]

    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "first"))
    assert main([*argv, "--store-push"]) == 0
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "second"))
    assert main(argv) == 0

    assert builder.builds == 1
    assert str(tmp_path / "second") in capsys.readouterr().out


def test_damaged_checkpoint_is_not_pushed(
    shop: Shop,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    host = shop.host("gpu-node-harness")
    checkpoint = host.have()
    with checkpoint.ram.open("r+b") as ram:
        ram.write(b"x")

    code = main(["store", "push", "--store", f"http://{shop.address}"])

    assert code == 2
    assert "is damaged and is not pushed" in capsys.readouterr().out
    assert host.shared.ls() == []


def test_push_exits_with_2_if_an_image_is_damaged(
    shop: Shop,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    host = shop.host("gpu-node-harness")
    host.have()
    image = tmp_path / "gpu-node-harness/images/node-0"
    image.mkdir(parents=True)
    (image / MANIFEST).write_text("{")

    code = main(["store", "push", "--store", f"http://{shop.address}"])

    assert code == 2
    assert "images/node-0: not pushed" in capsys.readouterr().out
    assert len(host.shared.ls()) == 1
