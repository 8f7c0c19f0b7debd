"""The folders of saved machines: their descriptions, and the removal of the oldest folders."""

from __future__ import annotations

import contextlib
import glob
import json
import os
import shutil
import tempfile
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from harness.artifact_cache import allocated_bytes
from harness.errors import BadInputError, HarnessError
from harness.lab import machine_bundle
from harness.lab.machine_bundle import prune, read_bundle
from harness.limits import LimitError
from suites.unit.lab.bundle_folder import a_bundle


def test_bundle_is_found_below_the_evidence_folder_of_its_test(tmp_path: Path) -> None:
    saved = a_bundle(tmp_path / "test/node/checkpoint")

    assert read_bundle(tmp_path / "test").folder == saved
    assert read_bundle(tmp_path / "test/node").folder == saved

    a_bundle(tmp_path / "test/other/checkpoint")
    words = "2 saved machines; .*unpack.*: 'node/checkpoint', 'other/checkpoint'"
    with pytest.raises(BadInputError, match=words):
        read_bundle(tmp_path / "test")


def changed(folder: Path, key: str, value: object) -> None:
    """Change the value of a key in a bundle: in the spec if the spec has the key, else outside."""
    file = folder / "machine.json"
    fields = json.loads(file.read_text())
    within = fields["spec"] if key in fields["spec"] else fields
    within[key] = value
    file.write_text(json.dumps(fields))


def test_bundle_description_with_an_invalid_value_is_refused(tmp_path: Path) -> None:
    values: list[tuple[str, object]] = [
        ("memory_mib", 10**18),
        ("cpus", True),
        ("memory_mib", 1536.5),
        ("memory_mib", "1536"),
        ("cpus", 10**9),
        ("root_ports", 300_000),
        ("root_port_window_mib", -1),
        ("root_port_aperture_mib", 1 << 40),
        ("has_seed", "no"),
        ("has_iommu", 1),
        ("kernel", {"version": {"a": 1}, "may_reboot": False}),
        ("kernel", {"version": "6.1", "may_reboot": "no"}),
        ("kernel", {"flash": 5}),
        ("kernel", []),
        ("accelerator", "VAX"),
        ("accelerator", []),
        ("driver", "node"),
        ("driver", None),
        ("gpus", ["h100-sxm5-80gb"] * 5000),
        ("gpus", "h100"),
        ("gpus", [None]),
        ("name", "n" * 5000),
        ("name", 5),
        ("qemu", ["7.2"]),
        *(("memory", name) for name in ("memory\n", "memory", "memory.xz", "memory.zst.sh")),
        # These paths are files of the host, which the guest could read if QEMU loaded them.
        *(("memory", path) for path in ("/etc/hostname", "../other/memory.zst", "memory/../../x")),
        ("base", []),
        ("base", {"name": "x", "digest": 1, "folder": "/x"}),
        ("spec", None),
        ("schema", float("nan")),
        ("schema", [1]),
    ]
    accepted = []
    for number, (key, value) in enumerate(values):
        folder = a_bundle(tmp_path / str(number))
        changed(folder, key, value)
        with contextlib.suppress(BadInputError):
            accepted.append((key, value, read_bundle(folder)))

    assert accepted == []


def test_bundle_description_with_a_value_outside_its_limits_is_refused(
    tmp_path: Path,
) -> None:
    rows: list[tuple[str, Any, object]] = [
        *((key, "x" * 4096, "x" * 4097) for key in ("made", "purpose", "driver", "qemu")),
        ("gpus", ["x" * 4096] * 256, ["x"] * 257),
        ("gpus", [], ["x" * 4097]),
        ("memory_mib", 16 << 20, (16 << 20) + 1),
        ("cpus", 4096, 4097),
        ("root_ports", 256, 257),
        ("root_ports", 0, -1),
        ("root_port_window_mib", 16 << 20, (16 << 20) + 1),
        ("root_port_aperture_mib", 16 << 20, (16 << 20) + 1),
    ]
    for number, (key, most, beyond) in enumerate(rows):
        folder = tmp_path / str(number)
        folder = a_bundle(folder / "checkpoint")
        changed(folder, key, most)
        bundle = read_bundle(folder)
        place = {"qemu": "qemu_version"}.get(key, key)
        assert getattr(bundle, place, getattr(bundle.spec, place, None)) == (
            tuple(most) if isinstance(most, list) else most
        ), key

        changed(folder, key, beyond)
        with pytest.raises(BadInputError, match=f"'{key}' is not"):
            read_bundle(folder)


def test_malformed_or_oversized_description_of_a_saved_machine_is_refused(tmp_path: Path) -> None:
    for content, words in (
        ("[" * 100_000, "'data-levels'"),
        ('{"schema": ' + "9" * 5000 + "}", "'data-digits'"),
        ('{"schema": 1, "schema": 1}', "the key 'schema' twice"),
        ("[]", "not a JSON object"),
        ("\0", "does not describe a saved machine"),
        ("{", "does not describe a saved machine"),
        ("{}", "does not describe a saved machine: KeyError"),
        ('{"schema": 2}', "Schema 2 was found, but this harness reads 1"),
    ):
        (tmp_path / "machine.json").write_text(content)

        with pytest.raises(BadInputError, match=words):
            read_bundle(tmp_path)


