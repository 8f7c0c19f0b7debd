"""How containers get their GPU."""

from __future__ import annotations

import re

from harness.fixtures.recordings import load_recording
from harness.provisioning.cdi import (
    CdiSupport,
    Engine,
    RuntimeChoice,
    choose_runtime,
    detect_support,
    offers_device,
    parse_version,
    plugin_environment,
    toolkit_environment,
)

V2 = '[plugins."io.containerd.grpc.v1.cri"]\n'
V3 = "[plugins.'io.containerd.cri.v1.runtime']\n"
CONTAINERD = Engine.CONTAINERD


def test_version_is_read_from_the_output_of_containerd() -> None:
    rows = {
        "containerd github.com/containerd/containerd 1.6.20~ds1 1.6.20~ds1-1+deb12u1": (1, 6, 20),
        "containerd github.com/containerd/containerd/v2 v2.1.3 c787fb98": (2, 1, 3),
        "1.7.34-2": (1, 7, 34),
        "containerd 2.4": (2, 4, 0),
        "containerd 1.10.3 of 2.0.1": (1, 10, 3),
        "containerd 2": None,
        "containerd github.com/containerd/containerd": None,
    }

    assert {text: parse_version(text) for text in rows} == rows


def test_cdi_support_is_detected_from_the_containerd_configuration() -> None:
    rows = {
        (V2 + "  enable_cdi = true\n", "1.7.24"): CdiSupport.NATIVE,
        ("[plugins.cri]\nenable_cdi = true\n", "1.7.0"): CdiSupport.NATIVE,
        (V3 + "  cdi_spec_dirs = ['/etc/cdi']\n", "2.1.0"): CdiSupport.NATIVE,
        (V2, "2.3.9"): CdiSupport.ABSENT,
        (V2, "2.4.0"): CdiSupport.NATIVE,
        ("[other]\nenable_cdi = true\n", "1.6.0"): CdiSupport.ABSENT,
        (None, "1.6.99"): CdiSupport.ABSENT,
        (None, "1.7.0"): CdiSupport.CAPABLE,
        (None, ""): CdiSupport.ABSENT,
        (V2, None): CdiSupport.ABSENT,
        (V2 + "  cdi_spec_dirs = ['/etc/cdi']\n", "1.7.0"): CdiSupport.NATIVE,
        ("[plugins.cri]\ncdi_spec_dirs = []\n", None): CdiSupport.NATIVE,
        (V3 + "cdi_spec_dirs = []\nenable_cdi = false\n", "2.4.0"): CdiSupport.CAPABLE,
        (V2 + "enable_cdi = false\n" + V3 + "enable_cdi = true\n", "2.0.0"): CdiSupport.NATIVE,
        (V3 + "enable_cdi = true\n" + V2 + "enable_cdi = false\n", "2.0.0"): CdiSupport.NATIVE,
        ("enable_cdi = true\n", "2.0.0"): CdiSupport.ABSENT,
        ("[plugins.cri.containerd]\nenable_cdi = true\n", "2.0.0"): CdiSupport.ABSENT,
    }

    assert {
        (dump, version): detect_support(CONTAINERD, dump=dump, version=version)
        for dump, version in rows
    } == rows


def test_nvidia_runtime_is_not_the_default_runtime_if_cdi_is_native() -> None:
    choice = choose_runtime(CONTAINERD, is_cdi_enabled=True, is_native=True)

    assert choice == choose_runtime(Engine.CRI_O, is_cdi_enabled=True, is_native=True)
    assert choice == RuntimeChoice(
        mode="cdi",
        is_default=False,
        runtime_class="nvidia",
        device_list=("cdi-annotations", "cdi-cri"),
        annotation_prefix="cdi.k8s.io/",
    )
    assert toolkit_environment(choice) == {
        "CDI_ENABLED": "true",
        "NVIDIA_RUNTIME_SET_AS_DEFAULT": "false",
        "NVIDIA_CONTAINER_RUNTIME_MODE": "cdi",
        "CRIO_CONFIG_MODE": "config",
    }
    assert plugin_environment(choice) == {
        "CDI_ENABLED": "true",
        "DEVICE_LIST_STRATEGY": "cdi-annotations,cdi-cri",
        "CDI_ANNOTATION_PREFIX": "cdi.k8s.io/",
    }


