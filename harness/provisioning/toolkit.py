"""The configuration of containerd and of the nvidia runtime, and the CDI spec."""

from __future__ import annotations

import json
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

from .cdi import (
    LEGACY_PREFIX,
    CdiSupport,
    Engine,
    RuntimeChoice,
    choose_runtime,
    offers_device,
)
from .containerd_config import (
    CONTAINERD_CONFIG,
    DEFAULT_RUNTIME_TABLE,
    FALLBACK_RUNTIME,
    PROGRAM_KEYS,
    CriRuntime,
    WantedRuntimes,
    cri_table,
    default_runtime,
    has_nvidia_runtime,
    has_short_names,
    imports_itself,
    is_of_containerd_2,
    read_runtimes,
    starts_program,
)
from .exit_codes import ExitCode, ProvisioningError
from .nvidia import CONTAINER_RUNTIME
from .plan import Action, Do, Remove, Retry, Run, Write
from .retry import StepFailedError
from .systemd import drop_in, reload_units, reset_failed, start, where_loaded
from .toml_text import (
    Key,
    TomlTextError,
    get_value,
    read_entries,
    read_string,
    remove_tables,
    render_string,
    set_value,
    values_below,
)

if TYPE_CHECKING:
    from .node_context import NodeContext

CONTAINERD_SOCKET = "/run/containerd/containerd.sock"
"""containerd creates this socket when it starts."""
TOOLKIT_CONFIG = "/etc/nvidia-container-runtime/config.toml"
CDI_SPEC = "/var/run/cdi/nvidia.yaml"
CDI_DEVICE_KIND = "nvidia.com/gpu"
REFRESH_UNIT = "nvidia-cdi-refresh"
RUNTIME_NAME = "nvidia"
CRI_O_UNIT = "crio"
CRI_O_DROP_IN = "/etc/crio/crio.conf.d/99-nvidia.conf"
CRI_O_HOOK = "/usr/share/containers/oci/hooks.d/oci-nvidia-hook.json"
HOOK_PROGRAM = "/usr/bin/nvidia-container-runtime-hook"
DUMP_TIMEOUT_S = 60.0


@dataclass(frozen=True, kw_only=True)
class RuntimeFacts:
    """containerd's configuration file (None if it is missing) and the CDI support of the pods' runtime.

    `dump` is the output of `containerd config dump`, or None if this command failed. `is_stale` is
    true if containerd's file was written after containerd started, for example by a run that was
    killed before it restarted containerd.
    """

    text: str | None
    cdi: CdiSupport
    dump: str | None = None
    engine: Engine = Engine.CONTAINERD
    is_cdi_enabled: bool = True
    is_stale: bool = False

    @property
    def choice(self) -> RuntimeChoice:
        """Return how containers on this node get devices."""
        return choose_runtime(
            self.engine,
            is_cdi_enabled=self.is_cdi_enabled,
            is_native=self.cdi is not CdiSupport.ABSENT,
        )


def gpu_configuration(facts: RuntimeFacts) -> str | None:
    """Return containerd's configuration for a GPU node, or None to keep the present one.

    If a runtime that starts NVIDIA's program exists, the only changes are that CDI is switched on,
    and that runc is added if runc is the default runtime but is missing from the file. On a node
    whose pods run in CRI-O, containerd runs only the driver image, and containerd's configuration
    is kept. If no runtime starts NVIDIA's program, only the keys of a new runtime are set; the new
    runtime copies the options of `runc`, such as the cgroup driver.

    Raises TomlTextError if the file cannot be parsed.
    """
    if facts.engine is Engine.CRI_O:
        return None
    text = _with_format(facts.text or "")
    cri = cri_table(text, facts.dump)
    if facts.cdi is CdiSupport.CAPABLE and facts.is_cdi_enabled:
        text = set_value(text, (*cri, "enable_cdi"), "true")
    if not _has_runtime(facts):
        text = _add_runtime(text, cri, facts)
    elif _lacks_runc(text, cri, facts.dump):
        nvidia = next(each for each in read_runtimes(text, cri) if each.is_nvidia)
        options = values_below(text, (*nvidia.table, "options"))
        text = _add_runc(text, (*cri, "containerd", "runtimes", FALLBACK_RUNTIME), options)
    return None if text == facts.text else text


def _lacks_runc(text: str, cri: Key, dump: str | None) -> bool:
    """Return whether the default runtime is runc, but the file's table of runtimes lacks runc.

    In containerd before 2, a file's table of runtimes replaces containerd's default table, and the
    CRI plugin does not start if the default runtime is missing.
    """
    if is_of_containerd_2(dump):
        return False
    runtimes = read_runtimes(text, cri)
    return (
        any(runtime.is_nvidia for runtime in runtimes)
        and default_runtime(text, cri) == FALLBACK_RUNTIME
        and all(runtime.name != FALLBACK_RUNTIME for runtime in runtimes)
    )


