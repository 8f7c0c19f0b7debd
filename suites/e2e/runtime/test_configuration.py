"""Tests of the lines that a node adds to its container runtime's configuration, or keeps there.

These nodes find that their driver works, so they install no driver, which saves time.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import pytest

from harness import expect
from harness.api import GuestFile
from suites.e2e.guest_script import shell
from suites.e2e.promises import promise
from suites.e2e.runtime.containerd import CONFIG, CRI, containerd_version

if TYPE_CHECKING:
    from collections.abc import Mapping

    from harness.evidence import Evidence
    from harness.lab.node import Node
    from suites.e2e.conftest import StartNode

UNIT = "suites/unit/provisioning/test_toolkit.py"
CONFIG_UNIT = "suites/unit/provisioning/test_containerd_config.py"
RUNTIME = "/usr/bin/nvidia-container-runtime"
PLUGIN = "nvidia-device-plugin"
SOCKET = "/run/containerd/containerd.sock"
CRI_O_DROP_IN = "/etc/crio/crio.conf.d/99-nvidia.conf"
CRI_O_HOOK = "/usr/share/containers/oci/hooks.d/oci-nvidia-hook.json"
QUICK: Mapping[str, object] = {"config_gpu_driver_if_needed": False, "retry_budget_s": 240}


def conf(text: str) -> GuestFile:
    return GuestFile(path=CONFIG, content=text.encode())


@dataclass(frozen=True, kw_only=True)
class Users:
    """A user's configuration, and lines of this configuration that containerd must still print."""

    config: str
    kept: tuple[str, ...]
    files: tuple[GuestFile, ...] = field(default=())
    options: tuple[str, ...] = ()
    """Options of runc that the nvidia runtime must have too."""


USERS: Mapping[str, Users] = {
    "imports": Users(
        config='version = 2\nimports = [\n  "/etc/containerd/conf.d/*.toml",\n]\noom_score = -7\n',
        files=(
            GuestFile(
                path="/etc/containerd/conf.d/mine.toml",
                content=b'version = 2\n[debug]\n  level = "warn"\n',
            ),
        ),
        kept=("oom_score = -7", 'level = "warn"'),
    ),
    "another root": Users(
        config='root = "/srv/containerd"\nversion = 2\n', kept=('root = "/srv/containerd"',)
    ),
    "format of containerd 1.0": Users(
        config='[plugins.cri]\n  sandbox_image = "registry.example/pause:3.9"\n',
        kept=('sandbox_image = "registry.example/pause:3.9"',),
    ),
    "short names of plugins": Users(
        config='disabled_plugins = ["aufs"]\noom_score = -7\n',
        kept=('disabled_plugins = ["aufs"]', "oom_score = -7"),
    ),
    "runtime that is commented out": Users(
        config=f"version = 2\noom_score = -7\n#{CRI[:-1]}.containerd.runtimes.nvidia.options]\n"
        f'#  BinaryName = "{RUNTIME}"\n',
        kept=("oom_score = -7",),
    ),
    "variant of NVIDIA's runtime": Users(
        config=f"version = 2\n{CRI[:-1]}.containerd.runtimes.nvidia-cdi]\n"
        f'  runtime_type = "io.containerd.runc.v2"\n{CRI[:-1]}.containerd.runtimes.nvidia-cdi.options]\n'
        f'  BinaryName = "{RUNTIME}.cdi"\n',
        kept=(f'BinaryName = "{RUNTIME}.cdi"',),
    ),
    "own options of runc": Users(
        config=f"version = 2\n{CRI[:-1]}.containerd.runtimes.runc]\n"
        f'  runtime_type = "io.containerd.runc.v2"\n{CRI[:-1]}.containerd.runtimes.runc.options]\n'
        '  BinaryName = "/usr/sbin/runc"\n  SystemdCgroup = true\n',
        kept=('BinaryName = "/usr/sbin/runc"', "SystemdCgroup = true"),
        options=("SystemdCgroup = true",),
    ),
    "runtime without a type": Users(
        config=f"version = 2\n{CRI[:-1]}.containerd.runtimes.nvidia.options]\n"
        f'  BinaryName = "{RUNTIME}"\n  SystemdCgroup = true\n',
        kept=("SystemdCgroup = true",),
        options=("SystemdCgroup = true",),
    ),
}


