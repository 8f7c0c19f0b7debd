"""Stateful fakes in the `shell` fixture: their files, their errors, and several fakes at once."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from harness.shell import fakes

if TYPE_CHECKING:
    from harness.shell.testing import Shell

KERNEL = "6.1.0-56-cloud-amd64"


def test_option_unknown_to_a_fake_is_named_in_the_failure(shell: Shell) -> None:
    fakes.Systemd({"a": fakes.Unit()}).install(shell)

    with pytest.raises(fakes.UnknownInvocationError, match="does not know the option '--user'"):
        shell.evaluate("systemctl --user start a || true")


def test_unused_fake_is_not_an_error(shell: Shell) -> None:
    fakes.Containerd().install(shell)

    assert shell.evaluate("echo done").stdout == "done\n"


def test_systemctl_enable_of_the_fake_creates_the_unit_link(shell: Shell) -> None:
    systemd = fakes.Systemd().install(shell)
    shell.write(
        "/etc/systemd/system/harness-trial.service",
        "[Service]\nExecStart=/bin/true\n[Install]\nWantedBy=multi-user.target\n",
    )

    result = shell.evaluate(
        "systemctl enable --now harness-trial 2>/dev/null && "
        "readlink /etc/systemd/system/multi-user.target.wants/harness-trial.service"
    ).check()

    assert result.stdout == "/etc/systemd/system/harness-trial.service\n"
    assert systemd.unit("harness-trial").is_active


def test_fake_notices_files_that_the_code_deletes(shell: Shell) -> None:
    modules = fakes.KernelModules(kernel=KERNEL).install(shell)
    source = fakes.Source(name="nvidia", version="580.1", installed_for=[KERNEL])
    dkms = fakes.Dkms([source], kernels=[KERNEL], modules=modules).install(shell)

    result = shell.evaluate(
        "dkms status; modinfo -F version nvidia\n"
        f"rm -r /var/lib/dkms/nvidia /lib/modules/{KERNEL}/updates/dkms\n"
        "dkms status; modinfo -F version nvidia"
    )

    assert result.stdout == f"nvidia/580.1, {KERNEL}, x86_64: installed\n580.1\n"
    assert result.stderr == "modinfo: ERROR: Module nvidia not found.\n"
    assert dkms.state("nvidia", "580.1") is None


def test_fake_answers_calls_from_child_processes_and_by_absolute_path(
    shell: Shell,
) -> None:
    packages = fakes.Packages(installed=[fakes.Package(name="gcc", version="12")]).install(shell)

    result = shell.evaluate("bash -c 'dpkg-query -W gcc'; /usr/bin/dpkg-query -W gcc").check()

    assert result.stdout == "gcc\t12\ngcc\t12\n"
    assert packages.is_installed("gcc")