def wanted_of_gpu_node(facts: RuntimeFacts) -> WantedRuntimes:
    """Return the wanted content of containerd's dump, after containerd has read `gpu_configuration`."""
    return WantedRuntimes(
        has_nvidia=True,
        is_nvidia_default=facts.choice.is_default and not _has_runtime(facts),
        is_cdi_on=facts.is_cdi_enabled and facts.cdi is not CdiSupport.ABSENT,
    )


def _has_runtime(facts: RuntimeFacts) -> bool:
    """Return whether containerd's file, or a file that it imports, declares the nvidia runtime."""
    text = _with_format(facts.text or "")
    if has_nvidia_runtime(text, cri_table(text, facts.dump), facts.dump):
        return True
    return facts.dump is not None and has_nvidia_runtime(facts.dump, cri_table(facts.dump))


def _with_format(text: str) -> str:
    """Return the text with the key `version` added, unless that would change the text's meaning.

    A file without `version` has format 1, whose tables containerd 2 ignores (containerd 8275). A
    file keeps its format if it contains `version`, tables of plugins or short names of plugins. In
    a later format, the tables have other names, and containerd does not start if the file contains
    a short name of a plugin. containerd's file in Docker's package contains a short name of a
    plugin.
    """
    if has_short_names(text):
        return text
    if any(entry.path[:1] in {("version",), ("plugins",)} for entry in read_entries(text)):
        return text
    return set_value(text, ("version",), "2")


def _add_runtime(text: str, cri: Key, facts: RuntimeFacts) -> str:
    choice = facts.choice
    is_new = is_of_containerd_2(facts.dump, cri)
    runtimes = (*cri, "containerd", "runtimes")
    options = {
        **values_below(text, (*runtimes, FALLBACK_RUNTIME, "options")),
        "BinaryName": render_string(CONTAINER_RUNTIME),
    }
    # A table of runtimes replaces containerd's default table, which has runc (seen with 1.6.20).
    for name in (FALLBACK_RUNTIME, RUNTIME_NAME):
        runtime_type = (*runtimes, name, "runtime_type")
        kind = get_value(text, runtime_type)
        is_kept = name == FALLBACK_RUNTIME or starts_program(
            read_string(kind or ""), is_new=is_new
        )
        if kind is None or not is_kept:
            text = set_value(text, runtime_type, render_string("io.containerd.runc.v2"))
    if choice.annotation_prefix == LEGACY_PREFIX:
        # containerd passes only the annotations in this list to a container's runtime.
        annotations = (*runtimes, RUNTIME_NAME, "container_annotations")
        text = set_value(text, annotations, f"[{render_string(LEGACY_PREFIX + '*')}]")
    for key, value in options.items():
        text = set_value(text, (*runtimes, RUNTIME_NAME, "options", key), value)
    if choice.is_default:
        default = (*cri, "containerd", "default_runtime_name")
        text = set_value(text, default, render_string(RUNTIME_NAME))
    return text


def non_gpu_configuration(facts: RuntimeFacts) -> str | None:
    """Return containerd's configuration for an opted-out node, or None to keep the present one.

    A runtime that starts one of NVIDIA's programs is removed if the runtime's name begins with
    `nvidia`. If a runtime with another name starts one of NVIDIA's programs, the runtime is kept
    but changed to start runc, because pods may request the runtime by name. If the default runtime
    has a name of NVIDIA and does not exist, runc becomes the default runtime.

    Raises TomlTextError if the file cannot be parsed.
    """
    text = facts.text
    if facts.engine is Engine.CRI_O or text is None or RUNTIME_NAME not in text:
        return None
    cri = cri_table(text, facts.dump)
    found = [runtime for runtime in read_runtimes(text, cri) if runtime.is_nvidia]
    default = default_runtime(text, cri)
    options: dict[str, str] = {}
    for runtime in found:
        if runtime.name == default:
            options = values_below(text, (*runtime.table, "options"))
        text = _without_nvidia(text, runtime)
    runtimes = (*cri, "containerd", "runtimes")
    left = {runtime.name for runtime in read_runtimes(text, cri)}
    is_default_gone = default not in left and (
        default.startswith(RUNTIME_NAME) or any(runtime.name == default for runtime in found)
    )
    if not found and not is_default_gone:
        return None
    if is_default_gone:
        key = (*cri, "containerd", "default_runtime_name")
        text = set_value(text, key, render_string(FALLBACK_RUNTIME))
        default = FALLBACK_RUNTIME
    has_table = any(entry.path[: len(runtimes)] == runtimes for entry in read_entries(text))
    if default == FALLBACK_RUNTIME not in left and (is_default_gone or has_table):
        text = _add_runc(text, (*runtimes, FALLBACK_RUNTIME), options)
    return text


