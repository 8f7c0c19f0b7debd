"""Hostile guests, archives and files cannot make a harness process use unlimited memory."""

from __future__ import annotations

import re
import sys

import pytest

from harness.provisioning.command import LocalRunner

_MOST_MIB = 300
_HEAD = """
import base64, contextlib, gzip, io, os, socket, sys, tempfile, threading, zlib
from pathlib import Path
from harness.errors import HarnessError
from harness.provisioning.command import CommandResult
from harness.provisioning.wait import Deadline
from harness.agent import frames

def repeated(*pieces):
    # Packed bit by bit, so that only the harness holds it whole.
    packer = zlib.compressobj(1, wbits=31)
    parts = [packer.compress(piece) for piece, count in pieces for _ in range(count)]
    return b"".join([*parts, packer.flush()])

def frame(kind, name, content=b""):
    return b"\\n" + b"0" * 32 + b" " + kind + b" " + name + b"\\0" + content

class Runner:
    def __init__(self, packed): self.said = base64.b64encode(packed).decode()
    def run(self, argv, **_):
        return CommandResult(argv=tuple(argv), exit_code=0, stdout=self.said, stderr="")

def collect(*pieces):
    from harness.evidence.collect import collect_guest
    from harness.evidence.request import EvidenceRequest
    request = EvidenceRequest(commands={}, files=[], paths=[])
    collect_guest(Runner(repeated(*pieces)), request, place / "e", nonce="0" * 32)

def an_agent():
    from harness.machine.channels.agent import Agent
    ours, theirs = socket.socketpair()
    return Agent("node", ours, bytes(range(256)) * 480), theirs

def send(sock, *pieces):
    def work():
        with contextlib.suppress(OSError):
            for piece, count in pieces:
                for _ in range(count):
                    sock.sendall(piece)
    thread = threading.Thread(target=work, daemon=True)
    thread.start()
    return thread

def sparse(name, size=200 << 30):
    file = place / name
    file.parent.mkdir(parents=True, exist_ok=True)
    file.touch()
    os.truncate(file, size)
    return file

place = Path(tempfile.mkdtemp())
said = "nothing"
try:
    with contextlib.suppress(SystemExit):
"""
_TAIL = """
except HarnessError as error:
    said = str(error).replace("\\n", " ")[:300]
finally:
    import shutil
    shutil.rmtree(place, ignore_errors=True)
print(said)
# What getrusage says has the memory of the process that started this one, too.
status = open("/proc/self/status").read()
print("peak:", int(status.partition("VmHWM:")[2].split()[0]) >> 10)
"""

