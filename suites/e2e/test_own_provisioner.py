"""A project's own provisioner: a shell script and a YAML file, as users write them."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from harness import expect
from harness.errors import BadInputError, ExpectationError, HarnessError
from harness.lab.bakes import bake_evidence, bake_node
from harness.lab.node_request import NodeRequest
from harness.provisioner.yaml_file import read_provisioner
from harness.settings import MachineStart

if TYPE_CHECKING:
    from harness.fixtures.machines import BootNode
    from harness.image import Image
    from harness.lab import Lab
    from harness.provisioner import Provisioner

pytestmark = pytest.mark.pin_image(reason="cloud-init runs any program in the same way")

_THIN = """\
schema: 1
name: tiny
files:
  /opt/tiny/provision.sh: {source: provision.sh, mode: "0755"}
  /opt/tiny/lib: {source: lib}
run: [/opt/tiny/provision.sh, boot, "two words; exit 9"]
environment: {TINY_REGION: "it's eu"}
outcome:
  exit_codes: {0: ok, 3: no-record, 84: no-driver}
"""

_WHOLE = (
    _THIN
    + """\
  file: {path: /var/lib/tiny/outcome.json, exit_code: /code, decision: /decision}
  events: {path: /var/log/tiny/events.jsonl, name: /name, format: json-lines}
  log: {path: /var/log/tiny/log, step: 'step (?P<name>[a-z-]+) (?P<status>done|failed)'}
bake: [/opt/tiny/provision.sh, bake, "an image"]
teardown: [/opt/tiny/provision.sh, teardown, "a driver"]
config: {path: /etc/tiny/config, format: env, values: {TINY_DECISION: build}}
user_data: user-data.yaml
evidence:
  files: [/var/lib/tiny/rec*]
  commands: {tiny-listing: [ls, /opt/tiny]}
"""
)

_USER_DATA = """\
#cloud-config
merge_how: dict(recurse_list)+list(append)
timezone: Europe/Paris
write_files: [{path: /etc/tiny/from-user-data, content: "by cloud-init"}]
runcmd: [[sh, -c, "echo after $(cat /var/lib/tiny/record) >/var/lib/tiny/recheck"]]
"""

_SCRIPT = """\
#!/bin/sh
. /opt/tiny/lib/words.sh
say "$1 of $2 in $TINY_REGION"
code=$(cat /etc/tiny-exit-code 2>/dev/null || echo 0)
[ -e /etc/tiny/config ] || exit "$code"
. /etc/tiny/config
mkdir -p /var/lib/tiny /var/log/tiny
case $1 in
    bake) echo baked >/var/lib/tiny/record; step write-record done ;;
    teardown) rm /var/lib/tiny/record || code=3; step remove-record done ;;
    boot)
        if [ -e /var/lib/tiny/record ]; then TINY_DECISION=skip; fi
        echo "$TINY_DECISION" >>/var/lib/tiny/record
        step write-record done
        step start-service failed
        ;;
esac
echo "{\\"code\\": $code, \\"decision\\": \\"$TINY_DECISION\\"}" >/var/lib/tiny/outcome.json
exit "$code"
"""

_LIBRARY = """\
say() { echo "tiny: $*"; }
step() {
    echo "step $1 $2" >>/var/log/tiny/log
    echo "{\\"name\\": \\"tiny.$1\\"}" >>/var/log/tiny/events.jsonl
}
"""


def write_project(folder: Path, declaration: str) -> Path:
    """Write a project with the provisioner, and return the path of the provisioner's YAML file."""
    (folder / "lib").mkdir(parents=True)
    (folder / "provision.sh").write_text(_SCRIPT)
    (folder / "lib/words.sh").write_text(_LIBRARY)
    (folder / "user-data.yaml").write_text(_USER_DATA)
    (folder / "provisioner.yaml").write_text(declaration)
    return folder / "provisioner.yaml"


@pytest.fixture
def thin(tmp_path: Path) -> Provisioner:
    return read_provisioner(write_project(tmp_path / "tiny", _THIN))


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Provisioner:
    return read_provisioner(write_project(tmp_path_factory.mktemp("project") / "tiny", _WHOLE))


def test_provisioner_may_declare_its_exit_code_as_its_only_outcome(
    boot_node: BootNode, node_image: Image, thin: Provisioner
) -> None:
    node = boot_node(NodeRequest(name="tiny", image=node_image, provisioner=thin))

    evidence = node.evidence()

    expect.provisioned(evidence)
    expect.cloud_init_clean(evidence)
    expect.log_line(evidence, "tiny: boot of two words; exit 9 in it's eu")
    with pytest.raises(ExpectationError, match=r"end with 84 \(no-driver\), but .* with 0 \(ok\)"):
        expect.provisioned(evidence, exit_code="no-driver")
    with pytest.raises(BadInputError, match=r"provisioner\.yaml: key 'outcome\.events': "):
        expect.events_recorded(evidence, "tiny.write-record")