def _without_nvidia(text: str, runtime: CriRuntime) -> str:
    if runtime.name.startswith(RUNTIME_NAME) or runtime.name == DEFAULT_RUNTIME_TABLE:
        return remove_tables(text, runtime.table)
    for key in PROGRAM_KEYS:
        if get_value(text, (*runtime.table, *key)) is not None:
            text = remove_tables(text, (*runtime.table, *key))
    return text


def _add_runc(text: str, table: Key, options: dict[str, str]) -> str:
    """Return the configuration `text` with a runtime `runc` added.

    `runc` gets all `options`, except options that name a program.
    """
    text = set_value(text, (*table, "runtime_type"), render_string("io.containerd.runc.v2"))
    for key, value in options.items():
        if ("options", key) not in PROGRAM_KEYS:
            text = set_value(text, (*table, "options", key), value)
    return text


def configure_containerd(text: str, wanted: WantedRuntimes) -> Do:
    """Write containerd's configuration; replace the present file only if containerd accepts the new file."""
    write = Write(path=CONTAINERD_CONFIG, text=text)

    def check(node: NodeContext, path: str) -> None:
        in_effect = None if imports_itself(text) else wanted
        _expect_dump(node, in_effect, "--config", str(node.files.at(path)))

    def configure(node: NodeContext) -> None:
        node.files.rewrite(CONTAINERD_CONFIG, text, check=partial(check, node))

    return Do(
        description=(*write.describe(), "  once `containerd config dump` accepts it"),
        function=configure,
    )


def expect_in_effect(wanted: WantedRuntimes) -> Do:
    """Check that containerd's configuration in effect, including imported files, matches `wanted`."""

    def expect(node: NodeContext) -> None:
        _expect_dump(node, wanted)

    words = CONTAINER_RUNTIME if wanted.has_nvidia else "another default runtime than nvidia's"
    return Do(description=(f"expect {words} in containerd config dump",), function=expect)


def _expect_dump(node: NodeContext, wanted: WantedRuntimes | None, *options: str) -> None:
    """Raise StepFailedError unless `containerd config dump` succeeds and its output matches `wanted`."""
    own = options[-1] if options else CONTAINERD_CONFIG
    result = node.runner.run(("containerd", *options, "config", "dump"), timeout_s=DUMP_TIMEOUT_S)
    left = f" '{CONTAINERD_CONFIG}' is unchanged." if options else ""
    if not result.ok:
        did = "did not say in time whether it accepts" if result.timed_out else "does not accept"
        raise StepFailedError(f"containerd {did} its configuration.{left}\n{result.render()}")
    try:
        difference = None if wanted is None else wanted.difference(result.stdout, own)
    except TomlTextError as error:
        raise StepFailedError(
            f"The output of `containerd config dump` cannot be read: {error}.{left}"
        ) from error
    if difference is not None:
        raise StepFailedError(f"containerd's configuration is not as wanted. {difference}{left}")


def cri_o_files(choice: RuntimeChoice | None) -> tuple[Action, ...]:
    """Write CRI-O's drop-in for the nvidia runtime, or NVIDIA's OCI hook if `choice` has no mode.

    Writing the drop-in removes the hook, and writing the hook removes the drop-in. If `choice` is
    None, the drop-in and the hook are removed. CRI-O reads drop-ins and hooks when CRI-O starts.
    """
    drop: Action = Remove(path=CRI_O_DROP_IN)
    hook: Action = Remove(path=CRI_O_HOOK)
    if choice is not None and choice.mode is None:
        hook = Write(path=CRI_O_HOOK, text=render_hook())
    elif choice is not None:
        drop = Write(path=CRI_O_DROP_IN, text=render_cri_o())
    return (drop, hook, where_loaded(CRI_O_UNIT, *start(CRI_O_UNIT, 30)))


def render_cri_o() -> str:
    """Render CRI-O's drop-in that declares the nvidia runtime."""
    return (
        f"[crio.runtime.runtimes.{RUNTIME_NAME}]\n"
        f"runtime_path = {render_string(CONTAINER_RUNTIME)}\n"
        'runtime_type = "oci"\n'
    )


