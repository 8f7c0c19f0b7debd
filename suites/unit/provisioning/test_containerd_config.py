"""How a boot edits each kind of containerd configuration, with a simulated containerd."""

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
from harness.provisioning.retry import StepFailedError
from harness.provisioning.toml_text import TomlTextError, get_value
from harness.provisioning.toolkit import (
    RuntimeFacts,
    configure_containerd,
    expect_in_effect,
    gpu_configuration,
    non_gpu_configuration,
    wanted_of_gpu_node,
)
from suites.unit.provisioning.containerd_files import (
    AKS,
    AKS_ON_2,
    CRI,
    IMPORTS,
    KINDS,
    NVIDIA,
    NVIDIA_CDI,
    RUNC,
    ContainerdFiles,
    configure,
)

from .fakes import GPU_NODE, KERNEL, VERSION, Invocation, make_node, write_tags
from .simulated_containerd import Release
from .simulation import SimulatedNode

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping
    from pathlib import Path

PROGRAM = "/usr/bin/nvidia-container-runtime"
TABLE = ("plugins", CRI)


def boot(
    simulated: SimulatedNode, invocation: Invocation, kind: str, *tags: tuple[str, str]
) -> int:
    simulated.build(VERSION, KERNEL)
    write_tags(simulated.files, *tags)
    for path, text in KINDS[kind].texts.items():
        simulated.files.write(path, text)
    return invocation.run("boot", GPU_NODE)


def nodes_of_each_kind(
    top: Path, verdicts_of: Callable[[ContainerdFiles], Mapping[Release, str]]
) -> Iterator[tuple[str, ContainerdFiles, SimulatedNode]]:
    """Yield nodes of each kind: with every release if the verdicts differ, else with one in turn."""
    for number, (name, kind) in enumerate(KINDS.items()):
        releases = kind.releases
        if len({verdicts_of(kind).get(release) for release in Release}) == 1:
            releases = [releases[number % len(releases)]]
        for release in releases:
            row = f"{name}, containerd {release.value}"
            simulated = SimulatedNode(top / row, containerd=release)
            for path, text in kind.texts.items():
                simulated.files.write(path, text)
            yield row, kind, simulated


def test_configured_gpu_node_has_the_nvidia_runtime_in_the_containerd_dump(
    tmp_path: Path,
) -> None:
    for row, kind, simulated in nodes_of_each_kind(tmp_path, lambda kind: kind.gpu):
        words = kind.gpu.get(simulated.containerd)

        error = configure(make_node(simulated, simulated.top), is_opted_out=False)

        if words is not None:
            assert words in (error or ""), row
            assert simulated.files.read(CONTAINERD_CONFIG) == kind.main, row
            continue
        assert error is None, row
        dump = simulated.run(("containerd", "config", "dump"), timeout_s=1).stdout
        assert has_nvidia_runtime(dump, cri_table(dump)), row


def test_configured_opted_out_node_has_no_nvidia_runtime_in_the_containerd_configuration(
    tmp_path: Path,
) -> None:
    for row, kind, simulated in nodes_of_each_kind(tmp_path, lambda kind: kind.opted_out):
        words = kind.opted_out.get(simulated.containerd)

        error = configure(make_node(simulated, simulated.top), is_opted_out=True)

        main, text = kind.main or "", simulated.files.read(CONTAINERD_CONFIG) or ""
        if words is not None:
            assert words in (error or ""), row
            assert text == main, row
            continue
        assert error is None, row
        assert nvidia_runtimes(text) == [], row
        assert (text == main) == (nvidia_runtimes(main) == []), row


def test_boot_fails_without_kubelet_if_the_containerd_configuration_is_refused(
    simulated: SimulatedNode, invocation: Invocation
) -> None:
    """A package of Docker disables CRI; the opted-out node's default runtime is missing."""
    assert boot(simulated, invocation, "package of Docker") == 6
    assert KINDS["package of Docker"].gpu[Release.OLD] in str(invocation.outcome()["error"])
    assert simulated.files.read(CONTAINERD_CONFIG) == KINDS["package of Docker"].main
    assert simulated.files.names("/etc/containerd") == ("config.toml",)

    tag = ("SkipGpuDriverInstall", "true")
    assert boot(simulated, invocation, "default that is missing", tag) == 6
    words = KINDS["default that is missing"].opted_out[Release.OLD]
    assert words in str(invocation.outcome()["error"])
    assert simulated.files.read(CONTAINERD_CONFIG) == KINDS["default that is missing"].main
    assert "kubelet" not in simulated.active


