"""The container runtime's configuration and the CDI spec."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import TYPE_CHECKING

import pytest
from typing_extensions import override

from harness.provisioning.cdi import CdiSupport, Engine, choose_runtime
from harness.provisioning.command import CommandResult
from harness.provisioning.containerd_config import WantedRuntimes
from harness.provisioning.executor import Executor
from harness.provisioning.exit_codes import ExitCode, ProvisioningError
from harness.provisioning.node_files import NodeFiles
from harness.provisioning.plan import Plan, Step
from harness.provisioning.retry import StepFailedError
from harness.provisioning.toml_text import TomlTextError, get_value
from harness.provisioning.toolkit import (
    CDI_SPEC,
    CRI_O_DROP_IN,
    CRI_O_HOOK,
    TOOLKIT_CONFIG,
    RuntimeFacts,
    configure_containerd,
    configure_toolkit,
    cri_o_files,
    expect_in_effect,
    expect_spec,
    gpu_configuration,
    has_spec,
    non_gpu_configuration,
    regenerate_spec,
    tolerate_early_refresh,
    toolkit_configuration,
    validate_spec,
)
from harness.shell.mocks.scripted_runner import ScriptedRunner

from .fakes import make_node, plan_lines

if TYPE_CHECKING:
    from pathlib import Path

    from harness.provisioning.cdi import RuntimeChoice
    from harness.provisioning.command import Argv
    from harness.provisioning.plan import Action

NATIVE = choose_runtime(Engine.CONTAINERD, is_cdi_enabled=True, is_native=True)
OLDER = choose_runtime(Engine.CONTAINERD, is_cdi_enabled=True, is_native=False)

IS_LOADED = "systemctl show --property=LoadState --value "

USERS = """\
version = 2
# mine
[plugins."io.containerd.grpc.v1.cri".containerd.runtimes.runc]
  runtime_type = "io.containerd.runc.v2"
  privileged_without_host_devices = true
[plugins."io.containerd.grpc.v1.cri".containerd.runtimes.runc.options]
  SystemdCgroup = true
  BinaryName = "/usr/bin/runc"
[plugins."io.containerd.grpc.v1.cri"]
  sandbox_image = "registry.example/pause:3.9"
"""
RUNC = """
[plugins."io.containerd.grpc.v1.cri".containerd.runtimes.runc]
runtime_type = "io.containerd.runc.v2"
"""
RUNTIME = """
[plugins."io.containerd.grpc.v1.cri".containerd.runtimes.nvidia]
runtime_type = "io.containerd.runc.v2"

