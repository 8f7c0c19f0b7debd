"""Makes a project around existing shell scripts, for `harness init --provisioner DIR`."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING

from harness.errors import BadInputError, listed
from harness.foreign_files import read_plain_text

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

_SHEBANG = re.compile(r"#!\s*\S*\b(?:env\s+)?(?P<shell>bash|dash|sh|busybox)\b")
_FUNCTION = re.compile(
    r"^(?:function\s+)?(?P<name>[A-Za-z_][\w:.-]*)\s*\(\)|^function\s+(?P<other>[\w:.-]+)",
    re.MULTILINE,
)
_EXIT = re.compile(r"\bexit[ \t]+(\d{1,3})\b")
#: Whole words that the name of a main program is likely to contain; `uninstall` and `runtime` do not match.
_MAIN_NAME = re.compile(
    r"(?<![a-z])(main|(provision|install|prepare|bootstrap)(er|or|ing)?|set-?up|start(up)?|run)(?![a-z])",
    re.IGNORECASE,
)
#: Variables in the condition that keeps a sourced script from calling its main function.
_GUARD = re.compile(r"BASH_SOURCE|\$\{__SOURCED__")
#: The use of `$0`. In a sourced script, `$0` is the name of the shell, so the script can't find
#: its folder by `$0`.
_OWN_NAME = re.compile(r"\$(0|\{0[}#%:/])")
_SPEC_SUFFIX = "_spec.sh"
#: Tools that scripts use and that no shipped image has, each with its Debian package.
_PACKAGES = {
    "dmidecode": "dmidecode",
    "envsubst": "gettext-base",
    "ethtool": "ethtool",
    "git": "git",
    "gpg": "gnupg",
    "iptables": "iptables",
    "jq": "jq",
    "lsof": "lsof",
    "nc": "netcat-openbsd",
    "nft": "nftables",
    "numactl": "numactl",
    "nvme": "nvme-cli",
    "rsync": "rsync",
    "socat": "socat",
    "unzip": "unzip",
    "wget": "wget",
    "xz": "xz-utils",
}
#: A tool's name at the beginning of a command.
_TOOL = re.compile(
    rf"(?:^|[|;&({{`!]|\b(?:sudo|exec|then|do|else|elif|if|while|until)[ \t])[ \t]*(?P<tool>{'|'.join(_PACKAGES)})"
    r"(?=[\s;|&)]|$)",
    re.MULTILINE,
)
_FIRST_BYTES = 256
#: Text that needs no quotes in YAML, not even in a list.
_PLAIN = re.compile(r"[A-Za-z0-9_./-]+")


@dataclass(frozen=True, kw_only=True)
class FoundScript:
    """A shell script below the provisioner's folder, and facts that the script's text shows."""

    path: Path
    text: str
    is_program: bool

    @property
    def functions(self) -> Sequence[str]:
        return [found["name"] or found["other"] for found in _FUNCTION.finditer(self.text)]

    @property
    def can_be_sourced(self) -> bool:
        """Return whether a test can source the script: sourcing runs nothing, and the script has no `$0`."""
        return (not self.is_program or _GUARD.search(self.text) is not None) and not any(
            _OWN_NAME.search(line) and not _GUARD.search(line) for line in self.text.splitlines()
        )

    @property
    def exit_codes(self) -> Sequence[int]:
        """Return the exit codes above 0 that appear as numbers in the script's text, in ascending order."""
        return sorted({code for word in _EXIT.findall(self.text) if 0 < (code := int(word)) < 256})


def scripts_in(folder: Path) -> tuple[list[FoundScript], list[Path]]:
    """Return a folder's shell scripts, and the `*_spec.sh` files there or in sibling folders.

    Raises BadInputError if there is no script.
    """
    if not folder.is_dir():
        raise BadInputError(
            "There is no such folder of scripts.", source=f"--provisioner {folder}"
        )
    scripts: list[FoundScript] = []
    specs = {path for path in folder.parent.glob(f"*/*{_SPEC_SUFFIX}") if path.is_file()}
    for path in sorted(folder.rglob("*")):
        if not path.is_file() or any(
            part.startswith(".") for part in path.relative_to(folder).parts
        ):
            continue
        if path.name.endswith(_SPEC_SUFFIX):
            specs.add(path)
            continue
        with path.open("rb") as file:
            first = file.read(_FIRST_BYTES).decode(errors="replace")
        if path.suffix in {".sh", ".bash"} or _SHEBANG.match(first):
            text = read_plain_text(path.resolve())
            is_program = bool(path.stat().st_mode & 0o111 and text.startswith("#!"))
            scripts.append(FoundScript(path=path, text=text, is_program=is_program))
    if not scripts:
        raise BadInputError(
            "The folder has no shell script: no '*.sh', and no file that begins with '#!' and a shell.",
            source=f"--provisioner {folder}",
        )
    return scripts, sorted(specs)


