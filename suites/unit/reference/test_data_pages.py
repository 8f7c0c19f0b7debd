"""Reference pages that describe data files and code."""

from __future__ import annotations

import re

from harness.reference.code_pages import expectation_page, fixture_page, fixtures
from harness.reference.data_pages import gpu_page, image_page, provisioning_page


def test_page_of_gpus_shows_the_device_for_each_qemu_release_and_accelerator() -> None:
    page = gpu_page()

    assert "| 8.2.0 | none | `x-pci-proxy-dev` |" in page
    assert "| 11.1.0 | `vfio-user-pci` | `vfio-user-pci` |" in page
    assert "| `h100-sxm5-80gb` | NVIDIA H100 80GB HBM3 | `10de:2330` |" in page
    assert (
        "| `gsp.copy_engines` | `5` | The number of copy engines that the driver sees. |" in page
    )


def test_provisioning_page_explains_each_exit_code() -> None:
    _, _, codes = provisioning_page().partition("## Exit codes")
    rows = [line for line in codes.partition("##")[0].splitlines() if line.startswith("| ")][2:]

    assert rows[0].endswith(" | Success. |")
    assert [row for row in rows if row.endswith("|  |")] == []


def test_page_of_images_shows_how_each_image_is_verified() -> None:
    rows = dict(re.findall(r"^\| `(\S+)` \|.*\| ([^|]+) \|$", image_page(), re.MULTILINE))

    assert rows["debian-12"] == "built here, from signed packages"
    assert rows["debian-12-cloud"] == "https"
    assert rows["ubuntu-22.04"].startswith("signature by `")


def test_expectation_page_shows_parameters_without_types() -> None:
    page = expectation_page()

    assert "\n### `gpu_reset(evidence, times=1, since=None, gpu='gpu0')`\n" in page


def test_fixture_page_lists_each_fixture_once_with_its_scope() -> None:
    page = fixture_page()
    scopes = {one.name: one.scope for one in fixtures()}

    assert {scopes["boot_node"], scopes["existing_node"]} == {"function", "session"}
    for name, scope in scopes.items():
        assert page.count(f"\n| `{name}` | {scope} |") == 1, name