def dump_of(evidence: Evidence) -> str:
    return evidence.answer_of("containerd-config")


def expect_restarted_after(evidence: Evidence) -> None:
    """Expect that the running containerd started after its present configuration was written."""
    written, started = evidence.paths[CONFIG], evidence.paths[SOCKET]
    assert started.modified_at_s > written.modified_at_s, (
        f"containerd was expected to start after '{CONFIG}' was written, but its socket is "
        f"{written.modified_at_s - started.modified_at_s:.1f} s older."
    )
    expect.unit_state(evidence, "containerd.service", active="active")


@promise(section="10", unit=UNIT)
@pytest.mark.parametrize("users", [pytest.param(row, id=name) for name, row in USERS.items()])
def test_users_configuration_keeps_its_lines_and_gets_the_runtime(
    start_node: StartNode, users: Users
) -> None:
    """Only the needed keys are added, and they are in effect in the running containerd."""
    node = start_node("users", files=[conf(users.config), *users.files], config=QUICK)

    evidence = node.evidence(files=[CONFIG, SOCKET])

    expect.provisioned(evidence)
    dump = dump_of(evidence)
    assert f'BinaryName = "{RUNTIME}"' in dump
    missing = [line for line in users.kept if line not in dump]
    assert missing == [], (
        f"These lines of the user's were expected to stay, but are gone: {missing}."
    )
    runtime = dump.partition(".runtimes.nvidia]")[2].partition("[plugins")[0]
    assert 'runtime_type = "io.containerd.runc.v2"' in runtime
    own = dump.partition(".runtimes.nvidia.options]")[2].partition("[plugins")[0]
    missing = [line for line in users.options if line not in own]
    assert missing == [], (
        f"The nvidia runtime was expected to have runc's options {missing}, but it has only: {own}"
    )
    if containerd_version(node) >= (1, 7):
        assert "enable_cdi = true" in dump
        assert 'default_runtime_name = "nvidia"' not in dump
    else:
        assert 'default_runtime_name = "nvidia"' in dump
    expect_restarted_after(evidence)


@promise(section="10", unit=UNIT)
@pytest.mark.pin_image(reason="containerd is Debian sid's on each image")
@pytest.mark.parametrize(
    "config",
    [
        pytest.param("# mine\noom_score = -7\n", id="no format"),
        pytest.param("version = 2\noom_score = -7\n", id="format 2"),
        pytest.param('disabled_plugins = ["aufs"]\noom_score = -7\n', id="short names of plugins"),
    ],
)
def test_containerd_2_finds_the_runtime_in_a_users_older_file(
    start_with_containerd_2: StartNode, config: str
) -> None:
    """Containerd 2 ignores tables of format 1, the format of a file without a version."""
    node = start_with_containerd_2("older-file", files=[conf(config)], config=QUICK)

    evidence = node.evidence(files=[CONFIG, SOCKET])

    expect.provisioned(evidence)
    assert containerd_version(node) >= (2, 0)
    dump = dump_of(evidence)
    assert f"BinaryName = '{RUNTIME}'" in dump
    assert "oom_score = -7" in dump
    assert config in (evidence.file(CONFIG) or "")
    expect_restarted_after(evidence)