def nvidia_runtimes(text: str) -> list[str]:
    if "nvidia" not in text:
        return []
    return [runtime.name for runtime in read_runtimes(text, cri_table(text)) if runtime.is_nvidia]


def test_runtime_of_another_name_is_kept_without_the_nvidia_program() -> None:
    """AKS's `untrusted` runtime uses NVIDIA's program on a GPU node and runc on other nodes."""
    for name in ("untrusted", "kata-nvidia"):
        left = left_of(AKS.replace("untrusted", name))

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
    """Before containerd 2, a table of runtimes replaces the built-in table with the default runtime."""
    kata = NVIDIA.replace("nvidia", "kata").replace(PROGRAM, "/opt/kata/bin/kata")
    text = f"version = 2\n{NVIDIA}{kata}"
    left = non_gpu_configuration(RuntimeFacts(text=text, cdi=CdiSupport.ABSENT)) or ""

    assert {runtime.name for runtime in read_runtimes(left, TABLE)} == {"kata", "runc"}
    assert WantedRuntimes(has_nvidia=False).difference(left) is None


def test_nvidia_program_is_removed_from_every_key_on_an_opted_out_node() -> None:
    texts = [
        f'[plugins."{CRI}".containerd.default_runtime.options]\nRuntime = "{PROGRAM}"\n',
        f'[plugins."{CRI}".containerd.default_runtime]\nruntime_engine = "{PROGRAM}"\n',
        f'[plugins."{CRI}".containerd.untrusted_workload_runtime]\nruntime_engine = "{PROGRAM}"\n',
        f'[plugins."{CRI}".containerd.runtimes.gpu.options]\nBinaryName = "{PROGRAM}.cdi"\n',
        f'[plugins."{CRI}".containerd.runtimes.gpu.options]\nBinaryName = "nvidia-oci"\n',
        f'[plugins."{CRI}".containerd.runtimes]\nnvidia.options.BinaryName = "{PROGRAM}"\n',
        f'[plugins."{CRI}".containerd.runtimes.nvidia]\noptions = {{ BinaryName = "{PROGRAM}" }}\n',
        f"[plugins.'{CRI}'.containerd.runtimes.nvidia.options]\nBinaryName = '/usr/local{PROGRAM}'\n",
    ]
    for text in texts:
        left = left_of(f"version = 2\n{text}")

        assert left, text
        assert "nvidia-container-runtime" not in left, text
        assert "nvidia-oci" not in left, text


def test_runc_in_the_nvidia_toolkit_folder_is_not_taken_for_an_nvidia_program() -> None:
    program = "/opt/nvidia-container-runtime/bin/runc"

    assert left_of(f'version = 2\n{RUNC}options.BinaryName = "{program}"\n') == ""


def test_runc_is_added_to_a_table_of_runtimes_that_lacks_the_default_runtime() -> None:
    """Containerd 2, which prints format 3, keeps its own runc beside the table."""
    text = f"version = 2\n{NVIDIA}SystemdCgroup = true\n"
    options = (*TABLE, "containerd", "runtimes", "runc", "options")
    for dump in (None, "version = 1\n", "version = 2\n"):
        facts = RuntimeFacts(text=text, cdi=CdiSupport.NATIVE, dump=dump)
        edited = gpu_configuration(facts) or ""

        assert edited.startswith(text), dump
        assert get_value(edited, (*options, "SystemdCgroup")) == "true", dump
        assert get_value(edited, (*options, "BinaryName")) is None, dump
    for dump in ("version = 3\n", "version = 4\n"):
        facts = RuntimeFacts(text=text, cdi=CdiSupport.NATIVE, dump=dump)
        assert gpu_configuration(facts) is None, dump

    text = f'version = 2\n{NVIDIA_CDI}Root = "/first"\n{NVIDIA}Root = "/second"\n'
    edited = gpu_configuration(RuntimeFacts(text=text, cdi=CdiSupport.NATIVE)) or ""
    assert get_value(edited, (*options, "Root")) == '"/first"'


