"""The commands whose paths shell code looks up: their mocks must be files."""

from __future__ import annotations

from typing import TYPE_CHECKING

from harness.shell.mocks.lookups import ANY_NAME, is_looked_up, looked_up, looked_up_in_file

if TYPE_CHECKING:
    from pathlib import Path


LOOKED_UP: dict[str, set[str]] = {
    "tool=$(command -v nvidia-smi)": {"nvidia-smi"},
    "[ -x \"`command -v 'dkms'`\" ]": {"dkms"},
    "tool=$(command -p -v curl 2>/dev/null)": {"curl"},
    "find_it() { command -v curl || type -p wget; }": {"curl", "wget"},
    "hash -t curl wget": {"curl", "wget"},
    'tool=$(command -v "$1")': {ANY_NAME},
    "[ -x $(command -v curl) ] && command -v wget >/dev/null": {"curl"},
    "command -v curl >/dev/null && tool=$(command -v wget)": {"wget"},
    "if command -v curl > /dev/null 2>&1; then :; fi": set(),
    "command -v curl &>/dev/null || return": set(),
    "command -v curl 1>/dev/null": set(),
    "command -v curl >&-": set(),
    "command curl -v x; my-command -v curl; --type -a x": set(),
    "curl --no-progress-meter": set(),
}


def test_command_v_counts_as_a_lookup_only_if_its_output_is_used() -> None:
    assert {code: looked_up(code) for code in LOOKED_UP} == LOOKED_UP


def test_lookup_of_a_computed_name_matches_any_command() -> None:
    assert is_looked_up("curl", looked_up('x=$(command -v "$name")'))
    assert not is_looked_up("curl", looked_up("x=$(command -v wget)"))


def test_lookups_in_sourced_scripts_are_found(
    tmp_path: Path,
) -> None:
    script = tmp_path / "main.sh"
    script.write_text('. "${HERE}/lib.sh"\nsource ./absent.sh\ntool=$(command -v curl)\n')
    (tmp_path / "lib.sh").write_text(". ./main.sh\n. ./deep.sh\ntool=$(command -v wget)\n")
    (tmp_path / "deep.sh").write_text(". ./deepest.sh\n")
    (tmp_path / "deepest.sh").write_text("tool=$(command -v dkms)\n")

    assert looked_up_in_file(script) == {"curl", "wget", "dkms"}


def test_changed_script_is_searched_for_lookups_again(tmp_path: Path) -> None:
    script = tmp_path / "main.sh"
    script.write_text("tool=$(command -v curl)\n")
    assert looked_up_in_file(script) == {"curl"}
    script.write_text("tool=$(command -v apt-get)\n")

    assert looked_up_in_file(script) == {"apt-get"}


def test_missing_script_and_folder_have_no_lookups(tmp_path: Path) -> None:
    for path in (tmp_path, *(tmp_path / name for name in ("absent.sh", "a\0b", "a" * 300))):
        assert looked_up_in_file(path) == frozenset()


def test_sourced_name_that_cannot_be_a_file_is_ignored(tmp_path: Path) -> None:
    lines: list[str] = [". .", "source ..", ". ./", f". {'a' * 300}", 'echo "done. ."']
    for number, words in enumerate(lines):
        script = tmp_path / f"{number}.sh"
        script.write_text(f"command -v curl\n{words}\n")

        assert looked_up_in_file(script) == {"curl"}