@promise(section="10", unit=UNIT)
def test_configuration_that_is_not_toml_is_refused_and_kept(start_node: StartNode) -> None:
    """The file cannot be edited, so the run ends with exit code 6."""
    broken = 'version = 2\n[plugins."io.containerd.grpc.v1.cri"\n'
    node = start_node("broken", files=[conf(broken)], config=QUICK)

    evidence = node.evidence(files=[CONFIG])

    expect.provisioned(evidence, exit_code=6)
    expect.log_line(evidence, f"containerd's configuration '{CONFIG}' cannot be edited")
    assert evidence.file(CONFIG) == broken
    expect.unit_state(evidence, "containerd.service", active="active")


@dataclass(frozen=True, kw_only=True)
class Ineffective:
    """A configuration with which the runtime cannot take effect, and the log line about this."""

    config: str
    words: str
    files: tuple[GuestFile, ...] = ()


INEFFECTIVE: Mapping[str, Ineffective] = {
    "package of Docker": Ineffective(
        config='disabled_plugins = ["cri"]\n', words="Its CRI plugin is disabled"
    ),
    "imported mirror": Ineffective(
        config='version = 2\nimports = ["/etc/containerd/conf.d/*.toml"]\n',
        files=(
            GuestFile(
                path="/etc/containerd/conf.d/mirror.toml",
                content=f'version = 2\n{CRI[:-1]}.registry.mirrors."mirror.test"]\n'
                'endpoint = ["http://mirror.test"]\n'.encode(),
            ),
        ),
        words="None of its runtimes ['runc'] has",
    ),
}


@promise(section="10", unit=CONFIG_UNIT)
@pytest.mark.parametrize("row", [pytest.param(row, id=name) for name, row in INEFFECTIVE.items()])
def test_configuration_that_cannot_take_effect_is_refused_and_kept(
    start_node: StartNode, row: Ineffective
) -> None:
    """A node is ready only if containerd itself lists the runtime."""
    node = start_node("ineffective", files=[conf(row.config), *row.files], config=QUICK)

    evidence = node.evidence(files=[CONFIG])

    expect.provisioned(evidence, exit_code=6)
    expect.log_line(evidence, row.words)
    assert evidence.file(CONFIG) == row.config
    expect.unit_state(evidence, "containerd.service", active="active")


@promise(section="10", unit=UNIT)
def test_configuration_that_already_names_the_runtime_is_kept(start_node: StartNode) -> None:
    """The only change switches CDI on, if containerd supports CDI and has CDI switched off."""
    own = (
        f"version = 2\n{CRI}\n  enable_cdi = false  # for now\n"
        f'{CRI[:-1]}.containerd.runtimes.runc]\n  runtime_type = "io.containerd.runc.v2"\n'
        f'{CRI[:-1]}.containerd.runtimes.nvidia]\n  runtime_type = "io.containerd.runc.v2"\n'
        f'{CRI[:-1]}.containerd.runtimes.nvidia.options]\n  BinaryName = "{RUNTIME}"\n'
    )
    node = start_node("named", files=[conf(own)], config=QUICK)

    evidence = node.evidence(files=[CONFIG])

    expect.provisioned(evidence)
    if containerd_version(node) >= (1, 7):
        assert evidence.file(CONFIG) == own.replace("enable_cdi = false", "enable_cdi = true")
        assert "enable_cdi = true" in dump_of(evidence)
    else:
        assert evidence.file(CONFIG) == own


