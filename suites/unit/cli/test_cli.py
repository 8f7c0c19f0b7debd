"""The exit codes of `harness` commands, and their output to stdout and stderr."""

from __future__ import annotations

import ast
import contextlib
import datetime as dt
import importlib.metadata
import io
import json
import os
import re
import sys
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, NoReturn, cast

import pytest
from rich.console import Console
from typing_extensions import override

from harness.cli import bake, build_parser, demo, exit_code_of, images, main, qemu
from harness.cli.demo import Scenario, Verdict
from harness.cli.progress import show_event
from harness.errors import ExpectationError, HarnessError
from harness.expect.failure import failure
from harness.image import DriverImage
from harness.image.cloud.store import FetchOptions
from harness.payload import build_payload
from harness.progress import ProgressEvent, Stage
from harness.provisioning.command import CommandError, CommandResult
from harness.provisioning.wait import WaitTimeoutError
from suites.unit.image.cataloguefolder import write_catalogue
from suites.unit.image.cloud_image_folder import (
    DIGEST,
    ENTRY,
    published_files,
    write_cloud_image_recipe,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from harness.evidence import Evidence

FAILED = CommandResult(argv=("false",), exit_code=1, stdout="", stderr="no")


def test_exit_code_is_1_for_a_node_error_and_2_for_a_harness_error(
    capsys: pytest.CaptureFixture[str],
) -> None:
    rows: list[tuple[BaseException, int]] = [
        (ExpectationError("wrong kernel"), 1),
        (HarnessError("QEMU died"), 2),
        (CommandError("Making it", FAILED), 2),
        (WaitTimeoutError("Waited 3 s."), 2),
        (OSError(28, "No space left on device"), 2),
        (KeyboardInterrupt(), 130),
    ]
    for error, code in rows:
        assert exit_code_of(_raising(error), command="harness doctor") == code

        streams = capsys.readouterr()
        assert streams.err.startswith("harness: ")
        assert str(error) in streams.err
        assert streams.out == ""


def _raising(error: BaseException) -> Callable[[], int]:
    def act() -> NoReturn:
        raise error

    return act


def test_lack_of_memory_or_threads_is_reported_in_a_sentence(
    capsys: pytest.CaptureFixture[str],
) -> None:
    rows: list[Exception] = [
        MemoryError(),
        RuntimeError("can't start new thread"),
        ImportError("/a/select.so: failed to map segment from shared object"),
    ]
    for error in rows:
        assert exit_code_of(_raising(error), command="harness doctor") == 2

        said = capsys.readouterr().err
        assert said.startswith(
            "harness: This host, or a limit of this process, has no memory or no thread"
        )
        assert "`harness doctor`" in said


def test_path_that_is_a_link_to_itself_is_reported_in_a_sentence(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    loop = tmp_path / "loop"
    loop.symlink_to(loop)

    assert main(["image", "ls", "--images-dir", str(loop)]) == 2

    assert str(loop) in capsys.readouterr().err


def test_other_interpreter_error_is_not_reported_as_lack_of_memory_or_threads() -> None:
    rows: list[Exception] = [
        RuntimeError("dictionary changed size"),
        ImportError("No module named 'x'"),
    ]
    for error in rows:
        with pytest.raises(type(error), match=str(error)):
            exit_code_of(_raising(error), command="harness doctor")


def test_closed_output_pipe_ends_the_command_with_the_exit_code_of_sigpipe(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The last output reaches the closed pipe only at the final flush."""
    ours, theirs = os.pipe()
    os.close(ours)
    replaced: list[int] = []
    monkeypatch.setattr("os.dup2", lambda _fd, place: replaced.append(place))

    with contextlib.suppress(BrokenPipeError), os.fdopen(theirs, "w") as stdout:
        monkeypatch.setattr(sys, "stdout", stdout)
        code = main(["payload", "build", "--print-path"])
        help_code = main(["--help"])

    assert (code, help_code, replaced) == (141, 141, [1, 1])


class _Refusing(io.StringIO):
    """A stream that takes no text."""

    def __init__(self, error: OSError) -> None:
        super().__init__()
        self._error = error

    @override
    def write(self, _: str, /) -> NoReturn:
        raise self._error


def test_broken_pipe_while_a_table_is_printed_gives_exit_code_141(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Rich ends the process by exit code 1, which would mean a wrong node."""
    monkeypatch.setattr("os.dup2", lambda *_: None)  # which rich calls

    def act() -> int:
        Console(file=_Refusing(BrokenPipeError())).print("table")
        return 0

    assert exit_code_of(act, command="harness doctor") == 141
    with pytest.raises(SystemExit):
        exit_code_of(_raising(SystemExit(2)), command="harness doctor")


def test_failed_write_to_stderr_does_not_change_the_exit_code(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(sys, "stderr", _Refusing(OSError(28, "No space left on device")))

    for error, code in ((HarnessError("no"), 2), (KeyboardInterrupt(), 130)):
        assert exit_code_of(_raising(error), command="harness doctor") == code


def test_unknown_home_folder_in_xdg_cache_home_is_reported(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The command's options have defaults in the cache."""
    monkeypatch.setenv("XDG_CACHE_HOME", "~no-such-user/cache")

    assert main(["ps"]) == 2

    assert "XDG_CACHE_HOME: The home folder in" in capsys.readouterr().err


def test_exit_code_is_2_for_an_invalid_command_line(capsys: pytest.CaptureFixture[str]) -> None:
    rows: list[list[str]] = [[], ["image"], ["doctor", "--accelerator=xen"]]
    for argv in rows:
        with pytest.raises(SystemExit) as caught:
            main(argv)

        assert caught.value.code == 2, argv
        assert "usage: harness" in capsys.readouterr().err, argv


def test_invalid_option_value_is_reported_in_a_sentence(
    capsys: pytest.CaptureFixture[str],
) -> None:
    for command, sentence in (
        ("bench clone --runs=x", "--runs: a whole number of at least 1 is expected, but got 'x'."),
        (
            "bench clone --cold-runs=0",
            "--cold-runs: a whole number of at least 1 is expected, but got '0'.",
        ),
        (
            "image gc --unused-days=-3",
            "--unused-days: '-3' is not a number of days; give a number from 0 to 36500.",
        ),
        ("image gc --unused-days=36501", "--unused-days: '36501' is not a number of days"),
        (
            "image gc --unused-days=nan",
            "--unused-days: 'nan' is not a number of days; give a number from 0 to 36500",
        ),
        (
            "checkpoints gc --limit-mib=x",
            "--limit-mib: a whole number is expected, but got 'x'.",
        ),
    ):
        with pytest.raises(SystemExit) as caught:
            main(command.split())

        assert caught.value.code == 2
        assert f"error: argument {sentence}" in capsys.readouterr().err


def test_migrate_command_prints_a_shellspec_file_that_is_not_utf8_in_an_ascii_locale(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    spec = tmp_path / "a_spec.sh"
    spec.write_bytes(b"It 'says \xe9'\nWhen call echo \xe9\nThe output should equal \xe9\nEnd\n")
    printed = io.BytesIO()
    monkeypatch.setattr(sys, "stdout", io.TextIOWrapper(printed, encoding="ascii"))

    assert main(["migrate", str(spec)]) == 0

    module = ast.parse(printed.getvalue())
    functions = [each for each in module.body if isinstance(each, ast.FunctionDef)]
    assert ast.get_docstring(functions[-1]) == "says \udce9"


def test_cache_folder_that_cannot_be_created_is_reported_with_a_remedy(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "file").touch()
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))

    assert main(["payload", "build"]) == 2

    said = capsys.readouterr().err
    assert said.startswith(
        f"harness: The folder '{tmp_path}/file/gpu-node-harness/payloads' can't"
    )
    assert "XDG_CACHE_HOME sets the folder" in said


def test_payload_build_writes_the_payload_into_the_cache_and_prints_its_path(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))

    assert main(["payload", "build", "--print-path"]) == 0

    path = tmp_path / "gpu-node-harness/payloads" / build_payload().name
    assert capsys.readouterr().out == f"{path}\n"
    assert path.read_bytes() == build_payload().content


def test_image_fetch_refuses_a_recipe_and_image_build_refuses_a_cloud_image(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert main(["image", "fetch", "--image=debian-12"]) == 2
    assert "`harness image build --image debian-12` builds it" in capsys.readouterr().err

    assert main(["image", "build", "--image=ubuntu-24.04"]) == 2
    assert "`harness image fetch --image ubuntu-24.04` downloads it" in capsys.readouterr().err


@pytest.fixture
def few_recipes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return a folder for a user's recipes; the harness has only the recipe 'node'."""
    recipes = tmp_path / "images"
    for folder in (tmp_path / "shipped", recipes):
        folder.mkdir()
    write_catalogue(tmp_path / "shipped")
    monkeypatch.setattr("harness.image.catalogue.SHIPPED_IMAGES", tmp_path / "shipped")
    return recipes


def test_cloud_image_is_fetched_and_listed_and_verified_and_removed(
    tmp_path: Path,
    few_recipes: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    recipes, stick = few_recipes, tmp_path / "stick"
    stick.mkdir()
    for name, content in published_files().items():
        (stick / name).write_bytes(content)
    entry = ENTRY.partition("signature:")[0]
    write_cloud_image_recipe(recipes, folder=stick.as_uri(), entry=entry)

    assert main(["image", "fetch", "--image=tiny", f"--images-dir={recipes}"]) == 0
    (disk,) = (tmp_path / "cache").rglob("disk.qcow2")
    assert capsys.readouterr().out == f"{disk} (0 MiB), sha256:{DIGEST}\n"

    (recipes / "broken.yaml").write_text("schema: 1\nextends: node\npackges: [jq]\n")
    (recipes / "ours.yaml").write_text("schema: 1\nextends: node\ndescription: Our node\n")
    assert main(["image", "ls", f"--images-dir={recipes}"]) == 2
    shown = capsys.readouterr()
    assert "Our node" in shown.out
    assert "broken" not in shown.out
    assert shown.err.startswith(f"harness: {recipes / 'broken.yaml'}:3: key 'packges': ")
    assert main(["image", "ls", "--json", f"--images-dir={recipes}"]) == 2
    listed = {entry["name"]: entry for entry in json.loads(capsys.readouterr().out)}
    assert listed["tiny"]["disk"] == str(disk)
    assert listed["node"]["disk"] is None
    assert listed["node"]["kind"] == "build"
    assert listed["broken"]["problem"].startswith(f"{recipes / 'broken.yaml'}:3: ")

    assert main(["image", "verify"]) == 0
    assert capsys.readouterr().out == f"tiny {DIGEST[:16]}: ok\n"

    disk.write_bytes(b"X" * 1000)
    assert main(["image", "verify"]) == 2
    assert f"file '{disk}' has the digest" in capsys.readouterr().err

    assert main(["image", "verify", "--json"]) == 2
    (facts,) = json.loads(capsys.readouterr().out)
    assert f"file '{disk}' has the digest" in facts["damage"]

    assert main(["image", "gc", "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == []

    assert main(["image", "gc", "--all"]) == 0
    assert capsys.readouterr().out == (f"Removed '{disk.parent}' (0 MiB): it is not in use.\n")
    assert not disk.exists()


@dataclass
class FakeCache:
    """Plays a cache with one folder, which is damaged if the cache's name is 'damaged'."""

    name: str
    asked: list[dt.timedelta]

    @property
    def cache(self) -> FakeCache:
        return self

    def verify(self) -> list[object]:
        damage = "It is damaged." if self.name == "damaged" else None
        return [SimpleNamespace(name=self.name, key="sha256:0123456789abcdef0", damage=damage)]

    def collect_unused(self, unused: dt.timedelta, *, at: object) -> list[object]:
        del at
        self.asked.append(unused)
        return [SimpleNamespace(path=self.name, size_mib=1.0, reason="it is old.")]


def test_image_verify_and_image_gc_process_all_image_caches(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for damaged in (0, 2):
        asked: list[dt.timedelta] = []
        names = ["built", "fetched", "derived"]
        names[damaged] = "damaged"
        stores = ("ImageStore", "CloudImageStore", "DerivedStore")
        for store, name in zip(stores, names, strict=True):
            monkeypatch.setattr(
                images, store, lambda _folder, name=name, asked=asked: FakeCache(name, asked)
            )

        assert main(["image", "verify"]) == 2
        streams = capsys.readouterr()
        assert main(["image", "gc", "--unused-days=0.5"]) == 0

        sound = [f"{name} 0123456789abcdef: ok" for name in names if name != "damaged"]
        assert streams.out.splitlines() == sound
        assert streams.err == "harness: It is damaged.\n"
        assert re.findall("Removed '([a-z]+)'", capsys.readouterr().out) == names
        assert asked == [dt.timedelta(hours=12)] * 3


def test_image_fetch_passes_its_update_and_offline_and_mirror_options_to_the_image_store(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    asked: list[FetchOptions] = []

    def ensure(_store: object, _source: object, *, options: FetchOptions, **_: object) -> NoReturn:
        asked.append(options)
        raise HarnessError("enough")

    monkeypatch.setattr("harness.cli.images.CloudImageStore.ensure", ensure)
    for words in ([], ["--update"], ["--offline", "--mirror=file:///a", "--mirror=file:///b"]):
        assert main(["image", "fetch", "--image=ubuntu-24.04", *words]) == 2

    assert asked == [
        FetchOptions(is_offline=False, is_renewal=False, mirrors=[]),
        FetchOptions(is_offline=False, is_renewal=True, mirrors=[]),
        FetchOptions(is_offline=True, is_renewal=False, mirrors=["file:///a", "file:///b"]),
    ]


def test_qemu_is_unpacked_again_only_with_the_refresh_option(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    rows: list[list[str]] = [[], ["--refresh"]]
    for words in rows:

        def ensure(_cache: object, _runner: object, *, refresh: bool, report: object) -> object:
            assert callable(report)
            return SimpleNamespace(program=Path("/qemu"), version="11.0" if refresh else "10.2")

        monkeypatch.setattr(qemu, "ensure_sid_qemu", ensure)

        assert main(["qemu", "sid", "--json", *words]) == 0

        version = "11.0" if words else "10.2"
        assert json.loads(capsys.readouterr().out) == {"program": "/qemu", "version": version}


def test_bake_with_an_invalid_image_or_driver_or_output_is_refused_before_it_starts(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for options, refusal in (
        (
            ["--image=debian-12", "--output={taken}"],
            "'{taken}' exists; give the path of a new file",
        ),
        (["--image=debian-12", "--output={taken}/x/y"], "The folder '{taken}/x' does not exist"),
        (
            ["--image=debian-12", "--driver=mcr.example.org/gpu:1.2-3"],
            "the driver that the recipe of 'debian-12' names",
        ),
        (["--image=windows"], "There is no image 'windows'"),
    ):
        taken = tmp_path / "taken.qcow2"
        taken.touch()

        assert main(["image", "bake", *(option.format(taken=taken) for option in options)]) == 2

        assert refusal.format(taken=taken) in capsys.readouterr().err


@pytest.mark.parametrize(("image", "has_output"), [("debian-12", False), ("ubuntu-24.04", True)])
def test_bake_command_prints_path_and_size_of_the_disk(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    image: str,
    *,
    has_output: bool,
) -> None:
    baked = SimpleNamespace(name=f"{image}-baked", disk=tmp_path / "cached")
    asked: list[object] = []

    def bake_node(_lab: object, name: str) -> object:
        asked.append(name)
        return baked

    def bake_cloud_image(_lab: object, source: object, *, driver: object) -> object:
        asked.append((source, driver))
        return baked

    def write(_baked: object, output: Path) -> Path:
        output.write_bytes(bytes(3 << 20))
        return output

    def open_lab(settings: object, _listener: object) -> object:
        lab = SimpleNamespace(settings=settings, cloud_image=lambda name: f"the {name}")
        return contextlib.nullcontext(lab)

    baked.disk.write_bytes(bytes(1 << 20))
    monkeypatch.setattr(bake, "Lab", SimpleNamespace(open=open_lab))
    monkeypatch.setattr(bake, "bake_node", bake_node)
    monkeypatch.setattr(bake, "bake_cloud_image", bake_cloud_image)
    monkeypatch.setattr(bake, "write_standalone", write)
    output = tmp_path / "out.qcow2"
    options = [f"--output={output}"] if has_output else []
    is_cloud = image == "ubuntu-24.04"
    if is_cloud:
        options.append("--driver=mcr.example.org/gpu:1.2-3")

    assert main(["image", "bake", f"--image={image}", "--json", *options]) == 0

    assert json.loads(capsys.readouterr().out) == {
        "name": baked.name,
        "disk": str(output if has_output else baked.disk),
        "size_mib": 3 if has_output else 1,
    }
    driver = DriverImage(repository="mcr.example.org/gpu", version="1.2", sha="3")
    assert asked == [(f"the {image}", driver) if is_cloud else image]


def _refuse(evidence: Evidence) -> NoReturn:
    raise failure("Expected [/x] but saw [bold].", evidence)


def _accept(_: Evidence) -> None:
    return


class DemoLab:
    """Plays a lab whose node 'one' does not meet an expectation, or can't be provisioned."""

    accelerator = SimpleNamespace(reason="it is the only one")

    def __init__(self, folder: Path, error: HarnessError | None) -> None:
        self.folder = folder
        self.error = error
        self.evidence = SimpleNamespace(folder=folder, outcome=None, record=None)
        self.saved: list[str] = []
        self.is_killed = False

    def node_image(self) -> object:
        return SimpleNamespace(name="node", disk="disk")

    @contextlib.contextmanager
    def boot(self, request: Any) -> Iterator[object]:
        def wait(_say: object) -> None:
            if self.error is not None and request.name == "one":
                raise self.error

        yield SimpleNamespace(wait_until_provisioned=wait, evidence=lambda: self.evidence)

    def save_evidence(self, _evidence: object, name: str) -> Path:
        self.saved.append(name)
        return self.folder / name

    def try_save_evidence(self, _node: object, name: str) -> Path:
        return self.save_evidence(None, name)

    def kill_machines(self) -> None:
        self.is_killed = True


@pytest.mark.parametrize("error", [None, HarnessError("It hangs.")])
def test_demo_command_saves_the_evidence_of_a_failed_node(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    error: HarnessError | None,
) -> None:
    lab = DemoLab(tmp_path, error)
    planned = [
        Scenario(
            title=name,
            request=cast(
                "Any", SimpleNamespace(name=name, booted_kernel=SimpleNamespace(version="6.1"))
            ),
            expectations=expectations,
        )
        for name, expectations in (
            ("one", [("unmet", _refuse), ("met", _accept)]),
            ("two", [("met", _accept)]),
        )
    ]
    opened = SimpleNamespace(open=lambda *_: contextlib.nullcontext(lab))
    monkeypatch.setattr(demo, "Lab", opened)
    monkeypatch.setattr(demo, "bake_node", lambda _: None)
    monkeypatch.setattr(demo, "bake_evidence", lambda _: lab.evidence)
    monkeypatch.setattr(demo, "scenarios", lambda _: planned)

    assert main(["demo"]) == (1 if error is None else 2)

    assert (lab.saved, lab.is_killed) == (["demo/one"], error is not None)
    streams = capsys.readouterr()
    assert "2 of 3 expectations met" in streams.out or error is not None
    assert f"{tmp_path}/demo/one" in streams.err.replace("\n", "")


def test_demo_table_shows_the_number_of_met_expectations_and_escapes_markup(
    capsys: pytest.CaptureFixture[str],
) -> None:
    for unmet, code in ((None, 0), ("Expected [/x] but saw [bold].", 1)):
        verdict = Verdict(title="node", expectation="compiles [nothing]", failure=unmet)

        assert demo._show([verdict]) == code

        output = capsys.readouterr().out
        assert "compiles [nothing]" in output
        assert f"{1 - code} of 1 expectations met" in output
        assert unmet is None or "[/x]" in output


def test_progress_events_go_to_stderr(capsys: pytest.CaptureFixture[str]) -> None:
    event = ProgressEvent(subject="debian-12", stage=Stage.WAIT, message="waiting")

    show_event(event)

    streams = capsys.readouterr()
    assert streams.out == ""
    assert re.fullmatch(r"[0-9:]{8} \[debian-12\] wait: waiting\n", streams.err)


def test_unaccepted_licence_is_reported_before_a_build(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("HARNESS_ACCEPT_LICENCE", raising=False)

    recipes = Path(__file__).parents[3] / "images"

    assert main(["image", "build", "--image=debian-12-nvidia", f"--images-dir={recipes}"]) == 2

    assert "--accept-licence=nvidia-debian-non-free" in capsys.readouterr().err


def test_version_of_the_package_is_printed(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as caught:
        main(["--version"])

    assert caught.value.code == 0
    assert capsys.readouterr().out == f"harness {importlib.metadata.version('gpu-node-harness')}\n"


def test_help_mentions_every_command_that_has_a_parser(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["--help"])

    assert sorted(capsys.readouterr().out.split()) == sorted(build_parser().format_help().split())


def test_rerun_and_shell_commands_replace_their_process_with_pytest_for_the_given_test(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    became: list[list[str]] = []

    def become(program: str, argv: list[str]) -> NoReturn:
        assert program == argv[0] == sys.executable
        assert argv[1:6] == ["-m", "pytest", "a.py::b[c]", "-n", "0"]
        became.append(argv[6:])
        raise KeyboardInterrupt

    monkeypatch.setattr(os, "execv", become)
    for words, options in (
        ("rerun a.py::b[c]", ["--machine-start=clone"]),
        ("rerun --from cold a.py::b[c] -- -x", ["--machine-start=cold", "-x"]),
        ("shell --test a.py::b[c]", ["--machine-shell=instead", "-rs"]),
        (
            "shell --test a.py::b[c] -- ls -l /a;b",
            ["--machine-shell=instead", "--machine-shell-command=ls -l '/a;b'", "-rs"],
        ),
    ):
        assert main(words.split()) == 130
        assert became.pop() == options


def test_empty_node_id_is_refused_since_pytest_would_run_all_tests(
    capsys: pytest.CaptureFixture[str],
) -> None:
    for words in (["rerun", ""], ["shell", "--test", ""], ["shell", "--test="]):
        assert main(words) == 2

        assert "NODEID: '' is not a test" in capsys.readouterr().err