FLOODS = {
    "boot frames": """
        agent, theirs = an_agent()
        boots = b"".join(frames.encode(frames.BOOT, 0, b"%016d" % each) for each in range(10_400))
        send(theirs, (frames.SYNC_FRAME + boots, 1)).join()
        theirs.sendall(frames.encode(frames.ERROR, 0, b"end"))
        agent.wait_until_ready(Deadline.after(60))
    """,
    "output that nobody reads": """
        from harness.machine.channels.agent_link import Call
        call = Call(1, "the command 'yes'", lambda _: b"")
        try:
            while True:
                call.put(frames.STDOUT, b"y")
                call.put(frames.STDERR, b"n")
        except frames.ProtocolError as error:
            raise HarnessError(str(error)) from None
    """,
    "output of a command": """
        from harness.machine.channels.agent import _Output
        kept = _Output("The command 'yes'")
        wide = ("\\U0001F600" + "y" * 60_000).encode()
        with contextlib.suppress(HarnessError):
            while True:
                kept.add_stdout(wide)
        text = kept.stdout.decode(errors="replace")
        kept.add_stdout(wide)
    """,
    "output of a program": """
        from harness.provisioning.command import LocalRunner
        result = LocalRunner(most_output_bytes=48 << 20).run(["yes"], timeout_s=60)
        said = result.render()[-200:]
    """,
    "console": """
        from harness.machine.channels.console import Console
        ours, theirs = socket.socketpair()
        console = Console("node", ours)
        os.environ["HARNESS_LIMIT_CONSOLE_MIB"] = "50"
        send(theirs, (b"\\xf0\\x9f\\x98\\x80 and more\\r\\n" * 4096, 4000))
        console.wait_for("login:", Deadline.after(20), what="a login prompt")
    """,
    "evidence that unpacks to zeros": """
        collect((frame(b"file", b"/z"), 1), (bytes(1 << 20), 300), (frame(b"end", b""), 1))
    """,
    "evidence of one long command": """
        collect((frame(b"command", b"journal"), 1), (b"x" * (1 << 20), 250), (frame(b"end", b""), 1))
        from harness.evidence import Evidence
        Evidence(place / "e").output_of("journal")
    """,
    "evidence of many names": """
        collect((frame(b"unreadable", b"/u"), 1_000_000), (frame(b"end", b""), 1))
    """,
    "archive that unpacks to zeros": """
        import tarfile
        from harness.evidence.archive import opened
        member = tarfile.TarInfo("t/z")
        member.size = 600 << 20
        (place / "t.tar.gz").write_bytes(repeated((member.tobuf(), 1), (bytes(1 << 20), 600)))
        with opened(place / "t.tar.gz", place / "runs"):
            pass
    """,
    "archive with a header of 600 MiB": """
        import tarfile
        from harness.evidence.archive import opened
        member = tarfile.TarInfo("x")
        member.type, member.size = tarfile.XHDTYPE, 600 << 20
        (place / "t.tar.gz").write_bytes(repeated((member.tobuf(), 1), (b"x" * (1 << 20), 600)))
        with opened(place / "t.tar.gz", place / "runs"):
            pass
    """,
    "archive of many files": """
        import tarfile
        from harness.evidence.archive import unpack
        header = b"".join(tarfile.TarInfo("t/%d" % each).tobuf() for each in range(20_000))
        unpack(io.BytesIO(header), place / "a", source="t.tar", limit_bytes=1 << 40)
    """,
    "sparse evidence": """
        from harness.timeline.reading import read_timeline
        for name in ("host/serial.cast", "history/commands/unit-times", "history/journal.export.gz",
                     "host/qmp-events.json", "requested.json", "unreadable.txt"):
            sparse(name)
        timeline = read_timeline(place)
        said = str([gap.reason for gap in timeline.gaps])[:300]
    """,
    "sparse machine.json": """
        from harness.lab.machine_bundle import read_bundle
        sparse("checkpoint/machine.json")
        read_bundle(place)
    """,
    "JSON of empty lists": """
        from harness.foreign_json import parse_json
        parse_json("[" + "[]," * ((4 << 20) // 3 - 10) + "[]]")
    """,
    "YAML of short values": """
        from harness.datafile import read_document
        (place / "a.yaml").write_text("a: [" + "b," * ((256 << 10) // 2 - 10) + "b]")
        read_document(place / "a.yaml")
    """,
    "events": """
        from harness.machine.channels.event_log import EventLog, QmpEvent, names
        log = EventLog("node", advice="")
        for each in range(200_000):
            log.add(QmpEvent(name="RESET", at_s=float(each), data={"guest": True, "reason": str(each)}))
        log.wait_for("its stop", names("STOP"), Deadline.after(1))
    """,
    "journal of many fields": """
        from harness.evidence.history import parse_journal
        parse_journal(b"".join(b"F%d=\\n" % each for each in range(100_000)) * 20)
        parse_journal(b"_BOOT_ID=a\\n__MONOTONIC_TIMESTAMP=1\\n__REALTIME_TIMESTAMP=2\\n\\n" * 200_000)
    """,
}


@pytest.mark.parametrize("flood", FLOODS)
def test_flood_of_hostile_data_uses_a_bounded_amount_of_memory(flood: str) -> None:
    result = LocalRunner().run(
        [sys.executable, "-c", _HEAD + FLOODS[flood] + _TAIL], timeout_s=240
    )

    assert result.ok, result.render()
    peak = re.search(r"^peak: (\d+)$", result.stdout, re.MULTILINE)
    assert peak is not None
    assert int(peak[1]) < _MOST_MIB, result.stdout