@promise(section="10", unit=UNIT)
@pytest.mark.parametrize(
    ("default", "left"),
    [
        pytest.param("nvidia", "runc", id="nvidia is the default"),
        pytest.param("mine", "mine", id="another default"),
    ],
)
def test_opt_out_removes_only_the_nvidia_runtime_from_the_configuration(
    start_node: StartNode, default: str, left: str
) -> None:
    """Without the driver, containers with that runtime would not start."""
    mine = (
        f"version = 2\n{CRI[:-1]}.containerd]\n"
        f'default_runtime_name = "{default}"  # for all pods\n'
        f"{CRI[:-1]}.containerd.runtimes.runc]\n"
        'runtime_type = "io.containerd.runc.v2"\n'
        f"{CRI[:-1]}.containerd.runtimes.mine]\n"
        'runtime_type = "io.containerd.runc.v2"\n'
    )
    nvidia = (
        f'{CRI[:-1]}.containerd.runtimes.nvidia]\nruntime_type = "io.containerd.runc.v2"\n'
        'container_annotations = [\n  "nvidia.cdi.k8s.io/*",\n  "mine.test/*",\n]\n'
        f'{CRI[:-1]}.containerd.runtimes.nvidia.options]\nBinaryName = "{RUNTIME}"\n'
    )
    node = start_node(
        "opted-out",
        files=[conf(mine + nvidia)],
        config=QUICK,
        tags={"SkipGpuDriverInstall": "true"},
    )

    evidence = node.evidence(files=[CONFIG, SOCKET])

    expect.provisioned(evidence)
    assert evidence.file(CONFIG) == mine.replace(f'= "{default}"', f'= "{left}"')
    expect_restarted_after(evidence)
    # The node starts kubelet first, and only then removes the driver that it will not use.
    outcome = evidence.outcome
    assert outcome is not None
    assert [step.name for step in outcome.steps][-2:] == ["start-kubelet", "clean-up-driver"]
    expect.events_recorded(evidence, "AKS.CSE.cleanUpGPUDrivers")


#: AKS's configuration for a node with a GPU: no runtime is named `nvidia`, and there is no runc.
AKS = (
    f"version = 2\n{CRI[:-1]}.containerd]\n"
    'default_runtime_name = "nvidia-container-runtime"\n'
    f"{CRI[:-1]}.containerd.runtimes.nvidia-container-runtime]\n"
    'runtime_type = "io.containerd.runc.v2"\n'
    f"{CRI[:-1]}.containerd.runtimes.nvidia-container-runtime.options]\n"
    f'BinaryName = "{RUNTIME}"\nSystemdCgroup = true\n'
    f"{CRI[:-1]}.containerd.runtimes.untrusted]\n"
    'runtime_type = "io.containerd.runc.v2"\n'
    f'{CRI[:-1]}.containerd.runtimes.untrusted.options]\nBinaryName = "{RUNTIME}"\n'
    f"{CRI[:-1]}.containerd.runtimes.variant]\n"
    'runtime_type = "io.containerd.runc.v2"\n'
    f'{CRI[:-1]}.containerd.runtimes.variant.options]\nBinaryName = "{RUNTIME}.cdi"\n'
)


@promise(section="10", unit=CONFIG_UNIT)
def test_node_that_opts_out_starts_its_pods_with_runc(start_node: StartNode) -> None:
    """Runc replaces the default runtime and the runtimes that pods name, and gets their options."""
    node = start_node(
        "opted-out-aks",
        files=[conf(AKS)],
        config=QUICK,
        tags={"SkipGpuDriverInstall": "true"},
    )

    evidence = node.evidence(
        files=[CONFIG, SOCKET], commands={"plugins": ["ctr", "plugins", "ls"]}
    )

    expect.provisioned(evidence)
    dump = dump_of(evidence)
    assert RUNTIME not in dump
    assert 'default_runtime_name = "runc"' in dump
    assert "SystemdCgroup = true" in dump.partition(".runtimes.runc.options]")[2]
    assert "runtimes.untrusted]" in dump
    states = [
        line.split()[-1] for line in evidence.answer_of("plugins").splitlines() if " cri " in line
    ]
    assert states == ["ok"], f"containerd's CRI plugin was expected to run, but is {states}."
    expect_restarted_after(evidence)


@promise(section="10", unit=UNIT)
def test_opt_out_removes_the_configuration_of_the_nvidia_runtime_for_cri_o(
    start_node: StartNode,
) -> None:
    """CRI-O would start its containers with a program that needs the removed driver."""
    files = (CRI_O_DROP_IN, CRI_O_HOOK)
    node = start_node(
        "opted-out-cri-o",
        files=[GuestFile(path=path, content=b"{}\n") for path in files],
        config={**QUICK, "container_runtime": "cri-o"},
        tags={"SkipGpuDriverInstall": "true"},
    )

    evidence = node.evidence(files=files)

    expect.provisioned(evidence)
    left = [path for path in files if path in evidence.paths]
    assert left == [], f"None of {files} was expected to stay, but {left} did."


