"""Defects of precompiled drivers."""

from __future__ import annotations

from .plant import MachinePlant, plant

PLANTS: tuple[MachinePlant, ...] = (
    plant(
        "an error of the registry counts as a missing precompiled image",
        "precompiled_driver.py",
        ("if result.ok or not containerd.says_no_such_image(result, image):", "if result.ok:"),
        "precompiled/test_precompiled.py",
        "failing",
    ),
    plant(
        "the tag of a precompiled image does not name the kernel",
        "precompiled.py",
        (
            "{self.image}:{self.version}-{kernel}-{self.os_tag}",
            "{self.image}:{self.version}-{self.os_tag}",
        ),
        "precompiled/test_precompiled.py",
        "is_used_and",
    ),
    plant(
        "the baked driver is removed before the precompiled driver is pulled",
        "precompiled_driver.py",
        (
            "            _fetch(image, facts.node_name, has_fallback=has_fallback),\n            # Otherwise nvidia-modprobe would compile the baked driver in DKMS for this kernel.\n            Remove(path=DKMS_TREE),\n",
            "            Remove(path=DKMS_TREE),\n            _fetch(image, facts.node_name, has_fallback=has_fallback),\n",
        ),
        "precompiled/test_precompiled.py",
        "another_kernel",
    ),
    plant(
        "an image that is present is pulled again",
        "precompiled_driver.py",
        ("    if present.ok and present.stdout.strip():\n", "    if False:\n"),
        "precompiled/test_precompiled.py",
        "present_is",
    ),
    plant(
        "the driver image stays after a fallback",
        "driver.py",
        ("for each in (precompiled, image)", "for each in (precompiled,)"),
        "precompiled/test_precompiled.py",
        "is_reported",
    ),
)