def test_nvidia_runtime_is_the_default_runtime_if_cdi_is_not_native() -> None:
    choice = choose_runtime(CONTAINERD, is_cdi_enabled=True, is_native=False)

    assert choice.runtime_class == "nvidia"
    assert toolkit_environment(choice) == {
        "CDI_ENABLED": "true",
        "NVIDIA_RUNTIME_SET_AS_DEFAULT": "true",
        "NVIDIA_CONTAINER_RUNTIME_MODE": "cdi",
        "CRIO_CONFIG_MODE": "config",
        "NVIDIA_CONTAINER_RUNTIME_MODES_CDI_ANNOTATION_PREFIXES": "nvidia.cdi.k8s.io/",
    }
    assert plugin_environment(choice) == {
        "CDI_ENABLED": "true",
        "DEVICE_LIST_STRATEGY": "envvar,cdi-annotations",
        "CDI_ANNOTATION_PREFIX": "nvidia.cdi.k8s.io/",
    }


DEVICES = """\
devices:
- containerEdits:
    deviceNodes:
    - path: /dev/nvidia0
  name: "0"
"""
EDITS = """\
containerEdits:
  deviceNodes:
  - path: /dev/nvidiactl
"""


SPECS_WITH_GPU = {
    "keys in order": f"---\ncdiVersion: 0.5.0\n{EDITS}{DEVICES}kind: nvidia.com/gpu\n",
    "items with an indentation": (
        '---\ncdiVersion: 0.5.0\nkind: nvidia.com/gpu\ndevices:\n    - name: "0"\n'
        f"      containerEdits:\n        deviceNodes:\n            - path: /dev/nvidia0\n{EDITS}"
    ),
    "quotes and comments": (
        '\'kind\': "nvidia.com/gpu" # mine\r\n"devices":\r\n# mine\r\n-\r\n  name: all\r\n'
    ),
    "comment of a list": "devices: # mine\n- name: 0\nkind: 'nvidia.com/gpu'\n",
    "tab": f"kind:\tnvidia.com/gpu\n{DEVICES}annotations: {{}}\n",
    "JSON": ' {"cdiVersion": "0.5.0", "kind": "nvidia.com/gpu", "devices": [{"name": "0"}]}',
}


def test_cdi_spec_with_a_gpu_is_recognised_in_json_and_yaml() -> None:
    for name, spec in SPECS_WITH_GPU.items():
        assert offers_device(spec, "nvidia.com/gpu"), name
        assert not offers_device(spec, "nvidia.com/mig"), name


SPECS_WITHOUT_GPU = (
    "",
    "kind: nvidia.com/gpu\n",
    "kind: nvidia.com/gpu\ndevices:\n---\n",
    f"kind: nvidia.com/gpu\ndevices: []\n{EDITS}",
    f"kind: nvidia.com/gpu\ndevices:\n{EDITS}",
    f"kind: nvidia.com/nic\n{DEVICES}# kind: nvidia.com/gpu\n",
    f"{DEVICES}annotations:\n  kind: nvidia.com/gpu\n",
    f"kind: nvidia.com/nic\nkind: nvidia.com/gpu\n{DEVICES}",
    '{"kind": "nvidia.com/gpu", "devices": []}',
    '{"kind": "nvidia.com/gpu", "devices": null}',
    '{"kind": "nvidia.com/nic", "devices": [{"name": "nvidia.com/gpu"}]}',
    '{"kind": "nvidia.com/gpu", "devices": [{"name": "0"}]',
    "{" * 100_000,
    '{"kind": "nvidia.com/gpu", "devices": {"name": "0"}}',
    '{"devices": [{"name": "0"}]}',
    "kind: nvidia.com/gpu\ndevices:\n-name: 0\n",
    f"kind: nvidia.com/gpu#mine\n{DEVICES}",
    f"kind:\n{DEVICES}",
    f"\"kind': nvidia.com/gpu\n{DEVICES}",
)


