"""What reference pages say of data and of code."""

from __future__ import annotations

from harness.reference.code_pages import fixture_page, fixtures
from harness.reference.data_pages import gpu_page, provisioning_page


def test_page_of_gpus_has_the_device_of_each_release_and_accelerator() -> None:
    page = gpu_page()

    assert "| 8.2.0 | none | `x-pci-proxy-dev` |" in page
    assert "| 11.1.0 | `vfio-user-pci` | `vfio-user-pci` |" in page
    assert "| `h100-sxm5-80gb` | NVIDIA H100 80GB HBM3 | `10de:2330` |" in page
    assert "| `gsp.copy_engines` | `5` | How many copy engines the driver sees. |" in page


def test_page_of_provisioning_has_a_meaning_for_each_exit_code() -> None:
    _, _, codes = provisioning_page().partition("## Exit codes")
    rows = [line for line in codes.partition("##")[0].splitlines() if line.startswith("| ")][2:]

    assert rows[0].endswith(" | Success. |")
    assert [row for row in rows if row.endswith("|  |")] == []


def test_each_fixture_is_in_one_table_with_its_scope() -> None:
    page = fixture_page()
    scopes = {one.name: one.scope for one in fixtures()}

    assert {scopes["boot_node"], scopes["existing_node"]} == {"function", "session"}
    for name, scope in scopes.items():
        assert page.count(f"\n| `{name}` | {scope} |") == 1, name
