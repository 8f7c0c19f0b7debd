"""What a boot makes of each kind of containerd's configuration, with a simulated containerd."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

from harness.provisioning.cdi import CdiSupport
from harness.provisioning.command import CommandResult
from harness.provisioning.containerd_config import (
    CONTAINERD_CONFIG,
    WantedRuntimes,
    cri_table,
    default_runtime,
    has_nvidia_runtime,
    has_short_names,
    imports_itself,
    is_cri_disabled,
    read_runtimes,
)
from harness.provisioning.toml_text import TomlTextError, get_value
from harness.provisioning.toolkit import (
    RuntimeFacts,
    gpu_configuration,
    non_gpu_configuration,
    wanted_of_gpu_node,
)
from suites.unit.provisioning.containerd_files import (
    AKS,
    AKS_ON_2,
    CRI,
    EKS,
    IMPORTS,
    KINDS,
    NVIDIA,
    NVIDIA_CDI,
    RUNC,
    ContainerdFiles,
)

from .fakes import GPU_NODE, KERNEL, VERSION, Invocation, write_tags
from .simulated_containerd import Release

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from .simulation import SimulatedNode

PROGRAM = "/usr/bin/nvidia-container-runtime"
TABLE = ("plugins", CRI)


def _releases(
    verdict_of: Callable[[ContainerdFiles], Mapping[Release, str]],
) -> list[tuple[str, Release]]:
    """Return each kind with every release where these differ, else with one release in turn."""
    cases = []
    for number, (name, kind) in enumerate(KINDS.items()):
        verdicts = verdict_of(kind)
        releases = [*kind.releases]
        if len({verdicts.get(release) for release in Release}) == 1:
            releases = [releases[number % len(releases)]]
        cases += [(name, release) for release in releases]
    return cases


def boot(
    simulated: SimulatedNode, invocation: Invocation, kind: str, *tags: tuple[str, str]
) -> int:
    simulated.build(VERSION, KERNEL)
    write_tags(simulated.files, *tags)
    for path, text in KINDS[kind].texts.items():
        simulated.files.write(path, text)
    return invocation.run("boot", GPU_NODE)


@pytest.mark.parametrize(("kind", "release"), _releases(lambda kind: kind.gpu))
def test_node_with_a_gpu_is_ready_only_if_the_nvidia_runtime_is_in_effect(
    simulated: SimulatedNode, invocation: Invocation, kind: str, release: Release
) -> None:
    simulated.containerd = release
    words = KINDS[kind].gpu.get(release)

    code = boot(simulated, invocation, kind)

    if words is not None:
        assert code == 6
        assert words in str(invocation.outcome()["error"])
        assert simulated.files.read(CONTAINERD_CONFIG) == KINDS[kind].main
        assert "kubelet" not in simulated.active
        return
    assert code == 0
    dump = simulated.run(("containerd", "config", "dump"), timeout_s=1).stdout
    assert has_nvidia_runtime(dump, cri_table(dump))


@pytest.mark.parametrize(("kind", "release"), _releases(lambda kind: kind.opted_out))
def test_opted_out_node_starts_no_pod_with_a_program_of_nvidia(
    simulated: SimulatedNode, invocation: Invocation, kind: str, release: Release
) -> None:
    simulated.containerd = release
    words = KINDS[kind].opted_out.get(release)

    code = boot(simulated, invocation, kind, ("SkipGpuDriverInstall", "true"))

    if words is not None:
        assert code == 6
        assert words in str(invocation.outcome()["error"])
        assert simulated.files.read(CONTAINERD_CONFIG) == KINDS[kind].main
        return
    assert code == 0
    main, text = KINDS[kind].main or "", simulated.files.read(CONTAINERD_CONFIG) or ""
    assert nvidia_runtimes(text) == []
    assert (text == main) == (nvidia_runtimes(main) == [])


def nvidia_runtimes(text: str) -> list[str]:
    if "nvidia" not in text:
        return []
    return [runtime.name for runtime in read_runtimes(text, cri_table(text)) if runtime.is_nvidia]


@pytest.mark.parametrize("name", ["untrusted", "kata-nvidia"])
def test_runtime_of_another_name_is_kept_without_nvidias_program(name: str) -> None:
    """AKS's `untrusted` runtime uses NVIDIA's program on a GPU node and runc on other nodes."""
    text = AKS.replace("untrusted", name)
    left = non_gpu_configuration(RuntimeFacts(text=text, cdi=CdiSupport.NATIVE)) or ""

    runtimes = {runtime.name: runtime.program for runtime in read_runtimes(left, TABLE)}
    assert runtimes == {name: None, "runc": None}
    assert default_runtime(left, TABLE) == "runc"


def test_default_runtime_whose_table_was_removed_earlier_is_replaced_by_runc() -> None:
    """A default runtime that does not exist breaks every pod (gpu-operator 188)."""
    other = f"{RUNC}# without nvidia\n"
    for text in (f"version = 2\n{DEFAULT_NVIDIA}{other}", f"version = 2\n{other}{DEFAULT_NVIDIA}"):
        assert left_of(text) == text.replace('"nvidia"', '"runc"')
    assert left_of(f"version = 2\n{other}") == ""


def test_runc_is_added_beside_the_remaining_runtimes() -> None:
    """Before containerd 2, a table of runtimes replaces the built-in one, which has the default."""
    kata = NVIDIA.replace("nvidia", "kata").replace(PROGRAM, "/opt/kata/bin/kata")
    text = f"version = 2\n{NVIDIA}{kata}"
    left = non_gpu_configuration(RuntimeFacts(text=text, cdi=CdiSupport.ABSENT)) or ""

    assert {runtime.name for runtime in read_runtimes(left, TABLE)} == {"kata", "runc"}
    assert WantedRuntimes(has_nvidia=False).difference(left) is None


def test_runc_gets_the_systemd_cgroup_option_of_the_removed_nvidia_runtime() -> None:
    left = non_gpu_configuration(RuntimeFacts(text=EKS, cdi=CdiSupport.NATIVE)) or ""

    options = (*TABLE, "containerd", "runtimes", "runc", "options")
    assert get_value(left, (*options, "SystemdCgroup")) == "true"
    assert get_value(left, (*options, "BinaryName")) is None


@pytest.mark.parametrize(
    "text",
    [
        f'[plugins."{CRI}".containerd.default_runtime.options]\nRuntime = "{PROGRAM}"\n',
        f'[plugins."{CRI}".containerd.default_runtime]\nruntime_engine = "{PROGRAM}"\n',
        f'[plugins."{CRI}".containerd.untrusted_workload_runtime]\nruntime_engine = "{PROGRAM}"\n',
        f'[plugins."{CRI}".containerd.runtimes.gpu.options]\nBinaryName = "{PROGRAM}.cdi"\n',
        f'[plugins."{CRI}".containerd.runtimes.gpu.options]\nBinaryName = "nvidia-oci"\n',
        f'[plugins."{CRI}".containerd.runtimes]\nnvidia.options.BinaryName = "{PROGRAM}"\n',
        f'[plugins."{CRI}".containerd.runtimes.nvidia]\noptions = {{ BinaryName = "{PROGRAM}" }}\n',
        f"[plugins.'{CRI}'.containerd.runtimes.nvidia.options]\nBinaryName = '/usr/local{PROGRAM}'\n",
    ],
)
def test_configuration_of_an_opted_out_node_mentions_no_nvidia_program_in_any_key(
    text: str,
) -> None:
    left = non_gpu_configuration(RuntimeFacts(text=f"version = 2\n{text}", cdi=CdiSupport.ABSENT))

    assert left is not None
    assert "nvidia-container-runtime" not in left


def test_runc_in_a_folder_of_the_toolkit_is_not_taken_for_a_program_of_nvidia() -> None:
    program = "/opt/nvidia-container-runtime/bin/runc"
    text = f'version = 2\n{RUNC}options.BinaryName = "{program}"\n'

    assert nvidia_runtimes(text) == []
    assert non_gpu_configuration(RuntimeFacts(text=text, cdi=CdiSupport.ABSENT)) is None


@pytest.mark.parametrize(
    ("dump", "is_added"),
    [
        (None, True),
        ("version = 1\n", True),
        ("version = 2\n", True),
        ("version = 3\n", False),
        ("version = 4\n", False),
    ],
)
def test_runc_is_added_to_a_table_of_runtimes_that_lacks_the_default_runtime(
    dump: str | None, *, is_added: bool
) -> None:
    text = f"version = 2\n{NVIDIA}SystemdCgroup = true\n"
    edited = gpu_configuration(RuntimeFacts(text=text, cdi=CdiSupport.NATIVE, dump=dump))

    if not is_added:
        assert edited is None
        return
    options = (*TABLE, "containerd", "runtimes", "runc", "options")
    assert edited is not None
    assert edited.startswith(text)
    assert get_value(edited, (*options, "SystemdCgroup")) == "true"
    assert get_value(edited, (*options, "BinaryName")) is None


KATA = NVIDIA.replace("nvidia", "kata").replace(f'"{PROGRAM}"', '"/opt/kata/bin/kata"')


def left_of(text: str) -> str:
    """Return the configuration of a node that opted out."""
    return non_gpu_configuration(RuntimeFacts(text=text, cdi=CdiSupport.NATIVE)) or ""


@pytest.mark.parametrize("names", [("nvidia", "nvidia-cdi"), ("nvidia-cdi", "nvidia")])
def test_runc_gets_the_options_of_the_default_runtime_if_there_are_two_runtimes_of_nvidia(
    names: tuple[str, str],
) -> None:
    default, _ = names
    text = f'version = 2\n[plugins."{CRI}".containerd]\ndefault_runtime_name = "{default}"\n'
    for name in ("nvidia", "nvidia-cdi"):
        text += NVIDIA.replace("runtimes.nvidia", f"runtimes.{name}")
        text += f'Root = "/run/{name}"\nSystemdCgroup = {str(name == default).lower()}\n'

    left = left_of(text)

    options = (*TABLE, "containerd", "runtimes", "runc", "options")
    assert get_value(left, (*options, "Root")) == f'"/run/{default}"'
    assert get_value(left, (*options, "SystemdCgroup")) == "true"
    assert [runtime.name for runtime in read_runtimes(left, TABLE)] == ["runc"]


def test_runc_that_is_already_present_keeps_its_own_options() -> None:
    runc = f'{RUNC}[plugins."{CRI}".containerd.runtimes.runc.options]\nSystemdCgroup = false\n'
    left = left_of(f"version = 2\n{DEFAULT_NVIDIA}{NVIDIA}SystemdCgroup = true\n{runc}")

    options = (*TABLE, "containerd", "runtimes", "runc", "options")
    assert get_value(left, (*options, "SystemdCgroup")) == "false"
    assert default_runtime(left, TABLE) == "runc"


def test_default_nvidia_runtime_of_another_name_is_kept_without_nvidias_program() -> None:
    text = f"version = 2\n{DEFAULT_NVIDIA}{NVIDIA}Root = '/r'\n".replace("nvidia", "gpu").replace(
        "gpu-container", "nvidia-container"
    )
    left = left_of(text)

    assert default_runtime(left, TABLE) == "gpu"
    (gpu,) = read_runtimes(left, TABLE)
    assert (gpu.name, gpu.program, gpu.is_effective) == ("gpu", None, True)
    assert get_value(left, (*gpu.table, "options", "Root")) == "'/r'"


def test_runtime_keeps_no_key_that_names_nvidias_program() -> None:
    """Before the runc shims, other keys had the program of a runtime."""
    both = f'{NVIDIA}Runtime = "{PROGRAM}"\nRoot = "/r"\n'
    other = both.replace("runtimes.nvidia", "runtimes.gpu")
    left = left_of(f"version = 2\n{DEFAULT_NVIDIA}{both}{other}")

    runtimes = {each.name: each for each in read_runtimes(left, TABLE)}
    assert set(runtimes) == {"runc", "gpu"}
    for runtime in runtimes.values():
        assert runtime.program is None
        assert get_value(left, (*runtime.table, "options", "Root")) == '"/r"'
    assert "nvidia" not in left


def test_default_runtime_of_another_vendor_is_kept() -> None:
    default = DEFAULT_NVIDIA.replace('"nvidia"', '"kata"')
    left = left_of(f"version = 2\n{default}{KATA}{NVIDIA}")

    assert left == f"version = 2\n{default}{KATA}"


def test_runc_is_not_added_to_a_cri_table_without_runtimes() -> None:
    """The default runtime's own table alone leaves containerd's table of runtimes in place."""
    table = f'[plugins."{CRI}".containerd.default_runtime]\nruntime_engine = "{PROGRAM}"\n'

    assert left_of(f"version = 2\n{table}").strip() == "version = 2"


def test_table_of_runtimes_depends_on_the_format_and_on_containerd() -> None:
    """Containerd 2, which prints format 3, ignores the tables of format 1."""
    old, new = ("plugins", "cri"), ("plugins", "io.containerd.cri.v1.runtime")
    rows: dict[tuple[str, str | None], tuple[str, ...]] = {
        ("", None): old,
        ("version = 1\n", None): old,
        ("version = 2\n", None): TABLE,
        ("version = 3\n", None): new,
        ("version = 4\n", None): new,
        ("version = 'x'\n", None): TABLE,
        ("version = \N{SUPERSCRIPT THREE}\n", None): TABLE,
        (f"version = {'3' * 5000}\n", None): TABLE,
        ("", "version = 1\n"): old,
        ("", "version = 2\n"): old,
        ("", "version = 3\n"): new,
        ("", "version = 4\n"): new,
        ("version = 2\n", "version = 3\n"): TABLE,
        ("version = 3\n", "version = 2\n"): new,
        (AKS_ON_2, None): new,
        (AKS_ON_2, "version = 2\n"): TABLE,
        (AKS_ON_2, "version = 3\n"): new,
        (AKS_ON_2 + RUNC, "version = 3\n"): new,
    }

    assert {(text, dump): cri_table(text, dump) for text, dump in rows} == rows


def test_program_of_a_runtime_is_read_from_its_keys() -> None:
    rows: dict[str, tuple[str | None, bool]] = {
        f'options.BinaryName = "{PROGRAM}"\noptions.Runtime = "crun"\n': (PROGRAM, True),
        f'options.BinaryName = "crun"\noptions.Runtime = "{PROGRAM}"\n': ("crun", False),
        f'runtime_engine = "{PROGRAM}"\noptions.Runtime = "crun"\n': ("crun", False),
        f'runtime_engine = "crun"\noptions.BinaryName = "{PROGRAM}"\n': (PROGRAM, True),
        f'options.BinaryName = ""\nruntime_engine = "{PROGRAM}"\n': (PROGRAM, True),
        'options.BinaryName = "/opt/nvidia-container-runtime.cdi"\n': ("/opt/nvidia-container-runtime.cdi", True),
        'options.BinaryName = "nvidia-container-runtime"\n': ("nvidia-container-runtime", True),
        'options.BinaryName = "/usr/bin/my-nvidia-container-runtime"\n': ("/usr/bin/my-nvidia-container-runtime", False),
        'options.BinaryName = "/usr/bin/nvidia-container"\n': ("/usr/bin/nvidia-container", False),
        "": (None, False),
    }  # fmt: skip
    seen = {}
    for keys in rows:
        (runtime,) = read_runtimes(f"version = 2\n{RUNC}{keys}", TABLE)
        seen[keys] = (runtime.program, runtime.is_nvidia)

    assert seen == rows


def test_nvidia_runtime_is_recognised_by_its_whole_program() -> None:
    rows = {
        PROGRAM: True,
        "nvidia-container-runtime": True,
        f"{PROGRAM}.cdi": False,
        f"{PROGRAM}-hook": False,
        "/usr/local/nvidia/toolkit/nvidia-container-runtime": False,
    }

    assert {
        program: has_nvidia_runtime(NVIDIA.replace(PROGRAM, program), TABLE) for program in rows
    } == rows


@pytest.mark.parametrize("key", ["options.Runtime", "runtime_engine"])
def test_only_the_oldest_shim_starts_the_program_of_the_oldest_keys(key: str) -> None:
    text = f'{RUNC}{key} = "{PROGRAM}"\n'

    assert not has_nvidia_runtime(text, TABLE)
    assert has_nvidia_runtime(text.replace("runc.v2", "runtime.v1.linux"), TABLE)
    assert has_nvidia_runtime(f'{text}options.BinaryName = "{PROGRAM}"\n', TABLE)


def test_nvidia_runtime_in_the_default_runtime_table_alone_is_not_sufficient() -> None:
    text = f'[plugins."{CRI}".containerd.default_runtime]\nruntime_type = "x"\nruntime_engine = "{PROGRAM}"\n'

    assert not has_nvidia_runtime(text, TABLE)
    assert [each.is_nvidia for each in read_runtimes(text, TABLE)] == [True]


def test_strings_are_read_in_either_kind_of_quotes() -> None:
    """Containerd 2 prints literal strings; earlier versions print basic strings."""
    runtimes = f'[plugins."{CRI}".containerd]\ndefault_runtime_name = "kata"\n{KATA}{NVIDIA}{RUNC}'
    basic = f'version = 2\nimports = ["c*.toml"]\ndisabled_plugins = ["cri"]\n{runtimes}'

    for text in (basic, basic.replace('"', "'")):
        assert default_runtime(text, TABLE) == "kata", text
        assert has_nvidia_runtime(text, TABLE), text
        assert has_short_names(text), text
        assert imports_itself(text), text
        assert is_cri_disabled(text), text
        assert read_runtimes(text, TABLE) == read_runtimes(basic, TABLE), text


def test_each_runtime_is_read_only_once_and_in_the_order_of_the_file() -> None:
    text = f"{KATA}{NVIDIA}{RUNC}"

    assert [each.name for each in read_runtimes(text, TABLE)] == ["kata", "nvidia", "runc"]


def test_cdi_stays_switched_off_on_a_node_with_the_nvidia_runtime() -> None:
    text = f"version = 2\n{RUNC}{NVIDIA}"
    seen = RuntimeFacts(text=text, cdi=CdiSupport.CAPABLE, is_cdi_enabled=False)

    assert gpu_configuration(seen) is None
    assert wanted_of_gpu_node(seen) == WantedRuntimes(has_nvidia=True)


def test_disabled_cri_plugin_is_reported_before_its_consequences() -> None:
    dump = f'version = 2\ndisabled_plugins = ["{CRI}"]\n'

    assert (GPU.difference(dump) or "").startswith("Its CRI plugin is disabled")


@pytest.mark.parametrize(
    ("facts", "wanted"),
    [
        (
            RuntimeFacts(text=None, cdi=CdiSupport.ABSENT),
            WantedRuntimes(has_nvidia=True, is_nvidia_default=True),
        ),
        (
            RuntimeFacts(text=f"version = 2\n{RUNC}{NVIDIA}", cdi=CdiSupport.ABSENT),
            WantedRuntimes(has_nvidia=True),
        ),
        (
            RuntimeFacts(text=None, cdi=CdiSupport.CAPABLE),
            WantedRuntimes(has_nvidia=True, is_cdi_on=True),
        ),
        (
            RuntimeFacts(text=None, cdi=CdiSupport.NATIVE),
            WantedRuntimes(has_nvidia=True, is_cdi_on=True),
        ),
        (
            RuntimeFacts(text=None, cdi=CdiSupport.NATIVE, is_cdi_enabled=False),
            WantedRuntimes(has_nvidia=True, is_nvidia_default=True),
        ),
    ],
)
def test_configuration_and_cdi_support_determine_the_wanted_runtimes_of_a_node_with_a_gpu(
    facts: RuntimeFacts, wanted: WantedRuntimes
) -> None:
    assert wanted_of_gpu_node(facts) == wanted


@pytest.mark.parametrize(("number", "cri"), [(2, CRI), (3, "io.containerd.cri.v1.runtime")])
def test_runtime_that_an_imported_file_has_is_not_added_again(number: int, cri: str) -> None:
    """A dump of containerd 2 has format 3 even if the file has format 2."""
    text = "version = 2\nimports = ['conf.d/*']\n"
    dump = f"version = {number}\n{RUNC}{NVIDIA}".replace(CRI, cri)

    assert gpu_configuration(RuntimeFacts(text=text, cdi=CdiSupport.NATIVE, dump=dump)) is None


def test_configuration_is_refused_if_containerd_does_not_answer_in_time(
    simulated: SimulatedNode, invocation: Invocation
) -> None:
    simulated.failing["containerd --config"] = CommandResult(
        argv=("containerd",), exit_code=124, stdout="", stderr="", timed_out=True
    )

    assert boot(simulated, invocation, "format 2") == 6

    error = str(invocation.outcome()["error"])
    assert "containerd did not say in time whether it accepts its configuration." in error
    assert simulated.files.read(CONTAINERD_CONFIG) == "version = 2\n"


def test_configuration_keeps_its_owner_and_mode(
    simulated: SimulatedNode, invocation: Invocation
) -> None:
    """The file may contain passwords of registries."""
    simulated.files.write(CONTAINERD_CONFIG, "version = 2\n", mode=0o600)

    assert invocation.run("boot", GPU_NODE) == 0

    assert PROGRAM in (simulated.files.read(CONTAINERD_CONFIG) or "")
    assert simulated.files.at(CONTAINERD_CONFIG).stat().st_mode & 0o7777 == 0o600


def test_refused_configuration_leaves_no_temporary_file(
    simulated: SimulatedNode, invocation: Invocation
) -> None:
    assert boot(simulated, invocation, "package of Docker") == 6

    assert simulated.files.names("/etc/containerd") == ("config.toml",)


def test_runtimes_of_containerd_are_checked_again_after_its_restart(
    simulated: SimulatedNode, invocation: Invocation
) -> None:
    """Another program may have changed the file since it was checked."""
    asked = simulated.run

    def run(argv: tuple[str, ...], **options: object) -> object:
        if tuple(argv[:2]) == ("systemctl", "restart") and argv[2] == "containerd":
            simulated.files.write(CONTAINERD_CONFIG, f"version = 2\n{RUNC}")
        return asked(argv, **options)  # type: ignore[arg-type]

    simulated.run = run  # type: ignore[method-assign, assignment]

    assert boot(simulated, invocation, "format 2") == 6

    assert "None of its runtimes ['runc']" in str(invocation.outcome()["error"])
    assert invocation.steps()["validate-runtime"] == "failed"


@pytest.mark.parametrize(
    "answer", ["what nobody knows\n", "[broken", "", "version = 9\n", "level = 'warn'\n"]
)
def test_dump_in_an_unknown_format_is_not_accepted(answer: str) -> None:
    try:
        difference = WantedRuntimes(has_nvidia=True).difference(answer)
    except TomlTextError:
        return
    assert difference is not None


def test_file_that_imports_its_own_folder_is_checked_after_it_is_written(
    simulated: SimulatedNode, invocation: Invocation
) -> None:
    """A temporary file in the same folder would import the old file."""
    simulated.containerd = Release.MIDDLE

    assert boot(simulated, invocation, "imports its own folder") == 0


DEFAULT_NVIDIA = f'[plugins."{CRI}".containerd]\ndefault_runtime_name = "nvidia"\n'
GPU = WantedRuntimes(has_nvidia=True)
OTHER = WantedRuntimes(has_nvidia=False)


@pytest.mark.parametrize(
    ("wanted", "dump", "words"),
    [
        (GPU, RUNC + NVIDIA, None),
        (
            GPU,
            RUNC,
            "None of its runtimes ['runc'] has '/usr/bin/nvidia-container-runtime' as its",
        ),
        (GPU, NVIDIA, "Its default runtime 'runc' is none of its runtimes ['nvidia']"),
        (GPU, DEFAULT_NVIDIA + NVIDIA, None),
        (GPU, NVIDIA.replace('runtime"', 'runtime.cdi"') + RUNC, "None of its runtimes"),
        (replace(GPU, is_nvidia_default=True), RUNC + NVIDIA, "Its default runtime is 'runc'"),
        (replace(GPU, is_nvidia_default=True), DEFAULT_NVIDIA + NVIDIA, None),
        (replace(GPU, is_cdi_on=True), RUNC + NVIDIA, None),
        (
            replace(GPU, is_cdi_on=True),
            f'{RUNC}{NVIDIA}[plugins."{CRI}"]\nenable_cdi = false\n',
            "Its 'enable_cdi' is not true.",
        ),
        (
            replace(GPU, is_cdi_on=True),
            f'{RUNC}{NVIDIA}[plugins."{CRI}"]\nenable_cdi = true\n',
            None,
        ),
        (GPU, f'{RUNC}{NVIDIA}[plugins."{CRI}"]\nenable_cdi = false\n', None),
        (GPU, DEFAULT_NVIDIA + RUNC, "None of its runtimes ['runc'] has"),
        (GPU, RUNC + KATA, "None of its runtimes ['kata', 'runc'] has"),
        (
            replace(GPU, is_nvidia_default=True),
            DEFAULT_NVIDIA.replace('"nvidia"', '"kata"') + NVIDIA,
            "Its default runtime 'kata' is none of its runtimes ['nvidia']",
        ),
        (
            replace(GPU, is_nvidia_default=True),
            DEFAULT_NVIDIA.replace('"nvidia"', '"kata"') + KATA + NVIDIA,
            "Its default runtime is 'kata', which is not the nvidia runtime.",
        ),
        (
            replace(GPU, is_nvidia_default=True),
            DEFAULT_NVIDIA.replace('"nvidia"', '"nvidia-cdi"') + NVIDIA + NVIDIA_CDI,
            None,
        ),
        (
            replace(GPU, is_nvidia_default=True, is_cdi_on=True),
            f'{RUNC}{NVIDIA}[plugins."{CRI}"]\nenable_cdi = false\n',
            "Its default runtime is 'runc'",
        ),
        (GPU, f"required_plugins = ['{CRI}']\n{RUNC}{NVIDIA}", None),
        (
            GPU,
            f"{DEFAULT_NVIDIA.replace('nvidia', '')}{RUNC}{NVIDIA}",
            "Its default runtime '' is none of its runtimes ['nvidia', 'runc']",
        ),
        (OTHER, RUNC + NVIDIA, None),
        (OTHER, "", None),
        (
            OTHER,
            DEFAULT_NVIDIA.replace('"nvidia"', '"gpu"')
            + NVIDIA_CDI.replace("runtimes.nvidia-cdi", "runtimes.gpu"),
            "Its default runtime 'gpu' starts '/usr/bin/nvidia-container-runtime.cdi'.",
        ),
        (
            OTHER,
            f'{RUNC}[plugins."{CRI}".containerd.default_runtime]\nruntime_engine = "{PROGRAM}"\n',
            "Its default runtime 'default_runtime' starts '/usr/bin/nvidia-container-runtime'.",
        ),
        (OTHER, DEFAULT_NVIDIA + RUNC, "Its default runtime 'nvidia' is none of its runtimes"),
        (
            OTHER,
            DEFAULT_NVIDIA + NVIDIA,
            "Its default runtime 'nvidia' starts '/usr/bin/nvidia-container-runtime'.",
        ),
        (
            OTHER,
            f"{DEFAULT_NVIDIA}{NVIDIA.replace('/usr/bin/nvidia-container-runtime', 'runc')}",
            None,
        ),
    ],
)
def test_dump_of_containerd_is_compared_with_the_wanted_runtimes(
    wanted: WantedRuntimes, dump: str, words: str | None
) -> None:
    found = wanted.difference(f"version = 2\n{dump}")

    assert (found is None) == (words is None), found
    assert (words or "") in (found or "")


@pytest.mark.parametrize(
    "name", ["cri", CRI, "io.containerd.cri.v1.runtime", "io.containerd.cri.v1.images"]
)
def test_cri_is_reported_as_disabled_if_any_plugin_that_it_needs_is_disabled(name: str) -> None:
    dump = f"disabled_plugins = ['io.containerd.x.v1.y', '{name}']\nversion = 2\n{RUNC}{NVIDIA}"

    assert (GPU.difference(dump) or "").startswith("Its CRI plugin is disabled")
    assert "Remove the plugin from 'disabled_plugins'." in (GPU.difference(dump) or "")
    assert OTHER.difference(dump) is None


@pytest.mark.parametrize(
    ("imports", "words"),
    [
        ("[]", "See '/etc/containerd/config.toml'."),
        ('["/etc/containerd/config.toml"]', "See '/etc/containerd/config.toml'."),
        ('["/etc/containerd/.config.toml.abcd1234"]', "See '/etc/containerd/config.toml'."),
        (
            '["/etc/containerd/config.toml", "/etc/containerd/conf.d/a.toml"]',
            "'/etc/containerd/config.toml' imports ['/etc/containerd/conf.d/a.toml']: settings of",
        ),
        (
            '["/etc/containerd/config.toml.d/a.toml", "/etc/containerd/b.toml"]',
            "imports ['/etc/containerd/config.toml.d/a.toml', '/etc/containerd/b.toml']: settings of",
        ),
        (
            '["/etc/containerd/config.toml", "/etc/containerd/conf.d/99-config.toml"]',
            "imports ['/etc/containerd/conf.d/99-config.toml']: settings of",
        ),
        ('["/srv/.x.toml.abcd1234"]', "imports ['/srv/.x.toml.abcd1234']: settings of"),
    ],
)
def test_message_about_a_missing_runtime_mentions_the_imported_files(
    imports: str, words: str
) -> None:
    found = GPU.difference(f"imports = {imports}\nversion = 2\n{RUNC}") or ""

    assert words in found


def test_message_does_not_report_the_target_of_a_symbolic_link_as_imported() -> None:
    own = "/srv/.x.toml.abcd1234"
    found = GPU.difference(f'imports = ["{own}"]\nversion = 2\n{RUNC}', own) or ""

    assert "See '/etc/containerd/config.toml'." in found


def test_no_format_version_is_added_to_a_file_with_short_plugin_names() -> None:
    rows = {
        "": False,
        'disabled_plugins = ["cri"]': True,
        "required_plugins = ['aufs']": True,
        'disabled_plugins = ["io.containerd.snapshotter.v1.aufs"]': False,
        'disabled_plugins = ["io.containerd.snapshotter.v1.aufs", "cri"]': True,
        'disabled_plugins = ["io.containerd.x"]': True,
        'disabled_plugins = ["io.containerd.x.v1"]': False,
        'disabled_plugins = []\nrequired_plugins = ["cri"]': True,
        'disabled_plugins = ["org.example.v1.mine"]': True,
        '# disabled_plugins = ["cri"]': False,
        'other_plugins = ["cri"]': False,
    }

    assert {text: has_short_names(text) for text in rows} == rows
    for text, is_short in rows.items():
        edited = gpu_configuration(RuntimeFacts(text=text, cdi=CdiSupport.NATIVE)) or ""
        assert (get_value(edited, ("version",)) is None) is is_short, text


def test_file_that_imports_itself_is_reported() -> None:
    rows = {
        "[]": False,
        '["/etc/containerd/conf.d/*.toml"]': False,
        '["/etc/containerd/*.toml"]': True,
        '["*.toml"]': True,
        '["other.toml", "./config.toml"]': True,
        '["../containerd/config.toml"]': True,
        '["/etc/containerd/./c*.toml"]': True,
        '["/etc/*/config.toml"]': True,
        '["/etc/*.toml"]': False,
        '["*"]': True,
        '["sub/config.toml"]': False,
        '["conf.d/*.toml", "c*.toml"]': True,
        '["c*.toml", "conf.d/*.toml"]': True,
    }

    assert {imports: imports_itself(f"imports = {imports}\n") for imports in rows} == rows


def test_runtime_of_an_unchanged_opted_out_node_is_not_validated(
    simulated: SimulatedNode, invocation: Invocation
) -> None:
    assert boot(simulated, invocation, "format 2", ("SkipGpuDriverInstall", "true")) == 0

    assert "validate-runtime" not in invocation.steps()
    assert "restart-containerd" not in invocation.steps()


@pytest.mark.parametrize("release", Release)
def test_opted_out_node_is_not_ready_if_an_imported_file_makes_nvidia_the_default(
    simulated: SimulatedNode, invocation: Invocation, release: Release
) -> None:
    """The main file has no NVIDIA runtime and is kept; `nvidia-ctk` wrote the drop-in."""
    simulated.containerd = release
    simulated.build(VERSION, KERNEL)
    write_tags(simulated.files, ("SkipGpuDriverInstall", "true"))
    main = f"{IMPORTS}{RUNC}"
    simulated.files.write(CONTAINERD_CONFIG, main)
    dropped = f"version = 2\n{DEFAULT_NVIDIA}{RUNC}{NVIDIA}"
    simulated.files.write("/etc/containerd/conf.d/99-nvidia.toml", dropped)

    assert invocation.run("boot", GPU_NODE) == 6

    assert invocation.steps()["validate-runtime"] == "failed"
    error = str(invocation.outcome()["error"])
    assert f"Its default runtime 'nvidia' starts '{PROGRAM}'." in error
    assert "/etc/containerd/conf.d/" in error
    assert simulated.files.read(CONTAINERD_CONFIG) == main
    assert "kubelet" not in simulated.active


@pytest.mark.parametrize("name", ["io.containerd.cri.v1.runtime", CRI])
def test_switched_off_cdi_is_detected_in_a_dump_of_each_format(name: str) -> None:
    number = 2 if name == CRI else 3
    dump = f"{RUNC}{NVIDIA}[plugins.'{CRI}']\nenable_cdi = false\n".replace(CRI, name)
    wanted = replace(GPU, is_cdi_on=True)

    found = wanted.difference(f"version = {number}\n{dump}") or ""
    assert found.startswith("Its 'enable_cdi' is not true.")
    assert wanted.difference(f"version = {number}\n{dump.replace('false', 'true')}") is None


def test_each_subtable_of_the_table_of_runtimes_is_read_as_a_runtime() -> None:
    rows: dict[str, list[str]] = {
        f'[plugins."{CRI}".containerd.runtimes]\n': [],
        f'[plugins."{CRI}".containerd.runtimes.kata]\n': ["kata"],
        f'[plugins."{CRI}".containerd.runtimes.kata.options]\n': ["kata"],
        f'[plugins."{CRI}".containerd.runtimes]\nkata.runtime_type = "x"\n': ["kata"],
        f'[plugins."{CRI}".containerd.untrusted_workload_runtime]\nruntime_type = "x"\n': [],
        f'[plugins."{CRI}".containerd.default_runtime]\nruntime_engine = "x"\n': ["default_runtime"],
        RUNC.replace(CRI, "io.containerd.cri.v1.runtime"): [],
    }  # fmt: skip

    assert {text: [each.name for each in read_runtimes(text, TABLE)] for text in rows} == rows


@pytest.mark.parametrize("value", ['""', "''"])
def test_runtime_with_an_empty_type_is_not_taken_for_an_nvidia_runtime(value: str) -> None:
    text = NVIDIA.replace('"io.containerd.runc.v2"', value)

    assert not has_nvidia_runtime(text, TABLE)
    assert not has_nvidia_runtime(f"{text}{NVIDIA_CDI}", TABLE)


@pytest.mark.parametrize(
    "text",
    [
        f"version = 2\n{DEFAULT_NVIDIA}{NVIDIA}",
        f"version = 2\n{NVIDIA}{RUNC}",
        f"version = 3\n{NVIDIA}{RUNC}".replace(CRI, "io.containerd.cri.v1.runtime"),
    ],
)
def test_configuration_of_a_node_with_a_gpu_is_kept_if_it_has_the_nvidia_runtime(
    text: str,
) -> None:
    assert gpu_configuration(RuntimeFacts(text=text, cdi=CdiSupport.NATIVE)) is None


def test_configuration_is_not_changed_if_an_imported_file_has_the_nvidia_runtime() -> None:
    dump = f"version = 2\n{RUNC}{NVIDIA}{KATA}"
    facts = RuntimeFacts(text=f"version = 2\n{KATA}", cdi=CdiSupport.NATIVE, dump=dump)

    assert gpu_configuration(facts) is None


def test_runc_gets_the_options_of_the_first_runtime_of_nvidia() -> None:
    text = f'version = 2\n{NVIDIA_CDI}Root = "/first"\n{NVIDIA}Root = "/second"\n'
    edited = gpu_configuration(RuntimeFacts(text=text, cdi=CdiSupport.NATIVE)) or ""

    assert get_value(edited, (*TABLE, "containerd", "runtimes", "runc", "options", "Root")) == (
        '"/first"'
    )


@pytest.mark.parametrize("answer", ["[broken", "version = 2\n"])
def test_error_says_that_the_configuration_is_unchanged_only_if_that_is_true(
    simulated: SimulatedNode, invocation: Invocation, answer: str
) -> None:
    left = "'/etc/containerd/config.toml' is left as it was."
    said = CommandResult(argv=("containerd",), exit_code=0, stdout=answer, stderr="")
    simulated.failing["containerd --config"] = said

    assert boot(simulated, invocation, "format 2") == 6
    assert str(invocation.outcome()["error"]).endswith(left)

    del simulated.failing["containerd --config"]
    simulated.failing["containerd config dump"] = said
    assert boot(simulated, invocation, "format 2") == 6
    assert invocation.steps()["validate-runtime"] == "failed"
    assert left not in str(invocation.outcome()["error"])
