"""A project's own provisioner: a shell script and a YAML file, as its users write them."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from harness import expect
from harness.errors import ExpectationError
from harness.lab.node import NodeRequest
from harness.provisioner.yaml_file import read_provisioner

if TYPE_CHECKING:
    from pathlib import Path

    from harness.fixtures.machines import BootNode
    from harness.image import Image
    from harness.provisioner import Provisioner

pytestmark = pytest.mark.pin_image(reason="cloud-init runs any program in the same way")

_DECLARATION = """\
schema: 1
name: tiny
files:
  /opt/tiny/provision.sh: {source: provision.sh, mode: "0755"}
  /opt/tiny/lib: {source: lib}
run: [/opt/tiny/provision.sh, boot, "two words; exit 9"]
environment: {TINY_REGION: "it's eu"}
outcome:
  exit_codes: {0: ok, 84: no-driver}
"""

_SCRIPT = """\
#!/bin/sh
. /opt/tiny/lib/words.sh
say "$1 of $2 in $TINY_REGION"
exit "$(cat /etc/tiny-exit-code 2>/dev/null || echo 0)"
"""

_LIBRARY = 'say() { echo "tiny: $*"; }\n'


@pytest.fixture
def tiny(tmp_path: Path) -> Provisioner:
    folder = tmp_path / "tiny"
    (folder / "lib").mkdir(parents=True)
    (folder / "provision.sh").write_text(_SCRIPT)
    (folder / "lib/words.sh").write_text(_LIBRARY)
    (folder / "provisioner.yaml").write_text(_DECLARATION)
    return read_provisioner(folder / "provisioner.yaml")


def test_exit_code_alone_is_an_outcome(
    boot_node: BootNode, node_image: Image, tiny: Provisioner
) -> None:
    node = boot_node(NodeRequest(name="tiny", image=node_image, provisioner=tiny))

    evidence = node.evidence()

    expect.provisioned(evidence)
    expect.cloud_init_clean(evidence)
    expect.log_line(evidence, "tiny: boot of two words; exit 9 in it's eu")
    with pytest.raises(ExpectationError, match=r"end with 84 \(no-driver\), but .* with 0 \(ok\)"):
        expect.provisioned(evidence, exit_code=84)


def test_wrong_exit_code_is_refused_by_its_name(
    boot_node: BootNode, node_image: Image, tiny: Provisioner
) -> None:
    node = boot_node(
        NodeRequest(
            name="failing",
            image=node_image,
            provisioner=tiny,
            before=[["sh", "-c", "echo 84 >/etc/tiny-exit-code"]],
        )
    )

    evidence = node.evidence()

    expect.provisioned(evidence, exit_code=84)
    expect.cloud_init_reports_failure(evidence)
    with pytest.raises(ExpectationError, match=r"'tiny' .*, but it ended with 84 \(no-driver\)"):
        expect.provisioned(evidence)
