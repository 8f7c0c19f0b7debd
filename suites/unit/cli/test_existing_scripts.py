"""`harness init --provisioner` writes a project around existing scripts."""

from __future__ import annotations

import ast
import re
import shlex
from pathlib import Path

import pytest

from harness.cli import main
from harness.image.catalogue import Recipe, load_catalogue
from harness.provisioner.yaml_file import read_provisioner

MAIN = (
    "#!/usr/bin/env bash\n. ./library.sh\ncheck || exit 20\nexit 255\nexit 256\nexit 0\nexit 3\n"
)
LIBRARY = "check() {\n  [ -e /etc/region ]\n}\n"


def a_project(folder: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    scripts = folder / "ops/scripts"
    scripts.mkdir(parents=True)
    (scripts / "provision.sh").write_text(MAIN)
    (scripts / "provision.sh").chmod(0o755)
    (scripts / "library.sh").write_text(LIBRARY)
    monkeypatch.chdir(folder)
    return folder


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    return a_project(tmp_path, monkeypatch)


def test_init_writes_a_provisioner_and_tests_for_existing_scripts(
    project: Path,
) -> None:
    assert main(["init", "--provisioner", "ops/scripts"]) == 0

    provisioner = read_provisioner(project / "provisioner.yaml")
    assert provisioner.name == "scripts"
    assert list(provisioner.run) == ["/opt/scripts/provision.sh"]
    assert {file.path for file in provisioner.files} == {
        *("/opt/scripts/provision.sh", "/opt/scripts/library.sh")
    }
    assert provisioner.outcome.exit_codes == {0: "ok", 3: "exit-3", 20: "exit-20", 255: "exit-255"}
    machine_test = (project / "tests/e2e/test_node.py").read_text()
    unit_test = (project / "tests/unit/test_scripts.py").read_text()
    expected = [line.strip() for line in machine_test.splitlines() if "expect." in line]
    # Where the script fails, its exit code is said, and not only that cloud-init saw an error.
    assert expected == ["expect.provisioned(evidence)", "expect.cloud_init_clean(evidence)"]
    assert 'shell.source("ops/scripts/library.sh")' in unit_test
    assert "declare -F 'check'" in unit_test
    for text in (machine_test, unit_test):
        ast.parse(text)
    # The scripts need no further tools.
    assert not (project / "images").exists()
    ini = (project / "pytest.ini").read_text()
    assert "--image=debian-12 " in ini
    assert "image=node" not in ini
    assert "images_dir" not in ini
    assert not (project / "scripts").exists()
    assert not (project / "tests/e2e/test_first_node.py").exists()


def test_generated_image_lists_the_packages_of_tools_that_scripts_use(project: Path) -> None:
    lines = (
        "lsof /etc/x",
        "x=$(jq -r .a x)",
        "if wget -q x; then nvme list; fi",
        "sudo rsync a b && xz -d c",
    )
    (project / "ops/scripts/library.sh").write_text("f() {\n" + "\n".join(lines) + "\n}\n")

    main(["init", "--provisioner", "ops/scripts"])

    image = load_catalogue(project / "images").get("node")
    assert isinstance(image, Recipe)
    assert set(image.file.packages) - set(_shipped().file.packages) == {
        *("jq", "lsof", "nvme-cli", "rsync", "wget", "xz-utils")
    }
    assert "--image=node " in (project / "pytest.ini").read_text()


def test_tool_name_in_a_comment_or_string_or_path_adds_no_package(project: Path) -> None:
    lines = (
        "# jq is not used",
        'echo "no jq here"',
        "apt-get install -y git",
        "my-git x; git-lfs y; ./jq z",
    )
    (project / "ops/scripts/library.sh").write_text("f() {\n" + "\n".join(lines) + "\n}\n")

    main(["init", "--provisioner", "ops/scripts"])

    assert not (project / "images").exists()


def _shipped() -> Recipe:
    image = load_catalogue().get("debian-12")
    assert isinstance(image, Recipe)
    return image


def test_init_accepts_symbolic_links_and_large_files_and_unusual_file_names(
    project: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HARNESS_LIMIT_EVIDENCE_FILE_MIB", "1")
    scripts = project / "ops/scripts"
    (scripts / "data.bin").write_bytes(b"\0" * (2 << 20))
    (scripts / "shared.sh").symlink_to("library.sh")
    (scripts / "library.sh").rename(scripts / 'a, "b.sh')
    (scripts / "provision.sh").rename(scripts / 'provision, "it".sh')
    (scripts / "library.sh").write_text(LIBRARY)

    assert main(["init", "--provisioner", "ops/scripts"]) == 0

    provisioner = read_provisioner(project / "provisioner.yaml")
    assert list(provisioner.run) == ['/opt/scripts/provision, "it".sh']
    unit_test = (project / "tests/unit/test_scripts.py").read_text()
    ast.parse(unit_test)
    assert '"ops/scripts/shared.sh"' in unit_test
    assert "data.bin" not in unit_test


def test_folder_of_scripts_may_be_hidden_but_hidden_files_in_it_are_ignored(project: Path) -> None:
    (project / "ops/scripts/.git").mkdir()
    (project / "ops/scripts/.git/hook.sh").write_text(MAIN)
    (project / "ops/scripts").rename(project / ".ops")

    assert main(["init", "--provisioner", ".ops"]) == 0

    unit_test = (project / "tests/unit/test_scripts.py").read_text()
    assert '".ops/library.sh"' in unit_test
    assert "hook.sh" not in unit_test


def test_folders_with_shellspec_files_are_added_to_testpaths(project: Path) -> None:
    for name in ("spec", "it's spec"):
        (project / "ops" / name).mkdir()
        (project / "ops" / name / "library_spec.sh").touch()
    (project / "ops/scripts/own_spec.sh").touch()

    main(["init", "--provisioner", "ops/scripts"])

    (line,) = re.findall("testpaths = (.*)", (project / "pytest.ini").read_text())
    assert shlex.split(line) == ["tests", "ops/it's spec", "ops/scripts", "ops/spec"]


def test_script_that_is_not_executable_is_run_by_the_shell_of_its_first_line_or_bash(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for number, (first, program) in enumerate(
        (("", "bash"), ("#!/bin/dash\n", "dash"), ("#! /usr/bin/env sh\n", "sh"))
    ):
        folder = tmp_path / str(number)
        project = a_project(folder, monkeypatch)
        (project / "ops/scripts/provision.sh").unlink()
        (project / "ops/scripts/library.sh").write_text(first + LIBRARY)

        main(["init", "--provisioner", "ops/scripts"])

        provisioner = read_provisioner(project / "provisioner.yaml")
        assert list(provisioner.run) == [program, "/opt/scripts/library.sh"]


def test_init_in_the_scripts_folder_names_the_provisioner_after_the_folder(
    project: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (project / "ops/other").mkdir()
    (project / "ops/other/other_spec.sh").touch()
    again = project / "ops/scripts/again"
    again.mkdir()
    (again / "provision.sh").write_text(MAIN)
    (again / "provision.sh").chmod(0o755)
    monkeypatch.chdir(project / "ops/scripts")

    assert main(["init", "--provisioner", ".", "--run", "again/provision.sh"]) == 0

    provisioner = read_provisioner(Path("provisioner.yaml"))
    assert provisioner.name == "scripts"
    assert list(provisioner.run) == ["/opt/scripts/again/provision.sh"]
    assert "testpaths = tests\n" in Path("pytest.ini").read_text()


def test_script_that_uses_dollar_0_for_its_folder_is_not_sourced_by_the_unit_test(
    project: Path,
) -> None:
    """In a sourced script, `$0` is the name of the shell that sources the script."""
    guard = '[ "${BASH_SOURCE[0]}" != "$0" ] || main\n'
    for name, text in (
        ("a.sh", '#!/bin/bash\ncd "$(dirname "$0")"\n. ./library.sh\nmain() { :; }\n'),
        ("b.sh", "#!/bin/bash\nhere=${0%/*}\nmain() { :; }\n"),
    ):
        script = project / "ops/scripts" / name
        script.write_text(text + guard)
        script.chmod(0o755)

    main(["init", "--provisioner", "ops/scripts", "--run", "provision.sh"])

    unit_test = (project / "tests/unit/test_scripts.py").read_text()
    assert 'shell.source("ops/scripts/library.sh")' in unit_test


def test_script_that_guards_its_main_function_is_sourced_by_the_unit_test(project: Path) -> None:
    script = project / "ops/scripts/a.sh"
    script.write_text('#!/bin/bash\nmain() { :; }\n[ "${BASH_SOURCE[0]}" != "$0" ] || main\n')
    script.chmod(0o755)

    main(["init", "--provisioner", "ops/scripts", "--run", "provision.sh"])

    unit_test = (project / "tests/unit/test_scripts.py").read_text()
    assert 'shell.source("ops/scripts/a.sh")' in unit_test


def test_script_with_a_known_word_inside_its_name_is_not_chosen_as_the_program(
    project: Path,
) -> None:
    for other in ("uninstall.sh", "nvidia-container-runtime"):
        script = project / "ops/scripts" / other
        script.write_text("#!/bin/sh\n")
        script.chmod(0o755)

    main(["init", "--provisioner", "ops/scripts"])

    provisioner = read_provisioner(project / "provisioner.yaml")
    assert list(provisioner.run) == ["/opt/scripts/provision.sh"]


def test_init_chooses_the_executable_script_with_a_usual_name_as_the_program(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for number, name in enumerate(("gpu-setup", "node_installer.sh", "setUp.sh", "run-all.sh")):
        folder = tmp_path / str(number)
        project = a_project(folder, monkeypatch)
        for each, mode in (("provision.sh", 0o644), ("library.sh", 0o755), (name, 0o755)):
            path = project / "ops/scripts" / each
            path.write_text("#!/bin/sh\n")
            path.chmod(mode)

        main(["init", "--provisioner", "ops/scripts"])

        assert list(read_provisioner(project / "provisioner.yaml").run) == [f"/opt/scripts/{name}"]


def test_docstrings_of_generated_tests_are_valid_for_any_folder_or_script_name(
    project: Path,
) -> None:
    (project / "ops/scripts/provision.sh").rename(project / 'ops/scripts/"provision"\\.sh')
    (project / "ops/scripts").rename(project / 'ops/"""\\N')

    assert main(["init", "--provisioner", 'ops/"""\\N']) == 0

    docstrings = [
        ast.get_docstring(ast.parse((project / "tests" / name).read_text()))
        for name in ("unit/test_scripts.py", "e2e/test_node.py")
    ]
    assert docstrings == [
        'The scripts of """\\N, in a shell with mocked commands.',
        '"provision"\\.sh on a machine with a GPU.',
    ]


def test_init_refuses_script_paths_with_unprintable_or_undecodable_characters(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for number, name in enumerate(("a\nb.sh", "a\udcff.sh", "a\udcff/b.sh", "a\u202e/b_spec.sh")):
        folder = tmp_path / str(number)
        project = a_project(folder, monkeypatch)
        path = project / "ops/scripts" / name
        if "spec" in name:
            path = project / "ops" / name
        path.parent.mkdir(exist_ok=True)
        path.write_text(LIBRARY)

        assert main(["init", "--provisioner", "ops/scripts"]) == 2

        assert "has a character that is not printable, or bytes" in capsys.readouterr().err
        assert not (project / "pytest.ini").exists()


def test_invalid_scripts_folder_or_script_is_refused_and_no_file_is_written(
    project: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (project / "empty").mkdir()
    for words, sentence in (
        (["--provisioner", "ops/none"], "There is no such folder of scripts."),
        (["--provisioner", "/"], "This folder is not in the project's folder"),
        (["--provisioner", "empty"], "The folder has no shell script"),
        (["--provisioner", "ops/scripts", "--run", "x.sh"], "'x.sh' is not one of the scripts"),
        (["--run", "x.sh"], "This option needs --provisioner"),
    ):
        assert main(["init", *words]) == 2

        assert sentence in capsys.readouterr().err
        assert not (project / "pytest.ini").exists()


def test_init_finds_scripts_in_a_subfolder_of_the_given_folder(project: Path) -> None:
    assert main(["init", "--provisioner", "ops"]) == 0

    assert list(read_provisioner(project / "provisioner.yaml").run) == [
        "/opt/ops/scripts/provision.sh"
    ]


def test_init_requires_the_run_option_if_two_scripts_could_be_the_program(
    project: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    other = project / "ops/scripts/install.sh"
    other.write_text("#!/bin/sh\n")
    other.chmod(0o755)

    assert main(["init", "--provisioner", "ops/scripts"]) == 2
    assert "'install.sh', 'provision.sh'. Name the script with --run." in capsys.readouterr().err
    assert main(["init", "--provisioner", "ops/scripts", "--run", "install.sh"]) == 0
    assert list(read_provisioner(project / "provisioner.yaml").run) == ["/opt/scripts/install.sh"]
