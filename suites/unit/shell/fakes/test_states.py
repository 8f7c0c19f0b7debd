"""The states of fakes that tests set and read, beyond what the recordings show."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

from harness.fixtures.recordings import load_recording
from harness.shell import fakes
from harness.shell.fakes.invocation import UnknownInvocationError
from harness.shell.fakes.package_state import Package, is_met_by, version_key
from harness.shell.mocks.commands import Answer
from suites.unit.shell.fakes.calls import a_call

if TYPE_CHECKING:
    from pathlib import Path

KERNEL = "6.1.0-56-cloud-amd64"
METADATA = "http://169.254.169.254/metadata/instance/compute/tagsList?api-version=2021-02-01"


def run(fake: fakes.Fake, line: str) -> Answer:
    return fake.answer(a_call(*line.split()))


# systemd


def test_systemctl_with_several_units_fails_if_one_unit_fails() -> None:
    """The other units are started anyway; the exit code comes from the last failure."""
    lines: list[tuple[str, int, list[str]]] = [
        ("start missing masked a", 1, ["a", "running"]),
        ("start masked missing a", 5, ["a", "running"]),
        ("start failing a", 1, ["a", "running"]),
        ("start --no-block failing a", 0, ["a", "running"]),
        ("stop missing running", 5, []),
        ("reload reloading", 1, ["running"]),
        ("reload-or-restart reloading", 0, ["reloading", "running"]),
        ("status running a", 3, ["running"]),
        ("status a running", 3, ["running"]),
        ("stop masked running", 0, []),
        ("is-active a running", 0, ["running"]),
    ]
    for line, exit_code, active in lines:
        units = {
            "a": fakes.Unit(),
            "failing": fakes.Unit(start_failures=1),
            "masked": fakes.Unit(is_masked=True),
            "reloading": fakes.Unit(text="[Service]\nExecReload=/bin/true\n"),
            "running": fakes.Unit(is_active=True),
        }

        answer = run(fakes.Systemd(units), f"systemctl {line}")

        assert answer.exit_code == exit_code, line
        assert [name for name, unit in units.items() if unit.is_active] == active, line


def test_unit_files_are_listed_as_systemctl_252_lists_them(tmp_path: Path) -> None:
    systemd = fakes.Systemd(
        {"foo": fakes.Unit(is_enabled=True), "st": fakes.Unit(text="[Service]\n")}
    ).use_root(tmp_path)
    systemd.write_file("/etc/systemd/system/aa.target", "[Unit]\n")
    systemd.write_file("/etc/systemd/system/b.service", fakes.Unit().text)
    b = "b.service   disabled enabled\n"
    foo = "foo.service enabled  enabled\n"
    listed: list[tuple[str, str, int]] = [
        ("--no-legend", f"{b}{foo}st.service  static   -\naa.target   static   -\n", 0),
        ("--type=service --no-legend", f"{b}{foo}st.service  static   -\n", 0),
        ("foo", "UNIT FILE STATE PRESET\n\n0 unit files listed.\n", 1),
        (
            "f* b*",
            f"UNIT FILE   STATE    PRESET\n{b}{foo}\n2 unit files listed.\n",
            0,
        ),
        (
            "-t target,service --state=static",
            (
                "UNIT FILE  STATE  PRESET\nst.service static -\naa.target  static -\n\n"
                "2 unit files listed.\n"
            ),
            0,
        ),
    ]
    for options, text, exit_code in listed:
        answer = run(systemd, f"systemctl list-unit-files {options}")
        assert (answer.stdout, answer.exit_code) == (text, exit_code), options


def test_active_and_failed_units_are_listed(tmp_path: Path) -> None:
    systemd = fakes.Systemd(
        {
            "gpu": fakes.Unit(is_active=True, text="[Unit]\nDescription=The GPU\n"),
            "idle": fakes.Unit(),
            "sick": fakes.Unit(start_failures=1),
        }
    ).use_root(tmp_path)
    run(systemd, "systemctl start sick")

    running = run(systemd, "systemctl list-units --state=running --no-legend --plain").stdout
    failed = run(systemd, "systemctl --failed").stdout

    assert running == "gpu.service loaded active running The GPU\n"
    assert failed.splitlines()[:2] == [
        "  UNIT         LOAD   ACTIVE SUB    DESCRIPTION",
        "● sick.service loaded failed failed sick.service",
    ]
    assert "\n1 loaded units listed.\n" in failed
    for options in ("list-units", "list-units *.service", "list-units --type service"):
        text = run(systemd, f"systemctl {options}").stdout
        assert "2 loaded units listed. Pass --all" in text, options
        assert "idle" not in text


def test_systemctl_enable_now_returns_the_exit_code_of_a_failed_start(
    tmp_path: Path,
) -> None:
    units = {"failing": fakes.Unit(start_failures=1), "a": fakes.Unit()}
    systemd = fakes.Systemd(units).use_root(tmp_path)

    assert run(systemd, "systemctl enable --now failing a").exit_code == 1

    assert [unit.is_active for unit in units.values()] == [False, True]
    assert [unit.is_enabled for unit in units.values()] == [True, True]


def test_starting_a_unit_calls_its_on_start_hook(tmp_path: Path) -> None:
    modules = fakes.KernelModules({"nvidia": fakes.Module()}).use_root(tmp_path)
    unit = fakes.Unit(on_start=lambda: modules.load("nvidia"))
    systemd = fakes.Systemd({"nvidia-modprobe": unit}).use_root(tmp_path)

    for _ in range(2):
        run(systemd, "systemctl start nvidia-modprobe")

    assert modules.is_loaded("nvidia")
    assert unit.starts == 1


def test_remain_after_exit_is_read_like_a_systemd_boolean() -> None:
    settings: list[tuple[str, bool]] = [
        ("Type=oneshot\nRemainAfterExit=on\n", True),
        ("Type = oneshot\nRemainAfterExit = True\n", True),
        ("Type=oneshot\n#RemainAfterExit=yes\n", False),
        ("Type=oneshot\nRemainAfterExit=yes\nRemainAfterExit=no\n", False),
    ]
    for text, is_active in settings:
        unit = fakes.Unit(text=f"[Service]\n{text}")

        run(fakes.Systemd({"a": unit}), "systemctl start a")

        assert unit.is_active is is_active, text


def test_settings_of_a_unit_file_are_read_as_systemd_reads_them(tmp_path: Path) -> None:
    text = (
        "[Unit]\n  Description = the unit a\n[Service]\n# ExecReload=/bin/true\n"
        "[Install]\nWantedBy=old.target\nWantedBy=\nWantedBy = a.target c.target\nRequiredBy=b.target\n"
    )
    units = {"a": fakes.Unit(text=text), "x.slice": fakes.Unit()}
    systemd = fakes.Systemd(units).use_root(tmp_path)

    assert run(systemd, "systemctl is-enabled a").stdout == "disabled\n"
    assert run(systemd, "systemctl reload a").exit_code == 3
    assert run(systemd, "systemctl disable a").stderr == ""
    assert run(systemd, "systemctl enable a").exit_code == 0
    assert {
        str(path.relative_to(tmp_path)) for path in tmp_path.rglob("*") if path.is_symlink()
    } == {
        "etc/systemd/system/a.target.wants/a.service",
        "etc/systemd/system/b.target.requires/a.service",
        "etc/systemd/system/c.target.wants/a.service",
    }
    assert "a.service - the unit a\n" in run(systemd, "systemctl status a").stdout
    assert run(systemd, "systemctl start x.slice").exit_code == 0


def test_running_unit_uses_a_new_drop_in_only_after_daemon_reload_and_restart(
    tmp_path: Path,
) -> None:
    systemd = fakes.Systemd({"a": fakes.Unit(is_active=True)}).use_root(tmp_path)
    systemd.write_file("/etc/systemd/system/a.service.d/1.conf", "[Service]\nNice=5\n")

    run(systemd, "systemctl restart a")
    assert "Nice=5" not in systemd.unit("a").running_text

    run(systemd, "systemctl daemon-reload")
    run(systemd, "systemctl restart a")
    assert "Nice=5" in systemd.unit("a").running_text
    assert systemd.reloads == 1
    systemd.write_file("/etc/systemd/system/a.service.d/2.conf", "[Service]\nNice=6\n")
    assert "systemctl daemon-reload" in run(systemd, "systemctl restart a").stderr


def test_failed_unit_uses_a_new_drop_in_only_after_daemon_reload(tmp_path: Path) -> None:
    systemd = fakes.Systemd({"a": fakes.Unit(start_failures=1)}).use_root(tmp_path)
    run(systemd, "systemctl start a")
    systemd.write_file("/etc/systemd/system/a.service.d/1.conf", "[Service]\nNice=5\n")

    run(systemd, "systemctl restart a")
    assert "Nice=5" not in systemd.unit("a").running_text

    systemd.unit("a").start_failures = 1
    run(systemd, "systemctl restart a")
    run(systemd, "systemctl daemon-reload")
    run(systemd, "systemctl restart a")
    assert "Nice=5" in systemd.unit("a").running_text


def test_systemctl_commands_change_the_unit_state_and_return_the_expected_exit_codes(
    tmp_path: Path,
) -> None:
    dialogues: list[tuple[list[str], list[int]]] = [
        (["enable a a", "disable a missing", "is-enabled static a"], [0, 1, 0]),
        (["enable static", "is-enabled a static", "is-enabled a"], [0, 0, 1]),
        (["start bad", "is-failed a bad", "reset-failed", "is-failed a bad"], [1, 0, 0, 1]),
        (
            ["start bad", "reset-failed a", "is-failed bad", "start bad", "is-failed bad"],
            [1, 0, 0, 0, 1],
        ),
        (["mask missing", "start missing", "unmask missing", "start missing"], [0, 1, 0, 5]),
        (["mask a", "unmask a", "start a", "is-active a"], [0, 0, 0, 0]),
        (["restart worn", "is-failed worn", "reset-failed worn", "is-active worn"], [1, 0, 0, 3]),
        (["is-enabled static", "mask static", "is-enabled static"], [0, 0, 1]),
    ]
    for number, (lines, codes) in enumerate(dialogues):
        root = tmp_path / str(number)
        root.mkdir()
        units = {
            "a": fakes.Unit(),
            "bad": fakes.Unit(start_failures=1),
            "static": fakes.Unit(text=""),
        }
        units["worn"] = fakes.Unit(is_active=True, start_failures=1)
        systemd = fakes.Systemd(units).use_root(root)

        assert [run(systemd, f"systemctl {line}").exit_code for line in lines] == codes


def test_drop_ins_apply_in_name_order_and_etc_overrides_usr(
    tmp_path: Path,
) -> None:
    systemd = fakes.Systemd({"a": fakes.Unit(text="")}).use_root(tmp_path)
    for folder, name, text in (
        ("/etc/systemd/system", "0.conf", "zeroth\n"),
        ("/etc/systemd/system", "2.conf", "second\n"),
        ("/usr/lib/systemd/system", "1.conf", "first\n"),
        ("/usr/lib/systemd/system", "2.conf", "hidden\n"),
    ):
        systemd.write_file(f"{folder}/a.service.d/{name}", text)

    run(systemd, "systemctl start a")

    assert systemd.unit("a").running_text == "zeroth\nfirst\nsecond\n"


def test_unit_with_a_deleted_file_can_be_stopped_but_not_started(tmp_path: Path) -> None:
    systemd = fakes.Systemd().use_root(tmp_path)
    systemd.write_file("/etc/systemd/system/a.service", "[Service]\n")
    run(systemd, "systemctl start a")

    (tmp_path / "etc/systemd/system/a.service").unlink()

    assert run(systemd, "systemctl stop a").exit_code == 0
    assert run(systemd, "systemctl start a").exit_code == 5


def test_reset_failed_works_although_a_unit_file_was_deleted(tmp_path: Path) -> None:
    systemd = fakes.Systemd({"b": fakes.Unit(is_failed=True)}).use_root(tmp_path)
    systemd.write_file("/etc/systemd/system/a.service", "[Service]\n")
    run(systemd, "systemctl start a")
    run(systemd, "systemctl stop a")
    (tmp_path / "etc/systemd/system/a.service").unlink()

    assert run(systemd, "systemctl reset-failed").exit_code == 0
    assert not systemd.unit("b").is_failed


# Kernel modules


def test_loaded_module_that_is_not_declared_raises_a_key_error() -> None:
    with pytest.raises(KeyError, match="There is no module 'nvidia'"):
        fakes.KernelModules(loaded=["nvidia"])


def test_modules_may_need_each_other_on_many_levels() -> None:
    levels = {f"{side}{at}": [f"a{at + 1}", f"b{at + 1}"] for at in range(1200) for side in "ab"}
    modules = fakes.KernelModules({k: fakes.Module(needs=v) for k, v in levels.items()})
    modules.add("a1200")
    modules.add("b1200")

    modules.load("a0")

    assert modules.loaded[:3] == ("a1200", "b1200", "a1199")
    assert modules.loaded[-1] == "a0"


def test_fakes_do_not_share_modules() -> None:
    stack = {"nvidia": fakes.Module()}
    first = fakes.KernelModules(stack, loaded=stack)
    first.hold("nvidia")

    second = fakes.KernelModules(stack, loaded=stack)

    assert run(second, "rmmod nvidia").exit_code == 0


def test_modinfo_accepts_the_path_of_a_module_file() -> None:
    module = fakes.Module(path="/lib/modules/x/nvidia.ko", fields={"version": "580"})
    modules = fakes.KernelModules({"nvidia": module})

    assert run(modules, "modinfo -F version /lib/modules/x/nvidia.ko").stdout == "580\n"
    assert run(modules, "modinfo -F version /lib/modules/x/other.ko").exit_code == 1


def test_tools_of_kmod_print_their_version() -> None:
    for tool in ("modprobe", "rmmod", "modinfo", "depmod"):
        for option in ("--version", "-V"):
            answer = run(fakes.KernelModules(), f"{tool} {option}")
            assert answer.stdout.startswith("kmod version "), tool


def test_modinfo_without_a_field_fails_for_a_module_that_is_missing() -> None:
    answer = run(fakes.KernelModules(), "modinfo nvidia")

    assert (answer.exit_code, answer.stderr) == (1, "modinfo: ERROR: Module nvidia not found.\n")


def test_depmod_accepts_a_base_directory_for_the_kernel_of_the_node() -> None:
    assert run(fakes.KernelModules(), f"depmod -a -b /mnt/root {KERNEL}").exit_code == 0


def test_modinfo_without_a_field_prints_all_fields() -> None:
    module = fakes.Module(needs=["drm-kms", "drm"], fields={"version": "580"})

    answer = run(fakes.KernelModules({"nvidia-drm": module}, kernel="6.1"), "modinfo nvidia-drm")

    assert answer.stdout == (
        "filename:       /lib/modules/6.1/kernel/nvidia_drm.ko\nversion:        580\n"
        "depends:        drm_kms,drm\nname:           nvidia_drm\n"
    )


def test_hyphens_and_underscores_name_the_same_module() -> None:
    modules = fakes.KernelModules(
        {"nvidia-uvm": fakes.Module(needs=["drm-kms"]), "drm-kms": fakes.Module()}
    )

    run(modules, "modprobe nvidia-uvm")

    assert modules.loaded == ("drm_kms", "nvidia_uvm")


def test_modules_are_loaded_and_removed_with_their_dependencies() -> None:
    lines: list[tuple[str, int, list[str]]] = [
        ("rmmod absent user", 1, ["drm", "kms", "nvidia", "uvm"]),
        ("rmmod drm", 1, ["drm", "kms", "nvidia", "uvm", "user"]),
        ("rmmod held user", 1, ["drm", "kms", "nvidia", "uvm"]),
        ("modprobe -r user uvm", 0, ["drm", "kms"]),
        ("modprobe -r other uvm", 0, ["drm", "kms", "user"]),
        ("modprobe -r nvidia", 0, ["drm", "kms", "user"]),
        ("modprobe -n other", 0, ["drm", "kms", "nvidia", "uvm", "user"]),
        ("modprobe -q absent", 1, ["drm", "kms", "nvidia", "uvm", "user"]),
        ("modprobe -a absent other", 1, ["drm", "kms", "nvidia", "uvm", "user", "other"]),
        ("modprobe uvm", 0, ["drm", "kms", "nvidia", "uvm", "user"]),
        ("modinfo -n -k 9 nvidia", 1, ["drm", "kms", "nvidia", "uvm", "user"]),
        ("modprobe -r using", 0, ["drm", "kms", "nvidia", "uvm", "user", "held"]),
    ]
    for line, code, loaded in lines:
        needs = {"drm": [], "kms": ["drm"], "nvidia": ["kms"], "uvm": ["nvidia"], "user": ["kms"]}
        known = {name: fakes.Module(needs=each) for name, each in needs.items()}
        known |= {"other": fakes.Module(), "held": fakes.Module(users=1)}
        known["using"] = fakes.Module(needs=["held"])
        modules = fakes.KernelModules(known, loaded=["uvm", "user"])
        if "held" in line:
            modules.load("held")
            loaded.append("held")
        if "using" in line:
            modules.load("using")

        assert run(modules, line).exit_code == code, line

        assert sorted(modules.loaded) == sorted(loaded), line


def test_proc_modules_shows_the_loaded_modules_and_how_often_each_is_in_use(
    tmp_path: Path,
) -> None:
    known = {"a": fakes.Module(), "b": fakes.Module()}
    modules = fakes.KernelModules(known, loaded=["a"], in_proc=True).use_root(tmp_path)

    def shown() -> list[list[str]]:
        lines = (tmp_path / "proc/modules").read_text().splitlines()
        return [line.split()[0:3:2] for line in lines]

    assert shown() == [["a", "0"]]
    for change, users in ((modules.hold, "1"), (modules.hold, "2"), (modules.release, "1")):
        change("a")
        assert shown() == [["a", users]]
    run(modules, "modprobe b")
    assert shown() == [["b", "0"], ["a", "1"]]
    run(modules, "rmmod b")
    assert shown() == [["a", "1"]]


# DKMS


def test_module_cannot_be_loaded_after_its_file_was_deleted(tmp_path: Path) -> None:
    modules = fakes.KernelModules(kernel=KERNEL).use_root(tmp_path)
    baked = fakes.Source(name="nvidia", version="580.1", installed_for=[KERNEL])
    dkms = fakes.Dkms([baked], kernels=[KERNEL], modules=modules).use_root(tmp_path)

    assert dkms.state("nvidia", "580.1") == "installed"
    assert run(modules, "modinfo -F version nvidia").stdout == "580.1\n"

    (tmp_path / f"lib/modules/{KERNEL}/updates/dkms/nvidia.ko").unlink()
    assert run(modules, "modprobe nvidia").exit_code == 1


def test_dkms_installs_a_source_that_the_code_under_test_wrote(tmp_path: Path) -> None:
    dkms = fakes.Dkms(kernels=[KERNEL]).use_root(tmp_path)
    conf = 'BUILT_MODULE_NAME[0]="nvidia"\nBUILT_MODULE_NAME[1]="nvidia-uvm"\n'
    dkms.write_file("/usr/src/nvidia-580.1/dkms.conf", conf)

    assert run(dkms, f"dkms install nvidia/580.1 -k {KERNEL}").exit_code == 0

    folder = tmp_path / f"lib/modules/{KERNEL}/updates/dkms"
    assert sorted(file.name for file in folder.iterdir()) == ["nvidia-uvm.ko", "nvidia.ko"]
    assert run(dkms, "dkms remove nvidia/580.1 --all").exit_code == 0
    assert list(folder.iterdir()) == []


def test_built_module_names_in_dkms_conf_are_read_as_bash_reads_them(tmp_path: Path) -> None:
    dkms = fakes.Dkms().use_root(tmp_path)
    dkms.write_file(
        "/usr/src/a-1/dkms.conf",
        "  BUILT_MODULE_NAME='b'\nBUILT_MODULE_NAME[1]=\"c\" # x\nBUILT_MODULE_NAME[2]=d;\n",
    )

    run(dkms, "dkms install -m a -v 1")

    assert {file.name for file in tmp_path.rglob("*.ko")} == {"b.ko", "c.ko", "d.ko"}


def test_dkms_status_of_a_module_lists_all_its_versions(tmp_path: Path) -> None:
    sources = [
        fakes.Source(name="nvidia", version=version, installed_for=[KERNEL])
        for version in ("1", "12")
    ]
    sources.append(fakes.Source(name="other", version="1"))
    dkms = fakes.Dkms(sources, kernels=[KERNEL]).use_root(tmp_path)

    assert len(run(dkms, "dkms status nvidia").stdout.splitlines()) == 2
    assert [dkms.state("nvidia", version) for version in ("1", "12")] == ["built", "installed"]
    assert run(dkms, "dkms status -a aarch64").stdout == ""
    assert run(dkms, "dkms status -k 6.0").stdout == ""
    run(dkms, "dkms add other/1")
    assert run(dkms, "dkms status other").stdout == "other/1: added\n"
    assert run(dkms, f"dkms status other -k {KERNEL}").stdout == ""
    assert run(dkms, "dkms remove nvidia/12 --all").exit_code == 0
    assert [dkms.state("nvidia", version) for version in ("1", "12")] == ["built", None]


def test_dkms_build_fails_the_given_number_of_times(tmp_path: Path) -> None:
    sources = [fakes.Source(name="nvidia", version=version) for version in ("1", "2")]
    dkms = fakes.Dkms(sources, kernels=[KERNEL]).use_root(tmp_path)
    dkms.fail_builds("nvidia", "1", times=2)

    codes = [run(dkms, f"dkms install nvidia/{version}").exit_code for version in "2111"]

    assert codes == [0, 10, 10, 0]


def test_kernel_module_has_the_version_that_was_installed_last(tmp_path: Path) -> None:
    kernels = [KERNEL, "6.1.0-55-cloud-amd64"]
    modules = fakes.KernelModules(kernel=KERNEL).use_root(tmp_path)
    sources = [fakes.Source(name="nvidia", version=version) for version in ("1", "2")]
    dkms = fakes.Dkms(sources, kernels=kernels, modules=modules).use_root(tmp_path)
    for line in ("1", "2", f"1 -k {kernels[1]}"):
        run(dkms, f"dkms install nvidia/{line}")
    assert run(modules, "modinfo -F version nvidia").stdout == "2\n"

    run(dkms, f"dkms uninstall nvidia/1 -k {kernels[1]}")
    assert run(modules, "modprobe nvidia").exit_code == 0

    run(dkms, "dkms uninstall nvidia/2")
    assert run(modules, "modprobe -r nvidia").exit_code == 1


def test_dkms_autoinstall_fails_if_one_module_fails(tmp_path: Path) -> None:
    sources = [fakes.Source(name=name, version="1") for name in ("first", "second")]
    dkms = fakes.Dkms(sources, kernels=[KERNEL]).use_root(tmp_path)
    dkms.fail_builds("first", "1", times=1)
    for source in sources:
        run(dkms, f"dkms add {source.name}/1")

    assert run(dkms, f"dkms autoinstall -k {KERNEL}").exit_code != 0


def test_dkms_autoinstall_installs_modules_for_the_named_kernel(tmp_path: Path) -> None:
    kernels = [KERNEL, "6.1.0-55-cloud-amd64"]
    source = fakes.Source(name="nvidia", version="580.1")
    modules = fakes.KernelModules(kernel=KERNEL).use_root(tmp_path)
    dkms = fakes.Dkms([source], kernels=kernels, modules=modules).use_root(tmp_path)
    run(dkms, "dkms add nvidia/580.1")

    run(dkms, f"dkms autoinstall -k {kernels[1]}")

    assert modules.module("nvidia") is None
    assert dkms.state("nvidia", "580.1", kernels[1]) == "installed"
    assert dkms.state("nvidia", "580.1", KERNEL) == "added"


def test_dkms_remove_for_one_kernel_keeps_the_module_for_other_kernels(tmp_path: Path) -> None:
    kernels = [KERNEL, "6.1.0-55-cloud-amd64"]
    source = fakes.Source(name="nvidia", version="580.1", installed_for=kernels)
    dkms = fakes.Dkms([source], kernels=kernels).use_root(tmp_path)

    run(dkms, f"dkms remove nvidia/580.1 -k {KERNEL}")

    assert dkms.state("nvidia", "580.1") == "added"
    assert dkms.state("nvidia", "580.1", kernels[1]) == "installed"
    run(dkms, "dkms build nvidia/580.1 -a aarch64")
    assert (
        run(dkms, "dkms status -a aarch64").stdout == f"nvidia/580.1, {KERNEL}, aarch64: built\n"
    )
    run(dkms, "dkms remove nvidia/580.1 --all")
    assert [dkms.state("nvidia", "580.1", kernel) for kernel in kernels] == [None, None]


# containerd


def test_image_pull_fails_the_given_number_of_times() -> None:
    containerd = fakes.Containerd(registry=["r/a:1"])
    containerd.pull_failures = 2

    pull = "ctr images pull --all-platforms --platform linux/amd64 r/a:1"
    codes = [run(containerd, pull).exit_code for _ in range(3)]

    assert codes == [1, 1, 0]
    assert containerd.images("default") == ("r/a:1",)
    assert containerd.images() == ()


def test_images_that_match_one_of_the_filters_are_listed() -> None:
    containerd = fakes.Containerd(["r/a:1", "r/b:1", "r/ab1"])
    for filters, found in (
        ("name==r/a:1", ["r/a:1"]),
        ('name=="r/a:1"', ["r/a:1"]),
        ("name~=a.1", ["r/a:1", "r/ab1"]),
        ("name~=^a", []),
        ("name==r/a:1 name~=[b]:", ["r/a:1", "r/b:1"]),
    ):
        listed = run(containerd, f"ctr -n k8s.io images ls -q {filters}")
        assert listed.stdout.split() == found, filters


def test_filter_that_the_fake_of_ctr_does_not_support_is_refused() -> None:
    for each in ("name~=(", "name==a,name==b", "labels.x==y", "name=="):
        with pytest.raises(UnknownInvocationError, match="does not know the filter"):
            run(fakes.Containerd(), f"ctr images ls -q {each}")


def test_ctr_run_calls_the_program_of_the_image() -> None:
    containerd = fakes.Containerd(["r/a:1", "r/b:1"], namespace="default")
    containerd.on_run("r/a:1", lambda run: Answer(stdout=run.container, exit_code=7))

    options = (
        "--rm --env A=b --net-host --mount src=/x --mount src=/y --with-ns pid:/1 --with-ns ipc:/1"
    )
    answer = run(containerd, f"ctr run {options} r/a:1 one /sh -c x")

    assert (answer.stdout, answer.exit_code) == ("one", 7)
    (seen,) = containerd.runs
    assert seen.arguments == ("/sh", "-c", "x")
    assert seen.mounts == ("src=/x", "src=/y")
    assert seen.namespaces == ("pid:/1", "ipc:/1")
    assert seen.has_host_network
    assert not seen.is_privileged
    assert run(containerd, "ctr run r/b:1 two").exit_code == 0
    assert containerd.containers("default") == ("two",)
    assert run(containerd, "ctr run r/b:1 two").exit_code == 1
    run(containerd, "ctr -n k8s.io images rm absent r/a:1")
    assert run(containerd, "ctr images rm absent r/a:1").exit_code == 0
    assert containerd.images("default") == ("r/b:1",)


def test_ctr_uses_the_namespace_of_its_option_or_else_of_the_environment() -> None:
    containerd = fakes.Containerd(["r/a:1"])
    for words, listed in (
        ("images ls -q", "r/a:1\n"),
        ("-a /run/c.sock --timeout 5s images ls -q", "r/a:1\n"),
        ("-n default images ls -q", ""),
    ):
        call = replace(
            a_call("ctr", *words.split()), exported=lambda: {"CONTAINERD_NAMESPACE": "k8s.io"}
        )
        assert containerd.answer(call).stdout == listed, words


def test_namespaces_of_containerd_have_separate_images_and_containers() -> None:
    containerd = fakes.Containerd(["r/a:1", "r/a:2"])
    for line, code in (
        ("-n k8s.io run r/a:1 one", 0),
        ("-n other run r/a:1 one", 1),
        ("-n k8s.io images tag r/a:1 r/a:2", 1),
        ("-n k8s.io images tag --force r/a:1 r/a:2 r/a:3", 0),
        ("-n other images tag r/a:1 r/a:4", 1),
        ("-n other containers rm one", 1),
    ):
        assert run(containerd, f"ctr {line}").exit_code == code, line
    listed = run(containerd, "ctr -n k8s.io images ls").stdout.splitlines()[1:]
    assert len({line.split()[2] for line in listed}) == 1
    assert len(listed) == 3
    containerd.registry = {"r/a:1"}
    run(containerd, "ctr -n other images pull r/a:1")
    assert run(containerd, "ctr -n other run r/a:1 one").exit_code == 0
    assert containerd.containers() == containerd.containers("other") == ("one",)


def test_ctr_namespaces_ls_shows_used_and_created_namespaces() -> None:
    containerd = fakes.Containerd(["r/a:1"], registry=["r/b:1"])
    run(containerd, "ctr -n empty images ls")
    run(containerd, "ctr images pull r/b:1")
    run(containerd, "ctr images rm r/b:1")

    assert run(containerd, "ctr ns create made").exit_code == 0
    assert run(containerd, "ctr namespace c k8s.io").exit_code == 1

    assert run(containerd, "ctr namespaces ls -q").stdout == "default\nk8s.io\nmade\n"
    assert run(containerd, "ctr ns list").stdout.splitlines() == [
        "NAME    LABELS ",
        "default        ",
        "k8s.io         ",
        "made           ",
    ]


# Packages


def test_dpkg_lock_is_held_for_the_given_number_of_attempts(tmp_path: Path) -> None:
    package = fakes.Package(name="a", version="1")
    packages = fakes.Packages(repository=[package]).use_root(tmp_path)
    packages.lock(attempts=3)
    assert run(packages, "dpkg --configure -a").exit_code == 2
    assert run(packages, "dpkg -l").exit_code == run(packages, "dpkg-query -W").exit_code == 0

    codes = [run(packages, "apt-get install -y a").exit_code for _ in range(3)]

    assert codes == [100, 100, 0]
    assert packages.is_installed("a")


def test_waiting_apt_gets_the_lock_when_it_is_released(tmp_path: Path) -> None:
    package = fakes.Package(name="a", version="1")
    packages = fakes.Packages(repository=[package]).use_root(tmp_path)
    packages.lock(attempts=3)

    answer = run(packages, "apt-get -o DPkg::Lock::Timeout=60 install -y a")

    assert answer.exit_code == 0
    assert packages.is_installed("a")


def test_dependent_packages_are_installed_and_removed_together(tmp_path: Path) -> None:
    lib = Package(name="lib", version="1")
    tool = Package(name="tool", version="1", depends=["lib"])
    top = Package(name="top", version="1", depends=["tool"])
    archives = {f"/{each.name}.deb": each for each in (lib, tool, top)}
    packages = fakes.Packages(archives=archives).use_root(tmp_path)

    assert run(packages, "dpkg -i /top.deb").exit_code == 1
    run(packages, "dpkg --configure -a")
    assert not packages.is_installed("top")
    assert run(packages, "dpkg -i /top.deb /tool.deb /lib.deb").exit_code == 0
    shown = run(packages, "dpkg-query -W top absent")
    assert (shown.stdout, shown.exit_code) == ("top\t1\n", 1)
    assert run(packages, "dpkg -r lib top").exit_code == 1
    assert [packages.is_installed(each.name) for each in (lib, tool, top)] == [True, True, False]
    run(packages, "dpkg -i /top.deb")
    assert run(packages, "dpkg -r lib tool top").exit_code == 0
    assert run(packages, "dpkg -i /lib.deb /tool.deb /top.deb").exit_code == 0
    assert run(packages, "apt-get remove -y lib").exit_code == 0
    assert not any(packages.is_installed(each.name) for each in (lib, tool, top))


def test_dpkg_query_without_a_package_name_shows_all_packages() -> None:
    packages = fakes.Packages(
        installed=[fakes.Package(name=name, version="1") for name in ("a", "b")]
    )

    assert run(packages, "dpkg-query -W").stdout == "a\t1\nb\t1\n"
    assert [line[:5] for line in run(packages, "dpkg -l").stdout.splitlines()[-2:]] == [
        "ii  a",
        "ii  b",
    ]
    assert run(fakes.Packages(), "dpkg-query -W").exit_code == 0


def test_apt_and_dpkg_exit_with_the_expected_codes_and_leave_the_expected_packages(
    tmp_path: Path,
) -> None:
    """The package top needs tool, which has configuration; tool needs mid, and mid needs lib."""
    dialogues: list[tuple[list[str], list[int], str]] = [
    (["apt-get install -y -o Dpkg::Options::=--force-confold base"], [0], "base=10"),
    (["apt-get install top", "apt-get install lib"], [1, 0], "base=9 lib=1"),
    (["apt-get remove base", "apt-get remove -y base"], [1, 0], ""),
    (["apt-get install -y newest"], [100], "base=9"),
    (["apt-get install -y top", "apt-get autoremove -y"], [0, 0], "base=9 lib=1 mid=1 tool=1 top=1"),
    (["apt-get install -y tool", "apt-get install -y lib", "apt-get remove -y tool", "apt-get autoremove -y"],
     [0, 0, 0, 0], "base=9 lib=1"),
    (["apt-get install -y lib", "dpkg -r lib", "dpkg -s lib"], [0, 0, 1], "base=9"),
    (["dpkg -i /lib.deb /absent.deb"], [2], "base=9"),
    (["dpkg -l absent base", "dpkg -l base absent", "dpkg-query -W absent base"], [1, 1, 1], "base=9"),
    (["dpkg -r absent base"], [0], ""),
    (["apt-get install -y tool", "dpkg -r tool", "dpkg -r mid lib"], [0, 0, 0], "base=9"),
    (["apt-get install -y tool", "dpkg -r tool", "dpkg -s tool", "apt-get purge -y tool", "dpkg -s tool"],
     [0, 0, 0, 0, 1], "base=9 lib=1 mid=1"),
    (["apt-get install -y tool", "apt-get remove -y --purge tool", "dpkg -s tool"], [0, 0, 1], "base=9 lib=1 mid=1"),
    (["apt-get install -y top", "apt-get remove -y top", "apt-get autoremove -y --purge", "dpkg -s tool"],
     [0, 0, 0, 1], "base=9"),
    (["apt-get install -y top", "apt-get remove -y top", "apt-get autoremove -y", "dpkg -s tool"],
     [0, 0, 0, 0], "base=9"),
    ]  # fmt: skip
    for number, (lines, codes, left) in enumerate(dialogues):
        root = tmp_path / str(number)
        root.mkdir()
        lib, base, newer = (
            Package(name=name, version=version)
            for name, version in (("lib", "1"), ("base", "9"), ("base", "10"))
        )
        mid = Package(name="mid", version="1", depends=["lib"])
        tool = Package(name="tool", version="1", depends=["mid"], configuration={"/etc/tool": ""})
        top = Package(name="top", version="1", depends=["tool"])
        newest = Package(name="newest", version="1", depends=["base (>= 11)"])
        packages = fakes.Packages(
            installed=[base], repository=[lib, mid, tool, top, base, newer, newest], archives={"/lib.deb": lib}
        ).use_root(root)  # fmt: skip

        assert [run(packages, line).exit_code for line in lines] == codes, lines

        names = ("base", "lib", "mid", "newest", "tool", "top")
        found = [
            f"{name}={packages.version(name)}" for name in names if packages.is_installed(name)
        ]
        assert " ".join(found) == left, lines


def test_apt_install_fails_without_package_lists_until_apt_update(tmp_path: Path) -> None:
    package = Package(name="a", version="1")
    packages = fakes.Packages(repository=[package], has_lists=False).use_root(tmp_path)

    lines = ("install -y a", "install -y a=1", "update", "install -y a=1")

    assert [run(packages, f"apt-get {line}").exit_code for line in lines] == [100, 100, 0, 0]


def test_held_package_is_not_removed_until_it_is_unheld(tmp_path: Path) -> None:
    lib, other = (Package(name=name, version="1") for name in ("lib", "other"))
    tool = Package(name="tool", version="1", depends=["lib"])
    packages = fakes.Packages(installed=[lib, other, tool]).use_root(tmp_path)

    run(packages, "apt-mark hold other tool")
    with pytest.raises(UnknownInvocationError, match="'tool' is held"):
        run(packages, "apt-get remove -y lib")
    run(packages, "apt-mark unhold other tool")

    assert run(packages, "apt-mark showhold").stdout == ""
    assert run(packages, "apt-get remove -y lib").exit_code == 0


def test_downgrade_and_change_of_a_held_package_are_refused(tmp_path: Path) -> None:
    old, new = (fakes.Package(name="a", version=version) for version in ("9", "10"))
    packages = fakes.Packages(installed=[new], repository=[old]).use_root(tmp_path)
    with pytest.raises(fakes.UnknownInvocationError, match="does not support downgrades"):
        run(packages, "apt-get install -y a=9")

    packages = fakes.Packages(installed=[old], repository=[new]).use_root(tmp_path)
    run(packages, "apt-mark hold a")
    assert packages.is_held("a")
    with pytest.raises(fakes.UnknownInvocationError, match="'a' is held"):
        run(packages, "apt-get install -y a")


def test_autoremove_keeps_a_manually_installed_package_that_a_dependent_upgraded(
    tmp_path: Path,
) -> None:
    """apt-get autoremove removes only unneeded packages that were installed automatically."""
    old, new = (Package(name="lib", version=version) for version in ("1", "2"))
    tool = Package(name="tool", version="1", depends=["lib (>= 2)"])
    packages = fakes.Packages(installed=[old], repository=[new, tool]).use_root(tmp_path)

    run(packages, "apt-get install -y tool")
    run(packages, "apt-get remove -y tool")
    run(packages, "apt-get autoremove -y")

    assert packages.version("lib") == "2"


def test_autoremove_keeps_a_dependency_only_if_it_was_later_installed_explicitly(
    tmp_path: Path,
) -> None:
    upgrades: list[tuple[str, bool]] = [
        ("apt-get install -y /lib.deb", True),
        ("dpkg -i /lib.deb", True),
        ("apt-get install -y other", False),
    ]
    for number, (upgrade, is_kept) in enumerate(upgrades):
        root = tmp_path / str(number)
        root.mkdir()
        old, new = (Package(name="lib", version=version) for version in ("1", "2"))
        tool, other = (
            Package(name=name, version="1", depends=["lib"]) for name in ("tool", "other")
        )
        packages = fakes.Packages(
            repository=[old, tool, other], archives={"/lib.deb": new}
        ).use_root(root)
        run(packages, "apt-get install -y tool")

        assert run(packages, upgrade).exit_code == 0
        run(packages, "apt-get remove -y tool other")
        run(packages, "apt-get autoremove -y")

        assert packages.is_installed("lib") is is_kept


def test_upgraded_package_stays_held_and_keeps_its_configuration(tmp_path: Path) -> None:
    old, new = (
        Package(name="a", version=version, configuration={"/etc/a": f"of {version}\n"})
        for version in ("1", "2")
    )
    packages = fakes.Packages(installed=[old], archives={"/a.deb": new}).use_root(tmp_path)
    packages.write_file("/etc/a", "mine\n")
    run(packages, "apt-mark hold a")

    run(packages, "dpkg -i /a.deb")

    assert (packages.version("a"), packages.is_held("a")) == ("2", True)
    assert (tmp_path / "etc/a").read_text() == "mine\n"


def test_package_name_may_end_with_the_architecture_of_the_node() -> None:
    packages = fakes.Packages(
        installed=[Package(name="a", version="1")], repository=[Package(name="b", version="2")]
    )

    assert run(packages, "dpkg-query -W a:amd64").stdout == "a\t1\n"
    assert run(packages, "dpkg -s a:any").exit_code == 0
    assert run(packages, "apt-get install -y -qq b:amd64=2").exit_code == 0
    assert packages.is_installed("b")
    assert run(packages, "apt-mark hold b:amd64").stdout == "b set on hold.\n"
    assert run(packages, "apt-get remove -y -qq a:amd64").exit_code == 0
    assert not packages.is_installed("a")
    assert run(packages, "apt-get install -y b:arm64").exit_code == 100


def test_versions_are_ordered_as_debian_orders_them() -> None:
    ordered = [
        "1.0~rc1",
        "1.0",
        "1.0-1",
        "1.0-1+b1",
        "1.0a",
        "1.0+b",
        "1.0.1",
        "1.9",
        "1.10",
        "1:0.5",
        "1:2:3-1",
    ]

    assert sorted(ordered, key=version_key) == ordered


def test_versions_are_compared_with_every_operator_of_dpkg() -> None:
    """The program dpkg 1.21.22 returned these exit codes."""
    pairs = (("1", "2"), ("", "2"), ("2", ""), ("", ""), ("1", "1"), ("2", "1"))
    exit_codes = {
        "lt-nl": "010111", "le-nl": "010001", "ge-nl": "101000", "gt-nl": "101110",
        "<": "001001", "<<": "001111", "<=": "001001", "=": "111001", ">=": "110000",
        ">>": "110110", ">": "110000",
    }  # fmt: skip
    for relation, codes in exit_codes.items():
        answers = [
            fakes.Packages().answer(a_call("dpkg", "--compare-versions", left, relation, right))
            for left, right in pairs
        ]
        assert "".join(str(answer.exit_code) for answer in answers) == codes, relation
        assert bool(answers[0].stderr) is (relation in {"<", ">"})


def test_comparison_of_a_version_with_a_non_numeric_epoch_is_refused() -> None:
    with pytest.raises(UnknownInvocationError, match="'a:1' has an epoch that is not a number"):
        run(fakes.Packages(), "dpkg --compare-versions 1 lt a:1")


# The metadata service


def test_metadata_service_returns_404_for_an_invalid_list_index() -> None:
    service = fakes.InstanceMetadata.with_tags(a="b")
    url = "http://169.254.169.254/metadata/instance/compute/tagsList"

    for last, status in (("0", "200"), ("-1", "404"), ("1_0", "404")):
        line = (
            f"curl -s -o /dev/null -w %{{http_code}} -H Metadata:true {url}/{last}?api-version=1"
        )
        assert run(service, line).stdout == status
    with pytest.raises(UnknownInvocationError, match="'--retry' needs a number, not 'often'"):
        run(service, f"curl -s --retry often {url}")
    with pytest.raises(UnknownInvocationError, match="does not know the URL 'http://\\[a'"):
        run(service, "curl -s http://[a")


def test_metadata_service_refuses_the_given_number_of_connections() -> None:
    metadata = fakes.InstanceMetadata.with_tags(Skip="true")
    metadata.refusals = 2

    answers = [run(metadata, f"curl -s -H Metadata:true {METADATA}") for _ in range(3)]

    assert [answer.exit_code for answer in answers] == [7, 7, 0]
    assert answers[2].stdout == '[{"name":"Skip","value":"true"}]'


def test_curl_retries_refused_connections_as_often_as_its_option_says() -> None:
    for options, exit_code, errors in (
        ("--retry 2 --retry-connrefused", 0, 2),
        ("--retry 1 --retry-connrefused", 7, 2),
        ("--retry 2", 7, 1),
        ("--retry-connrefused", 7, 1),
    ):
        metadata = fakes.InstanceMetadata.with_tags()
        metadata.refusals = 2
        answer = run(metadata, f"curl -sS -H METADATA:true {options} {METADATA}")
        shown = answer.exit_code, answer.stderr.count("curl: (7)")
        assert shown == (exit_code, errors), options


def test_curl_retries_a_slow_service_and_then_fails() -> None:
    metadata = fakes.InstanceMetadata.with_tags()
    metadata.is_slow = True

    answer = run(metadata, f"curl -sS -m 0.5 --retry 2 {METADATA}")

    assert answer.exit_code == 28
    assert answer.stderr.count("after 500 milliseconds") == 3
    for options in ("", "-m 0 "):  # curl takes 0 for no limit
        with pytest.raises(
            UnknownInvocationError, match="never answers, so 'curl' needs '--max-time'"
        ):
            run(metadata, f"curl -sS {options}{METADATA}")


def test_curl_with_a_huge_number_of_retries_ends_at_the_first_success_or_is_refused() -> None:
    metadata = fakes.InstanceMetadata.with_tags()
    options = "-sS -H Metadata:true --retry-connrefused --retry"
    for count in ("999999999", "9223372036854775807"):
        metadata.refusals = 2
        answer = run(metadata, f"curl {options} {count} {METADATA}")
        assert (answer.exit_code, answer.stderr.count("curl: (7)")) == (0, 2)
        metadata.is_up = False
        with pytest.raises(
            UnknownInvocationError, match="the fake of 'curl' makes at most 1000 ret"
        ):
            run(metadata, f"curl {options} {count} {METADATA}")
        assert run(metadata, f"curl {options} 1000 {METADATA}").exit_code == 7
        metadata.is_up = True


def test_metadata_request_without_header_gets_400_and_head_gets_no_body() -> None:
    document: dict[str, object] = {"compute": {}}
    metadata = fakes.InstanceMetadata(document)
    metadata.document["compute"] = {"tagsList": []}
    assert document == {"compute": {}}

    refused = run(metadata, f"curl -s -f -w %{{http_code}} {METADATA}")
    head = run(metadata, f"curl -s -I -H Metadata:true {METADATA}")

    assert (refused.stdout, refused.exit_code) == ("400", 22)
    assert head.stdout.startswith("HTTP/1.1 200 OK\r\n")
    assert head.stdout.endswith("Content-Length: 2\r\n\r\n")


def test_curl_writes_a_relative_output_file_in_the_working_directory(tmp_path: Path) -> None:
    metadata = fakes.InstanceMetadata.with_tags(a="b").use_root(tmp_path)
    (tmp_path / "opt").mkdir()
    call = a_call("curl", "-s", "-H", "Metadata:true", "-o", "tags", METADATA)

    assert metadata.answer(replace(call, cwd="/opt")).exit_code == 0
    assert (tmp_path / "opt/tags").read_text() == '[{"name":"a","value":"b"}]'
    assert metadata.answer(replace(call, cwd="/missing")).exit_code == 23
    printed = metadata.answer(a_call("curl", "-s", "-H", "Metadata:true", "-o", "-", METADATA))
    assert printed.stdout == '[{"name":"a","value":"b"}]'


_MODULES = {"drm": fakes.Module(), "nvidia": fakes.Module(needs=["drm"])}
_FILES = f"/lib/modules/{KERNEL}/kernel"


_ANSWERS: list[tuple[fakes.Fake, str, int, str]] = [
    (fakes.Containerd(version="1.7.24~ds1"), "ctr -v", 0, "ctr github.com/containerd/containerd 1.7.24~ds1\n"),
    (fakes.Containerd(version="v2.0.1"), "ctr --version", 0, "ctr github.com/containerd/containerd/v2 v2.0.1\n"),
    (fakes.Containerd(["a"]), "ctr -n k8s.io run --rm -t --runtime io.containerd.runc.v2 --gpus 0 a b", 0, ""),
    (fakes.Systemd(), "systemctl is-system-running", 0, "running\n"),
    (fakes.Systemd({"a": fakes.Unit(is_failed=True)}), "systemctl is-system-running", 1, "degraded\n"),
    (fakes.Systemd({"a": fakes.Unit(is_active=True)}), "systemctl show -P ActiveState a", 0, "active\n"),
    (fakes.KernelModules(_MODULES, kernel=KERNEL), "modprobe -v nvidia NVreg_X=1", 0,
     f"insmod {_FILES}/drm.ko \ninsmod {_FILES}/nvidia.ko NVreg_X=1\n"),
    (fakes.KernelModules(_MODULES, loaded=["drm"], kernel=KERNEL), "modprobe -nv nvidia", 0,
     f"insmod {_FILES}/nvidia.ko \n"),
    (fakes.KernelModules(_MODULES, loaded=["nvidia"]), "modprobe -rv nvidia", 0, "rmmod nvidia\nrmmod drm\n"),
    (fakes.KernelModules(), "depmod -A", 0, ""),
    (fakes.Dkms(), "dkms --version", 0, "dkms-3.0.10\n"),
    (fakes.Packages(), "dpkg --compare-versions 5.15.0-1 ge 5.4", 0, ""),
    (fakes.Packages(), "dpkg --compare-versions 1.0 eq 1.0-0", 0, ""),
    (fakes.Packages(), "dpkg --compare-versions 1:1.0 lt 2.0", 1, ""),
    (fakes.Packages(repository=[Package(name="a", version="1")]), ("apt-get install -qq --assume-yes -o Dpkg::Use-Pty=0 "
     "-o DPkg::options::=--force-confdef --allow-downgrades b"), 100, ""),
    (fakes.InstanceMetadata({}), ("curl -gsX GET --compressed --url "
     "http://169.254.169.254/metadata/instance?api-version=1 -H Metadata:true"), 0, "{}"),
]  # fmt: skip


def test_fake_prints_the_same_text_as_the_real_tool() -> None:
    for fake, line, exit_code, shown in _ANSWERS:
        answer = run(fake, line)
        assert (answer.exit_code, answer.stdout) == (exit_code, shown), line


def test_dkms_accepts_a_module_with_its_version_and_a_kernel_with_its_architecture(
    tmp_path: Path,
) -> None:
    dkms = fakes.Dkms([fakes.Source(name="a", version="1")], kernels=[KERNEL]).use_root(tmp_path)

    assert run(dkms, f"dkms install -j 4 -m a/1 -k {KERNEL}/x86_64").exit_code == 0
    assert dkms.state("a", "1") == "installed"


def test_fake_of_ctr_shows_the_recorded_version() -> None:
    recorded = load_recording("ctr/1.7.24-version").text

    assert fakes.Containerd().answer(a_call("ctr", "version")).stdout == recorded
    answer = fakes.Containerd(version="2.0.1").answer(a_call("ctr", "v"))
    assert answer.stdout.count("Version:  2.0.1\n") == 2


def test_architecture_suffix_of_a_dependency_is_ignored() -> None:
    package = Package(name="python3", version="3.11.2-1")
    for dependency, is_met in (
        ("python3:any (>= 3.8)", True),
        ("python3:any", True),
        ("python3:any (>= 3.12)", False),
        ("python3-minimal:any", False),
    ):
        assert is_met_by(dependency, package) is is_met, dependency
