"""Boots that failed although they should succeed, or succeeded although they should fail."""

from __future__ import annotations

from typing import TYPE_CHECKING

from harness.provisioning.cdi import CdiSupport, Engine, detect_support
from harness.provisioning.journal import EVENTS_DIRECTORY
from harness.provisioning.toolkit import CDI_SPEC
from suites.fakes.clock import EPOCH, FakeClock
from suites.unit.provisioning.fakes import (
    GPU_NODE,
    IMAGE,
    OTHER_VERSION,
    SHA,
    VERSION,
    Invocation,
    make_node,
)

if TYPE_CHECKING:
    from suites.unit.provisioning.simulation import SimulatedNode


def test_15_agentbaker_8615_image_is_pulled_even_if_a_similar_name_is_listed(
    simulated: SimulatedNode, invocation: Invocation
) -> None:
    simulated.images = {IMAGE.replace("580.126.09", "580x126.09")}
    simulated.registry = {IMAGE}

    assert invocation.run("boot", GPU_NODE) == 0

    assert ("ctr", "-n", "k8s.io", "image", "pull", IMAGE) in simulated.calls
    query = next(call[-1] for call in simulated.calls if call[3:5] == ("images", "ls"))
    assert query == f"name=={IMAGE}", "'=~' would take the dots for any character"


def test_16_agentbaker_9113_grid_node_pulls_from_the_registry_of_its_sovereign_cloud(
    simulated: SimulatedNode, invocation: Invocation
) -> None:
    name = IMAGE.replace("cuda-lts", "grid")
    pulled = name.replace("mcr.microsoft.com", "mcr.azk8s.cn")
    simulated.images = set()
    simulated.registry = {pulled}
    simulated.kind = "grid"
    asked = {
        **GPU_NODE,
        "gpu_driver_type": "grid",
        "mcr_repository_base": "mcr.azk8s.cn/",
    }

    assert invocation.run("boot", asked) == 0

    used = [call[3:5] for call in simulated.calls if call[3:4] == ("image",)]
    assert used == [("image", "pull"), ("image", "tag"), ("image", "rm")]
    assert next(call for call in simulated.calls if call[3:4] == ("run",))[-4] == name
    assert simulated.images == set()


SPEC = 'kind: nvidia.com/gpu\ndevices:\n- name: "0"\n'


def _refreshing(simulated: SimulatedNode, *, works: bool) -> None:
    """Add the CDI refresh units to the node; they write the spec when the driver is loaded."""
    simulated.units |= {"nvidia-cdi-refresh", "nvidia-cdi-refresh.path"}
    systemctl = simulated._systemctl

    def refresh(call: tuple[str, ...]) -> object:
        if call == ("systemctl", "start", "nvidia-cdi-refresh.service") and works:
            assert "nvidia" in simulated.loaded()
            simulated.files.write(CDI_SPEC, SPEC)
        return systemctl(call)

    simulated._systemctl = refresh  # type: ignore[method-assign,assignment]


def test_17_agentbaker_9150_early_failure_of_nvidia_cdi_refresh_does_not_end_the_boot(
    simulated: SimulatedNode, invocation: Invocation
) -> None:
    _refreshing(simulated, works=True)
    simulated.failing["systemctl daemon-reload"] = simulated._fail(("systemctl",), "busy")

    assert invocation.run("boot", GPU_NODE) == 0

    steps = list(invocation.steps())
    assert steps.index("tolerate-early-cdi-refresh") < steps.index("install-driver")
    assert "SuccessExitStatus=1 2 127" in (
        simulated.files.read(
            "/etc/systemd/system/nvidia-cdi-refresh.service.d"
            "/10-aks-tolerate-generate-failure.conf"
        )
        or ""
    )
    reset = ("nvidia-cdi-refresh.service", "nvidia-cdi-refresh.path")
    assert ("systemctl", "reset-failed", *reset) in simulated.calls


def test_18_kaito_2326_permanent_failure_of_nvidia_cdi_refresh_fails_the_boot(
    simulated: SimulatedNode, invocation: Invocation
) -> None:
    _refreshing(simulated, works=False)
    simulated.files.write(CDI_SPEC, SPEC)

    assert invocation.run("boot", GPU_NODE) == 84

    assert "kubelet" not in simulated.active
    assert invocation.steps()["regenerate-cdi-spec"] == "failed"


def test_19_aks_gpu_175_toolkit_is_configured_only_after_nvidia_smi_succeeds(
    simulated: SimulatedNode, invocation: Invocation
) -> None:
    assert invocation.run("boot", GPU_NODE) == 0

    steps = list(invocation.steps())
    toolkit = ("regenerate-cdi-spec", "configure-toolkit", "start-containerd")
    assert all(steps.index("query-device") < steps.index(name) for name in toolkit)

    simulated.images = {IMAGE}
    simulated.failing["nvidia-smi"] = simulated._fail(("nvidia-smi",), "no device")
    assert invocation.run("boot", {**GPU_NODE, "retry_budget_s": 60}) == 84
    assert invocation.steps()["query-device"] == "failed"
    assert {invocation.steps()[name] for name in toolkit} == {"skipped"}


def test_21_aks_gpu_bake_removes_staged_libraries_of_another_version(
    simulated: SimulatedNode, invocation: Invocation
) -> None:
    simulated.files.write(f"/usr/bin/lib64/lib64/libcuda.so.{OTHER_VERSION}", "")
    asked = {
        "gpu_driver_version": VERSION,
        "gpu_image_sha": SHA,
        "feature_flags": "NVIDIA_CUDA_PREBAKE",
    }

    assert invocation.run("bake", asked) == 0

    assert simulated.files.names("/usr/bin/lib64/lib64") == (f"libcuda.so.{VERSION}",)


def test_27_readiness_line_reports_the_state_of_the_record_before_the_install(
    simulated: SimulatedNode, invocation: Invocation
) -> None:
    assert invocation.run("boot", GPU_NODE) == 0

    assert simulated.files.exists("/opt/azure/aks-gpu/dkms-marker"), "the install wrote a record"
    assert invocation.prebake_lines()[-1] == (
        "AKS_GPU_PREBAKE event=managed_gpu driver_type=cuda-lts marker_present=false"
        " driver_kind_match=false"
    )


def test_28_two_events_in_one_millisecond_get_two_files(
    simulated: SimulatedNode,
) -> None:
    node = make_node(simulated, simulated.top, FakeClock())

    node.journal.event("outer", "x", EPOCH)
    node.journal.event("inner", "y", EPOCH)

    assert len(node.files.names(EVENTS_DIRECTORY)) == 2


def test_30_containerd_2_4_has_native_cdi_even_if_enable_cdi_is_not_set() -> None:
    dump = "version = 4\n[plugins.'io.containerd.cri.v1.runtime']\nmax_concurrent_downloads = 3\n"

    for number in ("2.4.0", "2.4.0-1", "3.0.0"):
        version = f"containerd v2 {number}"
        support = detect_support(Engine.CONTAINERD, dump=dump, version=version)
        assert support is CdiSupport.NATIVE, number
