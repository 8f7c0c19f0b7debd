"""Fakes parse command lines strictly: the error for an unknown option or use names it."""

from __future__ import annotations

from pathlib import Path

import pytest

from harness.errors import HarnessError
from harness.shell import fakes
from harness.shell.fakes.invocation import Syntax
from suites.unit.shell.fakes.calls import a_call

SYNTAX = Syntax(options=("-q,--quiet", "-n,--name=", "--flag"))


def test_option_value_is_found_for_each_spelling_of_the_option() -> None:
    for words in (
        ["-q", "-n", "a", "x"],
        ["-qn", "a", "x"],
        ["-qna", "x"],
        ["--quiet", "--name=a", "x"],
        ["x", "--name", "a", "-q"],
    ):
        invocation = SYNTAX.parse(a_call("tool", *words))

        assert invocation.has("--quiet"), words
        assert invocation.value("--name") == "a", words
        assert invocation.operands == ("x",), words


def test_repeated_option_keeps_every_value() -> None:
    invocation = SYNTAX.parse(a_call("tool", "-n", "a", "--name=b"))

    assert invocation.all("--name") == ["a", "b"]
    assert invocation.value("--name") == "b"


def test_words_after_a_double_hyphen_are_operands() -> None:
    assert SYNTAX.parse(a_call("tool", "--", "-q")).operands == ("-q",)


def test_posix_options_end_at_the_first_operand() -> None:
    syntax = Syntax(options=SYNTAX.options, is_posix=True)

    assert syntax.parse(a_call("tool", "-q", "sub", "-z")).operands == ("sub", "-z")


def test_unknown_option_and_missing_or_extra_option_value_are_refused() -> None:
    refusals: list[tuple[list[str], str]] = [
        (["--loud"], "does not know the option '--loud' here; it knows: -q,--quiet"),
        (["-qz"], "does not know the option '-z'"),
        (["--name"], "the option '--name' needs a value"),
        (["--flag=1"], "the option '--flag' takes no value"),
    ]
    for words, message in refusals:
        with pytest.raises(fakes.UnknownInvocationError, match=message):
            SYNTAX.parse(a_call("tool", *words))


def test_unsupported_invocation_of_a_fake_is_refused_with_the_reason() -> None:
    uses: list[tuple[fakes.Fake, list[str], str]] = [
        (fakes.Systemd(), ["systemctl", "kexec"], "does not know the subcommand 'kexec'"),
        (fakes.Systemd(), ["systemctl", "--user", "start", "x"], "the option '--user'"),
        (fakes.Systemd(), ["systemctl", "show", "-p", "NRestarts", "x"], "property 'NRestarts'"),
        (fakes.Systemd(), ["systemctl", "list-units", "--all"], "which inactive units"),
        (fakes.Systemd(), ["systemctl", "stop", "--all", "x"], "the option '--all'"),
        (fakes.Packages(), ["dpkg", "--compare-versions", "1", "nearly", "2"], "one of"),
        (fakes.InstanceMetadata({}), ["curl", "-sX", "PUT", "http://x"], "the method 'GET'"),
        (fakes.Containerd(), ["ctr", "images", "convert"], "subcommand 'images convert'"),
        (
            fakes.Containerd(),
            ["ctr", "images", "pull"],
            "expects 1 operand of this subcommand, but got 0",
        ),
        (
            fakes.Containerd(),
            ["ctr", "run", "x"],
            "expects at least 2 operands of this subcommand, but got 1",
        ),
        (fakes.Systemd(), ["systemctl", "start"], "needs the name of a unit"),
        (fakes.Systemd(), ["systemctl", "stop", "nvidia-*"], r"the pattern 'nvidia-\*'"),
        (fakes.Packages(), ["apt-get", "purge", "-y", "nvidia-*"], r"the pattern 'nvidia-\*'"),
        (fakes.Dkms(), ["dkms", "add", "/usr/src/a-1"], "the path '/usr/src/a-1'"),
        (fakes.KernelModules(), ["modinfo", "-n"], "needs the name of a module"),
        (fakes.Packages(), ["apt-get", "install", "-o", "X=1", "a"], "the option 'X=1'"),
        (
            fakes.InstanceMetadata({}),
            ["curl", "-s", "https://example.org"],
            "the metadata service",
        ),
        (fakes.InstanceMetadata({}), ["curl", "http://169.254.169.254/"], "needs '--silent'"),
    ]
    for fake, line, message in uses:
        with pytest.raises(fakes.UnknownInvocationError, match=message):
            fake.answer(a_call(*line))


def test_fake_refuses_to_change_files_of_the_host() -> None:
    packages = fakes.Packages(
        repository=[fakes.Package(name="a", version="1", files={"/usr/share/a": "a\n"})]
    )

    with pytest.raises(HarnessError, match=r"'/usr/share/a'.* has no throw-away root"):
        packages.answer(a_call("apt-get", "install", "-y", "a"))


def test_fake_refuses_a_name_that_is_too_long_for_a_file(tmp_path: Path) -> None:
    systemd = fakes.Systemd().use_root(tmp_path)
    (tmp_path / "etc/systemd/system").mkdir(parents=True)

    with pytest.raises(HarnessError, match="can't be read in the throw-away root: File name too"):
        systemd.answer(a_call("systemctl", "start", "a" * 300))


def test_fake_refuses_the_host_root_as_throwaway_root() -> None:
    systemd = fakes.Systemd().use_root(Path("/"))

    with pytest.raises(HarnessError, match="has no throw-away root"):
        systemd.path("/etc/systemd/system/harness-trial.service")
    assert systemd.read_own_file("/etc/passwd") is None
