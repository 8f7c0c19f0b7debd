"""How a node reads its configuration and its system: section 2 of the contract.

`plan` prints what a boot would do and changes nothing, so one node is enough for all rows.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from harness import expect
from harness.cloudinit import GuestFile
from suites.e2e.guest_script import shell
from suites.e2e.promises import promise

if TYPE_CHECKING:
    from collections.abc import Mapping

    from suites.e2e.conftest import StartNode


@dataclass(frozen=True, kw_only=True)
class Row:
    """Environment variables, a change of the node, and a part of the output that `plan` then prints."""

    environment: Mapping[str, str] = field(default_factory=dict)
    change: str = "true"
    printed: str


ROWS: Mapping[str, Row] = {
    "a variable overrides the file": Row(
        environment={"GPU_NODE": "false"}, printed="action=teardown reason=opted_out"
    ),
    "empty values are unset": Row(
        environment={"GPU_INSTANCE_PROFILE": "", "NVIDIA_MIG_PROFILE_LAYOUT": ""},
        printed="action=install-skip-build reason=ok",
    ),
    "only the literal true asks for an install": Row(
        environment={"CONFIG_GPU_DRIVER_IF_NEEDED": "TRUE"},
        printed="only after failure of validate-probe",
    ),
    "nobody asks for an install": Row(
        environment={"CONFIG_GPU_DRIVER_IF_NEEDED": ""},
        printed="only after failure of validate-probe",
    ),
    "nobody says that there is a GPU": Row(
        environment={"GPU_NODE": ""}, printed="action=teardown reason=opted_out"
    ),
    "a system like Debian": Row(
        change="rm /etc/os-release; printf 'ID=mine\\nID_LIKE=debian\\n' >/etc/os-release",
        printed="install-prebuilt-driver  # failure: ignored",
    ),
}


@promise(section="2", unit="suites/unit/provisioning/test_configuration.py")
def test_plan_accepts_environment_variables_as_aks_sets_them(start_node: StartNode) -> None:
    """AKS sets some environment variables to the empty string."""
    node = start_node("inputs", command=None)

    wrong = []
    for name, row in ROWS.items():
        node.guest.output_of(*shell(row.change))
        plan = node.guest.run(*node.provisioner.command("plan"), env=row.environment)
        if row.printed not in plan.stdout:
            wrong.append(
                f"{name}: '{row.printed}' was expected in the plan, but it ended with "
                f"{plan.exit_code}: {plan.stdout[:200]} … {plan.stderr}"
            )

    assert wrong == [], "\n".join(wrong)


_UNAME = b"""#!/bin/sh
[ "$*" != -m ] || { echo aarch64; exit; }
exec /usr/bin/uname "$@"
"""


@promise(section="5, step 2", unit="suites/unit/provisioning/test_facts.py")
def test_arm64_node_gets_no_driver(start_node: StartNode) -> None:
    """There is no driver image for arm64; the rest of the node is set up."""
    uname = GuestFile(path="/usr/local/sbin/uname", content=_UNAME, mode=0o755)
    node = start_node("arm64", files=[uname], command="plan")

    evidence = node.result()

    expect.provisioned(evidence)
    steps = {line.split()[0] for line in evidence.log.splitlines() if "# failure: " in line}
    assert "start-kubelet" in steps
    assert not steps & {
        "tear-down-driver",
        "pull-driver-image",
        "install-prebuilt-driver",
        "install-driver",
    }
