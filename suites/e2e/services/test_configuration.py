"""Tests of the units' command lines in systemd, of packages, and of switching services off."""

from __future__ import annotations

import shlex
from typing import TYPE_CHECKING

import pytest

from harness import expect
from suites.e2e.guest_script import shell
from suites.e2e.interruption.whole_run import state_of
from suites.e2e.promises import promise
from suites.e2e.services.units import (
    BRIEF,
    DCGM,
    DRA,
    DRA_PROGRAM,
    EXPORTER,
    KUBELET,
    MANAGED,
    MARKER,
    MIG,
    MONITORING_PACKAGES,
    PLUGIN,
    TAG,
    UNIT,
    evidence_of,
    expect_property,
    expect_started_as,
    make_program,
    name_of,
    remove_unit,
    unit_file,
)

if TYPE_CHECKING:
    from suites.e2e.conftest import StartNode

MANAGED_UNITS = (PLUGIN, DCGM, EXPORTER)
PLUGIN_PROGRAM = "/usr/bin/nvidia-device-plugin"
DEFAULTS = "/etc/default/kubelet"
LAYOUT = "9,9"


@promise(section="7", unit=UNIT)
def test_units_run_with_the_options_of_a_managed_node(start_validated: StartNode) -> None:
    """The exporter does not use port 9400, which users may need; the plugin passes device specs.

    The node has the marker file. The exporter's output is in the journal. A MIG strategy has no
    effect if no GPU is partitioned.
    """
    to_nowhere = "StandardOutput=null\\nStandardError=null"
    node = start_validated(
        "options",
        config={**MANAGED, "nvidia_mig_strategy": "Mixed"},
        before=[
            shell(f"sed -i '/^.Service.$/a {to_nowhere}' /usr/lib/systemd/system/{EXPORTER}"),
            shell(f"echo KUBELET_FLAGS=--v=2 >{DEFAULTS}"),
        ],
    )
    defaults = node.guest.output_of("cat", DEFAULTS).splitlines()

    evidence = evidence_of(node)

    expect.provisioned(evidence)
    expect.unit_runs(
        evidence,
        EXPORTER,
        "/usr/bin/dcgm-exporter -f /etc/dcgm-exporter/default-counters.csv --address :19400",
    )
    for output in ("StandardOutput", "StandardError"):
        expect_property(node, EXPORTER, output, "journal")
    expect.unit_runs(evidence, PLUGIN, f"{PLUGIN_PROGRAM} --pass-device-specs")
    assert MARKER in evidence.paths
    assert defaults == [
        "KUBELET_FLAGS=--v=2",
        "KUBELET_NODE_LABELS=kubernetes.azure.com/dcgm-exporter=enabled",
    ]


@promise(section="7, 8", unit=UNIT)
@pytest.mark.parametrize(
    ("strategy", "option"),
    [
        pytest.param("Mixed", "mixed", id="Mixed"),
        pytest.param("mixed", "single", id="mixed in lower case"),
        pytest.param("None", "single", id="None"),
    ],
)
def test_partitioned_node_passes_the_mig_strategy_to_the_device_plugin(
    start_validated: StartNode, strategy: str, option: str
) -> None:
    """At each boot, the GPU is partitioned before the plugin counts the GPU's instances.

    A plugin that runs already is started again with the option.
    """
    node = start_validated(
        "mig",
        before=[["systemctl", "start", PLUGIN]],
        config={
            **MANAGED,
            "gpu_instance_profile": "MIG3g",
            "nvidia_mig_strategy": strategy,
            "nvidia_mig_profile_layout": LAYOUT,
        },
    )

    evidence = evidence_of(node)

    expect.provisioned(evidence)
    command = f"{PLUGIN_PROGRAM} --mig-strategy {option} --pass-device-specs"
    expect.unit_runs(evidence, PLUGIN, command)
    expect_started_as(node, PLUGIN, command)
    expect.unit_state(evidence, MIG, active="active")
    expect.unit_enablement(evidence, MIG, "enabled")
    expect.unit_ready_before(evidence, MIG, PLUGIN)
    expect_property(node, MIG, "DropInPaths", f"/etc/systemd/system/{MIG}.d/10-mig-profile.conf")
    expect_property(node, MIG, "Before", PLUGIN)
    expect_property(node, MIG, "After", "nvidia-modprobe.service")
    expect_property(
        node,
        MIG,
        "Environment",
        "GPU_INSTANCE_PROFILE=MIG3g",
        f"NVIDIA_MIG_PROFILE_LAYOUT={LAYOUT}",
    )
    expect.events_recorded(evidence, "AKS.CSE.ensureMigPartition")


