"""The configuration of a node."""

from __future__ import annotations

import json
from dataclasses import fields
from typing import TYPE_CHECKING

import pytest

from harness.provisioning.cdi import Engine
from harness.provisioning.configuration import (
    PREBAKE_FLAG,
    Configuration,
    ConfigurationError,
    load_configuration,
    parse_configuration,
)

if TYPE_CHECKING:
    from pathlib import Path


def refusal(document: dict[str, object], environment: dict[str, str] | None = None) -> str:
    try:
        accepted = parse_configuration(document, environment or {})
    except ConfigurationError as error:
        return str(error)
    return f"accepted as {accepted}"


def test_empty_configuration_describes_a_node_without_gpu() -> None:
    assert parse_configuration({}, {}) == Configuration()
    defaults = Configuration()
    assert not defaults.gpu_node
    assert defaults.container_runtime is Engine.CONTAINERD
    assert defaults.cdi_enabled
    assert defaults.mcr_repository_base == "mcr.microsoft.com"
    assert defaults.gpu_dkms_marker_file == "/opt/azure/aks-gpu/dkms-marker"
    for configuration in (defaults, Configuration(feature_flags=(PREBAKE_FLAG,))):
        assert configuration.budget_s(is_bake=False) == 780
        assert configuration.budget_s(is_bake=True) == 7200
    assert Configuration(retry_budget_s=5).budget_s(is_bake=True) == 5
    assert Configuration(retry_budget_s=5).budget_s(is_bake=False) == 5
    assert Configuration(time_limit_multiplier=3).budget_s(is_bake=False) == 2340
    assert Configuration(retry_budget_s=5, time_limit_multiplier=3).budget_s(is_bake=True) == 15


def test_every_field_is_read_from_the_file(tmp_path: Path) -> None:
    document = {
        "gpu_node": True,
        "gpu_driver_type": "grid-v20",
        "gpu_driver_version": "580.126.09.1",
        "gpu_image_sha": "20260801000000",
        "config_gpu_driver_if_needed": "true",
        "gpu_needs_fabric_manager": "true",
        "gpu_instance_profile": "MIG1g",
        "mig_node": True,
        "nvidia_mig_strategy": "Mixed",
        "nvidia_mig_profile_layout": "1g.10gb:7",
        "enable_managed_gpu": True,
        "enable_managed_gpu_dra": False,
        "mcr_repository_base": "localhost:5000/a/b//",
        "precompiled_image": "nvcr.io/nvidia/driver",
        "precompiled_fallback": False,
        "container_runtime": "cri-o",
        "cdi_enabled": "false",
        "feature_flags": " A, NVIDIA_CUDA_PREBAKE,,",
        "gpu_dkms_marker_file": "/opt/..marker",
        "retry_budget_s": "60.5",
        "time_limit_multiplier": "2.5",
    }
    path = tmp_path / "config.json"
    path.write_text(json.dumps(document))

    assert load_configuration(path, {}) == Configuration(
        gpu_node=True,
        gpu_driver_type="grid-v20",
        gpu_driver_version="580.126.09.1",
        gpu_image_sha="20260801000000",
        config_gpu_driver_if_needed=True,
        gpu_needs_fabric_manager=True,
        gpu_instance_profile="MIG1g",
        mig_node=True,
        nvidia_mig_strategy="Mixed",
        nvidia_mig_profile_layout="1g.10gb:7",
        enable_managed_gpu=True,
        enable_managed_gpu_dra=False,
        mcr_repository_base="localhost:5000/a/b",
        precompiled_image="nvcr.io/nvidia/driver",
        precompiled_fallback=False,
        container_runtime=Engine.CRI_O,
        cdi_enabled=False,
        feature_flags=("A", "NVIDIA_CUDA_PREBAKE"),
        gpu_dkms_marker_file="/opt/..marker",
        retry_budget_s=60.5,
        time_limit_multiplier=2.5,
    )
    assert set(document) == {field.name for field in fields(Configuration)}


def test_host_of_a_registry_may_have_capital_letters() -> None:
    name = "Registry-1.Example.COM:5000/gpu/driver"
    document = {"precompiled_image": name, "mcr_repository_base": f"{name}/"}

    configuration = parse_configuration(document, {})

    assert configuration.precompiled_image == configuration.mcr_repository_base == name