def test_error_for_a_wrong_exit_code_has_its_declared_name(
    boot_node: BootNode, node_image: Image, thin: Provisioner
) -> None:
    fails = [["sh", "-c", "echo 84 >/etc/tiny-exit-code"]]
    node = boot_node(NodeRequest(name="failing", image=node_image, provisioner=thin, before=fails))

    evidence = node.evidence()

    expect.provisioned(evidence, exit_code="no-driver")
    expect.cloud_init_reports_failure(evidence)
    with pytest.raises(ExpectationError, match=r"'tiny' .*, but it ended with 84 \(no-driver\)"):
        expect.provisioned(evidence)


@pytest.mark.nightly
def test_harness_reads_what_the_provisioner_declares(
    boot_node: BootNode, node_image: Image, whole: Provisioner
) -> None:
    """The test covers the outcome, events, log, evidence, configuration, user-data and teardown."""
    request = NodeRequest(
        name="whole", image=node_image, provisioner=whole, config={"TINY_MORE": "a b"}
    )
    node = boot_node(request)

    evidence = node.evidence()

    expect.provisioned(evidence)
    expect.cloud_init_clean(evidence)
    expect.decided(evidence, "build")
    expect.events_recorded(evidence, "tiny.write-record", "tiny.start-service")
    expect.log_line(evidence, "step write-record done")
    expect.step_failed(evidence, "start-service")
    assert expect.step_of(evidence, "write-record").status == "done"
    assert evidence.answer_of("tiny-listing").split() == ["lib", "provision.sh"]
    assert evidence.file("/var/lib/tiny/record") == "build\n"
    assert evidence.file("/var/lib/tiny/recheck") == "after build\n", (
        "The user-data's command was expected to run after the provisioner's."
    )
    assert node.guest.read_text("/etc/tiny/config") == "TINY_DECISION=build\nTINY_MORE='a b'\n"
    assert node.guest.read_text("/etc/tiny/from-user-data") == "by cloud-init"
    assert node.guest.output_of("readlink", "/etc/localtime").strip().endswith("Europe/Paris")

    node.provision("teardown").check("teardown")
    again = node.provision("teardown")

    torn_down = node.evidence()
    assert again.exit_code == 3
    expect.provisioned(torn_down, exit_code="no-record")
    assert torn_down.file("/var/lib/tiny/record") is None
    assert evidence.file("/var/lib/tiny/record") == "build\n", "Earlier evidence has changed."


@pytest.mark.nightly
def test_bake_by_a_users_provisioner_makes_an_image_and_a_checkpoint(
    boot_node: BootNode, lab: Lab, image_name: str, whole: Provisioner
) -> None:
    """The bake runs once; a clone of a checkpoint of the baked image has the files of the bake."""
    baked = bake_node(lab, image_name, provisioner=whole)
    again = bake_node(lab, image_name, provisioner=whole)
    node = boot_node(NodeRequest(name="baked", image=baked, provisioner=whole))

    evidence = node.evidence()

    assert again.disk == baked.disk
    expect.provisioned(bake_evidence(baked))
    expect.provisioned(evidence)
    expect.decided(evidence, "skip")
    assert evidence.file("/var/lib/tiny/record") == "baked\nskip\n"
    if lab.settings.machine_start is MachineStart.CLONE:
        assert node.machine.checkpoint is not None, (
            "A baked image was expected to have a checkpoint."
        )


@pytest.mark.nightly
def test_error_for_a_failed_bake_has_the_declared_name_of_its_exit_code(
    lab: Lab, image_name: str, tmp_path: Path
) -> None:
    path = write_project(
        tmp_path / "tiny", _WHOLE.replace("provision.sh, bake", "provision.sh, teardown")
    )

    with pytest.raises(HarnessError, match=r"bake of '.*' ended with 3 \(no-record\): it left no"):
        bake_node(lab, image_name, provisioner=read_provisioner(path))


@pytest.mark.provisioner("own_provisioner/provisioner.yaml")
@pytest.mark.nightly
def test_marker_chooses_the_provisioner_of_a_test(boot_node: BootNode, node_image: Image) -> None:
    node = boot_node(NodeRequest(name="pinned", image=node_image))

    evidence = node.evidence()

    expect.provisioned(evidence, exit_code="nothing-to-do")
    assert evidence.provisioner.source == str(
        Path(__file__).with_name("own_provisioner") / "provisioner.yaml"
    )


def test_conflicting_user_data_is_refused_before_a_machine_starts(
    boot_node: BootNode, node_image: Image, tmp_path: Path
) -> None:
    path = write_project(tmp_path / "tiny", _WHOLE)
    path.with_name("user-data.yaml").write_text("#cloud-config\nruncmd: [[touch, /run/x]]\n")

    with pytest.raises(BadInputError, match=r"/user-data\.yaml:2: key 'runcmd': The harness sets"):
        boot_node(
            NodeRequest(name="conflict", image=node_image, provisioner=read_provisioner(path))
        )
