"""How the harness's markers are read, and which wrong markers are refused."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from harness.errors import BadInputError, HarnessError, RequirementError
from harness.gpu.script import GpuScript
from harness.plugin.select import gpu_scripts, images_of, pinned_provisioner, requirements
from harness.settings import Settings

pytestmark = pytest.mark.gpu_script("gpu0", is_dead=True)


def test_gpu_script_marker_of_a_module_applies_to_its_tests(
    request: pytest.FixtureRequest,
) -> None:
    assert gpu_scripts(request.node) == {"gpu0": GpuScript(is_dead=True)}


@pytest.mark.gpu_script("gpu1", xids=(48,), mig_needs_reset=True)
def test_gpu_script_marker_applies_to_the_gpu_named_by_the_marker(
    request: pytest.FixtureRequest,
) -> None:
    assert gpu_scripts(request.node) == {
        "gpu0": GpuScript(is_dead=True),
        "gpu1": GpuScript(xids=(48,), mig_needs_reset=True),
    }


@pytest.mark.gpu_script("gpu0", is_inforom_corrupted=True)
def test_gpu_script_marker_of_a_test_overrides_the_marker_of_its_module(
    request: pytest.FixtureRequest,
) -> None:
    assert gpu_scripts(request.node) == {"gpu0": GpuScript(is_inforom_corrupted=True)}


@pytest.mark.gpu_script("gpu1", is_lost=True)
def test_error_for_an_unknown_gpu_behaviour_shows_the_known_behaviours(
    request: pytest.FixtureRequest,
) -> None:
    with pytest.raises(BadInputError, match=r"'is_dead'.*is_lost") as slip:
        gpu_scripts(request.node)

    assert slip.value.source == request.node.nodeid


@pytest.mark.gpu_script(is_dead=True)
def test_gpu_script_marker_without_a_device_id_is_refused(request: pytest.FixtureRequest) -> None:
    with pytest.raises(BadInputError, match="takes a device id"):
        gpu_scripts(request.node)


def test_test_without_a_provisioner_marker_has_no_pinned_provisioner(
    request: pytest.FixtureRequest,
) -> None:
    assert pinned_provisioner(request.node) is None


@pytest.mark.provisioner("gpu-node")
def test_provisioner_is_pinned_by_its_name(
    request: pytest.FixtureRequest,
) -> None:
    provisioner = pinned_provisioner(request.node)

    assert provisioner is not None
    assert provisioner.name == "gpu-node"


@pytest.mark.provisioner("../../e2e/own_provisioner/provisioner.yaml")
def test_provisioner_is_pinned_by_a_path_relative_to_the_test(
    request: pytest.FixtureRequest,
) -> None:
    provisioner = pinned_provisioner(request.node)

    assert provisioner is not None
    assert provisioner.name == "nothing"


@pytest.mark.provisioner("mine/provisioner.yaml")
def test_error_has_the_path_of_a_missing_pinned_provisioner(
    request: pytest.FixtureRequest,
) -> None:
    missing = request.node.path.parent / "mine/provisioner.yaml"

    with pytest.raises(BadInputError, match=f"^{missing}: The file cannot be read"):
        pinned_provisioner(request.node)


@pytest.mark.provisioner
def test_provisioner_marker_without_an_argument_is_refused(request: pytest.FixtureRequest) -> None:
    with pytest.raises(BadInputError, match=r"key 'provisioner': .* exactly one argument") as slip:
        pinned_provisioner(request.node)

    assert slip.value.source == request.node.nodeid


def test_pinned_test_runs_on_the_first_image_only_and_other_tests_run_on_all_images() -> None:
    for is_pinned in (False, True):
        mark = pytest.mark.pin_image(reason="It makes no difference.").mark if is_pinned else None
        item: Any = SimpleNamespace(nodeid="a.py::x", get_closest_marker=lambda _, mark=mark: mark)

        found: Any = images_of(item, ["/one.raw", "two", "three"])

        assert [(*each.values, each.id, bool(each.marks)) for each in found] == [
            ("/one.raw", "one", False),
            *([] if is_pinned else [("two", "two", True), ("three", "three", True)]),
        ], is_pinned


def test_pin_image_marker_without_a_reason_or_with_other_arguments_is_refused() -> None:
    for mark in (
        pytest.mark.pin_image,
        pytest.mark.pin_image(reason=""),
        pytest.mark.pin_image("x", reason="y"),
        pytest.mark.pin_image(reason="y", of="z"),
    ):
        item: Any = SimpleNamespace(
            nodeid="a.py::x", get_closest_marker=lambda _, mark=mark: mark.mark
        )

        with pytest.raises(BadInputError, match=r"a\.py::x: key 'pin_image'"):
            images_of(item, ["one", "two"])


def test_missing_requirement_fails_a_test_in_ci_and_where_a_gpu_is_required() -> None:
    for settings, is_skipped in (
        (Settings(), True),
        (Settings(ci=True), False),
        (Settings(is_gpu_required=True), False),
    ):
        for error in (
            RequirementError("There is no GPU here."),
            HarnessError("There is no GPU here."),
        ):
            is_lack = is_skipped and isinstance(error, RequirementError)
            expected = pytest.skip.Exception if is_lack else type(error)
            either = (HarnessError, pytest.skip.Exception)
            with pytest.raises(either, match="no GPU here") as raised, requirements(settings):
                raise error

            assert raised.type is expected
