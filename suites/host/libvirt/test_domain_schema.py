"""Every golden domain XML is valid under libvirt's own schema."""

from __future__ import annotations

import shutil
from typing import TYPE_CHECKING

import pytest

from harness.errors import RequirementError
from harness.plugin.select import requirements
from harness.provisioning.command import LocalRunner
from suites.unit.machine.libvirt.domains import CASES, GOLDENS

if TYPE_CHECKING:
    from pathlib import Path

    from harness.settings import Settings

VALIDATE_S = 20.0


@pytest.fixture
def validator(settings: Settings) -> str:
    with requirements(settings):
        if shutil.which("virt-xml-validate") is None or shutil.which("xmllint") is None:
            raise RequirementError(
                "There is no 'virt-xml-validate' on this host, or no 'xmllint' for it; install "
                "them with `apt-get install libvirt-clients libxml2-utils`, or run `./dev setup`."
            )
    return "virt-xml-validate"


@pytest.mark.parametrize("name", CASES)
def test_golden_domain_xml_is_valid_under_the_schema_of_libvirt(name: str, validator: str) -> None:
    golden = GOLDENS / f"{name}.xml"

    judged = LocalRunner().run([validator, str(golden), "domain"], timeout_s=VALIDATE_S)

    assert judged.ok, judged.render()


def test_schema_validator_refuses_an_invalid_domain_xml(validator: str, tmp_path: Path) -> None:
    text = (GOLDENS / "plain.xml").read_text()
    wrong = tmp_path / "wrong.xml"
    wrong.write_text(text.replace("<vcpu>", "<vcpus>").replace("</vcpu>", "</vcpus>"))

    assert not LocalRunner().run([validator, str(wrong), "domain"], timeout_s=VALIDATE_S).ok