KATA = NVIDIA.replace("nvidia", "kata").replace(f'"{PROGRAM}"', '"/opt/kata/bin/kata"')


def left_of(text: str) -> str:
    """Return the configuration of a node that opted out."""
    return non_gpu_configuration(RuntimeFacts(text=text, cdi=CdiSupport.NATIVE)) or ""


def test_runc_gets_the_options_of_the_default_nvidia_runtime_if_there_are_two() -> None:
    for default in ("nvidia", "nvidia-cdi"):
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


def test_default_nvidia_runtime_of_another_name_is_kept_without_the_nvidia_program() -> None:
    text = f"version = 2\n{DEFAULT_NVIDIA}{NVIDIA}Root = '/r'\n".replace("nvidia", "gpu").replace(
        "gpu-container", "nvidia-container"
    )
    left = left_of(text)

    assert default_runtime(left, TABLE) == "gpu"
    (gpu,) = read_runtimes(left, TABLE)
    assert (gpu.name, gpu.program, gpu.is_effective) == ("gpu", None, True)
    assert get_value(left, (*gpu.table, "options", "Root")) == "'/r'"


def test_every_key_with_the_nvidia_program_is_removed_from_a_runtime() -> None:
    """Before the runc shims existed, other keys named the program of a runtime."""
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
    """A table of the default runtime alone does not replace containerd's table of runtimes."""
    table = f'[plugins."{CRI}".containerd.default_runtime]\nruntime_engine = "{PROGRAM}"\n'

    assert left_of(f"version = 2\n{table}").strip() == "version = 2"


def test_cri_table_depends_on_the_format_version_and_the_containerd_version() -> None:
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


def test_program_of_a_runtime_is_read_from_binaryname_or_runtime_or_runtime_engine() -> None:
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


def test_nvidia_runtime_is_recognised_by_the_whole_path_of_the_program() -> None:
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


def test_nvidia_runtime_needs_a_runtime_type_whose_shim_starts_the_program() -> None:
    """Only the oldest shim starts the program of the oldest keys."""
    alone = f'[plugins."{CRI}".containerd.default_runtime]\nruntime_type = "x"\noptions.BinaryName = "{PROGRAM}"\n'
    assert not has_nvidia_runtime(alone, TABLE)
    assert [each.is_nvidia for each in read_runtimes(alone, TABLE)] == [True]

    for value in ('""', "''"):
        text = NVIDIA.replace('"io.containerd.runc.v2"', value)
        assert not has_nvidia_runtime(text, TABLE), value
        assert not has_nvidia_runtime(f"{text}{NVIDIA_CDI}", TABLE), value

    for kind in ("io.containerd.runsc.v1", "io.containerd.kata.v2"):
        assert not has_nvidia_runtime(NVIDIA.replace("io.containerd.runc.v2", kind), TABLE), kind
    for kind in ("runc.v1", "runtime.v1.linux"):
        text = NVIDIA.replace("runc.v2", kind)
        assert has_nvidia_runtime(text, TABLE, "version = 2\n"), kind
        assert not has_nvidia_runtime(text, TABLE, "version = 3\n"), kind

    for key in ("options.Runtime", "runtime_engine"):
        text = f'{RUNC}{key} = "{PROGRAM}"\n'
        assert not has_nvidia_runtime(text, TABLE), key
        assert has_nvidia_runtime(text.replace("runc.v2", "runtime.v1.linux"), TABLE), key
        assert has_nvidia_runtime(f'{text}options.BinaryName = "{PROGRAM}"\n', TABLE), key


def test_toml_strings_are_read_in_double_and_single_quotes() -> None:
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


