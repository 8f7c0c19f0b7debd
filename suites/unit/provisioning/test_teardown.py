"""Removal of a baked driver."""

from __future__ import annotations

import errno
import functools
from typing import TYPE_CHECKING

import pytest

from harness.provisioning.command import CommandResult
from harness.provisioning.configuration import Configuration
from harness.provisioning.facts import teardown_scope
from harness.provisioning.node_files import NodeFiles
from harness.provisioning.prebake import Record
from harness.provisioning.teardown import (
    Residue,
    Scope,
    TeardownStatus,
    choose_removal,
    customer_version,
    observe,
    render_grid_line,
    tear_down,
)
from harness.shell.mocks.scripted_runner import ScriptedRunner

from .fakes import (
    KERNEL,
    OTHER_KERNEL,
    OTHER_VERSION,
    RECORD_PATH,
    VERSION,
    make_immovable,
    make_node,
    write_record,
)
from .simulation import DKMS, PROGRAMS, SimulatedNode, module_path, module_text

if TYPE_CHECKING:
    from pathlib import Path

OPTED_OUT = teardown_scope(Configuration(), is_opted_out=True)
MANAGED = teardown_scope(Configuration(gpu_node=True), is_opted_out=False)
STACK = ("nvidia_uvm", "nvidia_drm", "nvidia_modeset", "nvidia")

LISTED = (
    "/var/lib/dkms/nvidia",
    "/usr/bin/lib64",
    "/etc/ld.so.conf.d/nvidia.conf",
    *PROGRAMS,
    f"/usr/src/nvidia-{VERSION}",
    module_path(KERNEL),
    module_path(KERNEL, "nvidia_uvm"),
)


class Teardown:
    """A teardown on a simulated node, with its results."""

    def __init__(self, top: Path) -> None:
        self.node = SimulatedNode(top)
        self.files = self.node.files
        self.console: list[str] = []

    def run(self, scope: Scope = OPTED_OUT) -> TeardownStatus:
        return tear_down(make_node(self.node, self.node.top, console=self.console), scope)

    def commands(self) -> list[str]:
        return [" ".join(call) for call in self.node.calls]


@pytest.fixture
def teardown(tmp_path: Path) -> Teardown:
    return Teardown(tmp_path)


def line(
    status: str,
    *,
    gpu_node: str = "false",
    dkms: tuple[str, str] = ("true", "false"),
    module: tuple[str, str] = ("false", "false"),
    marker: str = "false",
    modprobe: str = "false",
) -> str:
    return (
        f"AKS_GPU_PREBAKE event=teardown gpu_node={gpu_node} status={status}"
        f" dkms_before={dkms[0]} module_before={module[0]} module_after={module[1]}"
        f" marker_after={marker} dkms_after={dkms[1]} modprobe_after={modprobe}"
    )


def test_teardown_removes_every_listed_artefact_and_unloads_the_modules(
    teardown: Teardown,
) -> None:
    teardown.node.build(VERSION, KERNEL)
    teardown.node.load(VERSION, *STACK)
    present = [path for path in (*LISTED, RECORD_PATH) if teardown.files.exists(path)]
    assert present == [*LISTED, RECORD_PATH]

    assert teardown.run() is TeardownStatus.CLEANED

    assert [path for path in (*LISTED, RECORD_PATH) if teardown.files.exists(path)] == []
    assert teardown.node.loaded() == ()
    assert teardown.console == [line("cleaned", module=("true", "false"))]
    assert teardown.commands() == [
        "modinfo -F version nvidia",
        *(f"rmmod {name}" for name in STACK),
        f"depmod -a {KERNEL}",
        "ldconfig",
    ]


def test_files_that_do_not_belong_to_the_driver_are_kept(teardown: Teardown) -> None:
    """These files are not taken for a customer's driver either."""
    teardown.node.build(VERSION, OTHER_KERNEL)
    others = [
        "/usr/bin/nvidia-container-runtime",
        "/var/lib/dkms/zfs/2.1/x",
        "/opt/cni/bin/x",
        "/var/lib/dkms/nvidia-fs/2.17.5/source/dkms.conf",
        *(
            f"/lib/modules/{OTHER_KERNEL}/updates/dkms/{name}.ko.xz"
            for name in ("nvidia-fs", "nvidia-current", "nvidia-wmi-ec-backlight", "gdrdrv")
        ),
    ]
    for path in others:
        teardown.files.write(path, "")

    assert teardown.run() is TeardownStatus.CLEANED

    assert [path for path in others if not teardown.files.exists(path)] == []


