"""Which bundles of failed tests are beyond the limits of age and size."""

from __future__ import annotations

import math
import os
import shutil
from pathlib import Path

import pytest

from harness.errors import BadInputError
from harness.evidence import retention
from harness.evidence.retention import Bundle, beyond_limits, bundles_in, made_after

DAY_S = 86_400.0
VERSIONS = '{"schema": 1, "harness": {}, "payload": "p", "agent": "a"}'


def a_bundle(
    name: str, *, days: float = 0.0, mib: int = 1, changed_s: float = -math.inf
) -> Bundle:
    return Bundle(
        name=name,
        parts=(Path("/evidence") / name,),
        made_s=-days * DAY_S,
        size_bytes=mib << 20,
        changed_s=changed_s,
    )


def test_bundles_beyond_the_limits_are_selected_for_removal() -> None:
    rows: list[tuple[list[Bundle], list[str]]] = [
        ([a_bundle("a"), a_bundle("b", days=29)], []),
        ([a_bundle("a"), a_bundle("b", days=31)], ["b"]),
        ([a_bundle("a", mib=60), a_bundle("b", mib=30), a_bundle("c", mib=30)], ["c"]),
        ([a_bundle("a", mib=60), a_bundle("b", mib=60), a_bundle("c", mib=1)], ["b", "c"]),
        ([a_bundle("large", mib=500)], []),
        ([a_bundle("old", days=31)], ["old"]),
    ]
    for bundles, expected in rows:
        found = beyond_limits(bundles, limit_mib=100, limit_days=30, now_s=0.0)

        assert [bundle.name for bundle in found] == expected


def test_latest_bundle_is_kept_even_if_the_clock_is_wrong() -> None:
    rows: list[tuple[list[Bundle], list[str]]] = [
        ([a_bundle("future", days=-900, mib=99), a_bundle("now", mib=60)], []),
        (
            [
                a_bundle("f", days=-9, mib=50),
                a_bundle("e", days=-8, mib=50),
                a_bundle("n", mib=50),
            ],
            ["e"],
        ),
        ([a_bundle("new", mib=60), a_bundle("old", days=20_000, mib=60)], ["old"]),
    ]
    for bundles, expected in rows:
        found = beyond_limits(bundles, limit_mib=100, limit_days=30_000, now_s=0.0)

        assert [bundle.name for bundle in found] == expected


def test_bundle_of_this_run_is_not_removed() -> None:
    for days in (-900.0, 0.0, 900.0):
        bundles = [
            a_bundle("other", days=-999, mib=90),
            *(a_bundle(f"own{n}", days=days, mib=90, changed_s=5.0) for n in range(3)),
            a_bundle("old", days=1, changed_s=4.0),
        ]

        found = beyond_limits(bundles, limit_mib=100, limit_days=30, now_s=0.0, run_started_s=5.0)

        assert {"own0", "own1", "own2"}.isdisjoint(bundle.name for bundle in found), days


def test_own_bundles_count_towards_the_size_limit_but_are_not_selected_for_removal() -> None:
    bundles = [
        a_bundle("own1", mib=30, changed_s=5.0),
        a_bundle("own2", mib=30, changed_s=9.0),
        a_bundle("fits", days=1, mib=40, changed_s=4.9),
        a_bundle("too-much", days=2, mib=1, changed_s=4.0),
    ]

    found = beyond_limits(bundles, limit_mib=100, limit_days=30, now_s=0.0, run_started_s=5.0)

    assert [bundle.name for bundle in found] == ["too-much"]


def test_new_bundle_is_dated_after_bundles_with_a_future_time() -> None:
    ahead = [a_bundle("a", days=-2), a_bundle("b", days=-1)]
    assert made_after(ahead, 0.0) == made_after(ahead[::-1], 0.0) == 2 * DAY_S + 1
    assert made_after([a_bundle("a", days=1)], 0.0) == 0.0
    assert made_after([], 3.0) == 3.0


def test_bundle_folder_and_its_archive_are_listed_and_removed_as_one_bundle(
    tmp_path: Path,
) -> None:
    for name in ("new", "old"):
        (tmp_path / name / "node").mkdir(parents=True)
        (tmp_path / name / "node/versions.json").write_text(VERSIONS)
        (tmp_path / f"{name}.tar.zst").write_bytes(b"x" * 1000)
    for number, path in enumerate((tmp_path / "old", tmp_path / "old.tar.zst")):
        os.utime(path, (1000 + number, 1000 + number))

    new, old = bundles_in(tmp_path)

    assert (new.name, old.name, old.made_s) == ("new", "old", 1001)
    assert old.parts == (tmp_path / "old", tmp_path / "old.tar.zst")
    folder_bytes = (tmp_path / "old/node/versions.json").stat().st_blocks * 512
    assert old.size_bytes >= folder_bytes + 1000
    old.remove()
    assert sorted(path.name for path in tmp_path.iterdir()) == ["new", "new.tar.zst"]


def test_foreign_archives_and_files_of_passed_tests_are_not_listed_as_bundles(
    tmp_path: Path,
) -> None:
    """A bundle may be removed, but a foreign file must be kept."""
    (tmp_path / "backup.tar.gz").touch()
    (tmp_path / "project/package").mkdir(parents=True)
    (tmp_path / "project/package/versions.json").write_text('{"schema": 1}')
    (tmp_path / "broken/node").mkdir(parents=True)
    (tmp_path / "broken/node/versions.json").write_text("{")
    # This covers `--evidence=always`, evidence of bakes, and the part of an archive.
    (tmp_path / "passed/node/host").mkdir(parents=True)
    (tmp_path / ".x.tar.zst.part").touch()

    assert bundles_in(tmp_path) == []
    assert bundles_in(tmp_path / "absent") == []


def test_negative_or_nan_bundle_limit_is_refused() -> None:
    for mib, days in ((-1, 30.0), (100, -1.0), (100, math.nan)):
        with pytest.raises(BadInputError, match="--bundle-limit-"):
            beyond_limits([], limit_mib=mib, limit_days=days, now_s=0.0)


def test_bundle_that_another_run_removes_meanwhile_is_left_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("first", "second"):
        versions = tmp_path / name / "node/versions.json"
        versions.parent.mkdir(parents=True)
        versions.write_text(VERSIONS)

    def read_and_remove(path: Path, **_: object) -> bytes:
        content = path.read_bytes()
        for name in ("first", "second"):
            shutil.rmtree(tmp_path / name)
        return content

    monkeypatch.setattr(retention, "read_plain", read_and_remove)

    assert bundles_in(tmp_path) == []
