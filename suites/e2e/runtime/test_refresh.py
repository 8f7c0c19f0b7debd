"""The unit that writes the CDI spec may fail early in a run; if it keeps failing, the run fails."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from harness import expect
from harness.api import GuestFile
from suites.e2e.interruption.interrupt import Interruption
from suites.e2e.promises import promise
from suites.e2e.runtime.containerd import CRI
from suites.e2e.runtime.refresh_unit import FAULT, FILES, INSTALL, PATH_UNIT, SERVICE, SPEC, fault

if TYPE_CHECKING:
    from harness.evidence import Evidence
    from suites.e2e.conftest import StartNode

UNIT = "suites/unit/provisioning/test_toolkit.py"
DEVICES = {"/run/cdi/nvidia.yaml": ["nvidia.com/gpu=0"]}
#: A spec of another driver, with a GPU that the node does not have.
OLD = GuestFile(
    path=SPEC, content=b'cdiVersion: "0.5.0"\nkind: nvidia.com/gpu\ndevices:\n- name: "9"\n'
)
QUICK = {"retry_budget_s": 240}
_RESULT = "/run/refresh-result"
#: Times that systemd recorded, in microseconds since the boot.
STAMPS = {
    "refresh": [
        *("systemctl", "show", "--value", "--property=ExecMainExitTimestampMonotonic", SERVICE),
    ],
    "containerd": [
        *("systemctl", "show", "--value", "--property=ExecMainStartTimestampMonotonic"),
        "containerd",
    ],
}


def stamp(evidence: Evidence, name: str) -> int:
    return int(evidence.answer_of(name))


@promise(section="10", unit=UNIT)
def test_old_cdi_spec_is_replaced_before_containerd_starts(start_node: StartNode) -> None:
    """Containerd starts with the spec of the present driver and GPUs."""
    node = start_node("fresh", files=[*FILES, OLD], before=[INSTALL], config=QUICK)

    evidence = node.evidence(commands=STAMPS)

    expect.provisioned(evidence)
    expect.events_recorded(
        evidence,
        *(
            f"AKS.CSE.configGPUDrivers.{name}"
            for name in (
                *("configureNvidiaCDIRefresh", "installGPUDriverImage"),
                *("waitForNvidiaModprobe", "waitForNvidiaSmi"),
            )
        ),
    )
    outcome = evidence.outcome
    assert outcome is not None
    steps = [step.name for step in outcome.steps]
    # A unit that starts by itself during the install must not fail.
    assert steps.index("tolerate-early-cdi-refresh") < steps.index("pull-driver-image")
    assert evidence.cdi_devices == DEVICES
    refreshed, started = stamp(evidence, "refresh"), stamp(evidence, "containerd")
    assert 0 < refreshed < started, (
        f"The spec was expected before containerd started ({started} us), but was written at "
        f"{refreshed} us."
    )


#: By default, the limit is five starts in ten seconds; a slow machine starts the unit too late for
#: this.
_LONG_LIMIT = (
    f"mkdir -p /run/systemd/system/{SERVICE}.d; "
    f"printf '[Unit]\\nStartLimitIntervalSec=600\\n' >/run/systemd/system/{SERVICE}.d/limit.conf; "
    "systemctl daemon-reload"
)


@promise(section="10", unit=UNIT)
def test_cdi_spec_is_written_despite_early_failures_of_its_unit(start_node: StartNode) -> None:
    """The unit fails without a driver, and reaches its limit of five starts."""
    early = (
        f"{INSTALL[2]}; {_LONG_LIMIT}; for start in 1 2 3 4 5 6; do systemctl start {SERVICE} || true; done; "
        f'[ "$(systemctl show --value --property=Result {SERVICE})" = start-limit-hit ]'
    )
    node = start_node("early", files=FILES, before=[["sh", "-euc", early]], config=QUICK)

    evidence = node.evidence(
        commands={"codes": ["systemctl", "show", "--property=SuccessExitStatus", SERVICE]}
    )

    expect.provisioned(evidence)
    assert evidence.cdi_devices == DEVICES
    assert SERVICE not in evidence.failed_units
    assert "1 2 127" in evidence.answer_of("codes")
    expect.events_recorded(evidence, "AKS.CSE.configGPUDrivers.configureNvidiaCDIRefresh")


#: Starts the unit as the path unit does during an install, when depmod changes files again and
#: again.
_START_OFTEN = (
    f"for start in 1 2 3 4 5 6; do systemctl start {SERVICE}; done; "
    f"systemctl show --value --property=Result {SERVICE} >{_RESULT}"
)


@promise(section="10", unit=UNIT)
def test_cdi_spec_is_written_despite_frequent_starts_of_its_unit_during_the_run(
    start_node: StartNode,
) -> None:
    """The unit reaches its start limit after the drop-in is loaded; provisioning then resets the unit."""
    often = Interruption(at="nvidia-modprobe -u -c0", act=_START_OFTEN).file
    before = ["sh", "-euc", f"{INSTALL[2]}; {_LONG_LIMIT}"]
    node = start_node("often", files=[*FILES, often], before=[before], config=QUICK)

    evidence = node.evidence(files=[_RESULT])

    assert evidence.file(_RESULT) == "start-limit-hit\n"
    expect.provisioned(evidence)
    assert evidence.cdi_devices == DEVICES


@promise(section="10", unit=UNIT, each_change=("generator fails",))
@pytest.mark.parametrize(
    "script",
    [
        pytest.param("exit 1", id="generator fails"),
        pytest.param("exit 127", id="generator is not found"),
        pytest.param("exit 0", id="generator writes nothing"),
        pytest.param(
            'mkdir -p /run/cdi; echo "kind: example.com/nic" >"$NVIDIA_CTK_CDI_OUTPUT_FILE_PATH"; exit 0',
            id="spec without a GPU",
        ),
        pytest.param(
            'mkdir -p /run/cdi; printf "kind: nvidia.com/gpu\\ndevices: []\\ncontainerEdits:\\n  mounts:\\n'
            '  - hostPath: /usr/bin/nvidia-smi\\n    containerPath: /usr/bin/nvidia-smi\\n" '
            '>"$NVIDIA_CTK_CDI_OUTPUT_FILE_PATH"; exit 0',
            id="spec without devices",
        ),
    ],
)
def test_lasting_failure_of_the_cdi_refresh_fails_the_run(
    start_node: StartNode, script: str
) -> None:
    """Without a spec for the driver, no pod gets a GPU; an old spec is not accepted."""
    node = start_node(
        "lasting", files=[*FILES, OLD, fault(script)], before=[INSTALL], config=QUICK
    )

    evidence = node.evidence(files=["/run/cdi/*"])

    expect.provisioned(evidence, exit_code=84)
    expect.run_ended_at(evidence, "regenerate-cdi-spec")
    assert "/run/cdi/nvidia.yaml" not in evidence.paths or "gpu" not in str(evidence.cdi_devices)


@promise(section="10", unit=UNIT)
def test_masked_cdi_refresh_does_not_fail_the_run(start_node: StartNode) -> None:
    """An administrator who masks the unit writes the spec by other means."""
    masked = ["systemctl", "mask", "--runtime", SERVICE]
    node = start_node("masked", files=FILES, before=[INSTALL, masked], config=QUICK)

    evidence = node.evidence()

    expect.provisioned(evidence)
    assert expect.step_of(evidence, "regenerate-cdi-spec").status == "skipped"


@promise(section="10", unit=UNIT)
def test_later_change_of_the_driver_refreshes_the_cdi_spec_again(start_node: StartNode) -> None:
    """The path unit is armed again even if its service had reached the start limit."""
    early = (
        f"{INSTALL[2]}; for start in 1 2 3 4 5 6; do systemctl start {SERVICE} || true; done; "
        f"depmod; until [ $(systemctl is-active {PATH_UNIT}) = failed ]; do sleep 0.1; done"
    )
    node = start_node("again", files=FILES, before=[["sh", "-euc", early]], config=QUICK)
    node.guest.output_of("rm", SPEC)
    node.guest.output_of(
        "sh", "-euc", f"depmod; timeout 60 sh -c 'until [ -e {SPEC} ]; do sleep 0.1; done'"
    )

    evidence = node.evidence()

    expect.provisioned(evidence)
    assert evidence.cdi_devices == DEVICES


#: A configuration with the nvidia runtime and with runc, the default runtime that containerd 1
#: needs.
_CONTAINERD = "version = 2\n" + "".join(
    f'{CRI[:-1]}.containerd.runtimes.{name}]\nruntime_type = "io.containerd.runc.v2"\n'
    f'{CRI[:-1]}.containerd.runtimes.{name}.options]\nBinaryName = "{program}"\n'
    for name, program in (("runc", "runc"), ("nvidia", "/usr/bin/nvidia-container-runtime"))
)


@promise(section="10", unit="suites/unit/provisioning/test_driver.py")
@pytest.mark.parametrize(
    ("harm", "step"),
    [
        pytest.param(f"rm {SPEC}", "validate-cdi-spec", id="no spec"),
        pytest.param(
            f"sed -i s,nvidia.com/gpu,nvidia.com/nic, {SPEC}", "validate-cdi-spec", id="no GPU"
        ),
        pytest.param(
            f"rm -r /etc/systemd/system/{SERVICE}.d; systemctl daemon-reload; "
            f"echo exit 1 >{FAULT}; "
            f"systemctl start {SERVICE} || true",
            "validate-cdi-spec",
            id="unit has failed",
        ),
        pytest.param(
            "printf 'version = 2\\n' >/etc/containerd/config.toml",
            "validate-runtime-handler",
            id="no handler",
        ),
        pytest.param(
            "mkdir -p /etc/gpu-node/stand-ins; "
            "echo exit 15 >/etc/gpu-node/stand-ins/nvidia-smi.env",
            "validate-query",
            id="GPU is lost",
        ),
        pytest.param("true", None, id="nothing"),
    ],
)
def test_validation_reports_why_containers_get_no_gpu(
    start_node: StartNode, harm: str, step: str | None
) -> None:
    """`validate` repairs nothing and reports the step that failed."""
    prepare = (
        f"{INSTALL[2]}; nvidia-modprobe -u -c0; systemctl start {SERVICE}; "
        f"cat >/etc/containerd/config.toml <<'END'\n{_CONTAINERD}END\n"
        f"mkdir -p /etc/systemd/system/{SERVICE}.d; {harm}"
    )
    node = start_node(
        "validate", files=FILES, before=[["sh", "-euc", prepare]], command="validate"
    )

    evidence = node.evidence()

    expect.provisioned(evidence, exit_code=0 if step is None else 84)
    if step is not None:
        expect.run_ended_at(evidence, step)