def test_teardown_without_a_record_does_nothing(teardown: Teardown) -> None:
    teardown.node.build(VERSION, KERNEL)
    teardown.files.remove(RECORD_PATH)

    assert teardown.run() is TeardownStatus.NOTHING

    assert teardown.console == []
    assert teardown.commands() == []
    assert teardown.files.exists("/usr/bin/nvidia-smi")


def test_empty_driver_folders_are_removed_and_other_folders_are_kept(teardown: Teardown) -> None:
    teardown.node.build(VERSION, KERNEL)
    teardown.node.build(VERSION, OTHER_KERNEL)
    theirs = f"/lib/modules/{OTHER_KERNEL}/updates/dkms/zfs.ko"
    teardown.files.write(theirs, "")
    for name in ("modeset", "drm", "peermem", "vgpu-vfio"):
        teardown.files.write(f"{module_path(KERNEL, f'nvidia-{name}')}.zst", "")

    assert teardown.run() is TeardownStatus.CLEANED

    assert not teardown.files.exists(f"/lib/modules/{KERNEL}/updates")
    assert teardown.files.exists(theirs)
    assert teardown.files.exists(f"/lib/modules/{KERNEL}/build")
    assert not teardown.files.exists("/opt/azure/aks-gpu")
    assert sorted(teardown.commands()[-3:-1]) == sorted(
        [f"depmod -a {KERNEL}", f"depmod -a {OTHER_KERNEL}"]
    )


def test_teardown_keeps_other_files_in_the_folder_of_the_record(teardown: Teardown) -> None:
    """The configuration sets a path other than the default for the record."""
    teardown.node.build(VERSION, KERNEL)
    write_record(teardown.files, version=OTHER_VERSION)
    mine = "/opt/azure/aks-gpu/mine"
    write_record(teardown.files, path=mine)
    scope = teardown_scope(Configuration(gpu_dkms_marker_file=mine), is_opted_out=True)

    assert teardown.run(scope) is TeardownStatus.CLEANED

    assert teardown.files.names("/opt/azure/aks-gpu") == ("dkms-marker",)


def test_sources_of_every_dkms_version_are_removed(teardown: Teardown) -> None:
    """On a managed node, all DKMS versions come from the image."""
    for version in (OTHER_VERSION, "999.1", VERSION):
        teardown.node.build(version, KERNEL)
    kept = ("linux-headers-6.1.0", "nvidia-1.0", "nvidia-fs-2.1")
    for folder in kept:
        teardown.files.write(f"/usr/src/{folder}/x", "")

    assert teardown.run(MANAGED) is TeardownStatus.CLEANED

    assert teardown.files.names("/usr/src") == kept


def test_sources_are_removed_even_if_the_record_has_no_version(teardown: Teardown) -> None:
    teardown.node.build(VERSION, KERNEL)
    teardown.files.remove(DKMS)
    teardown.files.write(RECORD_PATH, "kernel=x\n")
    teardown.files.write("/usr/src/nvidia-fs-2.1/x", "")

    assert teardown.run() is TeardownStatus.CLEANED

    assert teardown.files.names("/usr/src") == ("nvidia-fs-2.1",)


def test_payload_and_caches_are_removed_only_from_an_opted_out_node(teardown: Teardown) -> None:
    extras = (
        "/usr/local/nvidia/x",
        "/opt/gpu/config.sh",
        "/opt/actions/install.sh",
        "/opt/datacenter-gpu-manager-4-core/x",
        "/opt/datacenter-gpu-manager-4-proprietary/x",
        "/opt/dcgm-exporter/x",
        "/opt/nvidia-device-plugin/x",
        "/opt/dra-driver-nvidia-gpu/x",
    )
    teardown.node.build(VERSION, KERNEL)
    for path in extras:
        teardown.files.write(path, "")

    assert teardown.run(MANAGED) is TeardownStatus.CLEANED
    assert all(teardown.files.exists(path) for path in extras)

    teardown.node.build(VERSION, KERNEL)
    assert teardown.run(OPTED_OUT) is TeardownStatus.CLEANED
    assert not any(teardown.files.exists(path.rpartition("/")[0]) for path in extras)