def test_description_that_is_not_a_plain_file_is_refused(tmp_path: Path) -> None:
    folder = a_bundle(tmp_path / "checkpoint")
    (folder / "machine.json").rename(tmp_path / "elsewhere.json")
    (folder / "machine.json").symlink_to(tmp_path / "elsewhere.json")
    with pytest.raises(BadInputError, match="does not describe a saved machine"):
        read_bundle(folder)

    (folder / "machine.json").unlink()
    (folder / "machine.json").touch()
    os.truncate(folder / "machine.json", 200 << 30)
    with pytest.raises(LimitError, match="'json-mib'"):
        read_bundle(folder)


VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3)
    ),
    max_leaves=6,
)
KEYS = ["schema", "name", "made", "purpose", "driver", "qemu", "memory", "gpus", "base", "spec"]
SPEC_KEYS = ["accelerator", "kernel", "has_seed", "memory_mib", "cpus", "root_ports", "has_iommu"]


@given(
    changes=st.lists(st.tuples(st.sampled_from([*KEYS, *SPEC_KEYS]), VALUES), max_size=3),
    gone=st.sampled_from(["", *KEYS]),
    bytes_changed=st.lists(st.tuples(st.integers(0, 900), st.integers(0, 255)), max_size=3),
)
def test_reading_a_random_bundle_description_raises_only_harness_errors(
    changes: list[tuple[str, object]], gone: str, bytes_changed: list[tuple[int, int]]
) -> None:
    with tempfile.TemporaryDirectory() as place:
        folder = a_bundle(Path(place) / "checkpoint")
        file = folder / "machine.json"
        fields = json.loads(file.read_text())
        fields.pop(gone, None)
        for key, value in changes:
            within = fields.get("spec") if key in SPEC_KEYS else fields
            if isinstance(within, dict):
                within[key] = value
        content = bytearray(json.dumps(fields).encode())
        for at, byte in bytes_changed:
            if at < len(content):
                content[at] = byte
        file.write_bytes(content)

        with contextlib.suppress(HarnessError):
            assert read_bundle(folder).spec.memory_mib <= 16 << 20


def test_oldest_saved_machines_beyond_the_size_limit_are_removed(tmp_path: Path) -> None:
    saved = [a_bundle(tmp_path / f"test-{number}/node/checkpoint") for number in range(3)]
    for number, folder in enumerate(saved):
        (folder / "memory.zst").write_bytes(os.urandom(600 << 10))
        (folder.parent / "manifest.json").touch()
        os.utime(folder, (number, number))

    prune(tmp_path, limit_mib=1, newest=saved[2])

    assert [folder.exists() for folder in saved] == [False, False, True]
    assert (saved[0].parent / "manifest.json").exists()


def test_removal_of_old_saved_machines_ignores_a_folder_that_another_worker_removes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    saved = [a_bundle(tmp_path / f"test-{number}/node/checkpoint") for number in range(5)]
    for number, folder in enumerate(saved):
        (folder / "filling").write_bytes(os.urandom(300 << 10))
        os.utime(folder, (number, number))

    def allocated(folder: Path) -> int:
        # Another worker removes `saved[2]` before its size is read, and `saved[0]` after that.
        shutil.rmtree(saved[2], ignore_errors=True)
        taken = allocated_bytes(folder)
        if folder == saved[0]:
            shutil.rmtree(folder)
        return taken

    found = [
        str(folder / "machine.json") for folder in (*saved, tmp_path / "gone/node/checkpoint")
    ]
    monkeypatch.setattr(glob, "glob", lambda *_, **__: found)
    monkeypatch.setattr(machine_bundle, "allocated_bytes", allocated)

    prune(tmp_path, limit_mib=1, newest=saved[4])

    assert [folder.exists() for folder in saved] == [False, True, False, True, True]


@pytest.mark.parametrize("at", [0, 1])
def test_saved_machines_within_the_size_limit_are_kept(tmp_path: Path, at: int) -> None:
    saved = [a_bundle(tmp_path / f"test-{number}/node/checkpoint") for number in range(2)]
    taken_mib = sum(allocated_bytes(folder) for folder in saved) // (1 << 20)
    for folder in saved:
        with (folder / "filling").open("wb") as file:
            os.posix_fallocate(file.fileno(), 0, (1 << 20) - allocated_bytes(folder))
        # Both folders have the same modification time.
        os.utime(folder, (7, 7))
    assert sum(allocated_bytes(folder) for folder in saved) == 2 << 20
    assert taken_mib < 2

    prune(tmp_path, limit_mib=2, newest=saved[at])
    assert [folder.exists() for folder in saved] == [True, True]
    prune(tmp_path, limit_mib=1, newest=saved[at])
    assert [folder.exists() for folder in saved] == [at == 0, at == 1]


def test_newest_saved_machine_is_kept_even_beyond_the_limit(tmp_path: Path) -> None:
    saved = a_bundle(tmp_path / "test/node/checkpoint")

    prune(tmp_path, limit_mib=0, newest=saved)

    assert saved.exists()