@dataclass(frozen=True, kw_only=True)
class Engine:
    """A row of the decision table: the settings, and the device plugin's environment for them."""

    config: Mapping[str, object]
    old: Mapping[str, str]
    """With containerd 1.6."""
    new: Mapping[str, str]
    """With containerd 1.7."""
    has_handler: bool = True
    cri_o: str | None = None
    """The file that CRI-O gets."""
    cri_o_line: str | None = None
    """A line of this file."""


NATIVE = {
    "DEVICE_LIST_STRATEGY": "cdi-annotations,cdi-cri",
    "CDI_ENABLED": "true",
    "CDI_ANNOTATION_PREFIX": "cdi.k8s.io/",
}
OLDER = {
    "DEVICE_LIST_STRATEGY": "envvar,cdi-annotations",
    "CDI_ENABLED": "true",
    "CDI_ANNOTATION_PREFIX": "nvidia.cdi.k8s.io/",
}
PLAIN = {"DEVICE_LIST_STRATEGY": "envvar"}
ENGINES: Mapping[str, Engine] = {
    "containerd with CDI": Engine(config={}, old=OLDER, new=NATIVE),
    "containerd without CDI": Engine(config={"cdi_enabled": False}, old=PLAIN, new=PLAIN),
    "CRI-O with CDI": Engine(
        config={"container_runtime": "cri-o"},
        old=NATIVE,
        new=NATIVE,
        has_handler=False,
        cri_o=CRI_O_DROP_IN,
        cri_o_line=f'runtime_path = "{RUNTIME}"',
    ),
    "CRI-O without CDI": Engine(
        config={"container_runtime": "cri-o", "cdi_enabled": False},
        old=PLAIN,
        new=PLAIN,
        has_handler=False,
        cri_o=CRI_O_HOOK,
        cri_o_line=f'"path": "{RUNTIME}-hook",',
    ),
}
#: Prints the environment of the running process, even if systemd has reloaded the unit since then.
PLUGIN_ENVIRONMENT = shell(
    f"tr '\\0' '\\n' </proc/$(systemctl show --value --property=MainPID {PLUGIN})/environ"
)
#: The configuration that CRI-O read at its last start.
CRI_O_READ = "/run/crio-read"
CRI_O_UNIT = (
    f"[Service]\nType=oneshot\nRemainAfterExit=yes\n"
    f"ExecStart=sh -c 'cat {CRI_O_DROP_IN} {CRI_O_HOOK} >{CRI_O_READ}; true'\n"
    "[Install]\nWantedBy=multi-user.target\n"
)
#: A node whose CRI-O runs with the files of both modes, left by earlier runs with other settings.
CRI_O_FILES = tuple(
    GuestFile(path=path, content=text.encode())
    for path, text in (
        ("/etc/systemd/system/crio.service", CRI_O_UNIT),
        (CRI_O_DROP_IN, "# old\n"),
        (CRI_O_HOOK, "{}\n"),
    )
)
START_CRI_O = shell("systemctl daemon-reload; systemctl start crio")


def expect_read_by_cri_o(node: Node, row: Engine) -> None:
    """Expect that CRI-O runs and was started with the file for the row's mode."""
    read = node.guest.read_text(CRI_O_READ) or ""
    assert row.cri_o_line in [line.strip() for line in read.splitlines()], (
        f"CRI-O was expected to be started with '{row.cri_o_line}', but it has read:\n{read}"
    )
    assert node.guest.run("systemctl", "is-active", "crio").ok, "CRI-O was expected to run."


