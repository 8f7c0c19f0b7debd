"""The container runtime: whether it injects devices by CDI itself, and its nvidia runtime."""

from __future__ import annotations

import enum
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING

from .exit_codes import ExitCode, ProvisioningError
from .nvidia import CONTAINER_RUNTIME
from .plan import Action, Do, Remove, Retry, Run
from .systemd import drop_in, reload_units, reset_failed, where_loaded
from .toml_text import (
    Key,
    get_value,
    read_string,
    remove_tables,
    render_string,
    set_value,
    values_below,
)

if TYPE_CHECKING:
    from .node import Node

CONTAINERD_CONFIG = "/etc/containerd/config.toml"
CDI_SPEC = "/var/run/cdi/nvidia.yaml"
CDI_DEVICE_KIND = "nvidia.com/gpu"
REFRESH_UNIT = "nvidia-cdi-refresh"
RUNTIME_NAME = "nvidia"

_CRI_PLUGINS: dict[int, Key] = {
    1: ("plugins", "cri"),
    2: ("plugins", "io.containerd.grpc.v1.cri"),
    3: ("plugins", "io.containerd.cri.v1.runtime"),
}
_VERSION = re.compile(r"\bv?(\d+)\.(\d+)(?:\.(\d+))?")


class CdiSupport(enum.Enum):
    """What a container runtime makes of a CDI device that a pod asks for."""

    NATIVE = "native"
    CAPABLE = "capable"
    """It can, and is told not to: enabling it and a restart make it native."""
    ABSENT = "absent"


def parse_version(text: str) -> tuple[int, int, int] | None:
    """Read the version out of `containerd --version`, forks such as `1.7.34-2` included."""
    match = _VERSION.search(text)
    if match is None:
        return None
    return int(match[1]), int(match[2]), int(match[3] or 0)


def detect_cdi(dump: str | None, version: str) -> CdiSupport:
    """Tell containerd's support by what it says of itself; its version is a fallback only.

    `dump` is `containerd config dump`, None where that failed. containerd 2.4 dropped the key
    `enable_cdi` since CDI is always on there (containerd 14166), so a missing key means opposite
    things in old and new releases.
    """
    number = parse_version(version) or (0, 0, 0)
    if dump is None:
        return CdiSupport.CAPABLE if number >= (1, 7, 0) else CdiSupport.ABSENT
    keys: dict[str, str] = {}
    for plugin in _CRI_PLUGINS.values():
        keys.update(values_below(dump, plugin))
    if "enable_cdi" in keys:
        return CdiSupport.NATIVE if keys["enable_cdi"] == "true" else CdiSupport.CAPABLE
    if "cdi_spec_dirs" in keys or number >= (2, 4, 0):
        return CdiSupport.NATIVE
    return CdiSupport.ABSENT


@dataclass(frozen=True, kw_only=True)
class RuntimeFacts:
    """containerd's configuration file, None where there is none, and its CDI support."""

    text: str | None
    cdi: CdiSupport


def gpu_configuration(facts: RuntimeFacts) -> str | None:
    """Return containerd's configuration for a GPU node, or None to keep the one it has.

    One that names the nvidia runtime is kept, but for CDI that is switched off in it. Otherwise
    only our keys are set, and the new runtime takes over the options of `runc`, such as the
    cgroup driver.

    Raises TomlTextError where the file cannot be understood.
    """
    text = facts.text or "version = 2\n"
    cri = _cri_table(text)
    if facts.cdi is CdiSupport.CAPABLE:
        text = set_value(text, (*cri, "enable_cdi"), "true")
    if CONTAINER_RUNTIME not in text:
        text = _add_runtime(text, cri, is_default=facts.cdi is CdiSupport.ABSENT)
    return None if text == facts.text else text


def _add_runtime(text: str, cri: Key, *, is_default: bool) -> str:
    runtimes = (*cri, "containerd", "runtimes")
    options = {
        **values_below(text, (*runtimes, "runc", "options")),
        "BinaryName": render_string(CONTAINER_RUNTIME),
    }
    text = set_value(
        text, (*runtimes, RUNTIME_NAME, "runtime_type"), render_string("io.containerd.runc.v2")
    )
    for key, value in options.items():
        text = set_value(text, (*runtimes, RUNTIME_NAME, "options", key), value)
    if is_default:
        default = (*cri, "containerd", "default_runtime_name")
        text = set_value(text, default, render_string(RUNTIME_NAME))
    return text


def non_gpu_configuration(facts: RuntimeFacts) -> str | None:
    """Return the configuration of a node that opted out, or None to keep the one it has.

    Raises TomlTextError where the file cannot be understood.
    """
    if facts.text is None or CONTAINER_RUNTIME not in facts.text:
        return None
    cri = _cri_table(facts.text)
    text = remove_tables(facts.text, (*cri, "containerd", "runtimes", RUNTIME_NAME))
    default = (*cri, "containerd", "default_runtime_name")
    if read_string(get_value(text, default) or "") == RUNTIME_NAME:
        text = set_value(text, default, render_string("runc"))
    return text


def _cri_table(text: str) -> Key:
    version = get_value(text, ("version",)) or "1"
    return _CRI_PLUGINS.get(int(version) if version.isdigit() else 2, _CRI_PLUGINS[2])


def tolerate_early_refresh() -> tuple[Action, ...]:
    """Keep the CDI refresh unit from failing for good before there is a driver.

    It allows five starts in ten seconds, and each fails until the driver is there; poisoned so,
    it would never write the spec (AgentBaker 9150).
    """
    text = "[Service]\nSuccessExitStatus=1 2 127\n"
    return (
        drop_in(REFRESH_UNIT, "10-aks-tolerate-generate-failure.conf", text),
        reload_units(),
    )


def regenerate_spec() -> tuple[Action, ...]:
    """Write the CDI spec anew, now that the driver works, and see that it is there.

    The drop-in that forgives early failures hides lasting ones as well (kaito 2326), so success
    of the service proves nothing and the spec itself is looked at.
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
    """Look whether the CDI spec is there, on a node that has what writes it."""
    return (where_loaded(f"{REFRESH_UNIT}.service", _expect_spec_action()),)


def _expect_spec_action() -> Do:
    words = f"expect a device of {CDI_DEVICE_KIND} in {CDI_SPEC}"
    return Do(words=(words,), function=expect_spec)


def has_spec(node: Node) -> bool:
    """Tell whether the CDI spec is there and names a GPU."""
    return CDI_DEVICE_KIND in (node.root.read(CDI_SPEC) or "")


def expect_spec(node: Node) -> None:
    """Raise ProvisioningError unless the CDI spec offers a GPU to containers."""
    if not has_spec(node):
        raise ProvisioningError(
            ExitCode.GPU_DRIVERS_START_FAIL,
            f"The driver works, but {REFRESH_UNIT}.service left no device of {CDI_DEVICE_KIND} in "
            f"'{CDI_SPEC}'; read its journal.",
        )
