"""The folder of one node's evidence: the files of the guest, and the output of commands."""

from __future__ import annotations

import errno
import secrets
import shutil
from typing import TYPE_CHECKING

from harness.errors import HarnessError
from harness.evidence import node_state
from harness.evidence.gaps import refuse_closed, refuse_gaps
from harness.evidence.outcome import parse_exit_code
from harness.foreign_files import evidence_text
from harness.lease import make_private_folder

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

#: The folders in which a shell looks for programs. If a folder is not accessible, its programs
#: seem to be absent.
_PROGRAM_FOLDERS = ("/usr/local/sbin", "/usr/local/bin", "/usr/sbin", "/usr/bin", "/sbin", "/bin")
#: `timeout`'s exit code for a program that does not exist.
NOT_FOUND = 127


class EvidenceFolder:
    """The files and the output of commands that were gathered from one node."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def copy_to(self, folder: Path) -> Path:
        """Copy the evidence to `folder`, replacing the folder's contents, and return `folder`.

        Raises HarnessError if the copy cannot be written; `folder` is then unchanged.
        """
        make_private_folder(folder.parent)
        beside = folder.with_name(f".{folder.name}.{secrets.token_hex(4)}")
        try:
            shutil.copytree(self.folder, beside)
            shutil.rmtree(folder, ignore_errors=True)
            beside.rename(folder)
        except (OSError, shutil.Error) as error:
            raise HarnessError(
                f"The evidence in '{self.folder}' cannot be copied to '{folder}': {error}."
            ) from error
        finally:
            shutil.rmtree(beside, ignore_errors=True)
        return folder

    def file(self, path: str) -> str | None:
        """Return the text of a file of the guest, or None if the guest had no such file.

        Raises HarnessError if the user on the node had no permission to read the file, or if the
        file was not requested.
        """
        kept = self.folder / "files" / path.lstrip("/")
        if kept.is_file():
            return self._text(kept)
        refuse_gaps(self.folder, "files", path)
        return None

    def _text(self, kept: Path) -> str:
        """Return a file's text; raises HarnessError if the file is too long, or is not a regular file."""
        return evidence_text(kept, below=self.folder)

    def refuse_cut(self, path: str) -> None:
        """Raise HarnessError if only the beginning of a file of the guest was collected."""
        kept = self.folder / "files" / path.lstrip("/")
        if kept.is_file() and kept.stat().st_size >= node_state.FILE_LIMIT_KIB << 10:
            raise HarnessError(
                f"Only the first {node_state.FILE_LIMIT_KIB} KiB of '{path}' were collected, so the "
                f"rest of '{path}' is unknown. If '{path}' is the provisioner's log, let the provisioner "
                "write a smaller log, and declare the path of the smaller log as 'outcome.log.path'.",
                evidence=self.folder,
            )

    def files(self, folder: str) -> Mapping[str, str]:
        """Return the texts of the gathered files that are directly in a folder of the guest, by file name.

        Raises HarnessError if the user on the node had no permission to read the folder or one of
        its files, or if no file in the folder was requested.
        """
        pattern = f"{folder.rstrip('/')}/*"
        refuse_closed(self.folder, pattern)
        kept = self.folder / "files" / folder.lstrip("/")
        if not kept.is_dir():
            refuse_gaps(self.folder, "files", pattern)
            return {}
        return {path.name: self._text(path) for path in sorted(kept.iterdir()) if path.is_file()}

    def matching(self, pattern: str) -> Mapping[str, str]:
        """Return the texts of the gathered files whose paths match `pattern` (`*`, `?`), by path.

        Raises HarnessError if the user on the node had no permission to read a matching file or one
        of its parent folders, or if no matching file was requested.
        """
        refuse_closed(self.folder, pattern)
        root = self.folder / "files"
        found = sorted(
            path for path in root.glob(pattern.lstrip("/").replace("[", "[[]")) if path.is_file()
        )
        if not found:
            refuse_gaps(self.folder, "files", pattern)
        return {f"/{path.relative_to(root).as_posix()}": self._text(path) for path in found}

    def output_of(self, name: str) -> str:
        """Return the output of the gathered command `name`.

        Raises HarnessError if the command was not run.
        """
        kept = self.folder / "commands" / name
        if not self._has_output_of(name):
            raise HarnessError(
                f"The evidence has no output of the command '{name}'; see the evidence's manifest for the "
                "list of missing items.",
                evidence=self.folder,
            )
        return self._text(kept)

    def _has_output_of(self, name: str) -> bool:
        try:
            return (self.folder / "commands" / name).is_file()
        except OSError as error:
            # The guest chooses the name of its kernel, which is a part of the names of commands.
            if error.errno != errno.ENAMETOOLONG:
                raise
            return False

    def exit_code_of(self, name: str) -> int:
        """Return the exit code of the gathered command `name`.

        Raises HarnessError if the exit code is unknown.
        """
        return read_number(self.output_of(f"{name}.exit-code"), f"exit code of '{name}'")

    def is_command_absent(self, name: str) -> bool:
        """Return whether the node lacks the program that the gathered command `name` starts.

        Raises HarnessError if the program may be in a folder that could not be read.
        """
        if self.exit_code_of(name) != NOT_FOUND:
            return False
        refuse_closed(self.folder, *_PROGRAM_FOLDERS)
        return True

    def answer_of(self, name: str) -> str:
        """Return the output of the gathered command `name`, which must have succeeded.

        Raises HarnessError if the command failed, because the output of a failed command may lack
        existing items.
        """
        output = self.output_of(name)
        exit_code = self.exit_code_of(name)
        if exit_code != 0:
            raise HarnessError(
                f"The command '{name}' ended with exit code {exit_code} on the node, so its output proves "
                f"nothing. The command printed: {output.strip()[-500:] or 'nothing'}",
                evidence=self.folder,
            )
        return output

    def _full_answer_of(self, name: str) -> str:
        """Return the output of a command; raises HarnessError if the command failed or printed nothing."""
        output = self.answer_of(name)
        if not output.strip():
            raise HarnessError(
                f"The command '{name}' printed nothing on the node, so its output proves nothing.",
                evidence=self.folder,
            )
        return output

    def _kernel_file(self, path: str) -> str:
        """Return the text of a file in `/proc`; raises HarnessError if the file is missing or truncated."""
        self.refuse_cut(path)
        text = self.file(path)
        if text is None:
            raise HarnessError(f"The evidence lacks '{path}'.", evidence=self.folder)
        return text


def read_number(text: str, what: str) -> int:
    try:
        return parse_exit_code(text)
    except ValueError:
        raise HarnessError(f"The {what} was expected to be a number, but is {text!r}.") from None
