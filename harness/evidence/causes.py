"""Pure functions that find common causes of failures in the evidence of a node, with remedies."""

from __future__ import annotations

import contextlib
import glob
import itertools
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING

from harness.cloudinit import FINISHED
from harness.errors import HarnessError
from harness.evidence import BUSY_HOST, CLOUD_INIT_OUTPUT_PATH, Evidence
from harness.evidence.gaps import NOT_COLLECTED
from harness.evidence.node_state import RESTARTING, unit_rows
from harness.foreign_files import evidence_text, last_bytes
from harness.provisioning.driver_messages import parse_messages
from harness.provisioning.driver_words import TOOL_WORDS

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence
    from pathlib import Path
    from typing import TypeAlias

    from harness.provisioning.driver_words import DriverWords

    #: For each log, the name of the log's file, and the log's lines.
    _Logs: TypeAlias = Sequence[tuple[str, Sequence[str]]]

#: The text that replaces a file's name if the test's own error shows the cause.
_SAID = "the error"
_CONSOLE = "host/serial.log"
_STEP = re.compile(r"step '")
#: The files that are searched for causes, the most informative first.
_SOURCES = (
    "files/var/log/azure/cluster-provision.log",
    "files/var/log/cloud-init-output.log",
    "commands/journal",
    "commands/dmesg",
    _CONSOLE,
    "files/var/log/cloud-init.log",
    "files/var/lib/dkms/*/build/make.log",
    "files/var/lib/dkms/*/*/build/make.log",
)
#: Only this many bytes at the end of a file are read, because a node that continues after a
#: failure logs the error again.
_MOST_BYTES = 2 << 20
_LONGEST_LINE = 4096
#: The maximum number of named units of one kind, because a guest may have any number of failed
#: units.
_MOST_UNITS = 100
_CONTROL = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]|[\x00-\x08\x0b-\x1f]")
_PREFIX = re.compile(
    r"^(?:\[\s*\d+\.\d+\]\s*|[A-Z][a-z]{2}\s+\d+ [\d:.]+ \S+ |\d{4}-\d\d-\d\d[T ][\d:.,+-]+ \S+ )"
)
#: Matches the command in a message about a failed command; the command may contain any text.
_COMMAND = re.compile(r"^command: .*?(?=^exit code: )", re.MULTILINE | re.DOTALL)
#: Matches an error that a Python program on the host printed; an error in the guest may have the
#: same text.
_OF_HOST = re.compile(r"\[Errno \d+\]")
#: Matches lines that cloud-init and the harness write among the output of cloud-init's commands.
_OF_CLOUD_INIT = re.compile(
    rf"^(Cloud-init v\.|ci-info: |\w+\.py\[[A-Z]+\]:|{re.escape(FINISHED)}$)"
)
_FINAL_STAGE = "cloud-final.service"
#: Lines that tools print after the line with the reason of a failure.
_AFTERTHOUGHT = re.compile(
    r'^See "?(systemctl status|journalctl)|^E: Sub-process \S+ returned an error code|'
    r"^Errors were encountered while processing|^Consult \S+ for more information|"
    r"^make(\[\d+\])?: (Leaving directory|\*\*\* .*Error \d+)|^Job for \S+ (failed|canceled)|"
    r"Installation has failed\. +Please see the file"
)
#: An error level in a log of any format: a single word or letter between separators.
_ERROR_LEVEL = re.compile(r"(?:^|[|\[(<\t])\s{0,9}(E|ERR|CRIT|EMERG|SEVERE)\s{0,9}(?:[|\])>\t:])")
#: Lines that systemd logs about a unit after the line that says that the unit ended.
_ACCOUNT = re.compile(r": Consumed .* (CPU time|memory)|: Scheduled restart job")
#: The sentence about a command that ended the provisioner without output, for example under `set
#: -e`.
_SILENT = (
    "remedy: a command failed and printed nothing, and the provisioner ended with its exit code; "
    "run the provisioner with `bash -x` in the machine (`harness resume`) to see which command"
)
_LAST_LINES = 3
_LAST_PRINTED = 2
_LABEL = re.compile(r"^(stdout|stderr): ")
_EXIT_CODE = re.compile(r"^exit code: (\d+(?: \(time limit\))?)", re.MULTILINE)
_PRINTED = re.compile(r"^(stdout|stderr): (.*?)(?=^stderr: |\Z)", re.MULTILINE | re.DOTALL)
_ERROR_LINE = re.compile(
    r"\b(error|failed|failure|fatal|cannot|can't|unable to|panic|traceback)\b", re.IGNORECASE
)
#: Lines in the boot logs of healthy nodes that look like errors.
_HARMLESS = re.compile(
    r"0 errors|errors=remount|error_log|no error|ERST|BERT|EDAC|failed_units|without errors|"
    r"Condition check resulted|RAS: Correctable|"
    # The kernel logs its command line, which contains `panic=-1`.
    r"command line:|panic=|"
    # An emulated guest prints `tsc:`; a module that DKMS has built causes the message about verification.
    r"\btsc: |module verification failed|"
    # Containerd tries all its plugins; until a cluster configures CNI, containerd reports an error.
    r"level=(debug|info|warning)|failed to load cni during init|"
    # A pipe in DKMS's script causes this message.
    r"dkms.* write error: Broken pipe|"
    # This line is printed for a step of provisioning that was not needed.
    r"step \S+ skipped|Only needed after failure of|"
    # Debug lines of cloud-init.
    r"\[DEBUG\]",
    re.IGNORECASE,
)


