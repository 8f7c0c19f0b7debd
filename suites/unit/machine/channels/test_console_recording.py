"""Recordings of consoles."""

from __future__ import annotations

import errno
import io
import json
import re
import time
from pathlib import Path

import pytest
from typing_extensions import override

from harness.cli import main
from harness.cli.console_text import without_commands
from harness.errors import BadInputError
from harness.machine.channels.console_recording import ConsoleRecorder, read_recording


class Disk(io.StringIO):
    """A file on a disk that gets full."""

    is_full = False

    @override
    def flush(self) -> None:
        if self.is_full:
            raise OSError(errno.ENOSPC, "No space left on device")
        super().flush()

    @override
    def close(self) -> None:
        self.flush()
        super().close()


@pytest.fixture
def recording(tmp_path: Path) -> Path:
    path = tmp_path / "node/host/serial.cast"
    path.parent.mkdir(parents=True)
    times = iter([100.0, 101.5, 104.0, 104.0])
    recorder = ConsoleRecorder(path, title="a test", clock=lambda: next(times))
    for chunk in (b"Linux\r\n", "caf\u00e9".encode()[:4], "caf\u00e9".encode()[4:], b""):
        recorder(chunk)
    recorder.close()
    return path


def test_recorded_output_is_read_with_its_times_and_whole_characters(recording: Path) -> None:
    with recording.open("a") as file:
        file.write('[5.0, "i", "typed"]\n[5.0, "m", "a marker"]\n')

    assert list(read_recording(recording)) == [(1.5, "Linux\r\n"), (4.0, "caf"), (4.0, "\u00e9")]


def test_header_has_the_form_of_an_asciicast(tmp_path: Path) -> None:
    before = int(time.time())
    ConsoleRecorder(tmp_path / "serial.cast", title="a test").close()

    header = json.loads((tmp_path / "serial.cast").read_text())

    assert before <= header.pop("timestamp") <= time.time()
    assert header == {"version": 2, "width": 80, "height": 24, "title": "a test"}


def test_times_are_in_milliseconds_and_undecodable_bytes_are_replaced(tmp_path: Path) -> None:
    times = iter([100.0, 100.123456])
    recorder = ConsoleRecorder(tmp_path / "serial.cast", title="a test", clock=lambda: next(times))
    recorder(b"a\xffb")
    recorder.close()

    assert list(read_recording(tmp_path / "serial.cast")) == [(0.123, "a\ufffdb")]


def test_existing_recording_is_not_overwritten(recording: Path) -> None:
    before = recording.read_text()

    with pytest.raises(FileExistsError):
        ConsoleRecorder(recording, title="another test")

    assert recording.read_text() == before