def test_environment_overrides_the_configuration_file() -> None:
    configuration = parse_configuration(
        {"gpu_node": True, "gpu_driver_version": "1.2", "gpu_image_sha": "x"},
        {"GPU_NODE": "false", "GPU_IMAGE_SHA": "", "GPU_INSTANCE_PROFILE": "MIG7g", "HOME": "/"},
    )

    assert not configuration.gpu_node
    assert configuration.gpu_driver_version == "1.2"
    assert configuration.gpu_image_sha is None
    assert configuration.mig_node


def test_null_or_empty_value_is_treated_as_not_set() -> None:
    assert parse_configuration({"gpu_driver_type": None, "gpu_node": ""}, {}) == Configuration()


def test_config_gpu_driver_if_needed_is_true_only_for_true_and_string_true() -> None:
    rows = {True: True, "true": True, "True": False, "false": False, False: False}

    assert {
        value: parse_configuration(
            {"config_gpu_driver_if_needed": value}, {}
        ).config_gpu_driver_if_needed
        for value in rows
    } == rows


def test_prebake_flag_is_recognised_only_as_a_whole_word() -> None:
    rows = {
        "a,NVIDIA_CUDA_PREBAKE,b": True,
        "NVIDIA_CUDA_PREBAKE_NOT": False,
        "nvidia_cuda_prebake": False,
        "NVIDIA_CUDA_PREBAKE;b": False,
    }

    assert {
        flags: parse_configuration({"feature_flags": flags}, {}).has_prebake_flag for flags in rows
    } == rows


IMAGE_NAME = "an image with its registry and without a tag, such as nvcr.io/nvidia/driver"


BAD_VALUES: tuple[tuple[str, object, str], ...] = (
    *(
        (key, "True", "either true or false")
        for key in (
            *("gpu_node", "gpu_needs_fabric_manager", "mig_node", "enable_managed_gpu"),
            *("enable_managed_gpu_dra", "precompiled_fallback", "cdi_enabled"),
        )
    ),
    ("gpu_node", 1, "either true or false"),
    ("config_gpu_driver_if_needed", 1, "a boolean or a string"),
    ("gpu_driver_type", "cuda lts", "a type such as cuda-lts"),
    ("gpu_driver_type", "-cuda", "a type such as cuda-lts"),
    ("gpu_driver_type", "CUDA", "a type such as cuda-lts"),
    ("gpu_driver_version", "580", "a version such as 580.126.09"),
    ("gpu_driver_version", "580.126.09-1", "a version such as 580.126.09"),
    ("gpu_driver_version", 580.126, "a version such as 580.126.09"),
    ("gpu_image_sha", "a b", "the part of an image tag after the driver's version"),
    ("gpu_image_sha", "a\n", "the part of an image tag after the driver's version"),
    ("gpu_instance_profile", 'MIG1g"', "a profile such as MIG1g"),
    ("nvidia_mig_strategy", "a b", "None, Single or Mixed"),
    ("nvidia_mig_profile_layout", "a b", "a layout without spaces"),
    (
        "mcr_repository_base",
        "https://mcr.microsoft.com",
        "a registry such as mcr.microsoft.com or localhost:5000, without a scheme",
    ),
    (
        "mcr_repository_base",
        "mcr.microsoft.com:5000:1",
        "a registry such as mcr.microsoft.com or localhost:5000, without a scheme",
    ),
    ("precompiled_image", "driver", IMAGE_NAME),
    ("precompiled_image", "nvcr.io/nvidia/driver:580.1", IMAGE_NAME),
    ("precompiled_image", "https://nvcr.io/driver", IMAGE_NAME),
    ("precompiled_image", "nvcr.io/nvidia/", IMAGE_NAME),
    ("feature_flags", ["A"], "names with commas between them"),
    ("gpu_dkms_marker_file", "marker", "an absolute path of a file"),
    ("gpu_dkms_marker_file", "/", "an absolute path of a file"),
    ("gpu_dkms_marker_file", "/a/", "an absolute path of a file"),
    ("gpu_dkms_marker_file", "/a\tb", "an absolute path of a file"),
    ("gpu_dkms_marker_file", "//./.", "an absolute path of a file"),
    ("gpu_dkms_marker_file", "/a/../b", "an absolute path without '..'"),
    ("gpu_dkms_marker_file", "/a/..", "an absolute path without '..'"),
    ("retry_budget_s", "soon", "a number of seconds"),
    ("retry_budget_s", True, "a number of seconds"),
    ("retry_budget_s", [], "a number of seconds"),
    ("retry_budget_s", 10**400, "a number of seconds"),
    ("retry_budget_s", 0, "a number of seconds above 0 and at most 86400"),
    ("retry_budget_s", "nan", "a number of seconds above 0 and at most 86400"),
    ("retry_budget_s", 86401, "a number of seconds above 0 and at most 86400"),
    *(
        ("time_limit_multiplier", value, "a number from 1 to 1000")
        for value in (0.99, 1000.5, "nan", "fast", True)
    ),
    *(
        ("container_runtime", value, "containerd or cri-o")
        for value in ("docker", "CRI-O", "containerd ", 1, True)
    ),
)