def main_script(scripts: Sequence[FoundScript], folder: Path) -> FoundScript:
    """Return the script that a machine is to run.

    The result is the only program, or else the only program whose name suggests a main program. If
    no script is a program, each script counts as a program. Raises BadInputError with the scripts'
    names if the choice is not clear.
    """
    programs = [script for script in scripts if script.is_program] or list(scripts)
    named = [script for script in programs if _MAIN_NAME.search(script.path.stem)]
    for choice in (programs, named):
        if len(choice) == 1:
            return choice[0]
    names = listed(script.path.relative_to(folder).as_posix() for script in named or programs)
    raise BadInputError(
        f"It is not clear which of these scripts a machine runs: {names}. Name the script with --run.",
        source=f"--provisioner {folder}",
    )


def named_script(scripts: Sequence[FoundScript], folder: Path, name: str) -> FoundScript:
    """Return the script with the path `name` in the folder; raises BadInputError if there is no such script."""
    for script in scripts:
        if script.path == folder / name:
            return script
    names = listed(script.path.relative_to(folder).as_posix() for script in scripts)
    raise BadInputError(f"'{name}' is not one of the scripts: {names}.", source="--run")


def packages_of(scripts: Sequence[FoundScript]) -> list[str]:
    """Return the Debian packages of the tools that the scripts start and that no shipped image has."""
    tools = {found["tool"] for script in scripts for found in _TOOL.finditer(script.text)}
    return sorted(_PACKAGES[tool] for tool in tools)


def render_declaration(main: FoundScript, folder: Path, source: str) -> str:
    """Return the text of the provisioner's YAML file; `source` is the path from that file to the scripts."""
    name = re.sub(r"[^a-z0-9-]+", "-", folder.resolve().name.lower()).strip("-") or "my-node"
    place = f"/opt/{name}"
    run = f"{place}/{main.path.relative_to(folder).as_posix()}"
    shell = _SHEBANG.match(main.text)
    words = [run] if main.is_program else [shell["shell"] if shell else "bash", run]
    codes = ", ".join(["0: ok", *(f"{code}: exit-{code}" for code in main.exit_codes)])
    return (
        "# The program that turns a machine into a node, and how to read its result: docs/provisioners.md.\n"
        "schema: 1\n"
        f"name: {name}\n"
        f"files:\n  {place}: {{source: {_yaml(source)}}}\n"
        "# cloud-init runs this command as root at the first boot. Add the command's arguments.\n"
        f"run: [{', '.join(map(_yaml, words))}]\n"
        "outcome:\n"
        "  # The exit codes in the script's text; give each code a name.\n"
        f"  exit_codes: {{{codes}}}\n"
    )


def _yaml(text: str) -> str:
    """Return a text as a YAML scalar, quoted if necessary; a quoted scalar is valid JSON and Python too."""
    return text if _PLAIN.fullmatch(text) else json.dumps(text, ensure_ascii=False)


def _documented(path: Path) -> str:
    """Return the last part of a path, escaped for the docstring of a generated module."""
    return path.name.replace("\\", "\\\\").replace('"', '\\"')


def render_machine_test(main: FoundScript) -> str:
    """Return the source of a test that runs the script `main` on a machine."""
    return f'''"""{_documented(main.path)} on a machine with a GPU."""

from __future__ import annotations

from typing import TYPE_CHECKING

from harness import expect
from harness.api import NodeRequest

if TYPE_CHECKING:
    from harness.api import BootNode, GpuModel, Image


def test_node_is_provisioned(boot_node: BootNode, node_image: Image, h100: GpuModel) -> None:
    """If this test fails, the summary shows the program's exit code and its last output."""
    node = boot_node(NodeRequest(name="node", image=node_image, gpus=[h100]))

    evidence = node.evidence()

    expect.provisioned(evidence)
    expect.cloud_init_clean(evidence)
'''


def render_unit_test(scripts: Sequence[FoundScript], source: str, folder: Path) -> str:
    """Return test code that checks the scripts' syntax and, if possible, sources one of the scripts."""
    paths = {
        script.path: f"{source}/{script.path.relative_to(folder).as_posix()}" for script in scripts
    }
    sourced = next(
        (script for script in scripts if script.functions and script.can_be_sourced), None
    )
    head = """from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from harness.shell.testing import Shell

"""
    listed_paths = "".join(
        f"    {json.dumps(path, ensure_ascii=False)},\n" for path in paths.values()
    )
    body = f'''SCRIPTS = (
{listed_paths})


@pytest.mark.parametrize("script", SCRIPTS)
def test_script_is_valid(shell: Shell, script: str) -> None:
    """`bash -n` parses the whole script and runs nothing, so the script can't turn on extglob itself."""
    shell.call("bash", "-O", "extglob", "-n", script).check()
'''
    if sourced is not None:
        body += f'''

def test_sourcing_defines_the_function(shell: Shell) -> None:
    """Next, call shell.call("{sourced.functions[0]}"), and mock the commands that the function starts."""
    shell.source({json.dumps(paths[sourced.path], ensure_ascii=False)})

    assert shell.evaluate("declare -F '{sourced.functions[0]}'").check().stdout
'''
    return f'"""The scripts of {_documented(folder.resolve())}, in a shell with mocked commands."""\n\n{head}{body}'
