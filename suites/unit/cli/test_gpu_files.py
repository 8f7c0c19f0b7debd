"""`harness gpu firmware` and `harness gpu release` write files for GPUs that NVIDIA's driver opens."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from harness.cli import gpu_release, main
from harness.gpu.gsp.layouts import ReleaseFile, read_release_file, render_release
from harness.provisioning.command import CommandResult

if TYPE_CHECKING:
    from collections.abc import Sequence

OLD, NEW = "535.261.03", "550.163.01"


def a_release(release: str, *, number: int = 1) -> ReleaseFile:
    """Return minimal data of a driver's release."""
    return ReleaseFile(
        schema=1,
        release=release,
        structs={},
        commands={},
        constants={"KEPT": 5, "MOVED": number},
    )


@pytest.fixture
def made(monkeypatch: pytest.MonkeyPatch) -> list[tuple[Path, list[str], Path]]:
    """Fake `make_release`; return its calls: the source folder, its files, and the work folder."""
    seen: list[tuple[Path, list[str], Path]] = []

    def make_release(source: Path, work: Path, _runner: object) -> ReleaseFile:
        seen.append((source, sorted(each.name for each in source.iterdir()), work))
        return a_release("545.10", number=7)

    monkeypatch.setattr(gpu_release, "make_release", make_release)
    return seen


def test_firmware_files_are_written_into_the_folder_of_their_release(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for release in (OLD, NEW):
        assert main(["gpu", "firmware", release, f"--output={tmp_path}"]) == 0

        files = [Path(line) for line in capsys.readouterr().out.splitlines()]
        assert sorted(files) == sorted((tmp_path / "nvidia" / release).iterdir())
        content = {file.name: file.read_bytes() for file in files}
        assert all(release.encode() + b"\0" in each for each in content.values())
        for chip, name in (("tu11x", "gsp_tu10x.bin"), ("gh100", "gsp_ga10x.bin")):
            signed = [file for file in content if f"_{chip}".encode() in content[file]]
            assert signed == [name]


def test_firmware_command_refuses_a_driver_release_without_data(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["gpu", "firmware", "545.10", f"--output={tmp_path}/out"]) == 2
    assert "no data for this release" in capsys.readouterr().err
    assert not (tmp_path / "out").exists()


def test_release_command_writes_a_file_and_lists_changes_since_the_previous_release(
    made: list[tuple[Path, list[str], Path]],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    (tmp_path / "source/src").mkdir(parents=True)
    own = tmp_path / "own"
    (own / "releases").mkdir(parents=True)
    (own / "releases/540.1.json").write_text(render_release(a_release("540.1")))
    monkeypatch.chdir(tmp_path)

    # At the second time, the data of the same release are known, and must not be compared.
    for _ in range(2):
        assert main(["gpu", "release", "source", f"--output={own}", f"--gpu-models={own}"]) == 0

        streams = capsys.readouterr()
        file, change = streams.out.splitlines()
        assert streams.err == "[gpu] 1 changes since release 540.1\n"
        assert "MOVED" in change
        assert file == str(own / "releases/545.10.json")
        assert read_release_file(Path(file)).constant("MOVED") == 7
    (source, names, work), _ = made
    assert (source, names) == (tmp_path / "source", ["src"])
    assert not work.exists()


@pytest.mark.parametrize("code", [0, 2])
def test_driver_source_may_be_an_archive(
    made: list[tuple[Path, list[str], Path]],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    code: int,
) -> None:
    class Unpacking:
        def run(self, argv: Sequence[str], **_: float) -> CommandResult:
            assert argv[:2] == ["tar", f"--file={archive}"]
            (folder,) = (word.partition("=")[2] for word in argv if "--directory=" in word)
            (Path(folder) / "src").mkdir()
            return CommandResult(argv=tuple(argv), exit_code=code, stdout="", stderr="")

    archive = tmp_path / "source.tar.xz"
    archive.touch()
    monkeypatch.setattr(gpu_release, "LocalRunner", Unpacking)

    assert main(["gpu", "release", str(archive), f"--output={tmp_path}/own"]) == code

    assert [names for _, names, _ in made] == [["src"]] * (code == 0)
    assert (tmp_path / "own").exists() is (code == 0)


def test_missing_driver_source_is_refused(
    made: list[tuple[Path, list[str], Path]], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["gpu", "release", f"{tmp_path}/none", f"--output={tmp_path}/own"]) == 2

    assert f"{tmp_path}/none" in capsys.readouterr().err
    assert (made, list(tmp_path.iterdir())) == ([], [])
