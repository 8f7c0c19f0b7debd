"""The complete plans of some boots, compared with golden files.

`plan` prints the steps that `boot` runs, so these texts show how this package implements the
contract's section on node boot.
"""

from __future__ import annotations

import itertools
from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

from harness.provisioning import bake
from harness.provisioning.boot import make_plan
from harness.provisioning.cdi import CdiSupport, Engine
from harness.provisioning.configuration import Configuration, parse_configuration
from harness.provisioning.exit_codes import ExitCode, ProvisioningError
from harness.provisioning.facts import NodeFacts
from harness.provisioning.families import Family
from harness.provisioning.plan import Plan
from harness.provisioning.prebake import Action, Decision, Reason, Record
from harness.provisioning.services import Mode
from harness.provisioning.toolkit import RuntimeFacts

from .fakes import GPU_NODE, KERNEL, OTHER_VERSION, PROGRAM, SHA, VERSION, make_node
from .goldens import expect_golden
from .simulation import SimulatedNode

if TYPE_CHECKING:
    from pathlib import Path

RECORD = Record(kernel=KERNEL, driver_version=VERSION, driver_kind="cuda", arch="x86_64")
RUNC = (
    '[plugins."io.containerd.grpc.v1.cri".containerd.runtimes.runc]\n'
    'runtime_type = "io.containerd.runc.v2"\n'
)
NVIDIA_RUNTIME = (
    '[plugins."io.containerd.grpc.v1.cri".containerd.runtimes.nvidia]\n'
    'runtime_type = "io.containerd.runc.v2"\n'
    '[plugins."io.containerd.grpc.v1.cri".containerd.runtimes.nvidia.options]\n'
    'BinaryName = "/usr/bin/nvidia-container-runtime"\n'
)
CONTAINERD = RuntimeFacts(text="version = 2\n", cdi=CdiSupport.ABSENT)


def configuration(**fields: object) -> Configuration:
    return parse_configuration({**GPU_NODE, **fields}, {})


def facts(**fields: object) -> NodeFacts:
    values: dict[str, object] = {
        "kernel": KERNEL,
        "arch": "x86_64",
        "node_name": "node-0",
        "family": Family.DEBIAN,
        "os_release": 'ID=debian\nVERSION_ID="12"\n',
        "is_opted_out": False,
        "mode": None,
        "driver_type": "cuda-lts",
        "record": None,
        "decision": Decision(action=Action.INSTALL, reason=Reason.NO_RECORD),
        "runtime": CONTAINERD,
        "removal": (),
        **fields,
    }
    return NodeFacts(**values)  # type: ignore[arg-type]


def full_build() -> Plan:
    return make_plan(configuration(), facts(), PROGRAM)


def fast_path() -> Plan:
    return make_plan(
        configuration(enable_managed_gpu=True),
        facts(
            mode=Mode.DEVICE_PLUGIN,
            record=RECORD,
            decision=Decision(action=Action.INSTALL_SKIP_BUILD, reason=Reason.OK),
        ),
        PROGRAM,
    )


def precompiled(**fields: object) -> Plan:
    asked = configuration(precompiled_image="registry.example/gpu/driver", **fields)
    return make_plan(asked, facts(), PROGRAM)


def precompiled_only() -> Plan:
    return precompiled(precompiled_fallback=False)


def validation() -> Plan:
    return make_plan(
        configuration(config_gpu_driver_if_needed=False, gpu_needs_fabric_manager=True),
        facts(
            record=RECORD, decision=Decision(action=Action.INSTALL_SKIP_BUILD, reason=Reason.OK)
        ),
        PROGRAM,
    )


def everything() -> Plan:
    return make_plan(
        configuration(
            config_gpu_driver_if_needed=False,
            gpu_driver_type="grid",
            gpu_needs_fabric_manager=True,
            gpu_instance_profile="MIG1g",
            enable_managed_gpu_dra=True,
            mcr_repository_base="registry.example",
        ),
        facts(
            mode=Mode.DRA,
            driver_type="grid",
            record=RECORD,
            decision=Decision(action=Action.TEARDOWN_INSTALL, reason=Reason.KIND),
            removal=("rm -rf /var/lib/dkms/nvidia", "ldconfig"),
        ),
        PROGRAM,
    )


def other_version() -> Plan:
    return make_plan(
        configuration(),
        facts(
            record=Record(
                kernel=KERNEL, driver_version=OTHER_VERSION, driver_kind="cuda", arch="x86_64"
            ),
            decision=Decision(action=Action.TEARDOWN_INSTALL, reason=Reason.VERSION),
            removal=("rm -rf /var/lib/dkms/nvidia", "ldconfig"),
        ),
        PROGRAM,
    )


