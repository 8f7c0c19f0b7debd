"""A pod's container has the GPU only if the device plugin requested the GPU.

The CRI starts these pods: containerd's CRI plugin reads the configuration that provisioning wrote,
and adds CDI devices if it supports CDI. containerd 1.6 (Debian 12) does not support CDI; 1.7
(Debian 13) and 2 do.
"""

from __future__ import annotations

import posixpath
from typing import TYPE_CHECKING

import pytest

from harness import expect
from harness.api import GuestFile
from suites.e2e.guest_script import shell
from suites.e2e.promises import promise
from suites.e2e.runtime.containerd import CONFIG, containerd_version
from suites.e2e.runtime.kubelet import Container, Kubelet
from suites.e2e.runtime.pods import (
    ASK,
    MAKE_AND_OPEN,
    RUNTIME,
    RUNTIME_PATH,
    TOOLKIT,
    TOOLKIT_CONFIG,
    Runtime,
    runtime_of,
)
from suites.e2e.runtime.refresh_unit import FILES, INSTALL

if TYPE_CHECKING:
    from collections.abc import Mapping

    from harness.api import Image
    from harness.lab.node import Node
    from harness.settings import Settings
    from suites.e2e.conftest import StartNode

UNIT = "suites/unit/provisioning/test_toolkit.py"


def requests_of(gpu: str, runtime: Runtime) -> Mapping[str, Container]:
    """Return a container for each strategy of the device plugin, by the strategy's name."""
    device = f"nvidia.com/gpu={gpu}"
    annotation = f"{runtime.annotation_prefix or 'cdi.k8s.io/'}nvidia-device-plugin_{gpu}"
    return {
        "envvar": Container(
            script=ASK, config={"envs": [{"key": "NVIDIA_VISIBLE_DEVICES", "value": gpu}]}
        ),
        "cdi-annotations": Container(script=ASK, config={"annotations": {annotation: device}}),
        "cdi-cri": Container(script=ASK, config={"CDI_devices": [{"name": device}]}),
    }


def expect_gpu_exactly_by_request(node: Node, settings: Settings, *, driver_version: str) -> None:
    """Expect that only the device plugin's strategies let a container read the driver's version."""
    runtime = runtime_of(node)
    asked = requests_of("0", runtime)
    absent = requests_of("7", runtime)

    answers = Kubelet(node, settings).run_pod(
        {
            **asked,
            **{f"absent, {way}": absent[way] for way in runtime.strategies},
            "silent": Container(script=ASK),
            "sly": Container(script=MAKE_AND_OPEN),
        }
    )

    versions = {way: answers[way].stdout.strip() for way in asked if answers[way].ok}
    assert versions == dict.fromkeys(runtime.strategies, driver_version), answers
    for way in (*(set(asked) - set(runtime.strategies)), "silent"):
        assert "/dev/nvidia0" in answers[way].stderr, answers[way]
    assert not any(answers[f"absent, {way}"].ok for way in runtime.strategies), answers
    assert "open /run/gpu: Operation not permitted" in answers["sly"].stderr, answers["sly"]


#: An administrator keeps NVIDIA's configuration elsewhere; its usual path is a link to this file.
TOOLKIT_FILE = "/srv/toolkit.toml"


@promise(section="10", unit=UNIT, each_change=("CDI",))
@pytest.mark.parametrize(
    "cdi_enabled", [pytest.param(True, id="CDI"), pytest.param(False, id="nvidia runtime")]
)
def test_pod_has_the_gpu_only_if_the_device_plugin_requested_it(
    start_node: StartNode,
    baked_image: Image,
    settings: Settings,
    cdi_enabled: bool,  # a parameter
) -> None:
    """A container gets the GPU by a strategy that the device plugin uses, and by no other strategy.

    The driver image has only a stand-in runtime that starts containers like runc. So the test
    replaces the stand-in by a runtime that reads NVIDIA's configuration and the requests of
    containers.
    """
    assert baked_image.driver is not None
    node = start_node(
        "pods",
        config={"enable_managed_gpu": True, "cdi_enabled": cdi_enabled, "retry_budget_s": 240},
        files=[*FILES, RUNTIME, GuestFile(path=TOOLKIT_FILE, content=TOOLKIT.encode())],
        before=[
            INSTALL,
            shell(
                f"chown 1000:100 {TOOLKIT_FILE}; chmod 0640 {TOOLKIT_FILE}; "
                f"mkdir -p {posixpath.dirname(TOOLKIT_CONFIG)}; ln -sf {TOOLKIT_FILE} {TOOLKIT_CONFIG}"
            ),
        ],
    )
    evidence = node.evidence(files=[TOOLKIT_FILE])
    expect.provisioned(evidence)
    stat = node.guest.output_of("stat", "-c", "%u:%g %a", TOOLKIT_FILE).strip()
    assert stat == "1000:100 640", f"The file's owner and mode were expected to stay: {stat}."
    toolkit = evidence.file(TOOLKIT_FILE) or ""
    assert toolkit.startswith(TOOLKIT.replace("legacy", "cdi" if cdi_enabled else "auto"))
    runtime = runtime_of(node)
    assert ("nvidia.cdi.k8s.io/" in toolkit) == (cdi_enabled and not runtime.is_native)
    if not runtime.is_native:
        assert runtime.program == "/usr/bin/nvidia-container-runtime"
    node.guest.output_of("cp", RUNTIME_PATH, "/usr/bin/nvidia-container-runtime")

    expect_gpu_exactly_by_request(node, settings, driver_version=baked_image.driver.version)


#: The output of `containerd config default`, shortened, in which a user has switched CDI off.
FORMAT_3 = """\
version = 3
[plugins.'io.containerd.cri.v1.runtime']
  enable_cdi = false
  [plugins.'io.containerd.cri.v1.runtime'.containerd]
    default_runtime_name = 'runc'
"""


@promise(section="10", unit=UNIT)
@pytest.mark.pin_image(reason="containerd is Debian sid's on each image")
def test_pod_has_the_gpu_with_containerd_2_and_its_configuration_format(
    start_with_containerd_2: StartNode, baked_image: Image, settings: Settings
) -> None:
    """Provisioning switches CDI on in the table that containerd 2 reads.

    The user's file keeps its format.
    """
    assert baked_image.driver is not None
    node = start_with_containerd_2(
        "containerd-2",
        config={"enable_managed_gpu": True, "retry_budget_s": 240},
        files=[*FILES, GuestFile(path=CONFIG, content=FORMAT_3.encode())],
        before=[INSTALL],
    )
    evidence = node.evidence(files=[CONFIG])
    expect.provisioned(evidence)
    assert containerd_version(node) >= (2, 0)
    switched_on = FORMAT_3.replace("enable_cdi = false", "enable_cdi = true")
    assert (evidence.file(CONFIG) or "").startswith(switched_on)
    assert "BinaryName = '/usr/bin/nvidia-container-runtime'" in evidence.answer_of(
        "containerd-config"
    )

    expect_gpu_exactly_by_request(node, settings, driver_version=baked_image.driver.version)
