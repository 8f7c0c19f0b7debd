"""The memory for output and data of shell code is limited, wherever the code writes them."""

from __future__ import annotations

import contextlib
import os
import re
import stat
import threading
from pathlib import Path
from typing import TYPE_CHECKING

from suites.host.shell.running import run_pytest, this_user

if TYPE_CHECKING:
    from types import TracebackType

    from typing_extensions import Self

_MEMORY_MIB = 300
#: The most that code writes on a busy host before a thread checks the size and ends the code.
_FILES_MIB = 1000
_FLOOD = "head -c 1500000000 /dev/zero"
_LETTERS = f"{_FLOOD} | tr '\\\\0' x"
_PEAK = """\
def pytest_unconfigure():
    # What getrusage says has the memory of the process that started this one, too.
    status = open("/proc/self/status").read()
    print("peak MiB:", int(status.partition("VmHWM:")[2].split()[0]) // 1024)
"""
_EXAMPLES = {
    "stdout": f"When run {_FLOOD}",
    "stderr": f"f() {{ {_LETTERS} >&2; }}\nWhen call f",
    "own records": f"f() {{ {_LETTERS} >&190; }}\nWhen call f",
    "empty fields": f"f() {{ {_FLOOD} >&190; }}\nWhen call f",
    "records of the example": f"f() {{ {_FLOOD} >&209; {_FLOOD} >&210; }}\nWhen call f",
    "preserved variables": f"f() {{ {_LETTERS} >/proc/self/fd/199; }}\nWhen call f",
    "stray output": _LETTERS,
    "endless lines": "When run yes",
    "jobs": f"f() {{ for i in 1 2 3 4 5 6 7 8; do {_LETTERS} & done; wait; }}\nWhen call f",
}
_CALLS = {
    "stdout": f"shell.evaluate({_FLOOD!r})",
    "stderr": f"shell.evaluate({_LETTERS!r} + ' >&2')",
    "records": f"shell.evaluate({_LETTERS!r} + ' >&190')",
    "empty fields": f"shell.evaluate({_FLOOD!r} + ' >&190')",
    "a variable": "shell.evaluate('x=xxxxxxxx; while :; do x+=$x; declare -p x >>/proc/self/fd/199; done')",
    "a job between calls": f"shell.evaluate('(sleep 0.2; ' + {_LETTERS!r} + ' | cat) &')\n"
    "    while True: shell.evaluate('sleep 0.1')",
    "a file": "shell.evaluate('truncate -s 10G /srv/f')\n    shell.files.read('/srv/f')",
    "sourcing": "Path('flood.sh').write_text('yes')\n    shell.source('flood.sh')\n    shell.evaluate('true')",
}  # fmt: skip


class _OpenFiles:
    """Measures the memory of the anonymous files that this process's descendants have open, in MiB.

    `most` is the highest value. Other files in shared memory, such as those of other tests, do not
    count.
    """

    def __init__(self) -> None:
        self.most = 0
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._watch, daemon=True)

    def _now(self) -> int:
        sizes: dict[tuple[int, int], int] = {}
        for process in _descendants(os.getpid()):
            # A process may end, or close a descriptor, during the loop.
            with contextlib.suppress(OSError):
                for link in Path(f"/proc/{process}/fd").iterdir():
                    with contextlib.suppress(OSError):
                        state = link.stat()
                        # File systems in memory have no device: their major number is 0.
                        if stat.S_ISREG(state.st_mode) and os.major(state.st_dev) == 0:
                            sizes[state.st_dev, state.st_ino] = state.st_blocks * 512
        return sum(sizes.values()) >> 20

    def _watch(self) -> None:
        while not self._over.wait(0.02):
            self.most = max(self.most, self._now())

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._over.set()
        self._thread.join()


def _descendants(process: int) -> list[int]:
    parents: dict[int, int] = {}
    for status in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError):
            fields = status.read_text(errors="replace").rpartition(")")[2].split()
            parents[int(status.parent.name)] = int(fields[1])
    found = {process}
    while new := {child for child, parent in parents.items() if parent in found} - found:
        found |= new
    return sorted(found - {process})


_EXAMPLE = "It '{}'\n{}\nThe output should be present\nThe status should be success\nEnd\n"
_AFTER = "It 'comes after'\nWhen call echo a\nThe output should equal a\nEnd\n"


def _output(name: str, text: str) -> str:
    """Run pytest on the file, which floods; the output must stay bounded. Return pytest's own output."""
    with this_user() as run, _OpenFiles() as files:
        (run.root / "conftest.py").write_text(_PEAK)
        (run.root / ".shellspec").touch()
        (run.root / name).write_text(text)

        output = run_pytest(run, name, "-s", "--shell-timeout=20").stdout

    assert int(output.partition("peak MiB:")[2].split()[0]) < _MEMORY_MIB
    assert files.most < _FILES_MIB
    return output


def _mentions_the_limit(text: str) -> bool:
    is_limit = "limit 'shell-output-mib'" in text and "HARNESS_LIMIT_SHELL_OUTPUT_MIB" in text
    return is_limit or "a descriptor of the harness" in text


def _require_mentions(output: str, *, failures: int) -> None:
    found = re.split(r"^_{3,} .+ _{3,}$", output, flags=re.MULTILINE)[1:]
    assert len(found) == failures, output
    for failure in found:
        assert _mentions_the_limit(failure.partition("\n====")[0]), output


def test_examples_with_too_much_output_fail_and_their_errors_mention_the_limit() -> None:
    text = "".join(_EXAMPLE.format(*each) + _AFTER for each in _EXAMPLES.items())

    _require_mentions(_output("flood_spec.sh", text), failures=len(_EXAMPLES))


def test_background_job_with_too_much_output_is_reported_with_the_limit() -> None:
    job = f"f() {{ ({_LETTERS} | cat) & }}\nWhen call f"

    # On a slow host, the job reaches the limit only during the next example.
    assert _mentions_the_limit(_output("flood_spec.sh", _EXAMPLE.format("floods", job) + _AFTER))


def test_dynamic_parameters_with_too_much_output_fail_the_collection_of_their_file() -> None:
    text = f"Parameters:dynamic\n{_LETTERS}\n%data a\nEnd\nIt 'x'\nThe value a should eq a\nEnd\n"

    _require_mentions(_output("rows_spec.sh", text), failures=1)


def test_evaluations_with_too_much_output_fail_and_their_errors_mention_the_limit() -> None:
    head = "from pathlib import Path\nimport pytest\npytestmark = pytest.mark.shell_time('real')\n"
    tests = (f"def test_{n}(shell):\n    {code}\n" for n, code in enumerate(_CALLS.values()))

    _require_mentions(_output("test_flood.py", head + "".join(tests)), failures=len(_CALLS))