@dataclass(frozen=True, kw_only=True)
class Cause:
    """A common cause of failures: its name, the pattern that finds the cause in a log, and the remedy."""

    name: str
    pattern: re.Pattern[str]
    remedy: str


@dataclass(frozen=True, kw_only=True)
class FoundCause:
    """A cause, the line that shows the cause, and the file that contains the line."""

    cause: Cause
    line: str
    source: str

    def sentence(self) -> str:
        """Return the text for pytest's short summary; the cause's name comes first: long texts are cut."""
        return f"{self.cause.name}: {self.line}"

    @property
    def remedy(self) -> str:
        """Return the sentence with the remedy."""
        return f"remedy: {self.cause.remedy}"


def _cause(name: str, pattern: str, remedy: str) -> Cause:
    return Cause(name=name, pattern=re.compile(pattern, re.IGNORECASE), remedy=remedy)


def _remedy_of(words: DriverWords) -> str:
    return f"{words.remedy} host/*-trace.txt has the last accesses to an emulated GPU."


#: The last causes are messages that NVIDIA's driver programs print, and messages that provisioning prints
#: about these programs.
CAUSES = (
    _cause(
        "kernel panic",
        r"Kernel panic - not syncing",
        "read the lines above the panic in host/serial.log",
    ),
    _cause(
        "the root file system is not found",
        r"ALERT! .* does not exist",
        "compare 'root=' in host/argv.txt with the machine's disks, and with the modules of its initrd",
    ),
    _cause(
        "no space on the host's disk",
        r"QEMU could not write its disk \(No space|qemu-img: .*No space left on device",
        "free space on the file system that the line names",
    ),
    _cause(
        "no space on the guest's disk",
        # The kernel uses the same message for other exhausted resources: cgroups, BPF, message
        # queues.
        r"^(?!.*(inotify|(?<![\w./-])watch(es|er|ing)?(?![\w./-])|/sys/fs/|/proc/sys|cgroup|\b(lib)?bpf(_\w+)?\b)).*"
        r"No space left on device",
        "`df -h` and `df -i` in the machine show which file system is full; make the image's disk larger",
    ),
    _cause(
        "the guest ran out of memory",
        r"(?<!cgroup )out of memory: kill(ed)? process|constraint=CONSTRAINT_NONE|"
        r"\bfork\b.*Cannot allocate memory",
        "give the node more 'memory_mib', or find in commands/dmesg which process uses the memory",
    ),
    _cause(
        "dpkg is locked by another process",
        # apt's message that it waits for the lock is no failure.
        r"^(?!.*(Waiting for cache lock|are you root)).*"
        r"(Could not get lock /var/lib/(dpkg|apt)|dpkg frontend lock|dpkg.* is another process using it)",
        "wait for apt's own services (unattended-upgrades, apt-daily) before installing",
    ),
    _cause(
        "the kernel's headers are missing",
        r"kernel headers for (kernel|target) .* (cannot|can't) be found|Your kernel headers for kernel|"
        r"Unable to find the kernel source tree|(fail(ed|ure)|unable) to (find|locate|install) (the )?(Linux )?kernel headers|"
        r"/lib/modules/[^/\s]+/(build|source)\W*: No such file or directory",
        "install linux-headers of the running kernel, or boot a kernel whose headers are installed",
    ),
    _cause(
        "the guest's clock is wrong",
        r"certificate is not yet valid|has expired or is not yet valid: current time \S+ is before|"
        r"Release file .* is not valid yet|not valid yet \(invalid for another",
        "compare the output of `date` in the machine and on the host; check the machine's time service",
    ),
    _cause(
        "a certificate has expired, or the guest's clock is ahead",
        r"certificate has expired(?! or is not yet valid: current time \S+ is before)",
        "compare the output of `date` in the machine and on the host with the end date of the server's "
        "certificate",
    ),
    _cause(
        "a name can't be resolved",
        r"Temporary failure in name resolution|Could not resolve (host|proxy)|Temporary failure resolving|"
        r"Resolving timed out|no such host|unable to resolve host address|Name or service not known|"
        r"(name )?resolution timed out|no servers could be reached|\bEAI_AGAIN\b|"
        r"\blookup \S+( on \S+)?: .*(i/o timeout|server misbehaving|connection refused)|"
        r"(^|[:\] ])(host|nslookup|dig|getent|curl|wget|ping)\b.*(can't resolve|bad address)",
        "machines have no network beyond the host; serve the name by the fixture `registry` or `host_ports`",
    ),
    _cause(
        "cloud-init can't read its user-data",
        r"Failed loading yaml blob|Invalid cloud-config provided|Failed at merging in cloud config",
        "check the user-data as YAML: `cloud-init schema --system` in the machine names the line",
    ),
    _cause(
        "systemd went into emergency mode",
        r"You are in emergency mode",
        "a file system of /etc/fstab is missing or damaged; see host/serial.log",
    ),
    _cause(
        "there are no inotify watches left",
        r"inotify.{0,300}(no space left on device|resources exhausted|too many open files)|"
        r"(?<![\w./-])watch(es|er|ing)?(?![\w./-]).{0,300}(no space left on device|too many open files)|"
        r"limit of inotify (watches|instances)|(fs ?notify|FS watcher).{0,300}too many open files|limit for number of file watchers reached",
        "raise fs.inotify.max_user_watches or max_user_instances in the machine (`sysctl`)",
    ),
    _cause(
        "a container or unit reached its own memory limit",
        r"Memory cgroup out of memory|constraint=CONSTRAINT_MEMCG|killed as a result of limit of /|"
        r"\bOOMKilled\b",
        "raise the memory limit of the pod or unit that the line names",
    ),
    *(
        Cause(name=words.name, pattern=words.pattern, remedy=_remedy_of(words))
        for words in TOOL_WORDS
        if words.name
    ),
)


