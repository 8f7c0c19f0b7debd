"""A catalogue in a temporary folder, for tests that change one detail of the catalogue."""

from __future__ import annotations

from typing import TYPE_CHECKING

from harness.image.catalogue import Recipe, read_recipe

if TYPE_CHECKING:
    from pathlib import Path

RECIPE = """\
schema: 1
kind: build
description: A node
release: bookworm
archives:
  - url: http://deb.debian.org/debian
    suites: [bookworm, bookworm-updates]
kernels:
  pattern: linux-image-6\\.1\\.0-[0-9]+-cloud-amd64
  newest: 2
packages: [systemd, containerd]
exclude: [/usr/share/man/*]
trees: [node/root]
scripts: [node/scripts/setup.sh]
driver:
  repository: mcr.microsoft.com/aks/aks-gpu-cuda-lts
  version: 580.126.09
  sha: "20260801000000"
"""

LICENSED = f"""\
{RECIPE}
licence:
  id: vendor-terms
  text: https://example.org/terms
"""


def write_catalogue(folder: Path, *, recipe: str = RECIPE, name: str = "node") -> Path:
    """Write a catalogue of one recipe, with its inputs; return the recipe's file."""
    for path, text in (
        ("node/root/etc/fstab", "/dev/vda / ext4\n"),
        ("node/root/usr/bin/tool", "#!/bin/sh\n"),
        ("node/scripts/setup.sh", "true\n"),
        ("node/scripts/beside.txt", "read by setup.sh\n"),
    ):
        (folder / path).parent.mkdir(parents=True, exist_ok=True)
        (folder / path).write_text(text)
    (folder / "node/root/usr/bin/tool").chmod(0o755)
    file = folder / f"{name}.yaml"
    file.write_text(recipe)
    return file


def a_recipe(folder: Path, *, recipe: str = RECIPE) -> Recipe:
    """Return the recipe of a catalogue written to `folder`."""
    entry = read_recipe(write_catalogue(folder, recipe=recipe))
    assert isinstance(entry, Recipe)
    return entry