def test_configuration_of_a_node_with_a_gpu_is_kept_if_it_has_the_nvidia_runtime() -> None:
    """A dump of containerd 2 has format 3 even if the file, which imports others, has format 2."""
    own = f"version = 2\n{RUNC}{NVIDIA}"
    newer = own.replace("version = 2", "version = 3").replace(CRI, "io.containerd.cri.v1.runtime")
    imports = "version = 2\nimports = ['conf.d/*']\n"
    for text, dump in (
        (f"version = 2\n{DEFAULT_NVIDIA}{NVIDIA}", None),
        (own, None),
        (newer, None),
        (imports, own),
        (imports, newer),
        (f"{imports}{KATA}", own + KATA),
    ):
        facts = RuntimeFacts(text=text, cdi=CdiSupport.NATIVE, dump=dump)
        assert gpu_configuration(facts) is None, (text, dump)

    off = RuntimeFacts(text=own, cdi=CdiSupport.CAPABLE, is_cdi_enabled=False)
    assert gpu_configuration(off) is None


def test_configuration_and_cdi_support_determine_the_wanted_runtimes_of_a_node_with_a_gpu() -> (
    None
):
    has_runtime = f"version = 2\n{RUNC}{NVIDIA}"
    default, cdi = replace(GPU, is_nvidia_default=True), replace(GPU, is_cdi_on=True)
    rows = {
        RuntimeFacts(text=None, cdi=CdiSupport.ABSENT): default,
        RuntimeFacts(text=has_runtime, cdi=CdiSupport.ABSENT): GPU,
        RuntimeFacts(text=None, cdi=CdiSupport.CAPABLE): cdi,
        RuntimeFacts(text=None, cdi=CdiSupport.NATIVE): cdi,
        RuntimeFacts(text=None, cdi=CdiSupport.NATIVE, is_cdi_enabled=False): default,
        RuntimeFacts(text=has_runtime, cdi=CdiSupport.CAPABLE, is_cdi_enabled=False): GPU,
    }

    assert {facts: wanted_of_gpu_node(facts) for facts in rows} == rows


def test_configuration_keeps_its_owner_and_mode(simulated: SimulatedNode) -> None:
    """The file may contain passwords of registries."""
    simulated.files.write(CONTAINERD_CONFIG, "version = 2\n", mode=0o600)

    assert configure(make_node(simulated, simulated.top), is_opted_out=False) is None

    assert PROGRAM in (simulated.files.read(CONTAINERD_CONFIG) or "")
    assert simulated.files.at(CONTAINERD_CONFIG).stat().st_mode & 0o7777 == 0o600


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


def test_containerd_dump_of_an_unknown_format_version_is_not_accepted() -> None:
    dump = f"version = 3\n{CDI_OFF}".replace(CRI, "io.containerd.cri.v1.runtime")
    wanted = replace(GPU, is_cdi_on=True)

    assert (wanted.difference(dump) or "").startswith("Its 'enable_cdi' is not true.")
    assert wanted.difference(dump.replace("false", "true")) is None
    with pytest.raises(TomlTextError):
        GPU.difference("[broken")
    for answer in ("", "version = 9\n", "level = 'warn'\n"):
        assert GPU.difference(answer) is not None, answer


def test_containerd_configuration_that_imports_its_own_folder_is_accepted(tmp_path: Path) -> None:
    """A temporary file in the same folder would import the old file."""
    simulated = SimulatedNode(tmp_path, containerd=Release.MIDDLE)
    simulated.files.write(CONTAINERD_CONFIG, KINDS["imports its own folder"].main or "")

    assert configure(make_node(simulated, tmp_path), is_opted_out=False) is None


DEFAULT_NVIDIA = f'[plugins."{CRI}".containerd]\ndefault_runtime_name = "nvidia"\n'
GPU = WantedRuntimes(has_nvidia=True)
OTHER = WantedRuntimes(has_nvidia=False)


DEFAULT_KATA = DEFAULT_NVIDIA.replace("nvidia", "kata")
CDI_OFF = f'{RUNC}{NVIDIA}[plugins."{CRI}"]\nenable_cdi = false\n'


