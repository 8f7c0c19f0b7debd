"""The examples on the pages work."""

from __future__ import annotations

import configparser
import re
from typing import TYPE_CHECKING

import pytest

from harness.entry_points import Group
from harness.plugin.node_ids import folder_name
from harness.provisioning.exit_codes import ExitCode
from harness.provisioning.outcome import Outcome
from harness.provisioning.prebake import Action, Decision, Reason
from harness.reservation_folder import Sharing
from harness.settings import POOL_FOLDER
from suites.docs import examples
from suites.docs.commands import Programs
from suites.docs.examples import file_name
from suites.docs.pages import REPOSITORY, Block, Page, Place, StaleDocumentError

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from suites.docs.examples import Sandbox

LANGUAGES = frozenset({"bash", "ini", "json", "python", "sh", "toml", "yaml"})


def python(text: str) -> Block:
    return Block(place=Place(page="page.md", line=1), language="python", kind="", text=text)


def leave_evidence(repository: Path) -> None:
    """Write the evidence of the README's test that the examples read."""
    decision = Decision(action=Action.INSTALL_SKIP_BUILD, reason=Reason.OK)
    outcome = Outcome(
        command="boot",
        exit_code=ExitCode.OK,
        error=None,
        decision=decision,
        steps=(),
        record=None,
        kernel="6.1.0-56-cloud-amd64",
        version="0.1.0",
    )
    test = "suites/e2e/test_first.py::test_baked_node_compiles_nothing[debian-12]"
    files = repository / "evidence" / folder_name(test) / "first" / "files"
    for path, text in (
        ("var/lib/gpu-node/outcome.json", outcome.to_json()),
        ("var/log/cloud-init-output.log", f"{decision.render_line()}\n"),
    ):
        (files / path).parent.mkdir(parents=True, exist_ok=True)
        (files / path).write_text(text)


def test_every_block_has_a_language_that_is_checked(pages: list[Page]) -> None:
    assert {block.language for page in pages for block in page.blocks} <= LANGUAGES


def test_python_examples_of_the_pages_run(
    sandbox: Sandbox,
    blocks: Callable[[str], list[Block]],
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    leave_evidence(sandbox.folder)
    monkeypatch.chdir(sandbox.folder)

    for block in blocks("python"):
        if file_name(block) is None:
            examples.run(block)

    assert "NVIDIA H100 80GB HBM3 10de:2330" in capsys.readouterr().out


def test_python_examples_on_the_pages_use_existing_names(
    blocks: Callable[[str], list[Block]],
) -> None:
    for block in blocks("python"):
        examples.check_names(block)


def test_yaml_files_on_the_pages_are_valid(
    sandbox: Sandbox, blocks: Callable[[str], list[Block]]
) -> None:
    for block in blocks("yaml"):
        examples.check_yaml(block, sandbox.folder / str(file_name(block)))


def test_systemd_units_on_the_pages_have_valid_command_lines(
    blocks: Callable[[str], list[Block]],
) -> None:
    programs = Programs.of(REPOSITORY)
    lines = [line for block in blocks("ini") for line in examples.unit_commands(block)]

    assert {line.words[0] for line in lines} == {"tox", "harness"}
    for line in lines:
        programs.check(line)


def test_system_files_on_the_pages_match_the_default_pool_folder_and_group(
    blocks: Callable[[str], list[Block]],
) -> None:
    files = {examples.system_file(block): block.text for block in blocks("ini")}

    mode = Sharing.GROUP.folder_mode
    assert f"d {POOL_FOLDER} {mode:o} root gpu-lab" in files["/etc/tmpfiles.d/gpu-lab.conf"]
    assert all("gpu-lab" in text or "vfio" in text or "iommu" in text for text in files.values())


@pytest.mark.parametrize("text", ["options vfio-pci\n", "# lab.conf\n", "# etc/lab.conf\n"])
def test_system_file_block_without_a_path_is_reported(text: str) -> None:
    block = Block(place=Place(page="page.md", line=1), language="ini", kind="", text=text)

    with pytest.raises(StaleDocumentError, match="has to name a file below '/etc'"):
        examples.system_file(block)


def test_entry_points_on_the_pages_have_existing_groups(
    blocks: Callable[[str], list[Block]],
) -> None:
    for block in blocks("toml"):
        parser = configparser.ConfigParser()
        parser.read_string(block.text)
        groups = {f'project.entry-points."{group.value}"' for group in Group}
        assert set(parser.sections()) <= groups, block.place


def test_json_documents_on_the_pages_are_valid(blocks: Callable[[str], list[Block]]) -> None:
    for block in blocks("json"):
        examples.check_json(block)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("assert 1 == 2\n", "AssertionError"),
        ("def f(:\n", "This is not Python"),
        ("import harness.exspect\n", "There is no module 'harness.exspect'"),
        ("from harness.lab.node import Nodes\n", "There is no module 'harness.lab.node.Nodes'"),
        ("from harness import expect\ndef f(e):\n    expect.bound(e)\n", "has no 'bound'"),
        (
            "from harness import expect\ndef f(e):\n    expect.decided(e, decision='ok')\n",
            "is no call of it: missing a required",
        ),
        (
            "from harness.lab.node_request import NodeRequest\ndef f():\n    NodeRequest(nmae='x')\n",
            "is no call of it",
        ),
    ],
)
def test_broken_python_is_reported(text: str, message: str) -> None:
    with pytest.raises(StaleDocumentError, match=rf"page.md:1: .*{re.escape(message)}"):
        examples.run(python(text))


def test_example_with_the_path_of_a_repository_file_is_refused(sandbox: Sandbox) -> None:
    with pytest.raises(StaleDocumentError, match=r"'suites/e2e/test_bake.py' is there already"):
        sandbox.put(python("# suites/e2e/test_bake.py\n"))


@pytest.mark.parametrize(
    ("file", "text", "message"),
    [
        ("images/mine.yaml", "schema: 1\nkinds: build\n", "key 'kinds': This key is not known"),
        ("mine/provisioner.yaml", "schema: 1\nrnu: []\n", "key 'rnu': This key is not known"),
        ("gpus/mine.yaml", "titel: Mine\n", "key 'titel': This key is not known"),
        ("lab/gpus.yaml", "gpu: {}\n", "key 'gpu': This key is not known"),
    ],
)
def test_broken_data_file_is_reported(tmp_path: Path, file: str, text: str, message: str) -> None:
    target = tmp_path / file
    target.parent.mkdir()
    target.write_text(text)

    with pytest.raises(StaleDocumentError, match=re.escape(message)):
        examples.check_yaml(python(text), target)


@pytest.mark.parametrize(
    ("kind", "text", "message"),
    [
        ("configuration", '{"gpu_nodes": true}', "The field 'gpu_nodes' is unknown"),
        ("configuration", "{", "Expecting property name"),
        ("outcome", '{"command": "boot"}', "has another format than the provisioner declares"),
        ("", "{}", "Write 'json configuration' or 'json outcome'"),
    ],
)
def test_broken_document_is_reported(kind: str, text: str, message: str) -> None:
    block = Block(place=Place(page="page.md", line=1), language="json", kind=kind, text=text)

    with pytest.raises(StaleDocumentError, match=re.escape(message)):
        examples.check_json(block)
