"""Declares and reads markers, and skips tests whose requirements this host does not meet."""

from __future__ import annotations

import contextlib
import dataclasses
from typing import TYPE_CHECKING

import pytest

from harness.errors import BadInputError, RequirementError, listed
from harness.plugin import machine_drivers
from harness.settings import image_ids

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from harness.gpu.script import GpuScript
    from harness.provisioner import Provisioner
    from harness.settings import Settings

MARKERS = (
    "further_image: the harness sets it on tests that run with an image after the first; do not set it yourself",
    "gpu_script(device_id, **behaviour): faults of an emulated GPU; keywords are fields of GpuScript",
    "nightly: takes too long to run for each change; './dev test' leaves it out",
    "pin_image(reason): run with the first image only, because the image makes no difference",
    "provisioner(word): boot nodes with this provisioner, a name or a path relative to the test's file",
    "real_driver: needs an image with NVIDIA's own driver",
    "slow: takes half a minute or more, including fixtures that only it uses",
    machine_drivers.MARKER,
)


def add_markers(config: pytest.Config) -> None:
    """Declare the harness's markers, so that pytest can report a marker that nobody declares."""
    for marker in MARKERS:
        config.addinivalue_line("markers", marker)


def images_of(test: pytest.Item, images: Sequence[str]) -> Sequence[object]:
    """Return the images that a test runs with, as parameters of the test.

    The parameters are all images of the run, or only the first image if the test has a marker
    `pin_image`. Images after the first have the marker `further_image`, so that `-m` can select the
    tests with these images. Raises BadInputError, which names the test, if the marker `pin_image`
    has no reason.
    """
    marker = test.get_closest_marker("pin_image")
    if marker is None:
        return [
            pytest.param(name, id=name_id, marks=[pytest.mark.further_image] if index else [])
            for index, (name, name_id) in enumerate(zip(images, image_ids(images), strict=True))
        ]
    reason = marker.kwargs.get("reason")
    if not isinstance(reason, str) or not reason or len(marker.kwargs) != 1 or marker.args:
        raise BadInputError(
            'The marker takes exactly one argument, a reason, such as pin_image(reason="it is about QEMU").',
            source=test.nodeid,
            key="pin_image",
        )
    return [pytest.param(images[0], id=image_ids(images[:1])[0])]


def pinned_provisioner(item: pytest.Item) -> Provisioner | None:
    """Return the provisioner that a test's marker `provisioner` names, or None without this marker.

    Raises BadInputError, with the test's name, if the marker or the provisioner's file is not
    valid.
    """
    marker = item.get_closest_marker("provisioner")
    if marker is None:
        return None
    if len(marker.args) != 1 or marker.kwargs or not isinstance(marker.args[0], str):
        raise BadInputError(
            "The marker takes exactly one argument, a name or a path, such as "
            'provisioner("provisioner.yaml").',
            source=item.nodeid,
            key="provisioner",
        )
    from harness.provisioner.choice import absolute, choose_provisioner  # noqa: PLC0415 - rarely used

    return choose_provisioner(absolute(marker.args[0], item.path.parent))


@contextlib.contextmanager
def requirements(settings: Settings) -> Iterator[None]:
    """If the host lacks a requirement, skip the test, or fail in CI and in runs that require a GPU.

    A suite whose tests are all skipped looks like a suite that passed. Nobody reads the list of skips
    in CI, or in a run that requires a GPU.
    """
    try:
        yield
    except RequirementError as error:
        if settings.ci or settings.is_gpu_required:
            raise
        pytest.skip(str(error))


def gpu_scripts(item: pytest.Item) -> Mapping[str, GpuScript]:
    """Return a test's `gpu_script` scripts by device id; the closest marker of an id counts.

    Raises BadInputError, which names the test, if a script is not valid.
    """
    scripts: dict[str, GpuScript] = {}
    for marker in item.iter_markers("gpu_script"):
        device_id, script = _gpu_script(marker, item)
        scripts.setdefault(device_id, script)
    return scripts


def _gpu_script(marker: pytest.Mark, item: pytest.Item) -> tuple[str, GpuScript]:
    from harness.gpu.script import GpuScript  # noqa: PLC0415 - a run of specs needs no GPUs

    try:
        (device_id,) = marker.args
        return str(device_id), GpuScript(**marker.kwargs)
    except (TypeError, ValueError) as error:
        known = listed(field.name for field in dataclasses.fields(GpuScript))
        raise BadInputError(
            f"The marker takes a device id and the keywords {known}, but got: {error}.",
            source=item.nodeid,
            key="gpu_script",
        ) from error