def test_teardown_of_a_managed_node_removes_a_driver_of_any_version(teardown: Teardown) -> None:
    """On a managed node, the driver always comes from the image."""
    teardown.node.build(OTHER_VERSION, KERNEL)
    teardown.node.load(OTHER_VERSION, *STACK)
    write_record(teardown.files)

    assert teardown.run(MANAGED) is TeardownStatus.CLEANED

    assert teardown.console == [line("cleaned", gpu_node="true", module=("true", "false"))]
    assert teardown.commands() == [
        *(f"rmmod {name}" for name in STACK),
        *(f"depmod -a {KERNEL}", "ldconfig"),
    ]


def test_teardown_is_incomplete_if_anything_is_left(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for number, path in enumerate(
        (DKMS, "/usr/bin/nvidia-modprobe", module_path(KERNEL), RECORD_PATH)
    ):
        teardown = Teardown(tmp_path / str(number))
        teardown.node.build(VERSION, KERNEL)
        with monkeypatch.context() as patch:
            make_immovable(patch, path)
            assert teardown.run() is TeardownStatus.INCOMPLETE

        assert teardown.files.exists(RECORD_PATH)
        assert teardown.console == [
            f"'{path}' could not be removed: [Errno 1] Operation not permitted.",
            line(
                "incomplete",
                marker="true",
                dkms=("true", "true" if path == DKMS else "false"),
                modprobe="true" if path == "/usr/bin/nvidia-modprobe" else "false",
            ),
        ]


def test_sources_that_a_teardown_could_not_remove_are_removed_by_a_later_teardown(
    teardown: Teardown, monkeypatch: pytest.MonkeyPatch
) -> None:
    teardown.node.build(OTHER_VERSION, KERNEL)
    teardown.node.build(VERSION, KERNEL)
    left = f"/usr/src/nvidia-{OTHER_VERSION}"
    with monkeypatch.context() as patch:
        make_immovable(patch, left)
        assert teardown.run(MANAGED) is TeardownStatus.INCOMPLETE
        assert teardown.run(MANAGED) is TeardownStatus.INCOMPLETE

    assert teardown.files.exists(left)
    assert teardown.run(MANAGED) is TeardownStatus.CLEANED
    assert not teardown.files.exists(left)
    assert not teardown.files.exists(DKMS)


def test_unloading_stops_at_the_first_module_that_cannot_be_unloaded(teardown: Teardown) -> None:
    teardown.node.build(VERSION, KERNEL)
    teardown.node.load(VERSION, *STACK)
    teardown.node.failing["rmmod nvidia_drm"] = CommandResult(
        argv=(), exit_code=1, stdout="", stderr="in use"
    )

    assert teardown.run() is TeardownStatus.INCOMPLETE

    assert "rmmod nvidia" not in teardown.commands()
    assert teardown.node.loaded() == STACK[1:]
    assert [path for path in LISTED if teardown.files.exists(path)] == []
    assert teardown.commands()[-1] == "ldconfig"


def test_plan_of_a_teardown_lists_the_files_to_remove(teardown: Teardown) -> None:
    teardown.node.build(VERSION, KERNEL)
    teardown.node.load(VERSION, "nvidia_uvm", "nvidia")
    node = make_node(teardown.node, teardown.node.top)

    words = choose_removal(OPTED_OUT, observe(node, OPTED_OUT)).describe()

    assert words == (
        "rmmod nvidia_uvm",
        "rmmod nvidia",
        *(f"rm -rf {path}" for path in LISTED[1:-2]),
        f"rm -rf {module_path(KERNEL, 'nvidia_uvm')}",
        f"rm -rf {module_path(KERNEL)}",
        f"rm -rf {DKMS}",
        f"rmdir --ignore-fail-on-non-empty /lib/modules/{KERNEL}/updates/dkms",
        f"rmdir --ignore-fail-on-non-empty /lib/modules/{KERNEL}/updates",
        f"depmod -a {KERNEL}",
        "ldconfig",
    )
    assert teardown.files.exists(RECORD_PATH)


# -- a customer's own driver ------------------------------------------------------------------


def residue(**changes: object) -> Residue:
    values: dict[str, object] = {
        "record": Record(kernel=KERNEL, driver_version=VERSION, driver_kind="cuda", arch="x"),
        "loaded": (),
        "resident_version": None,
        "dkms_versions": (),
        "other_dkms_versions": (),
        "dkms_links": (),
        "module_files": (),
        "sources": (),
        "present": (),
        **changes,
    }
    return Residue(**values)  # type: ignore[arg-type]


SIGNALS: list[tuple[dict[str, object], str | None]] = [
    ({}, None),
    ({"resident_version": VERSION, "dkms_versions": (VERSION,)}, None),
    ({"resident_version": OTHER_VERSION}, OTHER_VERSION),
    ({"installed_version": OTHER_VERSION, "resident_version": VERSION}, OTHER_VERSION),
    ({"dkms_versions": (VERSION, OTHER_VERSION)}, OTHER_VERSION),
    ({"resident_version": "1", "installed_version": "2", "dkms_versions": ("3",)}, "1"),
    ({"installed_version": "2", "dkms_versions": ("3",)}, "2"),
    ({"dkms_versions": (VERSION, "3"), "other_dkms_versions": ("4",)}, "3"),
    ({"other_dkms_versions": (VERSION, "4", "5")}, "4"),
    ({"other_dkms_versions": (VERSION,)}, VERSION),
    ({"resident_version": VERSION, "installed_version": f"{VERSION}.1"}, f"{VERSION}.1"),
    ({"record": Record(), "resident_version": OTHER_VERSION}, None),
    ({"record": None, "resident_version": OTHER_VERSION}, None),
]


def test_customer_driver_is_detected_by_any_of_three_signals() -> None:
    for changes, version in SIGNALS:
        assert customer_version(residue(**changes)) == version, changes


def install_customers(teardown: Teardown) -> None:
    """Install the baked driver, then a customer's driver for the running kernel."""
    teardown.node.build(VERSION, OTHER_KERNEL)
    teardown.files.write(f"{DKMS}/{OTHER_VERSION}/source/dkms.conf", "")
    teardown.files.write(f"/usr/src/nvidia-{OTHER_VERSION}/dkms.conf", "")
    teardown.files.write(module_path(KERNEL), module_text(OTHER_VERSION, KERNEL))
    teardown.files.write(f"{DKMS}/original_module/x", "")
    links = teardown.files.at(DKMS)
    (links / f"kernel-{OTHER_KERNEL}-x86_64").symlink_to(f"{VERSION}/{OTHER_KERNEL}/x86_64")
    (links / f"kernel-{KERNEL}-x86_64").symlink_to(f"{OTHER_VERSION}/{KERNEL}/x86_64")


def test_driver_from_a_distribution_package_is_treated_as_a_customer_driver(
    tmp_path: Path,
) -> None:
    """Debian's driver is `nvidia-current` in DKMS and on disk, and `nvidia` only once loaded."""
    for name, version, own_name in (
        ("nvidia-current", OTHER_VERSION, True),
        ("nvidia-tesla-470", VERSION, False),
        ("nvidia-open", VERSION, True),
    ):
        teardown = Teardown(tmp_path / name)
        teardown.node.build(VERSION, OTHER_KERNEL)
        module = f"{module_path(KERNEL, name if own_name else 'nvidia')}.xz"
        built = f"{KERNEL}/x86_64/module/{module.rpartition('/')[2].removesuffix('.xz')}"
        teardown.files.make_directory("/var/lib/dkms/nvidia-current")
        for path in ("source/dkms.conf", built):
            teardown.files.write(f"/var/lib/dkms/{name}/{version}/{path}", "")
        teardown.files.write(module, module_text(version, KERNEL))
        teardown.node.load(version, *STACK)

        assert teardown.run() is TeardownStatus.PRESERVED

        assert teardown.files.exists(module)
        assert teardown.node.loaded() == STACK
        assert all(teardown.files.exists(path) for path in PROGRAMS)
        # A module of the same name and version for another kernel belongs to the package too.
        assert teardown.files.exists(module_path(OTHER_KERNEL)) is not own_name


def test_dkms_entries_of_packaged_drivers_are_found(teardown: Teardown) -> None:
    write_record(teardown.files)
    names = ("current-open", "legacy-390xx", "open", "srv-open", "tesla-470")
    for version, name in enumerate(names):
        teardown.files.write(f"/var/lib/dkms/nvidia-{name}/{version}/source/dkms.conf", "")

    found = observe(make_node(teardown.node, teardown.node.top), OPTED_OUT).other_dkms_versions

    assert sorted(found) == ["0", "1", "2", "3", "4"]


def test_original_module_folder_and_links_of_dkms_are_not_taken_for_a_customer_driver(
    teardown: Teardown,
) -> None:
    teardown.node.build(VERSION, OTHER_KERNEL)
    teardown.files.write(f"{DKMS}/original_module/x", "")
    link = teardown.files.at(f"/var/lib/dkms/nvidia-current/kernel-{KERNEL}-x86_64")
    link.parent.mkdir(parents=True)
    link.symlink_to(VERSION)

    assert teardown.run() is TeardownStatus.CLEANED


def test_customer_driver_is_preserved_and_only_files_of_the_baked_driver_are_removed(
    teardown: Teardown,
) -> None:
    install_customers(teardown)
    files = teardown.files
    files.write(module_path("6.5"), module_text(VERSION, "6.5"))
    extras = ("/usr/local/nvidia/x", "/opt/gpu/x", "/opt/actions/x", "/opt/dcgm-exporter/x")
    for path in extras:
        files.write(path, "")

    assert teardown.run() is TeardownStatus.PRESERVED

    gone = (
        f"{DKMS}/{VERSION}",
        f"{DKMS}/kernel-{OTHER_KERNEL}-x86_64",
        f"/usr/src/nvidia-{VERSION}",
        "/usr/bin/lib64",
        module_path(OTHER_KERNEL),
        module_path(OTHER_KERNEL, "nvidia_uvm"),
        module_path("6.5"),
        RECORD_PATH,
    )
    assert [path for path in gone if files.exists(path)] == []
    assert files.names(DKMS) == (OTHER_VERSION, f"kernel-{KERNEL}-x86_64", "original_module")
    assert files.exists(module_path(KERNEL))
    assert files.names("/usr/src") == (f"nvidia-{OTHER_VERSION}",)
    kept = (*PROGRAMS, "/etc/ld.so.conf.d/nvidia.conf", *extras)
    assert [path for path in kept if not files.exists(path)] == []
    (said,) = teardown.console
    assert said == (
        "AKS_GPU_PREBAKE event=teardown gpu_node=false status=preserved_customer_driver"
        f" marker_version={VERSION} installed_version={OTHER_VERSION}"
    )
    assert teardown.commands()[-3:] == [
        f"depmod -a {OTHER_KERNEL}",
        "depmod -a 6.5",
        "ldconfig",
    ]


def test_module_without_a_version_is_treated_as_a_customer_module(
    teardown: Teardown,
) -> None:
    install_customers(teardown)
    path = module_path(OTHER_KERNEL)
    teardown.node.failing[f"modinfo {teardown.node.top}{path}"] = CommandResult(
        argv=(), exit_code=1, stdout=module_text(VERSION, KERNEL), stderr=""
    )

    assert teardown.run() is TeardownStatus.PRESERVED

    assert teardown.files.exists(path)


def test_loaded_module_is_unloaded_beside_a_customer_driver_only_if_it_was_baked(
    tmp_path: Path,
) -> None:
    scope = teardown_scope(Configuration(gpu_node=True), is_opted_out=True)
    for version, left in ((OTHER_VERSION, STACK), (VERSION, ())):
        teardown = Teardown(tmp_path / version)
        install_customers(teardown)
        teardown.node.load(version, *STACK)

        assert teardown.run(scope) is TeardownStatus.PRESERVED

        assert teardown.node.loaded() == left
        (said,) = teardown.console
        assert " gpu_node=true status=preserved_customer_driver " in said


def test_teardown_beside_a_customer_driver_is_incomplete_if_files_of_the_baked_driver_remain(
    teardown: Teardown, monkeypatch: pytest.MonkeyPatch
) -> None:
    install_customers(teardown)
    make_immovable(monkeypatch, "/usr/bin/lib64", errno.EROFS)

    assert teardown.run() is TeardownStatus.INCOMPLETE
    assert teardown.files.exists(RECORD_PATH)


def test_commands_of_a_teardown_have_time_limits(tmp_path: Path) -> None:
    files = NodeFiles(tmp_path)
    write_record(files)
    files.write("/proc/modules", "nvidia 1 0 - Live 0x0\n")
    files.write("/sys/module/nvidia/version", VERSION)
    files.write(f"{DKMS}/{OTHER_VERSION}/x", "")
    files.write(module_path(OTHER_KERNEL), "")
    with (
        ScriptedRunner()
        .expect("modinfo -F version nvidia", exit_code=1, stdout=OTHER_VERSION)
        .expect(
            f"modinfo {tmp_path}{module_path(OTHER_KERNEL)}",
            timeout_s=60,
            stdout=module_text(VERSION, OTHER_KERNEL),
        )
        .expect("rmmod nvidia", timeout_s=25, effect=lambda: files.remove("/proc/modules"))
        .expect(f"depmod -a {OTHER_KERNEL}", timeout_s=25)
        .expect("ldconfig", timeout_s=25) as runner
    ):
        assert tear_down(make_node(runner, tmp_path), OPTED_OUT) is TeardownStatus.PRESERVED


def test_teardown_is_incomplete_if_a_module_or_nvidia_modprobe_appears_meanwhile(
    tmp_path: Path,
) -> None:
    for name, path in (("module", module_path(KERNEL)), ("probe", "/usr/bin/nvidia-modprobe")):
        files = NodeFiles(tmp_path / name)
        write_record(files)
        appear = functools.partial(files.write, path, "")
        with ScriptedRunner().expect("ldconfig", effect=appear) as runner:
            node = make_node(runner, files.top)
            assert tear_down(node, MANAGED) is TeardownStatus.INCOMPLETE

        assert files.exists(RECORD_PATH), name


def test_grid_teardown_line_shows_the_driver_kind_of_the_record() -> None:
    for record, kind in ((Record(driver_kind="cuda"), "cuda"), (Record(), "none"), (None, "none")):
        assert render_grid_line("grid-v20", record) == (
            "AKS_GPU_PREBAKE event=grid_cuda_prebake_teardown driver_type=grid-v20"
            f" marker_kind={kind} node_kind=grid action=teardown"
        )


def test_version_with_the_recorded_version_as_a_prefix_is_treated_as_a_customer_driver() -> None:
    longer = f"{VERSION}.1"
    plan = choose_removal(
        OPTED_OUT,
        residue(
            dkms_versions=(VERSION, longer),
            dkms_links=((f"{DKMS}/kernel-a", f"{VERSION}/a"), (f"{DKMS}/kernel-b", f"{longer}/b")),
            sources=(f"/usr/src/nvidia-{VERSION}", f"/usr/src/nvidia-{longer}"),
            present=("/usr/bin/lib64", "/usr/bin/nvidia-smi"),
        ),
    )

    assert plan.customer_version == longer
    assert plan.paths == (
        f"{DKMS}/{VERSION}",
        f"{DKMS}/kernel-a",
        f"/usr/src/nvidia-{VERSION}",
        "/usr/bin/lib64",
    )


def test_teardown_event_line_has_the_state_before_and_after_the_teardown(
    teardown: Teardown,
) -> None:
    teardown.node.build(VERSION, KERNEL)
    teardown.files.remove(DKMS)
    teardown.files.write("/proc/modules", "nvidia 1 1 - Live 0x0\n")

    assert teardown.run() is TeardownStatus.INCOMPLETE

    assert teardown.console == [
        line("incomplete", dkms=("false", "false"), module=("true", "true"), marker="true")
    ]