[plugins."io.containerd.grpc.v1.cri".containerd.runtimes.nvidia.options]
BinaryName = "/usr/bin/nvidia-container-runtime"
SystemdCgroup = true
"""
#: containerd 1.6 passes on to the runtime only the annotations that are listed.
OLDER_RUNTIME = RUNTIME.replace(
    "runtimes.nvidia]\n", 'runtimes.nvidia]\ncontainer_annotations = ["nvidia.cdi.k8s.io/*"]\n'
)
DEFAULT = """
[plugins."io.containerd.grpc.v1.cri".containerd]
default_runtime_name = "nvidia"
"""


def facts(text: str | None, cdi: CdiSupport = CdiSupport.NATIVE) -> RuntimeFacts:
    return RuntimeFacts(text=text, cdi=cdi)


def take(tmp_path: Path, runner: ScriptedRunner, *actions: Action) -> Executor:
    executor = Executor(make_node(runner, tmp_path))
    step = Step(name="s", actions=actions, exit_code=ExitCode.INTERNAL_ERROR)
    executor.run(Plan((step,)))
    return executor


def test_users_settings_are_kept_when_the_nvidia_runtime_is_added() -> None:
    """Annotations name CDI devices; without CDI, the plugin uses the environment only."""
    older = USERS.replace("io.containerd.runc.v2", "io.containerd.runc.v1")
    own = "version = 2\n" + RUNC + RUNTIME.replace("SystemdCgroup = true\n", "")
    rows = {
        facts(USERS): USERS + RUNTIME,
        facts(older): older + RUNTIME,
        facts(USERS, CdiSupport.ABSENT): USERS + OLDER_RUNTIME + DEFAULT,
        **{
            replace(facts(USERS, cdi), is_cdi_enabled=False): USERS + RUNTIME + DEFAULT
            for cdi in CdiSupport
        },
        facts(None): own,
    }

    assert {seen: gpu_configuration(seen) for seen in rows} == rows


def test_configuration_with_the_nvidia_runtime_only_gets_enable_cdi() -> None:
    text = USERS + RUNTIME
    rows = {
        facts(text): None,
        facts(text, CdiSupport.ABSENT): None,
        facts(text, CdiSupport.CAPABLE): text.replace('.cri"]\n', '.cri"]\nenable_cdi = true\n'),
    }

    assert {seen: gpu_configuration(seen) for seen in rows} == rows
    added = gpu_configuration(facts(USERS, CdiSupport.CAPABLE)) or ""
    assert '[plugins."io.containerd.grpc.v1.cri"]\nenable_cdi = true\n' in added
    assert "default_runtime_name" not in added


def test_runc_is_added_to_a_configuration_without_runtimes() -> None:
    """A table of runtimes in the file replaces the default table of containerd."""
    for cdi in CdiSupport:
        text = gpu_configuration(facts("version = 2\n", cdi))

        assert text is not None
        assert RUNC in text


def test_runtime_table_has_the_name_that_the_configuration_version_requires() -> None:
    for version, table in (
        ("version = 3\n", 'plugins."io.containerd.cri.v1.runtime"'),
        ("version = 1\n", "plugins.cri"),
        ("[plugins.cri]\n", "plugins.cri"),
        ("", 'plugins."io.containerd.grpc.v1.cri"'),
    ):
        text = gpu_configuration(facts(version + "root = '/x'\n")) or ""
        assert f"[{table}.containerd.runtimes.nvidia]" in text.splitlines(), version


def test_configuration_without_version_gets_version_2_unless_it_has_version_1_tables() -> None:
    """Containerd 2 ignores tables of format 1, the default of a file without a version."""
    text = gpu_configuration(facts("# mine\noom_score = -7\n")) or ""
    assert text.startswith("version = 2\n# mine\noom_score = -7\n")

    users = '[plugins.opt]\n  path = "/srv/opt"\n'
    text = gpu_configuration(facts(users)) or ""
    assert text.startswith(users)
    assert get_value(text, ("version",)) is None


def test_non_gpu_configuration_removes_only_the_nvidia_runtime() -> None:
    kata = DEFAULT.replace("nvidia", "kata")
    rows = {
        USERS + DEFAULT + RUNTIME: USERS + DEFAULT.replace('"nvidia"', '"runc"'),
        USERS + RUNTIME.replace("/usr/bin/", ""): USERS,
        USERS + kata + RUNTIME: USERS + kata,
        USERS: None,
        None: None,
    }

    assert {text: non_gpu_configuration(facts(text)) for text in rows} == rows


def test_invalid_toml_configuration_is_refused() -> None:
    with pytest.raises(TomlTextError):
        gpu_configuration(facts("[broken"))
    with pytest.raises(TomlTextError):
        non_gpu_configuration(facts("[broken /usr/bin/nvidia-container-runtime"))


def test_mode_of_the_nvidia_runtime_is_set_and_the_users_settings_are_kept() -> None:
    text = '#mine\n[nvidia-container-runtime]\nmode = "auto"\nlog-level = "info"\n'
    hook = choose_runtime(Engine.CRI_O, is_cdi_enabled=False, is_native=True)
    without = choose_runtime(Engine.CONTAINERD, is_cdi_enabled=False, is_native=False)
    modes = '\n[nvidia-container-runtime.modes.cdi]\nannotation-prefixes = ["{}"]\n'
    with_cdi = text.replace('"auto"', '"cdi"')
    mine = with_cdi + modes.format("mine/")

    assert toolkit_configuration(text, NATIVE) == with_cdi
    assert toolkit_configuration(text, OLDER) == with_cdi + modes.format("nvidia.cdi.k8s.io/")
    assert toolkit_configuration(mine, NATIVE) == mine
    assert toolkit_configuration(mine, OLDER) == mine.replace("mine/", "nvidia.cdi.k8s.io/")
    assert toolkit_configuration(with_cdi, without) == text
    assert toolkit_configuration("a = 1\n", hook) == "a = 1\n"


def test_existing_toolkit_configuration_is_written_only_if_it_changes(tmp_path: Path) -> None:
    files = NodeFiles(tmp_path)
    (absent,) = take(tmp_path, ScriptedRunner(), configure_toolkit(NATIVE)).reports
    assert absent.detail == f"There is no '{TOOLKIT_CONFIG}'."

    for text in ("[nvidia-container-runtime]\n", ""):
        files.write(TOOLKIT_CONFIG, text, mode=0o600)
        (report,) = take(tmp_path, ScriptedRunner(), configure_toolkit(NATIVE)).reports

        written = (files.read(TOOLKIT_CONFIG) or "").strip()
        assert written == '[nvidia-container-runtime]\nmode = "cdi"'
        assert files.at(TOOLKIT_CONFIG).stat().st_mode & 0o7777 == 0o600
        assert report.detail is None

    before = files.at(TOOLKIT_CONFIG).stat().st_ino
    take(tmp_path, ScriptedRunner(), configure_toolkit(NATIVE))
    assert files.at(TOOLKIT_CONFIG).stat().st_ino == before
    assert plan_lines(configure_toolkit(NATIVE)) == [f"set mode cdi in {TOOLKIT_CONFIG}"]
    assert TOOLKIT_CONFIG == "/etc/nvidia-container-runtime/config.toml"


def test_invalid_toolkit_toml_fails_the_step(tmp_path: Path) -> None:
    NodeFiles(tmp_path).write(TOOLKIT_CONFIG, "[broken")

    with pytest.raises(
        ProvisioningError, match=f"^'{TOOLKIT_CONFIG}' cannot be edited: line 1: "
    ) as error:
        configure_toolkit(NATIVE).function(make_node(ScriptedRunner(), tmp_path))

    assert error.value.exit_code is ExitCode.GPU_DRIVERS_START_FAIL


def test_cdi_refresh_unit_may_fail_before_the_driver_is_ready(
    tmp_path: Path,
) -> None:
    files = NodeFiles(tmp_path)
    path = "/etc/systemd/system/nvidia-cdi-refresh.service.d/10-aks-tolerate-generate-failure.conf"
    read: list[str | None] = []
    with ScriptedRunner().expect(
        "systemctl daemon-reload",
        exit_code=1,
        effect=lambda: read.append(files.read(path)),
    ) as runner:
        take(tmp_path, runner, *tolerate_early_refresh())

    assert read == ["[Service]\nSuccessExitStatus=1 2 127\n"]
    assert files.at(path).stat().st_mode & 0o7777 == 0o644


ASK = "systemctl show --property=LoadState --value nvidia-cdi-refresh.service"
SPEC = 'kind: nvidia.com/gpu\ndevices:\n- name: "0"\n'


def test_cdi_spec_is_regenerated_even_if_systemctl_fails(tmp_path: Path) -> None:
    """The state of the units in systemd does not matter."""
    files = NodeFiles(tmp_path)

    def generate() -> None:
        assert not files.exists(CDI_SPEC)
        files.write(CDI_SPEC, SPEC)

    for exit_code in (0, 1):
        files.write(CDI_SPEC, "old nvidia.com/gpu")
        with (
            ScriptedRunner()
            .expect(ASK, stdout="loaded\n")
            .expect("systemctl reset-failed nvidia-cdi-refresh.service nvidia-cdi-refresh.path")
            .expect(
                "systemctl start nvidia-cdi-refresh.service",
                exit_code=exit_code,
                timeout_s=60,
                effect=generate,
            )
            .expect(
                "systemctl restart nvidia-cdi-refresh.path", exit_code=exit_code, timeout_s=25
            ) as runner
        ):
            take(tmp_path, runner, *regenerate_spec())

        assert has_spec(make_node(ScriptedRunner(), tmp_path))


def test_node_without_the_refresh_unit_needs_no_cdi_spec(tmp_path: Path) -> None:
    with ScriptedRunner().expect(ASK, stdout="not-found\n", times=2) as runner:
        take(tmp_path, runner, *regenerate_spec())
        take(tmp_path, runner, *validate_spec())


def test_missing_cdi_spec_or_cdi_spec_without_a_gpu_fails_the_step(tmp_path: Path) -> None:
    files = NodeFiles(tmp_path)

    def expect_failure() -> None:
        with pytest.raises(ProvisioningError, match="wrote no device") as error:
            expect_spec(make_node(ScriptedRunner(), tmp_path))
        assert error.value.exit_code is ExitCode.GPU_DRIVERS_START_FAIL

    expect_failure()
    files.write(CDI_SPEC, "kind: nvidia.com/gpu\ndevices: []\n")
    expect_failure()
    files.remove(CDI_SPEC)
    files.make_directory(CDI_SPEC)
    expect_failure()


def test_validation_checks_the_refresh_unit_and_the_cdi_spec(tmp_path: Path) -> None:
    NodeFiles(tmp_path).write(CDI_SPEC, SPEC)
    with (
        ScriptedRunner()
        .expect(ASK, stdout="loaded\n")
        .expect(
            "systemctl is-failed nvidia-cdi-refresh.service", exit_code=1, stdout="inactive"
        ) as runner
    ):
        take(tmp_path, runner, *validate_spec())

    assert plan_lines(*validate_spec())[2:] == [
        "  expect that nvidia-cdi-refresh.service has not failed",
        "  expect a device of nvidia.com/gpu in /var/run/cdi/nvidia.yaml",
    ]


def test_failed_refresh_unit_fails_validation(tmp_path: Path) -> None:
    with (
        pytest.raises(ProvisioningError) as error,
        ScriptedRunner()
        .expect(ASK, stdout="loaded\n")
        .expect("systemctl is-failed nvidia-cdi-refresh.service", stdout="failed\n") as runner,
    ):
        take(tmp_path, runner, *validate_spec())

    assert error.value.exit_code is ExitCode.GPU_DRIVERS_START_FAIL
    assert "The unit nvidia-cdi-refresh.service has failed" in str(error.value)


def test_validation_expects_the_nvidia_runtime_in_containerd_config_dump(tmp_path: Path) -> None:
    dump = "version = 2\n" + RUNC + RUNTIME
    handler = expect_in_effect(WantedRuntimes(has_nvidia=True))
    with ScriptedRunner().expect("containerd config dump", stdout=dump, timeout_s=60) as runner:
        take(tmp_path, runner, handler)

    assert plan_lines(handler) == [
        "expect /usr/bin/nvidia-container-runtime in containerd config dump"
    ]


def test_error_about_a_linked_containerd_configuration_names_the_link(
    tmp_path: Path,
) -> None:
    files = NodeFiles(tmp_path)
    files.write("/srv/containerd.toml", "old")
    files.make_directory("/etc/containerd")
    files.at("/etc/containerd/config.toml").symlink_to("../../srv/containerd.toml")

    class Containerd(ScriptedRunner):
        @override
        def run(self, argv: Argv, **_: object) -> CommandResult:
            dump = f'imports = ["{argv[2]}"]\nversion = 2\n{RUNC}'
            return CommandResult(argv=tuple(argv), exit_code=0, stdout=dump, stderr="")

    configure = configure_containerd("version = 2\n", WantedRuntimes(has_nvidia=True))
    with pytest.raises(
        StepFailedError, match=r"See '/etc/containerd/config\.toml'\..* is unchanged"
    ):
        configure.function(make_node(Containerd(), tmp_path))

    assert files.read("/srv/containerd.toml") == "old"


def test_containerd_keeps_its_configuration_if_pods_run_in_cri_o() -> None:
    seen = RuntimeFacts(text=USERS + RUNTIME, cdi=CdiSupport.CAPABLE, engine=Engine.CRI_O)

    assert gpu_configuration(seen) is None
    assert gpu_configuration(replace(seen, text=None)) is None
    assert non_gpu_configuration(seen) is None


def crio(tmp_path: Path, choice: RuntimeChoice | None) -> dict[str, str | None]:
    runner = ScriptedRunner().expect(f"{IS_LOADED}crio", stdout="not-found\n")
    take(tmp_path, runner, *cri_o_files(choice))
    files = NodeFiles(tmp_path)
    return {
        "drop-in": files.read("/etc/crio/crio.conf.d/99-nvidia.conf"),
        "hook": files.read("/usr/share/containers/oci/hooks.d/oci-nvidia-hook.json"),
    }


def test_cri_o_gets_either_the_nvidia_runtime_or_the_hook(tmp_path: Path) -> None:
    hook = choose_runtime(Engine.CRI_O, is_cdi_enabled=False, is_native=True)

    assert crio(tmp_path, NATIVE) == {
        "drop-in": '[crio.runtime.runtimes.nvidia]\nruntime_path = "/usr/bin/nvidia-container-runtime"\n'
        'runtime_type = "oci"\n',
        "hook": None,
    }
    seen = crio(tmp_path, hook)
    assert seen["drop-in"] is None
    assert json.loads(seen["hook"] or "") == {
        "version": "1.0.0",
        "hook": {
            "path": "/usr/bin/nvidia-container-runtime-hook",
            "args": ["nvidia-container-runtime-hook", "prestart"],
            "env": ["PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"],
        },
        "when": {"always": True, "commands": [".*"]},
        "stages": ["prestart"],
    }
    assert crio(tmp_path, None) == {"drop-in": None, "hook": None}


def test_cdi_spec_that_is_older_than_the_refresh_fails_the_step(tmp_path: Path) -> None:
    NodeFiles(tmp_path).write(CDI_SPEC, SPEC)
    runner = ScriptedRunner().expect(ASK, stdout="loaded\n")
    runner.expect("systemctl reset-failed nvidia-cdi-refresh.service nvidia-cdi-refresh.path")
    runner.expect("systemctl start nvidia-cdi-refresh.service")
    runner.expect("systemctl restart nvidia-cdi-refresh.path")

    with pytest.raises(ProvisioningError, match="wrote no device"):
        take(tmp_path, runner, *regenerate_spec())


def test_files_for_cri_o_are_written_or_removed_before_cri_o_is_restarted(tmp_path: Path) -> None:
    files = NodeFiles(tmp_path)
    seen: list[tuple[bool, bool]] = []
    for choice in (NATIVE, None):
        files.write(CRI_O_HOOK, "old")
        runner = ScriptedRunner().expect(f"{IS_LOADED}crio", stdout="loaded\n")
        runner.expect("systemctl daemon-reload").expect(
            "systemctl restart crio",
            timeout_s=30,
            effect=lambda: seen.append((files.exists(CRI_O_DROP_IN), files.exists(CRI_O_HOOK))),
        ).expect("systemctl enable crio")

        take(tmp_path, runner, *cri_o_files(choice))

    assert seen == [(True, False), (False, False)]