def render_hook() -> str:
    """Render the OCI hook that gives a container the GPUs that the container's environment requests."""
    document = {
        "version": "1.0.0",
        "hook": {
            "path": HOOK_PROGRAM,
            "args": [HOOK_PROGRAM.rpartition("/")[2], "prestart"],
            "env": ["PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"],
        },
        "when": {"always": True, "commands": [".*"]},
        "stages": ["prestart"],
    }
    return json.dumps(document, indent=2) + "\n"


def toolkit_configuration(text: str, choice: RuntimeChoice) -> str:
    """Return `text`, the nvidia runtime's configuration, with the mode of `choice` set.

    The annotation prefix is set only if the prefix in `choice` differs from the runtime's default.

    Raises TomlTextError if the file cannot be parsed.
    """
    table = ("nvidia-container-runtime",)
    if choice.mode is not None:
        text = set_value(text, (*table, "mode"), render_string(choice.mode))
    if choice.annotation_prefix == LEGACY_PREFIX:
        key = (*table, "modes", "cdi", "annotation-prefixes")
        text = set_value(text, key, f"[{render_string(LEGACY_PREFIX)}]")
    return text


def configure_toolkit(choice: RuntimeChoice) -> Do:
    """Set the mode of the nvidia runtime, on a node whose driver image installed this runtime."""

    def configure(node: NodeContext) -> str | None:
        text = node.files.read_whole(TOOLKIT_CONFIG)
        if text is None:
            return f"There is no '{TOOLKIT_CONFIG}'."
        try:
            edited = toolkit_configuration(text, choice)
        except TomlTextError as error:
            raise ProvisioningError(
                ExitCode.GPU_DRIVERS_START_FAIL, f"'{TOOLKIT_CONFIG}' cannot be edited: {error}."
            ) from error
        if edited != text:
            node.files.rewrite(TOOLKIT_CONFIG, edited)
        return None

    return Do(description=(f"set mode {choice.mode} in {TOOLKIT_CONFIG}",), function=configure)


def tolerate_early_refresh() -> tuple[Action, ...]:
    """Keep the CDI refresh unit from reaching its start limit before there is a driver.

    The unit's start limit is five starts in ten seconds. Without a driver, each start of the unit
    fails; after the start limit, the unit would never write the CDI spec (AgentBaker 9150).
    """
    text = "[Service]\nSuccessExitStatus=1 2 127\n"
    return (
        drop_in(REFRESH_UNIT, "10-aks-tolerate-generate-failure.conf", text),
        reload_units(),
    )


def regenerate_spec() -> tuple[Action, ...]:
    """Write the CDI spec again, now that the driver works, and check the spec.

    The drop-in that makes the refresh unit ignore early failures hides permanent failures too
    (kaito 2326). So a successful start of the refresh unit proves nothing, and the CDI spec itself
    is checked.
    """
    service, path = f"{REFRESH_UNIT}.service", f"{REFRESH_UNIT}.path"
    return (
        where_loaded(
            service,
            reset_failed(service, path),
            Remove(path=CDI_SPEC),
            Run(argv=("systemctl", "start", service), retry=Retry(timeout_s=60), is_optional=True),
            Run(argv=("systemctl", "restart", path), retry=Retry(timeout_s=25), is_optional=True),
            _expect_spec_action(),
        ),
    )


def validate_spec() -> tuple[Action, ...]:
    """If the node has the unit that writes the CDI spec, check that the spec lists a GPU."""
    service = f"{REFRESH_UNIT}.service"
    not_failed = Do(
        description=(f"expect that {service} has not failed",), function=_expect_not_failed
    )
    return (where_loaded(service, not_failed, _expect_spec_action()),)


def _expect_not_failed(node: NodeContext) -> None:
    service = f"{REFRESH_UNIT}.service"
    if node.answer("systemctl", "is-failed", service) == "failed":
        raise ProvisioningError(
            ExitCode.GPU_DRIVERS_START_FAIL, f"The unit {service} has failed; read its journal."
        )


def _expect_spec_action() -> Do:
    words = f"expect a device of {CDI_DEVICE_KIND} in {CDI_SPEC}"
    return Do(description=(words,), function=expect_spec)


def has_spec(node: NodeContext) -> bool:
    """Return whether the CDI spec exists and lists a GPU."""
    text = node.files.read_or_none(CDI_SPEC)
    return text is not None and offers_device(text, CDI_DEVICE_KIND)


def expect_spec(node: NodeContext) -> None:
    """Raise ProvisioningError unless the CDI spec offers a GPU to containers."""
    if not has_spec(node):
        raise ProvisioningError(
            ExitCode.GPU_DRIVERS_START_FAIL,
            f"The driver works, but {REFRESH_UNIT}.service wrote no device of {CDI_DEVICE_KIND} to "
            f"'{CDI_SPEC}'; read its journal.",
        )