@promise(section="7", unit=UNIT)
@pytest.mark.parametrize(
    ("code", "script"),
    [
        pytest.param(227, "true", id="not in the cache"),
        pytest.param(
            227,
            f"for name in {' '.join(MONITORING_PACKAGES)}; do mkdir -p /opt/$name; "
            "echo x >/opt/$name/${name}_1_all.deb; done",
            id="one is not in the cache",
        ),
        pytest.param(
            9,
            f"for name in {' '.join(MONITORING_PACKAGES)} nvidia-device-plugin; do "
            "mkdir -p /opt/$name; echo x >/opt/$name/${name}_1_all.deb; done",
            id="broken archives",
        ),
    ],
)
def test_packages_that_cannot_be_installed_have_their_own_exit_codes(
    start_validated: StartNode, code: int, script: str
) -> None:
    """A package missing in the cache has a different code than a package that cannot be installed."""
    node = start_validated(
        "packages", config={**MANAGED, **BRIEF}, before=[remove_unit(DCGM), shell(script)]
    )

    evidence = evidence_of(node)

    expect.provisioned(evidence, exit_code=code)
    expect.run_ended_at(evidence, "install-managed-packages")
    # A failed step has an event too.
    expect.events_recorded(evidence, "AKS.CSE.installNvidiaManagedExpPkgFromCache")
    assert MARKER not in evidence.paths
    assert evidence.shown_unit(PLUGIN).started_us is None


@promise(section="7", unit=UNIT)
def test_node_that_is_no_longer_managed_stops_the_managed_services(
    start_validated: StartNode,
) -> None:
    """A node that is no longer managed disables these services and removes its marker file."""
    node = start_validated(
        "off",
        files=[unit_file(DRA, DRA_PROGRAM)],
        before=[
            make_program(DRA_PROGRAM),
            ["systemctl", "enable", "--now", *MANAGED_UNITS, DRA],
            shell(f"mkdir -p $(dirname {MARKER}); touch {MARKER}"),
        ],
    )

    evidence = evidence_of(node)

    expect.provisioned(evidence)
    for unit in (*MANAGED_UNITS, DRA):
        assert evidence.shown_unit(unit).active == "inactive"
        expect.unit_enablement(evidence, unit, "disabled")
    assert MARKER not in evidence.paths
    expect.unit_state(evidence, KUBELET, active="active")
    stops = [f"AKS.CSE.stop.{name_of(unit)}" for unit in (*MANAGED_UNITS, DRA)]
    expect.events_recorded(evidence, *stops)


#: The files that a run on a managed node writes for other programs, apart from the run's reports.
WRITTEN = {
    "/etc/containerd/config.toml",
    DEFAULTS,
    "/etc/ld.so.cache",
    "/etc/systemd/system/nvidia-cdi-refresh.service.d/10-aks-tolerate-generate-failure.conf",
    "/etc/systemd/system/nvidia-dcgm-exporter.service.d/10-aks-override.conf",
    "/etc/systemd/system/nvidia-device-plugin.service.d/10-device-plugin-config.conf",
    "/etc/systemd/system/nvidia-device-plugin.service.d/20-container-runtime.conf",
    MARKER,
}
#: The other files are the driver image's.
OWN_FOLDERS = ("/etc/", "/opt/azure/")


@promise(section="7", unit=UNIT)
def test_every_user_may_read_the_files_of_a_run_but_only_root_may_write_them(
    start_node: StartNode,
) -> None:
    """Kubelet and containerd, which read the files, may run as other users."""
    node = start_node("files", tags=TAG, command=None)
    before = state_of(node)
    node.provision("boot").check("boot")

    after = state_of(node)

    written = {
        path: state.to_item()
        for path, state in after.paths.items()
        if path.startswith(OWN_FOLDERS)
        and state.kind == "f"
        and (path not in before.paths or before.paths[path].identity != state.identity)
    }
    assert sorted(written) == sorted(WRITTEN)
    modes = {path: (item["mode"], item["owner"]) for path, item in written.items()}
    assert modes == dict.fromkeys(WRITTEN, ("0644", "0:0"))


@promise(section="7", unit=UNIT)
def test_file_of_the_user_keeps_its_lines_and_its_owner_and_its_mode(
    start_validated: StartNode,
) -> None:
    """The label is added to the line that systemd reads last; other users may not read the file.

    The path is a link to a link to the file, which the administrator keeps elsewhere. The temporary
    file that a killed run left beside the file is removed.
    """
    own = [
        *("KUBELET_FLAGS=--v=2", "KUBELET_NODE_LABELS=old=1"),
        *('KUBELET_NODE_LABELS="zone=1"', "KUBELET_LAST=1"),
    ]
    file, link, left = "/srv/kubelet", "/srv/kubelet.current", "/srv/.kubelet.k1ll3d_0"
    node = start_validated(
        "private",
        config=MANAGED,
        before=[
            shell(f"printf '%s\\n' {shlex.join(own)} >{file}"),
            shell(f"chown 1000:100 {file}; chmod 0640 {file}"),
            shell(f"ln -s {file} {link}; ln -sfn {link} {DEFAULTS}; touch {left}"),
        ],
    )

    defaults = node.guest.output_of("cat", file).splitlines()

    labels = "KUBELET_NODE_LABELS=zone=1,kubernetes.azure.com/dcgm-exporter=enabled"
    assert defaults == [*own[:2], labels, own[3]]
    assert node.guest.output_of("stat", "-c", "%u:%g %a", file).strip() == "1000:100 640"
    links = node.guest.output_of("readlink", DEFAULTS, link).split()
    assert links == [link, file], f"Links were expected to stay, but they are {links}."
    assert not node.guest.run("test", "-e", left).ok, f"'{left}' was expected to be removed."