def test_cdi_spec_without_a_gpu_is_recognised() -> None:
    assert [spec for spec in SPECS_WITHOUT_GPU if offers_device(spec, "nvidia.com/gpu")] == []


def test_containerd_without_cdi_uses_the_nvidia_runtime_in_auto_mode() -> None:
    choice = choose_runtime(CONTAINERD, is_cdi_enabled=False, is_native=True)

    assert choice == choose_runtime(CONTAINERD, is_cdi_enabled=False, is_native=False)
    assert choice == RuntimeChoice(
        mode="auto", is_default=True, runtime_class="nvidia", device_list=("envvar",)
    )
    assert toolkit_environment(choice) == {
        "NVIDIA_RUNTIME_SET_AS_DEFAULT": "true",
        "NVIDIA_CONTAINER_RUNTIME_MODE": "auto",
        "CRIO_CONFIG_MODE": "config",
    }
    assert plugin_environment(choice, toolkit_directory="/usr/local/nvidia") == {
        "DEVICE_LIST_STRATEGY": "envvar"
    }


def test_cri_o_without_cdi_uses_a_hook_instead_of_the_nvidia_runtime() -> None:
    choice = choose_runtime(Engine.CRI_O, is_cdi_enabled=False, is_native=True)

    assert choice == RuntimeChoice(
        mode=None, is_default=False, runtime_class=None, device_list=("envvar",)
    )
    assert toolkit_environment(choice) == {"CRIO_CONFIG_MODE": "hook"}


def test_device_plugin_gets_the_path_of_the_cdi_hook_in_the_toolkit_folder() -> None:
    for is_native in (True, False):
        choice = choose_runtime(CONTAINERD, is_cdi_enabled=True, is_native=is_native)

        assert plugin_environment(choice, toolkit_directory="/opt/x") == {
            **plugin_environment(choice),
            "NVIDIA_CDI_HOOK_PATH": "/opt/x/toolkit/nvidia-cdi-hook",
        }


def test_user_environment_overrides_the_chosen_runtime_environment() -> None:
    choice = choose_runtime(CONTAINERD, is_cdi_enabled=True, is_native=True)
    user = {"CDI_ENABLED": "false", "MINE": "1"}

    assert toolkit_environment(choice, user)["CDI_ENABLED"] == "false"
    assert toolkit_environment(choice, user)["MINE"] == "1"
    assert plugin_environment(choice, user=user)["CDI_ENABLED"] == "false"
    assert plugin_environment(choice, user=user)["MINE"] == "1"


def test_cdi_support_is_detected_from_recorded_output_of_containerd() -> None:
    """The containerd of Debian 12, 13 and sid: without CDI, with CDI off, and with CDI on."""
    for release, number, with_dump, without_dump in (
        ("1.6.20", (1, 6, 20), CdiSupport.ABSENT, CdiSupport.ABSENT),
        ("1.7.24", (1, 7, 24), CdiSupport.CAPABLE, CdiSupport.CAPABLE),
        ("2.1.9", (2, 1, 9), CdiSupport.NATIVE, CdiSupport.CAPABLE),
    ):
        dump = load_recording(f"containerd/{release}-config-dump").text
        version = load_recording(f"containerd/{release}-version").text

        assert parse_version(version) == number
        assert detect_support(CONTAINERD, dump=dump, version=version) is with_dump
        assert detect_support(CONTAINERD, version=version) is without_dump
        if with_dump is not CdiSupport.ABSENT:
            for setting, support in (("true", CdiSupport.NATIVE), ("false", CdiSupport.CAPABLE)):
                edited = re.sub(r"enable_cdi = \w+", f"enable_cdi = {setting}", dump)
                assert detect_support(CONTAINERD, dump=edited, version=version) is support


def test_cri_o_has_native_cdi_whatever_containerd_prints() -> None:
    dump = f"{V2}enable_cdi = false\n"

    assert detect_support(Engine.CRI_O, dump=dump, version="1.6.20") is CdiSupport.NATIVE
