"""Families of Linux distributions, and the source of the driver for each family."""

from __future__ import annotations

import enum

from .nvidia import driver_kind

OS_RELEASE = "/etc/os-release"
GRIDD = "nvidia-gridd"


class Family(enum.Enum):
    """Distributions that are provisioned in the same way."""

    DEBIAN = "debian"
    AZURE_LINUX = "azure-linux"
    OTHER = "other"


_MEMBERS = {
    "debian": Family.DEBIAN,
    "ubuntu": Family.DEBIAN,
    "azurelinux": Family.AZURE_LINUX,
    "mariner": Family.AZURE_LINUX,
}
_VARIANTS = frozenset({"azurecontainerlinux", "osguard"})
"""Variants with the ID of Azure Linux whose system cannot be changed by packages (AgentBaker,
`isMarinerOrAzureLinux`)."""


class DriverSource(enum.Enum):
    """The source of a node's driver."""

    CONTAINER_IMAGE = "container-image"
    PACKAGES = "packages"
    NONE = "none"


def os_release_fields(text: str) -> dict[str, str]:
    """Read an os-release file."""
    pairs = (line.partition("=") for line in text.splitlines())
    return {key: value.strip().strip("\"'") for key, separator, value in pairs if separator}


def family_of(os_release: str) -> Family:
    """Return the family of the distribution that an os-release file names in ID or ID_LIKE."""
    fields = os_release_fields(os_release)
    if fields.get("VARIANT_ID") in _VARIANTS:
        return Family.OTHER
    names = " ".join(fields[key] for key in ("ID", "ID_LIKE") if key in fields).split()
    return next((_MEMBERS[name] for name in names if name in _MEMBERS), Family.OTHER)


def driver_source(family: Family) -> DriverSource:
    """Return the source of the driver: an image that builds it, or packages that contain it."""
    return {
        Family.DEBIAN: DriverSource.CONTAINER_IMAGE,
        Family.AZURE_LINUX: DriverSource.PACKAGES,
        Family.OTHER: DriverSource.NONE,
    }[family]


def units_after_install(family: Family, driver_type: str) -> tuple[str, ...]:
    """Return the units that a driver needs in this family, in addition to the common units.

    On Azure Linux, provisioning starts the licence daemon only for GRID drivers: with any other
    driver, the daemon would fail, and its failure would end the boot.
    """
    if family is Family.AZURE_LINUX and driver_kind(driver_type) == "grid":
        return (GRIDD,)
    return ()
