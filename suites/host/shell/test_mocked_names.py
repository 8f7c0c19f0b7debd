"""Mocks replace functions of any name, and commands called by name or by path."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from harness.shell.lexer import quote_on_lines
from harness.shell.mocks.commands import UnmockedCommandError

if TYPE_CHECKING:
    from harness.shell.testing import Shell
    from suites.host.shell.running import SpecProject

_NAMES = [
    "gpu::probe", "gpu-probe", "gpu.probe", "gpu+probe", "gpu_probe", "@gpu", "lib/gpu",
    "/opt/gpu/probe", "gpu,probe", "gpu~", "[gpu", "1gpu", "é", "gpu^2",
]  # fmt: skip


def _library(folder: Path, names: list[str]) -> Path:
    script = folder / "lib.sh"
    script.write_text(
        "".join(
            f"function {name} {{ echo real; }}\nexport -f -- {name} 2>/dev/null || :\n"
            for name in names
        )
    )
    return script


@pytest.mark.parametrize("name", [*_NAMES, "gpu=1", ":", "if"])
def test_mock_replaces_a_function_of_any_name(shell: Shell, tmp_path: Path, name: str) -> None:
    shell.source(_library(tmp_path, [name]))
    shell.mock(name).answers("mocked\n")

    assert shell.call(name).stdout == "mocked\n"
    if name not in {":", "if"}:
        assert shell.call("bash", "-c", quote_on_lines(name)).stdout == "mocked\n"


_ASKED = 'f() { if [ "$(type -t probe)" = function ]; then probe; fi; command -v probe; }\n'


def test_command_lookup_of_a_mocked_function_finds_the_function(
    shell: Shell, tmp_path: Path
) -> None:
    (tmp_path / "lib.sh").write_text(f"probe() {{ echo real; }}\n{_ASKED}")
    shell.source(tmp_path / "lib.sh")
    shell.mock("probe").answers("mocked\n")

    assert shell.call("f").stdout == "mocked\nprobe\n"


def test_command_lookup_of_a_function_with_a_mock_block_finds_the_function(
    project: SpecProject,
) -> None:
    project.write("lib.sh", f"probe() {{ echo real; }}\n{_ASKED}")
    project.write(
        "spec/a_spec.sh",
        "Describe 'a'\n  Include ./lib.sh\n  Mock probe\n    echo mocked\n  End\n  It 'b'\n    When call f\n"
        "    The line 1 of output should equal mocked\n    The line 2 of output should equal probe\n"
        "  End\nEnd\n",
    )

    assert "1 passed" in project.run().stdout


@pytest.mark.parametrize("name", _NAMES)
def test_spy_runs_the_real_function_of_any_name(shell: Shell, tmp_path: Path, name: str) -> None:
    shell.source(_library(tmp_path, [name]))
    spy = shell.spy(name)

    assert shell.call(name).stdout == "real\n"
    spy.assert_called_times(1)


def test_mock_block_of_a_spec_replaces_a_function_of_any_name(project: SpecProject) -> None:
    names = [*(name for name in _NAMES if name != "/opt/gpu/probe"), "gpu=1"]
    _library(project.root, names)
    mocks = "".join(f"  Mock {name}\n    echo mocked\n  End\n" for name in names)
    examples = "".join(
        f"  It 'call {number}'\n    When call {quoted}\n    The output should equal mocked\n  End\n"
        f"  It 'child {number}'\n    When run bash -c {quote_on_lines(quoted)}\n"
        "    The output should equal mocked\n  End\n"
        for number, quoted in enumerate(map(quote_on_lines, names))
    )
    project.write("spec/a_spec.sh", f"Describe 'a'\n  Include ./lib.sh\n{mocks}{examples}End\n")

    result = project.run()

    assert f"{2 * len(names)} passed" in result.stdout


@pytest.mark.parametrize("name", ["a b", "$(touch FOLDER/x)", "a;touch FOLDER/x", "a'b", "#a"])
def test_command_name_that_bash_refuses_as_a_function_name_can_be_mocked(
    shell: Shell, tmp_path: Path, name: str
) -> None:
    name = name.replace("FOLDER", str(tmp_path))
    shell.mock(name).answers("mocked\n")

    assert shell.call(name).stdout == "mocked\n"
    assert shell.evaluate(f"ls {tmp_path}/x").status != 0


@pytest.mark.parametrize(
    "path",
    [
        "/usr/bin/nvidia-smi",
        "/usr/sbin/modprobe",
        "/usr/bin/modprobe",
        "/usr/local/bin/ctr",
        "/bin/dpkg",
    ],
)
def test_call_of_an_unmocked_known_command_by_path_is_denied(shell: Shell, path: str) -> None:
    with pytest.raises(UnmockedCommandError, match=f"'{Path(path).name}' is not mocked"):
        shell.evaluate(f"{path} -L")
    with pytest.raises(UnmockedCommandError, match=f"'{Path(path).name}' is not mocked"):
        shell.evaluate(f"sh -c '{path} -L'")


@pytest.mark.parametrize(
    "path",
    ["/usr/bin/nvidia-smi", "/usr/local/sbin/modprobe", "/opt/bin/nvidia-smi", "/usr/bin/some-tool",
     "/opt/vendor/bin/some-tool", "/usr/bin/hostname", "/bin/dpkg", "/usr/bin/tar"],
)  # fmt: skip
def test_mock_of_a_command_answers_calls_by_absolute_path(
    shell: Shell, tmp_path: Path, path: str
) -> None:
    script = tmp_path / "script.sh"
    script.write_text(f"f() {{ {path} -L; sh -c '{path} -L'; }}\n")
    shell.source(script)
    mock = shell.mock(Path(path).name).answers("mocked\n")

    assert shell.call("f").stdout == "mocked\n" * 2
    (tmp_path / "own.sh").write_text(f"{path} -L\n")
    assert shell.run_script(tmp_path / "own.sh").stdout == "mocked\n"
    assert shell.evaluate(f"env -i {path}").stdout == "mocked\n"
    mock.assert_called_times(4)


@pytest.mark.parametrize("spoil", ["rm -f", "echo 'echo spoilt' >", "chmod 0 "])
@pytest.mark.parametrize("shell", ["bash", "sh"])
def test_mock_that_code_deletes_or_overwrites_works_in_the_next_example(
    project: SpecProject, spoil: str, shell: str
) -> None:
    example = (
        "  It '{name}'\n    Mock gpu-probe\n      echo mocked\n    End\n{body}\n"
        "    The output should equal mocked\n  End\n"
    )
    mocked = "    When run command env gpu-probe"
    spoiling = (
        f'    spoil() {{ gpu-probe; {spoil} "$(command -v gpu-probe)"; }}\n    When call spoil'
    )
    (project.root / ".shellspec").write_text(f"--shell {shell}\n")
    examples = [
        example.format(name="spoils", body=spoiling),
        example.format(name="has its own", body=mocked),
    ]
    project.write("spec/a_spec.sh", f"Describe 'group'\n{''.join(examples)}End\n")

    result = project.run()

    assert "2 passed" in result.stdout, result.stdout


_FINDS_COMMANDS = """\
find_tool() {
  local tool
  tool=$(command -v "$1") || return 3
  [ -x "$tool" ] && [ "$(type -t "$1")" = file ] && "$tool" probe
}
"""


@pytest.mark.parametrize("name", ["curl", "nvidia-smi"])
def test_command_lookup_of_a_mocked_command_finds_an_executable_file(
    shell: Shell, tmp_path: Path, name: str
) -> None:
    script = tmp_path / "lib.sh"
    script.write_text(_FINDS_COMMANDS)
    shell.source(script)
    shell.mock(name).answers("mocked\n")

    assert shell.call("find_tool", name).check().stdout == "mocked\n"
    assert shell.evaluate(f'[ -x "$(command -v {name})" ]').status == 0


@pytest.mark.parametrize(
    "sourced",
    [
        "Include lib/tools.sh",
        "Include lib/all.sh",
        'Include "$SHELLSPEC_PROJECT_ROOT/lib/tools.sh"',
    ],
)
def test_command_lookup_of_a_mock_block_finds_an_executable_file(
    project: SpecProject, sourced: str
) -> None:
    project.write("lib/tools.sh", _FINDS_COMMANDS)
    project.write("lib/all.sh", '. "${BASH_SOURCE[0]%/*}/tools.sh"\n')
    examples = "".join(
        f"  It 'finds {name}'\n    Mock {name}\n      echo mocked\n    End\n"
        f"    When call find_tool {name}\n    The output should equal mocked\n  End\n"
        for name in ("curl", "nvidia-smi")
    )
    project.write("spec/tools_spec.sh", f"{sourced}\nDescribe 'tools'\n{examples}End\n")

    assert "2 passed" in project.run().stdout