@promise(section="10", unit=UNIT)
@pytest.mark.parametrize("row", [pytest.param(row, id=name) for name, row in ENGINES.items()])
def test_device_plugin_passes_devices_in_the_form_that_the_runtime_accepts(
    start_node: StartNode, row: Engine
) -> None:
    """The form depends on the settings, and on the CDI support of the node's containerd."""
    node = start_node(
        "engine",
        config={**QUICK, "enable_managed_gpu": True, **row.config},
        files=() if row.cri_o is None else CRI_O_FILES,
        before=() if row.cri_o is None else [START_CRI_O],
    )

    evidence = node.evidence(
        files=[CRI_O_DROP_IN, CRI_O_HOOK],
        commands={"plugin": PLUGIN_ENVIRONMENT},
    )

    expect.provisioned(evidence)
    is_new = containerd_version(node) >= (1, 7)
    lines = evidence.answer_of("plugin").splitlines()
    found = dict(line.split("=", 1) for line in lines if line.startswith(("DEVICE_", "CDI_")))
    wanted = row.new if is_new else row.old
    assert found == wanted, f"The plugin was expected to run with {wanted}, but runs with {found}."
    expect.unit_state(evidence, f"{PLUGIN}.service", active="active")
    assert (f'BinaryName = "{RUNTIME}"' in dump_of(evidence)) == row.has_handler
    passes_annotations = 'container_annotations = ["nvidia.cdi.k8s.io/*"]' in dump_of(evidence)
    assert passes_annotations == (row.has_handler and wanted == OLDER), dump_of(evidence)
    files = [path for path in (CRI_O_DROP_IN, CRI_O_HOOK) if path in evidence.paths]
    assert files == ([] if row.cri_o is None else [row.cri_o])
    if row.cri_o is not None:
        expect_read_by_cri_o(node, row)
    if row.cri_o == CRI_O_DROP_IN:
        assert evidence.file(CRI_O_DROP_IN) == (
            f'[crio.runtime.runtimes.nvidia]\nruntime_path = "{RUNTIME}"\nruntime_type = "oci"\n'
        )
    if row.cri_o == CRI_O_HOOK:
        hook = json.loads(evidence.file(CRI_O_HOOK) or "")
        assert hook["hook"]["args"] == ["nvidia-container-runtime-hook", "prestart"]
        assert hook["when"] == {"always": True, "commands": [".*"]}
        assert hook["stages"] == ["prestart"]


@promise(section="10", unit=UNIT)
def test_users_drop_in_overrides_the_environment_of_the_device_plugin(
    start_node: StartNode,
) -> None:
    """The drop-in sets a variable that provisioning sets too."""
    own = b"[Service]\nEnvironment=DEVICE_LIST_STRATEGY=volume-mounts\n"
    node = start_node(
        "own-environment",
        config={**QUICK, "enable_managed_gpu": True},
        files=[
            GuestFile(path=f"/etc/systemd/system/{PLUGIN}.service.d/override.conf", content=own)
        ],
    )

    evidence = node.evidence(
        commands={"plugin": ["systemctl", "show", "--property=Environment", "--value", PLUGIN]}
    )

    expect.provisioned(evidence)
    assert "DEVICE_LIST_STRATEGY=volume-mounts" in evidence.answer_of("plugin").split()


@promise(section="10", unit="suites/unit/provisioning/test_configuration.py")
@pytest.mark.parametrize(
    "config",
    [
        pytest.param({"container_runtime": "docker"}, id="container runtime"),
        pytest.param({"cdi_enabled": "perhaps"}, id="CDI"),
    ],
)
def test_unknown_value_of_a_runtime_setting_is_refused(
    start_node: StartNode, config: Mapping[str, object]
) -> None:
    """An unknown value ends the run with 2 before anything is changed."""
    node = start_node("unknown", config=config)

    evidence = node.evidence()

    expect.provisioned(evidence, exit_code=2)
    (key,) = config
    expect.log_line(evidence, key)
