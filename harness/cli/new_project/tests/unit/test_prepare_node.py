"""Tests functions of scripts/prepare_node.sh in a shell with mocked commands."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from harness.shell.testing import Shell

#: Two GPUs, and the audio function of the second.
TWO_GPUS = """\
0000:01:00.0 0302: 10de:2330 (rev a1)
0000:02:00.0 0300: 10de:2204 (rev a1)
0000:02:00.1 0403: 10de:1aef (rev a1)
"""


@pytest.fixture(autouse=True)
def sourced(shell: Shell) -> None:
    shell.source("scripts/prepare_node.sh")


def test_gpus_are_counted(shell: Shell) -> None:
    shell.mock("lspci").answers(stdout=TWO_GPUS)

    assert shell.call("count_gpus").check().stdout == "2\n"
    shell.assert_calls("lspci -Dn -d 10de:")


def test_settings_name_the_number_of_gpus(shell: Shell) -> None:
    """The script writes below a temporary root; `shell.path` returns the file's real path."""
    shell.call("write_settings", "8").check()

    assert shell.path("/etc/gpu-node/settings.env").read_text() == "GPU_COUNT=8\n"


def test_node_without_a_gpu_is_refused(shell: Shell) -> None:
    shell.mock("lspci")

    assert shell.call("main").status == 3
    assert not shell.path("/etc/gpu-node/settings.env").exists()