def find_causes(said: str, folders: Iterable[Path]) -> list[FoundCause]:
    """Return the first common cause in an error's text, and the first one in each evidence folder.

    A cause that is found several times is listed once; a line from the evidence is preferred to a
    line from the error.
    """
    lines = [
        _LABEL.sub("", line)
        for line in _COMMAND.sub("", said).splitlines()
        if not _OF_HOST.search(line)
    ]
    shown = [_first_cause([(_SAID, lines)]), *map(find_cause, folders)]
    named: dict[str, FoundCause] = {}
    for found in shown:
        if found is not None:
            before = named.get(found.cause.name)
            named[found.cause.name] = found if before is None or before.source == _SAID else before
    return list(named.values())


def explain(folder: Path, *, is_named: bool = False) -> list[str]:
    """Return sentences about findings other than a common cause, the most useful first.

    The first sentences are about the failed steps of provisioning or, if no step failed, about the
    failed end of the provisioner and the last lines of the provisioner's log. After the sentences
    about provisioning, a sentence names each failed unit with the unit's last line in the journal,
    and each unit that systemd restarts. If there is no failed step, provisioner or unit, and
    `is_named` is false because no cause is named, a sentence names each unit that is still
    starting. Without such failures and causes, one more sentence quotes the guest's first line
    about an error or else, if the guest does not answer, the last line of the guest's console. If
    other work of the host delayed the machine, the last sentence says so.
    """
    logs = list(_logs(folder))
    sentences = list(_failed_steps(folder))
    ended = [] if any(_STEP.match(each) for each in sentences) else list(_end_of_run(folder))
    sentences += ended
    sentences += _lock_holders(folder, sentences)
    # If the provisioner failed, the cloud-init stage that ran the provisioner failed too.
    failed = _failed_units(folder, logs, without=_FINAL_STAGE if ended else "")
    sentences += itertools.islice(failed, _MOST_UNITS)
    is_told = is_named or bool(sentences)
    sentences += itertools.islice(_restarting_units(folder, logs), _MOST_UNITS)
    if not is_told:
        sentences += itertools.islice(_starting_units(folder), _MOST_UNITS)
        if line := _first_error(logs):
            sentences.append(f"the guest's first error: {line}")
        elif (folder / NOT_COLLECTED).is_file() and (line := _last_of_console(logs)):
            sentences.append(f"the guest does not answer; its console ends with: {line}")
    with contextlib.suppress(HarnessError, OSError):
        sentences += evidence_text(folder / "host" / BUSY_HOST, below=folder).splitlines()[:1]
    return sentences