def opted_out() -> Plan:
    return make_plan(
        configuration(),
        facts(
            is_opted_out=True,
            record=RECORD,
            decision=Decision(action=Action.TEARDOWN, reason=Reason.OPTED_OUT),
            runtime=RuntimeFacts(
                text="version = 2\n" + NVIDIA_RUNTIME,
                cdi=CdiSupport.ABSENT,
            ),
            removal=("rm -rf /var/lib/dkms/nvidia", "ldconfig"),
        ),
        PROGRAM,
    )


def arm64() -> Plan:
    return make_plan(
        configuration(), facts(arch="aarch64", decision=None, family=Family.OTHER), PROGRAM
    )


def cri_o() -> Plan:
    return make_plan(
        configuration(container_runtime="cri-o", cdi_enabled=False, enable_managed_gpu=True),
        facts(
            mode=Mode.DEVICE_PLUGIN,
            record=RECORD,
            decision=Decision(action=Action.INSTALL_SKIP_BUILD, reason=Reason.OK),
            runtime=RuntimeFacts(
                text=None, cdi=CdiSupport.NATIVE, engine=Engine.CRI_O, is_cdi_enabled=False
            ),
        ),
        PROGRAM,
    )


def no_gpu() -> Plan:
    return make_plan(
        Configuration(),
        facts(is_opted_out=True, runtime=None, decision=Decision(action=Action.NOTHING)),
        PROGRAM,
    )


PLANS = {
    "full-build": full_build,
    "fast-path": fast_path,
    "precompiled": precompiled,
    "precompiled-only": precompiled_only,
    "validation": validation,
    "everything": everything,
    "other-version": other_version,
    "opted-out": opted_out,
    "arm64": arm64,
    "no-gpu": no_gpu,
    "cri-o": cri_o,
}


def test_plan_of_a_boot_matches_the_golden_file() -> None:
    for name in sorted({*PLANS} - {"other-version", "precompiled-only", "arm64"}):
        expect_golden(f"plan-{name}", PLANS[name]().describe())


def test_plan_of_a_bake_matches_the_golden_file(tmp_path: Path) -> None:
    simulated = SimulatedNode(tmp_path)
    asked = parse_configuration(
        {
            "gpu_driver_version": VERSION,
            "gpu_image_sha": SHA,
            "feature_flags": "NVIDIA_CUDA_PREBAKE",
        },
        {},
    )

    plan = bake.make_plan(make_node(simulated, tmp_path), asked)

    expect_golden("plan-bake", plan.describe())


def test_step_events_match_the_golden_file() -> None:
    """The event of the step comes first, then its groups, innermost first."""
    lines = {
        f"{step.name}: {', '.join((step.event or '-', *reversed(step.groups)))}"
        for make in PLANS.values()
        for step in make().steps
    }

    expect_golden("events", "\n".join(sorted(lines)))


MILESTONES = (
    "configure-containerd",
    "tear-down-driver",
    "validate-probe",
    "wait-for-containerd",
    "tolerate-early-cdi-refresh",
    "install-precompiled-driver",
    "pull-driver-image",
    "install-prebuilt-driver",
    "install-driver",
    "remove-driver-image",
    "probe-device",
    "query-device",
    "refresh-libraries",
    "regenerate-cdi-spec",
    "configure-toolkit",
    "start-containerd",
    "restart-node-problem-detector",
    "validate-query",
    "start-modprobe-unit",
    "validate-runtime",
    "report-readiness",
    "start-fabric-manager",
    "partition-gpu",
    "install-managed-packages",
    "configure-managed-services",
    "start-device-plugin",
    "start-dcgm",
    "start-dcgm-exporter",
    "start-kubelet",
    "start-dra-driver",
    "clean-up-driver",
    "schedule-reboot",
)


def test_order_of_important_steps_does_not_depend_on_the_order_of_the_step_list() -> None:
    """In any order of the list, each step comes after all steps that it needs."""
    for name, make in PLANS.items():
        steps = make().steps
        shuffled = Plan.order(sorted(steps, key=lambda step: step.name, reverse=True)).steps
        names = [step.name for step in shuffled]

        there = [milestone for milestone in MILESTONES if milestone in names]
        assert [each for each in names if each in there] == there, name


def test_each_needed_step_name_exists_in_some_plan() -> None:
    plans = [make() for make in PLANS.values()]
    known = {step.name for plan in plans for step in plan.steps}
    needed = {need for plan in plans for step in plan.steps for need in step.needs}

    assert needed <= known


