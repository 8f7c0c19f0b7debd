"""Markers, and what becomes of a test whose requirements this host does not meet."""

from __future__ import annotations

import contextlib
import dataclasses
from typing import TYPE_CHECKING

import pytest

from harness.errors import BadInputError, RequirementError, listed
from harness.gpu.script import GpuScript
from harness.plugin import drivers

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from harness.settings import Settings

MARKERS = (
    "further_image: the test with an image after the first; given to it, and not to be written",
    "gpu_script(device_id, **behaviour): what is wrong with an emulated GPU; keys of GpuScript",
    "pin_image(reason): runs with the first image alone, since an image makes no difference to it",
    "real_driver: needs an image with NVIDIA's own driver",
    "slow: takes a minute or more, with what it alone needs",
    drivers.MARKER,
)


def add_markers(config: pytest.Config) -> None:
    """Declare the markers, so that a mistyped one is an error."""
    for marker in MARKERS:
        config.addinivalue_line("markers", marker)


def images_of(test: pytest.Item, images: Sequence[str]) -> Sequence[object]:
    """Return with which of a run's images a test runs, as parameters of it.

    All of them, or the first where a marker `pin_image` gives the reason. Those after the first
    bear the marker `further_image`, by which `-m` tells them apart. Raises BadInputError that
    names the test where the reason is missing.
    """
    marker = test.get_closest_marker("pin_image")
    if marker is None:
        first, *others = images
        return [first, *(pytest.param(name, marks=pytest.mark.further_image) for name in others)]
    reason = marker.kwargs.get("reason")
    if not isinstance(reason, str) or not reason or len(marker.kwargs) != 1 or marker.args:
        raise BadInputError(
            'The marker takes a reason alone, such as pin_image(reason="it is about QEMU").',
            source=test.nodeid,
            key="pin_image",
        )
    return images[:1]


@contextlib.contextmanager
def requirements(settings: Settings) -> Iterator[None]:
    """Skip the test with the reason where the host lacks something; under CI let it fail.

    A skipped suite looks like a passed one, and nobody reads CI's skips.
    """
    try:
        yield
    except RequirementError as error:
        if settings.ci:
            raise
        pytest.skip(str(error))


def gpu_scripts(item: pytest.Item) -> Mapping[str, GpuScript]:
    """Return what the markers `gpu_script` of a test say, by device id; the nearest one counts.

    Raises BadInputError that names the test for what cannot be.
    """
    scripts: dict[str, GpuScript] = {}
    for marker in item.iter_markers("gpu_script"):
        device_id, script = _gpu_script(marker, item)
        scripts.setdefault(device_id, script)
    return scripts


def _gpu_script(marker: pytest.Mark, item: pytest.Item) -> tuple[str, GpuScript]:
    try:
        (device_id,) = marker.args
        return str(device_id), GpuScript(**marker.kwargs)
    except (TypeError, ValueError) as error:
        known = listed(field.name for field in dataclasses.fields(GpuScript))
        raise BadInputError(
            f"The marker takes a device id and any of {known}, but this is wrong: {error}.",
            source=item.nodeid,
            key="gpu_script",
        ) from error