def test_error_for_a_bad_value_mentions_its_field() -> None:
    seen = {f"{key}={value!r:.80}": refusal({key: value}) for key, value, _ in BAD_VALUES}

    assert seen == {
        f"{key}={value!r:.80}": f"The field '{key}' must be {must_be}, but is {value!r:.80}."
        for key, value, must_be in BAD_VALUES
    }


def test_minimum_and_maximum_of_numeric_fields_are_accepted() -> None:
    for key, value in (
        ("retry_budget_s", 0.5),
        ("retry_budget_s", 86400),
        ("time_limit_multiplier", 1),
        ("time_limit_multiplier", 1000),
    ):
        assert getattr(parse_configuration({key: value}, {}), key) == value


def test_error_for_a_bad_environment_variable_mentions_the_variable() -> None:
    assert refusal({}, {"GPU_NODE": "yes"}) == (
        "The environment variable 'GPU_NODE' must be either true or false, but is 'yes'."
    )


def test_error_for_an_unknown_field_shows_the_known_fields() -> None:
    message = refusal({"gpu_nodes": True})

    assert message.startswith(
        "The field 'gpu_nodes' is unknown; the known fields are: cdi_enabled, "
        "config_gpu_driver_if_needed, "
    )
    assert message.endswith("time_limit_multiplier.")
    assert message.count(", ") == len(fields(Configuration)) - 1


def test_mig_node_field_must_agree_with_the_gpu_instance_profile_field() -> None:
    for profile, is_mig in ((None, True), ("MIG1g", False)):
        said = refusal({"mig_node": is_mig, "gpu_instance_profile": profile})
        assert "'mig_node' contradicts 'gpu_instance_profile'" in said


def test_configuration_is_read_from_the_environment_if_there_is_no_file() -> None:
    assert load_configuration(None, {"GPU_NODE": "true"}) == Configuration(gpu_node=True)


def test_error_has_the_path_of_a_file_that_is_unreadable_or_not_a_json_object(
    tmp_path: Path,
) -> None:
    rows: dict[Path, tuple[bytes | None, str]] = {
        tmp_path / "cut": (b"{", "is not JSON: "),
        tmp_path / "binary": (b"\xff", "is not JSON: "),
        tmp_path / "deep": (b"[" * 100000, "is not JSON: "),
        tmp_path / "list": (b"[]", "is a JSON list, expected an object."),
        tmp_path / "missing": (None, "cannot be read: No such file or directory."),
        tmp_path: (None, "cannot be read: Is a directory."),
    }
    for path, (content, message) in rows.items():
        if content is not None:
            path.write_bytes(content)

        with pytest.raises(ConfigurationError) as error:
            load_configuration(path, {})

        assert str(error.value).startswith(f"The configuration '{path}' {message}")


def test_configuration_file_may_begin_with_a_byte_order_mark(tmp_path: Path) -> None:
    path = tmp_path / "config.json"
    path.write_text('\ufeff{"gpu_node": true}')

    assert load_configuration(path, {}).gpu_node


def test_image_tag_consists_of_version_and_sha() -> None:
    document = {
        "gpu_driver_version": "1.2",
        "gpu_image_sha": "x",
        "mcr_repository_base": "registry.example",
    }

    image = parse_configuration(document, {}).image("grid")

    assert image.name == "mcr.microsoft.com/aks/aks-gpu-grid:1.2-x"
    assert image.pull_reference == "registry.example/aks/aks-gpu-grid:1.2-x"
    for missing in ("gpu_driver_version", "gpu_image_sha"):
        with pytest.raises(ConfigurationError, match=f"^The field '{missing}' is not set"):
            parse_configuration({**document, missing: None}, {}).image("grid")