def test_containerd_is_restarted_if_its_configuration_is_newer_than_the_socket() -> None:
    def names(runtime: RuntimeFacts, *, is_opted_out: bool, is_configured: bool) -> list[str]:
        asked = configuration(config_gpu_driver_if_needed=is_configured)
        decision = (
            Decision(action=Action.NOTHING)
            if is_opted_out
            else Decision(action=Action.INSTALL_SKIP_BUILD, reason=Reason.OK)
        )
        seen = facts(runtime=runtime, is_opted_out=is_opted_out, decision=decision)
        return [step.name for step in make_plan(asked, seen, PROGRAM).steps]

    for is_opted_out in (False, True):
        written = runtime_of(is_opted_out=is_opted_out, is_stale=True)
        early = names(written, is_opted_out=is_opted_out, is_configured=False)
        late = names(written, is_opted_out=is_opted_out, is_configured=True)
        fresh = replace(written, is_stale=False)

        assert early[0] == "restart-containerd"
        assert "configure-containerd" not in early
        assert "restart-containerd" not in names(
            fresh, is_opted_out=is_opted_out, is_configured=False
        )
        assert ("restart-containerd" in late) is is_opted_out
        assert ("start-containerd" in late) is not is_opted_out


def runtime_of(*, is_opted_out: bool, is_stale: bool) -> RuntimeFacts:
    """Return the facts of a configuration that need not be changed."""
    text = "version = 2\n" + ("" if is_opted_out else RUNC + NVIDIA_RUNTIME)
    return RuntimeFacts(text=text, cdi=CdiSupport.ABSENT, is_stale=is_stale)


def test_driver_is_refused_on_a_distribution_outside_the_debian_family() -> None:
    for family in (Family.AZURE_LINUX, Family.OTHER):
        with pytest.raises(ProvisioningError, match="names neither Debian nor Ubuntu") as error:
            make_plan(configuration(), facts(family=family), PROGRAM)

        assert error.value.exit_code is ExitCode.UNSUPPORTED_OS


def test_invalid_containerd_toml_has_its_own_exit_code() -> None:
    broken = RuntimeFacts(text="[broken", cdi=CdiSupport.ABSENT)
    opted_out = facts(
        is_opted_out=True,
        decision=Decision(action=Action.NOTHING),
        runtime=replace(broken, text="[broken /usr/bin/nvidia-container-runtime"),
    )

    for seen in (facts(runtime=broken), opted_out):
        with pytest.raises(
            ProvisioningError, match=r"'/etc/containerd/config.toml' cannot be edited: line 1: "
        ) as error:
            make_plan(configuration(), seen, PROGRAM)

        assert error.value.exit_code is ExitCode.FILE_WATCH_TIMEOUT


def test_readiness_line_says_whether_the_record_exists_and_matches() -> None:
    rows = {
        (None, "cuda-lts"): "marker_present=false driver_kind_match=false",
        (RECORD, "cuda-lts"): "marker_present=true driver_kind_match=true",
        (RECORD, "grid"): "marker_present=true driver_kind_match=false",
        (Record(), "cuda-lts"): "marker_present=true driver_kind_match=false",
    }

    for (record, kind), words in rows.items():
        assert facts(record=record, driver_type=kind).render_readiness() == (
            f"AKS_GPU_PREBAKE event=managed_gpu driver_type={kind} {words}"
        )


def test_cdi_environment_is_set_only_for_the_device_plugin_mode() -> None:
    texts = {}
    for mode in (*Mode, None):
        plan = make_plan(configuration(), facts(mode=mode), PROGRAM)
        texts[mode] = "".join(
            "\n".join(step.describe())
            for step in plan.steps
            if step.name == "configure-device-plugin"
        )

    text = texts.pop(Mode.DEVICE_PLUGIN)
    assert "Environment=DEVICE_LIST_STRATEGY=envvar,cdi-annotations" in text
    assert "Environment=CDI_ANNOTATION_PREFIX=nvidia.cdi.k8s.io/" in text
    assert texts == {Mode.DRA: "", None: ""}


def test_node_that_opted_out_may_have_a_distribution_of_any_family() -> None:
    for family, action in itertools.product(Family, (Action.NOTHING, Action.TEARDOWN)):
        seen = facts(family=family, is_opted_out=True, decision=Decision(action=action))

        names = [step.name for step in make_plan(configuration(), seen, PROGRAM).steps]

        assert names[0] == "start-kubelet"
        assert ("clean-up-driver" in names) is (action is Action.TEARDOWN)


def test_runtime_is_validated_after_a_change_and_on_each_managed_gpu_node() -> None:
    for is_opted_out, is_stale in itertools.product((False, True), (False, True)):
        seen = facts(
            is_opted_out=is_opted_out,
            decision=Decision(action=Action.NOTHING) if is_opted_out else None,
            runtime=runtime_of(is_opted_out=is_opted_out, is_stale=is_stale),
        )

        steps = {step.name: step for step in make_plan(configuration(), seen, PROGRAM).steps}

        assert ("validate-runtime" in steps) is (is_stale or not is_opted_out)
        assert ("restart-containerd" in steps) is is_stale
        if "validate-runtime" in steps:
            wanted = "another default runtime" if is_opted_out else "/usr/bin/nvidia-container"
            assert f"expect {wanted}" in "\n".join(steps["validate-runtime"].describe())
            assert steps["validate-runtime"].exit_code is ExitCode.FILE_WATCH_TIMEOUT