def test_full_disk_does_not_end_the_reader_of_the_console(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without a reader, the guest would block on its console."""
    disk = Disk()
    monkeypatch.setattr(Path, "open", lambda *_, **__: disk)
    recorder = ConsoleRecorder(tmp_path / "serial.cast", title="a test", clock=lambda: 1.0)
    recorder(b"before")
    disk.is_full = True

    recorder(b"meanwhile")
    recorder.close()

    assert json.loads(disk.getvalue().splitlines()[1]) == [0.0, "o", "before"]


def test_truncated_recording_is_played_to_its_end(recording: Path) -> None:
    recording.write_text(recording.read_text()[:-6])

    assert list(read_recording(recording)) == [(1.5, "Linux\r\n"), (4.0, "caf")]


def test_file_that_is_not_an_asciicast_is_refused(tmp_path: Path) -> None:
    for text, message in (
        ("no json", "The file is not an asciicast."),
        ("[]", "The file is not an asciicast."),
        ("{}", "The file is not an asciicast."),
        ('{"version": 1}', "The asciicast has version 1; only version 2 can be read."),
    ):
        path = tmp_path / "serial.cast"
        path.write_text(text)

        with pytest.raises(BadInputError, match=f"^{re.escape(f'{path}: {message}')}$"):
            list(read_recording(path))


def test_replay_prints_the_console(recording: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["replay", "--speed=0", str(recording.parents[2])]) == 0

    assert capsys.readouterr().out == "Linux\ncaf\u00e9".replace("\n", "\r\n")


def test_replay_keeps_the_pauses_of_the_machine_up_to_a_limit(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    waits: list[float] = []
    monkeypatch.setattr(
        "harness.provisioning.wait.SystemClock.sleep", lambda _, seconds: waits.append(seconds)
    )
    folder = tmp_path / "host"
    folder.mkdir()
    events = [[1.0, "o", "a"], [1.5, "o", "b"], [100.0, "o", "c"]]
    text = "\n".join(map(json.dumps, [{"version": 2}, *events]))
    (folder / "serial.cast").write_text(text + "\n")

    assert main(["replay", "--speed=2", str(tmp_path)]) == 0

    assert (capsys.readouterr().out, waits) == ("abc", [0.5, 0.25, 1.0])


def test_replay_of_a_folder_with_several_machines_is_refused(
    recording: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    other = recording.parents[2] / "other/host"
    other.mkdir(parents=True)
    (other / "serial.cast").touch()

    assert main(["replay", str(recording.parents[2])]) == 2
    assert "several machines" in capsys.readouterr().err


def test_error_for_a_malformed_line_has_its_number_and_the_start_of_its_text(
    recording: Path,
) -> None:
    before = recording.read_text()
    for line in ("5", '["x", "o", "a"]', '[NaN, "o", "a"]', '[1, "o"]', f"[{'1' * 100}]"):
        recording.write_text(f"{before}{line}\n")
        expected = f"{recording}:5: A line of an asciicast is [SECONDS, KIND, TEXT], but this one is {line[:80]!r}."
        with pytest.raises(BadInputError, match=f"^{re.escape(expected)}$"):
            list(read_recording(recording))


def test_too_long_line_at_the_end_of_a_recording_is_refused(recording: Path) -> None:
    with recording.open("a") as file:
        file.write('[5.0, "o", "' + "x" * (1 << 20) + '"]\n')

    with pytest.raises(BadInputError, match="at most 1 MiB"):
        list(read_recording(recording))


def test_surrogates_and_undecodable_bytes_are_replaced(recording: Path) -> None:
    header = recording.read_bytes().splitlines()[0]
    recording.write_bytes(header + b'\n[1, "o", "a\\ud800b"]\n[2, "o", "\xff"]\n')

    assert list(read_recording(recording)) == [(1.0, "a?b"), (2.0, "\ufffd")]


def test_unsafe_escape_sequences_are_removed_from_the_replayed_output() -> None:
    for pieces, drawn in (
        (["\x1b[31mred\x1b[0m\r\n\ttab\b"], "\x1b[31mred\x1b[0m\r\n\ttab\b"),
        # systemd separates the numbers of a colour by colons.
        (["\x1b[0;1;38:5:185mDEPEND\x1b[0m\x1b[4:3H"], "\x1b[0;1;38:5:185mDEPEND\x1b[0m"),
        (["\x1b7\x1b[r\x1b[999;999H\x1b[6n\x1b8"], "\x1b7\x1b[r\x1b[999;999H\x1b8"),
        (["\x1b]0;title\x07a\x1b]52;c;eA==\x1b\\b"], "ab"),
        (["\x1bP$q m\x1b\\a\x1b[c\x1b[?1000h\x05\x1bc\x9b6n"], "a6n"),
        (["a\x1b", "[6", "nb\x1b]52;c;", "eA==", "\x07c"], "abc"),
        (["\x1b[?25l", "\x1b"], "\x1b[?25l"),
        # An unfinished escape sequence does not delay the output after it.
        (["\x1b]0;" + "x" * 4096, "shown"], "shown"),
    ):
        assert (
            "".join(text for _, text in without_commands((0.0, each) for each in pieces)) == drawn
        )


def test_replay_speed_that_is_not_a_number_of_0_or_more_is_refused(
    capsys: pytest.CaptureFixture[str],
) -> None:
    for word in ("nan", "-1", "x"):
        with pytest.raises(SystemExit):
            main(["replay", f"--speed={word}", "t"])

        assert "is not a factor" in capsys.readouterr().err