def test_dump_of_containerd_is_compared_with_the_wanted_runtimes() -> None:
    default, cdi = replace(GPU, is_nvidia_default=True), replace(GPU, is_cdi_on=True)
    rows = [
        (GPU, RUNC + NVIDIA, None),
        (GPU, RUNC, f"None of its runtimes ['runc'] has '{PROGRAM}' as its"),
        (GPU, NVIDIA, "Its default runtime 'runc' is not one of its runtimes ['nvidia']"),
        (GPU, DEFAULT_NVIDIA + NVIDIA, None),
        (GPU, DEFAULT_NVIDIA + RUNC, "None of its runtimes ['runc'] has"),
        (
            GPU,
            f"{DEFAULT_NVIDIA.replace('nvidia', '')}{RUNC}{NVIDIA}",
            "Its default runtime '' is not one of its runtimes ['nvidia', 'runc']",
        ),
        (GPU, CDI_OFF, None),
        (GPU, f"required_plugins = ['{CRI}']\n{RUNC}{NVIDIA}", None),
        (
            default,
            RUNC + NVIDIA,
            "Its default runtime is 'runc', which is not the nvidia runtime.",
        ),
        (default, DEFAULT_NVIDIA + NVIDIA, None),
        (default, DEFAULT_KATA + NVIDIA, "Its default runtime 'kata' is not one of its runtimes"),
        (
            default,
            DEFAULT_NVIDIA.replace('"nvidia"', '"nvidia-cdi"') + NVIDIA + NVIDIA_CDI,
            None,
        ),
        (cdi, RUNC + NVIDIA, None),
        (cdi, CDI_OFF, "Its 'enable_cdi' is not true."),
        (cdi, CDI_OFF.replace("false", "true"), None),
        (replace(cdi, is_nvidia_default=True), CDI_OFF, "Its default runtime is 'runc'"),
        (OTHER, RUNC + NVIDIA, None),
        (OTHER, "", None),
        (
            OTHER,
            DEFAULT_NVIDIA.replace('"nvidia"', '"gpu"')
            + NVIDIA_CDI.replace("runtimes.nvidia-cdi", "runtimes.gpu"),
            f"Its default runtime 'gpu' starts '{PROGRAM}.cdi'.",
        ),
        (
            OTHER,
            f'{RUNC}[plugins."{CRI}".containerd.default_runtime]\nruntime_engine = "{PROGRAM}"\n',
            f"Its default runtime 'default_runtime' starts '{PROGRAM}'.",
        ),
        (OTHER, DEFAULT_NVIDIA + RUNC, "Its default runtime 'nvidia' is not one of its runtimes"),
        (OTHER, DEFAULT_NVIDIA + NVIDIA.replace(PROGRAM, "runc"), None),
    ]
    for wanted, dump, words in rows:
        found = wanted.difference(f"version = 2\n{dump}")

        assert (found is None) == (words is None), (wanted, dump, found)
        assert (words or "") in (found or ""), (wanted, dump, found)


def test_cri_is_reported_as_disabled_if_any_plugin_that_it_needs_is_disabled() -> None:
    for name in ("cri", CRI, "io.containerd.cri.v1.runtime", "io.containerd.cri.v1.images"):
        disabled = f"disabled_plugins = ['io.containerd.x.v1.y', '{name}']\nversion = 2\n"

        for dump in (disabled, f"{disabled}{RUNC}{NVIDIA}"):
            found = GPU.difference(dump) or ""
            assert found.startswith("Its CRI plugin is disabled"), name
            assert "Remove the plugin from 'disabled_plugins'." in found, name
            assert OTHER.difference(dump) is None, name


def test_message_about_a_missing_runtime_mentions_the_imported_files() -> None:
    config, other = "/etc/containerd/config.toml", "/etc/containerd/conf.d/a.toml"
    nested, similar = (
        "/etc/containerd/config.toml.d/a.toml",
        "/etc/containerd/conf.d/99-config.toml",
    )
    temporary = ".config.toml.abcd1234"
    rows: dict[tuple[str, ...], list[str]] = {
        (): [],
        (config,): [],
        (f"/etc/containerd/{temporary}",): [],
        (config, other): [other],
        (nested, other): [nested, other],
        (config, similar): [similar],
        (f"/srv/{temporary}",): [f"/srv/{temporary}"],
    }
    for imports, named in rows.items():
        found = GPU.difference(f"imports = {list(imports)}\nversion = 2\n{RUNC}") or ""

        words = (
            f"'{config}' imports {named}. If containerd is older" if named else f"See '{config}'."
        )
        assert words in found, imports

    linked = "/srv/.x.toml.abcd1234"
    found = GPU.difference(f'imports = ["{linked}"]\nversion = 2\n{RUNC}', linked) or ""
    assert f"See '{config}'." in found, "the target of a symbolic link is containerd's own file"


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


