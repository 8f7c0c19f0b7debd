"""The report names a hook that ends the shell of its group or its file."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from suites.host.shell.running import SpecProject


@pytest.mark.parametrize("shell", ["bash", "dash", "busybox ash"])
def test_exit_in_an_after_all_hook_is_reported_with_its_group(
    project: SpecProject, shell: str
) -> None:
    project.write(".shellspec", f"--shell '{shell}'\n")
    project.write(
        "spec/a_spec.sh",
        "give_up() { echo 'no driver' >&2; exit 86; }\n"
        "Describe 'group'\nAfterAll give_up\nIt 'ends'\nThe value a should equal a\nEnd\nEnd\n",
    )

    result = project.run()

    assert result.exit_code == 1
    assert (
        "AfterAll 'give_up' of the group that begins at line 2 ended its shell with exit code 86, "
        "so nothing that follows in the group was run. It wrote to stderr:\nno driver"
    ) in result.stdout


def test_exit_in_a_before_all_hook_outside_of_groups_is_reported(project: SpecProject) -> None:
    project.write("spec/a_spec.sh", "BeforeAll 'exit 7'\nIt 'ends'\nWhen call true\nEnd\n")

    result = project.run()

    assert "BeforeAll 'exit 7' ended the shell of this file with exit code 7" in result.stdout
