"""Bakes an image: builds the driver into a machine's image, on a machine without a GPU."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

from . import containerd
from .exit_codes import ExitCode, ProvisioningError
from .facts import ARM64, teardown_scope
from .families import OS_RELEASE, Family, family_of
from .kernel_modules import installed_files, newest_kernel_with_headers
from .node_files import UnreadableFileError
from .nvidia import DEFAULT_DRIVER_TYPE, DKMS_TREE, STAGED_LIBRARIES, is_same_kind
from .plan import Do, Plan, Remove, Step, Write, log_line
from .prebake import PROVISIONAL_RECORD, read_record
from .retry import StepFailedError
from .services import apt_install
from .teardown import tear_down

if TYPE_CHECKING:
    from .configuration import Configuration
    from .node_context import NodeContext
    from .nvidia import DriverImage

COMPONENTS_PATH = "/opt/azure/components.json"
BUILD_TOOLS = ("gcc", "make", "libc6-dev")
BUILD_LOGS_DIRECTORY = "/var/log/gpu-node/failed-bake"


def choose_image(node: NodeContext, configuration: Configuration) -> DriverImage:
    """Return the driver image to bake.

    The component list of the machine's image says which driver images may be baked. If the machine
    has no component list, the configuration alone chooses the driver image.

    Raises ProvisioningError if the driver image is not on the component list, and
    ConfigurationError if the configuration has no driver version.
    """
    driver_type = configuration.gpu_driver_type or DEFAULT_DRIVER_TYPE
    try:
        text = node.files.read(COMPONENTS_PATH)
        tags = None if text is None else listed_tags(json.loads(text), driver_type)
    except (UnreadableFileError, ValueError, RecursionError) as error:
        raise ProvisioningError(
            ExitCode.COMMAND_FAILED,
            f"The component list '{COMPONENTS_PATH}' cannot be read: {error}.",
        ) from error
    image = configuration.image(driver_type)
    if tags is not None and image.tag not in tags:
        raise ProvisioningError(
            ExitCode.COMMAND_FAILED,
            f"The image 'aks-gpu-{driver_type}:{image.tag}' is not on the component list "
            f"'{COMPONENTS_PATH}', which has {', '.join(tags) or 'no tag of this image'}.",
        )
    return image


def listed_tags(document: object, driver_type: str) -> tuple[str, ...]:
    """Return the tags that a component list names for a driver image."""
    images = document.get("GPUContainerImages") if isinstance(document, dict) else None
    tags = []
    for entry in images if isinstance(images, list) else ():
        url = entry.get("downloadURL") if isinstance(entry, dict) else None
        version = entry.get("gpuVersion") if isinstance(entry, dict) else None
        if not isinstance(url, str) or not isinstance(version, dict):
            continue
        if url.rpartition(":")[0].rpartition("/")[2] == f"aks-gpu-{driver_type}":
            found = (version.get("latestVersion"), version.get("previousLatestVersion"))
            tags += [tag for tag in found if isinstance(tag, str) and tag]
    return tuple(tags)


def make_plan(node: NodeContext, configuration: Configuration) -> Plan:
    """Make the plan of a bake.

    Raises the same errors as `choose_image`.
    """
    arch = node.answer("uname", "-m")
    if arch in ARM64 or family_of(node.files.read_or_empty(OS_RELEASE)) is not Family.DEBIAN:
        return Plan()
    image = choose_image(node, configuration)
    steps = [
        Step(
            name="fetch-driver-image",
            actions=(*containerd.wait_until_ready(), containerd.fetch(image)),
            exit_code=ExitCode.COMMAND_FAILED,
        ),
        Step(
            name="list-driver-image",
            actions=(log_line(f"  - nvidia-cuda-driver={image.tag}"),),
            exit_code=ExitCode.COMMAND_FAILED,
            needs=("fetch-driver-image",),
        ),
    ]
    if not configuration.has_prebake_flag:
        return Plan.order(steps)
    target = newest_kernel_with_headers(node.files) or node.kernel()
    record_path = configuration.gpu_dkms_marker_file
    build = containerd.run_driver_image(
        image,
        container=containerd.BUILD_CONTAINER,
        action="build-only",
        retry=containerd.BUILD,
    )
    return Plan.order(
        [
            *steps,
            Step(
                name="install-build-tools",
                actions=(apt_install(*BUILD_TOOLS),),
                exit_code=ExitCode.COMMAND_FAILED,
                needs=("list-driver-image",),
            ),
            Step(
                name="prepare-build",
                actions=(
                    Write(path=record_path, text=PROVISIONAL_RECORD),
                    Remove(path=f"{STAGED_LIBRARIES}/lib64"),
                ),
                exit_code=ExitCode.COMMAND_FAILED,
                needs=("install-build-tools",),
            ),
            Step(
                name="build-driver",
                actions=(build,),
                exit_code=ExitCode.COMMAND_FAILED,
                needs=("prepare-build",),
            ),
            Step(
                name="verify-record",
                actions=(
                    Do(
                        description=(f"expect a record for kernel {target} in {record_path}",),
                        function=lambda node: _verify(node, configuration, image, target, arch),
                    ),
                ),
                exit_code=ExitCode.COMMAND_FAILED,
                needs=("build-driver",),
            ),
        ]
    )


def _verify(
    node: NodeContext,
    configuration: Configuration,
    image: DriverImage,
    target: str,
    arch: str | None,
) -> None:
    """Check that a boot would accept the bake's record, and log which driver was baked."""
    path = configuration.gpu_dkms_marker_file
    record = read_record(node.files, path)
    if record is None:
        problem = f"left no record '{path}'"
    elif record.is_corrupt:
        problem = f"left a record '{path}' that lacks a field"
    elif record.kernel != target:
        problem = f"built for kernel {record.kernel}, expected {target}"
    elif record.driver_version != image.version:
        problem = f"built version {record.driver_version}, expected {image.version}"
    elif record.arch != arch:
        problem = f"built for {record.arch}, expected {arch}"
    elif not is_same_kind(record.driver_kind, image.driver_type):
        problem = f"built a driver of kind {record.driver_kind}, expected {image.driver_type}"
    elif not installed_files(node.files, target):
        problem = f"left no module for kernel {target}"
    else:
        node.journal.line(f"  - nvidia-cuda-driver-prebaked={image.tag} (kernel {record.kernel})")
        return
    raise StepFailedError(f"The driver image {problem}.")


def withdraw(node: NodeContext, configuration: Configuration) -> None:
    """Remove a failed driver build and its record, but keep the logs of the build.

    The driver image removes the record before it builds a driver, and a teardown without a record
    removes nothing. So this function first writes a record without facts, then tears down. If the
    teardown is interrupted, the record without facts makes the next run remove the rest.
    """
    try:
        node.files.write(configuration.gpu_dkms_marker_file, PROVISIONAL_RECORD)
    except OSError as error:
        node.journal.line(f"'{configuration.gpu_dkms_marker_file}' could not be written: {error}.")
    for version in node.files.names(DKMS_TREE):
        source = f"{DKMS_TREE}/{version}/build/make.log"
        text = node.files.read_or_none(source)
        try:
            if text is not None:
                node.files.write(f"{BUILD_LOGS_DIRECTORY}/make-{version}.log", text)
        except OSError as error:
            node.journal.line(f"'{source}' could not be copied: {error}.")
    tear_down(node, teardown_scope(configuration, is_opted_out=False))