def _failed_steps(folder: Path) -> Iterator[str]:
    # Evidence may be damaged, but this must not hide the failure itself.
    with contextlib.suppress(HarnessError, OSError):
        outcome = Evidence(folder).outcome
        if outcome is None:
            return
        told: list[str] = []
        for step in outcome.steps:
            if step.status in {"failed", "error"}:
                told.append(step.detail or step.name)
                detail = "" if step.detail is None else f": {_in_one_line(step.detail)}"
                yield f"step '{step.name}' failed{detail}"
        if outcome.error and not any(each in outcome.error for each in told):
            yield f"provisioning ended with {outcome.exit_code}: {_first_line(outcome.error)}"


def _end_of_run(folder: Path) -> Iterator[str]:
    """Yield lines about how the provisioner's latest run failed, and the last lines of the run's log."""
    with contextlib.suppress(HarnessError, OSError):
        evidence = Evidence(folder)
        if not evidence.exit_code:
            return
        declared = evidence.provisioner
        lines = _own_lines(evidence.log)
        # Errors of tools that the provisioner starts are in the provisioner's output, but may be
        # missing in the provisioner's own log.
        logged = set(lines)
        printed = [line for line in _own_lines(evidence.output) if line not in logged]
        error = next(
            (line for line in reversed(lines) if _is_error(line) or _ERROR_LEVEL.search(line)),
            None,
        )
        said = lines[-_LAST_LINES:]
        said = said if error is None or error in said else [error, *said]
        if failed := evidence.failed_command:
            yield (
                f"`set -e` ended the provisioner in line {failed.line} of '{failed.file}': "
                f"{_first_line(failed.command)}"
            )
        yield (
            f"provisioner '{declared.name}' ended with {declared.named(evidence.exit_code)}; its log "
            f"'{evidence.log_path}' {'ends with:' if said else 'says nothing.'}"
        )
        yield from (f"log: {line}" for line in said)
        told = [line for line in printed if not _AFTERTHOUGHT.search(line)]
        yield from (f"printed: {line}" for line in (told or printed)[-_LAST_PRINTED:])
        codes = declared.outcome.exit_codes
        is_silent = failed is None and not printed and evidence.log_path != CLOUD_INIT_OUTPUT_PATH
        if codes and evidence.exit_code not in codes and is_silent:
            yield _SILENT


def _lock_holders(folder: Path, sentences: Sequence[str]) -> list[str]:
    """Return a sentence about each locked file in `sentences`; the sentence names the process with the lock."""
    found = []
    for line in _end_of(folder / "commands/locks").splitlines():
        process, _, rest = line.partition("\t")
        path, _, command = rest.partition("\t")
        # Compiling an expression for each line would take minutes.
        if not any(path in each for each in sentences):
            continue
        # Do not match a longer name, such as `/run/x.lock.d` for `/run/x.lock`.
        whole = re.compile(rf"(?<![\w./-]){re.escape(path)}(?![\w/-]|\.\w)")
        if path.startswith("/") and any(map(whole.search, sentences)):
            found.append(
                f"'{path}' was locked by process {process} when the evidence was gathered: "
                f"{command.strip() or 'no command'}"
            )
    return list(dict.fromkeys(found))


def _own_lines(text: str) -> list[str]:
    """Return the lines of a provisioner's log or output, without cloud-init's lines."""
    plain = (_plain(line[:_LONGEST_LINE]) for line in text.splitlines())
    return [line for line in plain if line and not _OF_CLOUD_INIT.match(line)]


def _first_line(text: str) -> str:
    return text.partition("\n")[0]


def _in_one_line(detail: str) -> str:
    """Return the detail of a step's failure in one line.

    For a failed command, the exit code and the last printed line precede the command, which may be
    long.
    """
    sentence, has_command, command = _first_line(detail).partition("command: ")
    if not has_command:
        return sentence
    code = _EXIT_CODE.search(detail)
    printed = {
        name: text.strip().splitlines()[-1]
        for name, text in _PRINTED.findall(detail)
        if text.strip() not in {"", "-"}
    }
    said = next(
        (f"{name}: {printed[name]}" for name in ("stderr", "stdout") if name in printed), None
    )
    parts = (code and f"exit code {code[1]}", said, f"command: {command}")
    return sentence + "; ".join(part for part in parts if part)


def _failed_units(folder: Path, logs: _Logs, *, without: str) -> Iterator[str]:
    for unit, *_ in _words(folder / "commands/failed-units"):
        if unit != without:
            yield f"unit '{unit}' failed: {_last_of_unit(unit, logs)}"


