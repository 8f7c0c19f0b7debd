"""Shell coverage records the lines that run in a machine, whichever program starts the script."""

from __future__ import annotations

from typing import TYPE_CHECKING

from harness.cloudinit import GuestFile
from harness.lab.node_request import NodeRequest
from harness.lab.shell_trace import read_hits, traced
from harness.shell.commands_of import executed_lines

if TYPE_CHECKING:
    from pathlib import Path

    from harness.fixtures.machines import BootNode
    from harness.image import Image
    from harness.provisioner import Provisioner

SCRIPT = """\
#!/bin/bash
set -eu
cd /
. /opt/coverage/library.sh
if [ $# -gt 1 ]; then
  echo many
fi
say "$(
  echo one
)"
/opt/coverage/other.sh
if false; then
  echo never
fi
"""
LIBRARY = """\
say() {
  echo "$1"
}
unused() {
  echo
}
"""


def test_script_of_cloud_init_is_traced_with_the_scripts_that_it_sources_and_starts(
    boot_node: BootNode, node_image: Image, provisioner_of_test: Provisioner, tmp_path: Path
) -> None:
    """No provisioner starts the script, so only the environment of its unit enables tracing."""
    scripts = {"my script.sh": SCRIPT, "library.sh": LIBRARY, "other.sh": "#!/bin/bash\n:\n"}
    for name, text in scripts.items():
        (tmp_path / name).write_text(text)
    request = NodeRequest(
        name="traced",
        image=node_image,
        command=None,
        files=[
            GuestFile(path="/opt/coverage/my script.sh", content=SCRIPT.encode(), mode=0o755),
            GuestFile(path="/opt/coverage/library.sh", content=LIBRARY.encode()),
            GuestFile(
                path="/opt/coverage/other.sh", content=b"#!/bin/bash\n: newer\n", mode=0o755
            ),
        ],
        before=[["/opt/coverage/my script.sh"]],
    )

    node = boot_node(traced(request, provisioner_of_test))

    hits, refused = read_hits(node.guest, [tmp_path / name for name in scripts])
    ran = {
        name: executed_lines(text, hits.get(str(tmp_path / name), ()))
        for name, text in scripts.items()
    }
    assert ran == {"my script.sh": {2, 3, 4, 5, 8, 11, 12}, "library.sh": {2}, "other.sh": set()}
    (sentence,) = refused
    assert (
        "ran /opt/coverage/other.sh, but no script that '--shell-cov' measures has the same"
        in sentence
    )
