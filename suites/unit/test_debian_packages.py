"""Expired package lists are refused, unless a snapshot was requested."""

from __future__ import annotations

import contextlib
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from harness import debian_packages, lease
from harness.debian_packages import SNAPSHOT_VARIABLE, ensure_unpacked, unpack_packages
from harness.errors import BadInputError, HarnessError, RequirementError
from harness.provisioning.command import CommandError, CommandResult

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

_SNAPSHOT = "http://snapshot.debian.org/archive/debian/20260801T000000Z"
_EXPIRED = """\
Reading package lists...
E: Release file for http://deb.debian.org/debian/dists/sid/InRelease is expired (invalid since 20d 12h). \
Updates for this repository will not be applied.
E: mmdebstrap failed to run
"""


class ScriptedUnpacking:
    """Plays mmdebstrap and tar; the program `failing` fails with the message `says`."""

    def __init__(self, *, says: str = "", failing: str = "mmdebstrap") -> None:
        self.tar: list[tuple[str, ...]] = []
        self.mmdebstrap: list[tuple[str, ...]] = []
        self._says = {failing: says}

    def run(
        self,
        argv: Sequence[str],
        *,
        timeout_s: float,
        stdin: str | None = None,
        env: Mapping[str, str] | None = None,
    ) -> CommandResult:
        assert timeout_s > 0
        assert (stdin, env) == (None, None)
        stderr = self._says.get(argv[0], "")
        if argv[0] == "mmdebstrap":
            self.mmdebstrap.append(tuple(argv))
            (archive,) = (word for word in argv if word.endswith("/root.tar"))
            Path(archive).write_bytes(b"")
        else:
            assert argv[0] == "tar"
            self.tar.append(tuple(argv))
        return CommandResult(
            argv=tuple(argv), exit_code=int(bool(stderr)), stdout="", stderr=stderr
        )


@pytest.fixture(autouse=True)
def _mmdebstrap(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tool = tmp_path / "bin" / "mmdebstrap"
    tool.parent.mkdir()
    tool.write_text("")
    tool.chmod(0o755)
    keyring = tmp_path / "keyring.gpg"
    keyring.touch()
    monkeypatch.setattr(debian_packages, "KEYRING", keyring)
    monkeypatch.setenv("PATH", str(tool.parent))
    monkeypatch.delenv(SNAPSHOT_VARIABLE, raising=False)


def _unpack(tmp_path: Path, runner: ScriptedUnpacking) -> None:
    unpack_packages(["jq"], release="sid", work=tmp_path, what="jq", runner=runner)


def test_missing_debian_keys_are_reported_before_anything_is_fetched(
    tmp_path: Path,
) -> None:
    """Ubuntu's mmdebstrap package does not install these keys."""
    (tmp_path / "keyring.gpg").unlink()
    runner = ScriptedUnpacking()

    with pytest.raises(RequirementError, match=r"`apt-get install debian-archive-keyring`"):
        _unpack(tmp_path, runner)


def _ensure(
    tmp_path: Path,
    runner: ScriptedUnpacking | None = None,
    *,
    file: str = "usr/bin/jq",
    release: str = "sid",
) -> Path:
    return ensure_unpacked(
        [file],
        package="jq",
        release=release,
        store=tmp_path / "store",
        runner=runner or ScriptedUnpacking(),
        report=lambda _message: None,
    )


def test_mmdebstrap_checks_the_dates_of_package_lists(tmp_path: Path) -> None:
    runner = ScriptedUnpacking()

    _unpack(tmp_path, runner)

    (argv,) = runner.mmdebstrap
    assert argv[-2:] == ("sid", str(tmp_path / "root.tar"))
    assert "--keyring=/usr/share/keyrings/debian-archive-keyring.gpg" in argv
    assert "check-valid-until" not in " ".join(argv).lower()
    # Root, too, gets files of its own.
    assert "--no-same-owner" in runner.tar[0]
    assert not (tmp_path / "root.tar").exists()


def test_programs_that_another_process_unpacked_meanwhile_are_used(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    root = _ensure(tmp_path)
    aside = root.rename(tmp_path / "aside")

    @contextlib.contextmanager
    def hold(path: Path, *, timeout_s: float, what: str) -> Iterator[None]:
        with lease.hold(path, timeout_s=timeout_s, what=what):
            aside.rename(root)
            yield

    monkeypatch.setattr(debian_packages, "hold", hold)
    runner = ScriptedUnpacking()

    assert _ensure(tmp_path, runner) == root
    assert (runner.mmdebstrap, runner.tar) == ([], [])


@pytest.mark.parametrize("failing", ["mmdebstrap", "tar"])
def test_failed_unpacking_leaves_only_the_lock(tmp_path: Path, failing: str) -> None:
    (tmp_path / "store/.work-killed").mkdir(parents=True)

    with pytest.raises(CommandError, match="E: no network"):
        _ensure(tmp_path, ScriptedUnpacking(says="E: no network\n", failing=failing))
    assert [path.name for path in (tmp_path / "store").iterdir()] == ["lock"]

    root = _ensure(tmp_path)
    assert sorted(path.name for path in root.parent.iterdir()) == sorted([root.name, "lock"])


def test_mmdebstrap_does_not_check_the_date_of_a_snapshot(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    runner = ScriptedUnpacking()
    monkeypatch.setenv(SNAPSHOT_VARIABLE, _SNAPSHOT)

    _unpack(tmp_path, runner)

    (argv,) = runner.mmdebstrap
    assert argv[-3:] == (
        "sid",
        str(tmp_path / "root.tar"),
        f"deb [check-valid-until=no] {_SNAPSHOT} sid main",
    )


def test_each_file_and_each_release_and_each_snapshot_has_its_own_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folders = [
        _ensure(tmp_path),
        _ensure(tmp_path, file="usr/bin/other"),
        _ensure(tmp_path, release="bookworm"),
    ]
    monkeypatch.setenv(SNAPSHOT_VARIABLE, _SNAPSHOT)
    folders.append(_ensure(tmp_path))

    assert len(set(folders)) == 4
    assert _ensure(tmp_path) == folders[-1]


def test_error_for_an_expired_package_list_explains_snapshots(tmp_path: Path) -> None:
    with pytest.raises(HarnessError) as refused:
        _unpack(tmp_path, ScriptedUnpacking(says=_EXPIRED))

    assert "sid/InRelease is expired (invalid since 20d 12h)" in str(refused.value)
    assert f"set {SNAPSHOT_VARIABLE} to the URL" in str(refused.value)
    assert "`harness docs gpus` has examples" in str(refused.value)


@pytest.mark.parametrize("url", ["20260801T000000Z", "ftp://example.org", "http://a b"])
def test_snapshot_that_is_not_a_url_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, url: str
) -> None:
    monkeypatch.setenv(SNAPSHOT_VARIABLE, url)

    with pytest.raises(BadInputError, match=f"{SNAPSHOT_VARIABLE}: .*but got '{url}'"):
        _unpack(tmp_path, ScriptedUnpacking())
