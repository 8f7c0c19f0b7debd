"""The zipapp is reproducible and complete, and imports only the standard library."""

from __future__ import annotations

import io
import re
import shutil
import sys
import zipfile
from pathlib import Path

import pytest

from harness import agent, provisioning
from harness.errors import RequirementError
from harness.payload import Payload, build_agent, build_payload, write_payload

AGENT_SOURCES = sorted(Path(agent.__file__).parent.rglob("*.py"))
SOURCES = sorted(Path(provisioning.__file__).parent.rglob("*.py"))
#: Imports that are not from the same package.
IMPORT = re.compile(r"^[ \t]*(?:from +(?!\.[\w ])(\S+) +import\b|import +([^#\n]+))", re.MULTILINE)
SMALL = Payload(content=b"#!/usr/bin/env python3\n", digest="0" * 64)


@pytest.fixture
def sources(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Pack a small package, which the test may change, in place of provisioning."""
    folder = tmp_path / "anywhere" / "provisioning"
    (folder / "steps").mkdir(parents=True)
    for name in ("__init__.py", "plan.py", "steps/driver.py"):
        (folder / name).write_text(f"# {name}\n")
    monkeypatch.setattr(provisioning, "__file__", str(folder / "__init__.py"))
    return folder


def members_of(payload: Payload) -> list[zipfile.ZipInfo]:
    return zipfile.ZipFile(io.BytesIO(payload.content)).infolist()


def test_payload_has_each_source_exactly_once() -> None:
    names = [member.filename for member in members_of(build_payload())]

    root = SOURCES[0].parent
    assert names == sorted(
        ["__main__.py", *(f"provisioning/{path.relative_to(root)}" for path in SOURCES)]
    )


def test_payload_does_not_depend_on_path_or_mtime_or_mode_of_the_sources(
    sources: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    here = build_payload()
    elsewhere = shutil.copytree(sources, sources.parent.with_name("elsewhere") / sources.name)
    monkeypatch.setattr(provisioning, "__file__", str(elsewhere / "__init__.py"))
    assert build_payload() == here
    monkeypatch.setattr(provisioning, "__file__", str(sources / "__init__.py"))
    for path in sources.rglob("*.py"):
        path.chmod(0o600)
        path.touch()
    (sources / "__pycache__").mkdir()
    (sources / "__pycache__" / "plan.cpython-311.pyc").write_bytes(b"compiled")
    (sources / "notes.txt").write_text("no source")

    assert build_payload() == here


def test_payload_depends_on_every_source(sources: Path) -> None:
    before = build_payload()
    with (sources / "plan.py").open("a") as file:
        file.write("# one more line\n")
    changed = build_payload()
    (sources / "below").mkdir()
    (sources / "below/more.py").touch()

    digests = {before.digest, changed.digest, build_payload().digest}
    assert len(digests) == 3


def test_agent_is_packed_reproducibly_with_all_its_sources() -> None:
    packed = build_agent()

    assert packed == build_agent()
    assert packed.name == f"agent-{packed.digest[:12]}.pyz"
    assert [member.filename for member in members_of(packed)] == sorted(
        ["__main__.py", *(f"agent/{path.name}" for path in AGENT_SOURCES)]
    )


def test_payload_imports_only_the_standard_library() -> None:
    """The node has no other packages, and `-S` finds none; Python 3.10 has no `tomllib`."""
    known = sys.stdlib_module_names - {"tomllib"}
    foreign = [
        f"{path.name}: {name}"
        for path in (*SOURCES, *AGENT_SOURCES)
        for module, modules in IMPORT.findall(path.read_text())
        for name in (module or modules).split(",")
        if re.split(r"[. ]", name.strip())[0] not in known
    ]

    assert foreign == []


def test_write_payload_leaves_only_the_complete_payload_file(tmp_path: Path) -> None:
    path = write_payload(SMALL, tmp_path / "payloads")

    assert path.read_bytes() == SMALL.content
    assert path.stat().st_mode & 0o777 == 0o755
    assert list(path.parent.iterdir()) == [path]


def test_half_written_payload_is_written_again(tmp_path: Path) -> None:
    (tmp_path / SMALL.name).write_bytes(SMALL.content[:10])

    assert write_payload(SMALL, tmp_path).read_bytes() == SMALL.content


def test_existing_payload_is_not_rewritten(tmp_path: Path) -> None:
    first = write_payload(SMALL, tmp_path).stat()

    assert write_payload(SMALL, tmp_path).stat().st_ino == first.st_ino


def test_unwritable_payload_raises_an_error_that_mentions_xdg_cache_home(tmp_path: Path) -> None:
    (tmp_path / SMALL.name).mkdir()

    with pytest.raises(RequirementError, match=r"cannot be written.*XDG_CACHE_HOME"):
        write_payload(SMALL, tmp_path)

    assert list(tmp_path.iterdir()) == [tmp_path / SMALL.name]
