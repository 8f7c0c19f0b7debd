"""`harness store`: what is pushed, pulled and listed."""

from __future__ import annotations

import datetime as dt
import json
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from harness.cli import main, store
from harness.errors import HarnessError
from harness.shared_store.source import StoredArtifact

PUSHED = dt.datetime(2026, 11, 27, 9, 5, tzinfo=dt.timezone.utc)


def stored(repository: str, tag: str, **fields: Any) -> StoredArtifact:
    usual: dict[str, Any] = {
        "digest": "sha256:1", "pushed": PUSHED, "packed_bytes": (5 << 20) + 1, "needs": None,
    }  # fmt: skip
    return StoredArtifact(repository=repository, tag=tag, **{**usual, **fields})


@dataclass
class FakeShared:
    """Plays a shared cache; what it has is not pushed again, and `refused` is not taken."""

    has: list[StoredArtifact] = field(default_factory=list)
    refused: str = ""
    pushed: list[str] = field(default_factory=list)

    def ls(self) -> list[StoredArtifact]:
        return self.has

    def push(self, folder: Path, *, progress: object) -> bool:
        assert progress is not None
        if folder.name == self.refused:
            raise HarnessError("The store is full.")
        self.pushed.append(folder.name)
        return folder.name not in {each.tag for each in self.has}


@pytest.fixture
def shared(monkeypatch: pytest.MonkeyPatch) -> dict[str, FakeShared]:
    caches = {kind: FakeShared() for kind in ("images", "derived", "checkpoints")}
    monkeypatch.setattr(store, "open_shared_caches", lambda _: caches)
    return caches


@pytest.fixture
def local(monkeypatch: pytest.MonkeyPatch) -> dict[str, list[str]]:
    """Return the names in the caches of this host."""
    names: dict[str, list[str]] = {"images": [], "derived": [], "checkpoints": []}

    class FakeCache:
        def __init__(self, folder: Path, *, manifests: object) -> None:
            del manifests
            self.folder = folder

        def ls(self) -> list[object]:
            kind = next(each for each in names if self.folder == Path(each))
            return [SimpleNamespace(folder=Path("/c", name)) for name in names[kind]]

    formats: Any = SimpleNamespace(read=lambda _: None, check_structure=lambda *_: None)
    monkeypatch.setattr(store, "ArtifactCache", FakeCache)
    monkeypatch.setattr(store, "_local", lambda _: {kind: (Path(kind), formats) for kind in names})
    return names


def test_push_goes_on_after_a_refusal_and_ends_with_2(
    shared: dict[str, FakeShared],
    local: dict[str, list[str]],
    capsys: pytest.CaptureFixture[str],
) -> None:
    local["images"] = ["debian-12-1", "debian-13-2"]
    local["checkpoints"] = ["booted-3", "booted-4"]
    shared["images"].refused = "debian-12-1"
    shared["checkpoints"].has = [stored("checkpoints", "booted-4")]

    assert main(["store", "push", "--store=registry.example"]) == 2

    assert capsys.readouterr().out.splitlines() == [
        "images/debian-12-1: not pushed: The store is full.",
        "images/debian-13-2: pushed",
        "checkpoints/booted-3: pushed",
        "checkpoints/booted-4: the store has it",
    ]


def test_only_what_is_named_by_its_beginning_is_pushed(
    shared: dict[str, FakeShared], local: dict[str, list[str]]
) -> None:
    local["images"] = ["debian-12-1", "debian-13-2", "my-debian-12"]

    assert main(["store", "push", "--store=registry.example", "debian-12", "x"]) == 0

    assert shared["images"].pushed == ["debian-12-1"]


@pytest.mark.usefixtures("local")
def test_pull_takes_what_is_named_and_refuses_a_name_that_nothing_has(
    shared: dict[str, FakeShared],
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    pulled: list[str] = []
    monkeypatch.setattr(store, "_pull_one", lambda *arguments: pulled.append(arguments[-1]))
    shared["images"].has = [stored("images", "debian-12-1"), stored("images", "ubuntu-1")]
    shared["checkpoints"].has = [stored("checkpoints", "debian-12-9")]

    assert main(["store", "pull", "--store=registry.example", "debian-12"]) == 0
    assert main(["store", "pull", "--store=registry.example", "fedora"]) == 2

    assert pulled == ["debian-12-1", "debian-12-9"]
    assert "has nothing of these names" in capsys.readouterr().err


def test_disk_on_a_file_of_this_host_is_not_pushed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store._require_movable(tmp_path)
    (tmp_path / "disk.qcow2").touch()
    store._require_movable(tmp_path)
    monkeypatch.setattr(store, "has_absolute_backing", lambda _: True)
    monkeypatch.setattr(store, "backing_name", lambda _: "/mine/base.qcow2")

    with pytest.raises(HarnessError, match=r"lies on '/mine/base\.qcow2', by a path of this host"):
        store._require_movable(tmp_path)


def test_list_has_sizes_times_and_what_the_host_needs(
    shared: dict[str, FakeShared], capsys: pytest.CaptureFixture[str]
) -> None:
    shared["images"].has = [stored("images", "one", pushed=None)]
    shared["checkpoints"].has = [stored("checkpoints", "two", needs="KVM")]

    assert main(["store", "ls", "--store=registry.example"]) == 0
    rows = [line.split() for line in capsys.readouterr().out.splitlines()[1:]]
    assert main(["store", "ls", "--store=registry.example", "--json"]) == 0
    one, two = json.loads(capsys.readouterr().out)

    assert rows == [
        ["images", "one", "5", "-", "-"],
        ["checkpoints", "two", "5", "2026-11-27", "09:05", "KVM"],
    ]
    assert (one["kind"], one["pushed"], one["mib"], one["needs"]) == ("images", None, 5.0, None)
    assert (two["pushed"], two["needs"]) == ("2026-11-27T09:05:00+00:00", "KVM")


def test_store_has_to_be_named(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.delenv("HARNESS_STORE", raising=False)

    assert main(["store", "ls"]) == 2

    assert "Name the registry by --store or HARNESS_STORE" in capsys.readouterr().err