def test_containerd_configuration_that_imports_itself_is_detected() -> None:
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


def test_opted_out_node_is_not_ready_if_an_imported_file_makes_nvidia_the_default(
    simulated: SimulatedNode, invocation: Invocation
) -> None:
    """The main file has no NVIDIA runtime and is kept; `nvidia-ctk` wrote the drop-in."""
    simulated.build(VERSION, KERNEL)
    write_tags(simulated.files, ("SkipGpuDriverInstall", "true"))
    main = f"{IMPORTS}{RUNC}"
    simulated.files.write(CONTAINERD_CONFIG, main)
    dropped = f"version = 2\n{DEFAULT_NVIDIA}{RUNC}{NVIDIA}"
    simulated.files.write("/etc/containerd/conf.d/99-nvidia.toml", dropped)
    for release in (Release.OLD, Release.NEW):
        simulated.containerd = release

        assert invocation.run("boot", GPU_NODE) == 6

        assert invocation.steps()["validate-runtime"] == "failed"
        error = str(invocation.outcome()["error"])
        assert f"Its default runtime 'nvidia' starts '{PROGRAM}'." in error
        assert "/etc/containerd/conf.d/" in error
        assert simulated.files.read(CONTAINERD_CONFIG) == main
        assert "kubelet" not in simulated.active


def test_each_subtable_of_the_table_of_runtimes_is_read_as_a_runtime() -> None:
    rows: dict[str, list[str]] = {
        f'[plugins."{CRI}".containerd.runtimes]\n': [],
        f'[plugins."{CRI}".containerd.runtimes.kata]\n': ["kata"],
        f'[plugins."{CRI}".containerd.runtimes.kata.options]\n': ["kata"],
        f'[plugins."{CRI}".containerd.runtimes]\nkata.runtime_type = "x"\n': ["kata"],
        f'[plugins."{CRI}".containerd.untrusted_workload_runtime]\nruntime_type = "x"\n': [],
        f'[plugins."{CRI}".containerd.default_runtime]\nruntime_engine = "x"\n': ["default_runtime"],
        RUNC.replace(CRI, "io.containerd.cri.v1.runtime"): [],
        f"{KATA}{NVIDIA}{RUNC}": ["kata", "nvidia", "runc"],
    }  # fmt: skip

    assert {text: [each.name for each in read_runtimes(text, TABLE)] for text in rows} == rows


def test_error_for_a_refused_containerd_configuration_says_that_the_file_is_unchanged(
    simulated: SimulatedNode,
) -> None:
    node = make_node(simulated, simulated.top)
    simulated.files.write(CONTAINERD_CONFIG, "version = 2\n")
    left = "'/etc/containerd/config.toml' is unchanged."
    ok = CommandResult(argv=("containerd",), exit_code=0, stdout="", stderr="")
    rows = {
        "containerd did not say in time whether": replace(ok, exit_code=124, timed_out=True),
        "containerd does not accept its configuration.": replace(ok, exit_code=1),
        "The output of `containerd config dump` cannot be read": replace(ok, stdout="[broken"),
        "containerd's configuration is not as wanted.": replace(ok, stdout="version = 2\n"),
    }
    for words, answer in rows.items():
        simulated.failing["containerd"] = answer

        with pytest.raises(StepFailedError, match=words) as before:
            configure_containerd(f"version = 2\n{RUNC}{NVIDIA}", GPU).function(node)
        with pytest.raises(StepFailedError, match=words) as after:
            expect_in_effect(GPU).function(node)

        assert left in str(before.value)
        assert left not in str(after.value)
        assert simulated.files.read(CONTAINERD_CONFIG) == "version = 2\n"