def _restarting_units(folder: Path, logs: _Logs) -> Iterator[str]:
    """Yield a sentence about each failed unit that systemd will restart and does not list as failed."""
    for unit, *columns in _words(folder / "commands/units"):
        if "".join(columns[2:3]).startswith(RESTARTING):
            yield f"unit '{unit}' failed and is started again: {_last_of_unit(unit, logs)}"


def _last_of_unit(unit: str, logs: _Logs) -> str:
    """Return the last line that a unit's program logged, or else systemd's last line about the unit."""
    journal = next((lines for name, lines in logs if name == "commands/journal"), [])
    name = unit.removesuffix(".service")
    # Do not match a longer name, such as `nvidia-dcgm.service` for `dcgm.service`.
    whole = re.compile(rf"(?<![\w.:@\\-]){re.escape(unit)}(?![\w@\\-]|\.\w)")
    own = [
        line
        for line in journal
        if line.startswith(f"{name}[") or (unit in line and whole.search(line))
    ]
    own = [line for line in own if not _ACCOUNT.search(line)]
    said = next((line for line in reversed(own) if not line.startswith("systemd[")), None)
    return said or (own[-1] if own else "the journal has no line about it")


def _starting_units(folder: Path) -> Iterator[str]:
    """Yield a sentence about each unit whose start command runs; omit units that wait for other units."""
    for unit, *columns in _words(folder / "commands/units"):
        # A line may be truncated, or may be an error message.
        if columns[1:2] == ["activating"] and "".join(columns[2:3]).startswith("start"):
            yield f"unit '{unit}' is still starting"


def _words(listed: Path) -> Iterator[list[str]]:
    """Yield the words of each line of a list of units."""
    lines = _end_of(listed).split("\n")
    yield from unit_rows("\n".join(line[:_LONGEST_LINE] for line in lines))


def _end_of(file: Path) -> str:
    """Return the text at the end of a file, or an empty text if the file can't be read."""
    # Evidence may be damaged, but this must not hide the failure itself.
    with contextlib.suppress(OSError):
        return last_bytes(file, _MOST_BYTES).decode(errors="replace")
    return ""


def find_cause(folder: Path) -> FoundCause | None:
    """Return the first common cause in the evidence in `folder`, or None."""
    return _first_cause(list(_logs(folder)))


def _first_cause(logs: _Logs) -> FoundCause | None:
    for cause in CAUSES:
        for name, lines in logs:
            for line in lines:
                if cause.pattern.search(line):
                    return FoundCause(cause=cause, line=line, source=name)
    return _cause_of_driver(logs)


def _cause_of_driver(logs: _Logs) -> FoundCause | None:
    """Return the cause for the first known GPU error of the driver in the logs, or None."""
    for name, lines in logs:
        for message in parse_messages("\n".join(lines)):
            if message.words is not None and message.words.name:
                cause = Cause(
                    name=message.words.name,
                    pattern=message.words.pattern,
                    remedy=_remedy_of(message.words),
                )
                return FoundCause(cause=cause, line=message.line, source=name)
    return None


def first_error_line(folder: Path) -> str | None:
    """Return the guest's first line about an error, or None."""
    return _first_error(list(_logs(folder)))


def _first_error(logs: _Logs) -> str | None:
    for _, lines in logs:
        for line in lines:
            if _is_error(line):
                return line
    return None


def _is_error(line: str) -> bool:
    return bool(_ERROR_LINE.search(line)) and not _HARMLESS.search(line)


def _last_of_console(logs: _Logs) -> str | None:
    return next((lines[-1] for name, lines in logs if name == _CONSOLE and lines), None)


def _declared_log(folder: Path) -> Sequence[str]:
    """Return a list with the glob pattern of the declared log, or an empty list if no log is declared."""
    with contextlib.suppress(HarnessError, OSError):
        log = Evidence(folder).provisioner.outcome.log
        return [] if log is None or log.path is None else [f"files{glob.escape(log.path)}"]
    return []


def _logs(folder: Path) -> Iterator[tuple[str, list[str]]]:
    for pattern in dict.fromkeys((*_declared_log(folder), *_SOURCES)):
        for path in sorted(folder.glob(pattern)):
            lines = [
                stripped
                for line in _end_of(path).splitlines()
                if (stripped := _plain(line[:_LONGEST_LINE]))
            ]
            yield path.relative_to(folder).as_posix(), lines


def _plain(line: str) -> str:
    """Return a log line without colour codes, and without the time and host at the beginning."""
    return _PREFIX.sub("", _CONTROL.sub("", line)).strip()
