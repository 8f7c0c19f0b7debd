"""The services of the managed GPU experience: packages, drop-ins, start and stop."""

from __future__ import annotations

import enum
from typing import TYPE_CHECKING

from .exit_codes import ExitCode, ProvisioningError
from .kernel_modules import version_key
from .nvidia import PAYLOAD_DIRECTORY
from .plan import Do, Remove, Retry, Run, Step, Write
from .retry import StepFailedError, try_command
from .systemd import (
    drop_in,
    enqueue,
    is_loaded_query,
    read_environment,
    render_assignment,
    says_present,
    start,
    stop,
    where_loaded,
)

if TYPE_CHECKING:
    from collections.abc import Mapping

    from .configuration import Configuration
    from .node_context import NodeContext
    from .systemd import Assignment

DEVICE_PLUGIN = "nvidia-device-plugin"
DRA_DRIVER = "dra-driver-nvidia-gpu"
DCGM = "nvidia-dcgm"
DCGM_EXPORTER = "nvidia-dcgm-exporter"
UNITS = (DEVICE_PLUGIN, DRA_DRIVER, DCGM, DCGM_EXPORTER)

MARKER_PATH = "/opt/azure/containers/managed-gpu-experience.enabled"
KUBELET_DEFAULTS = "/etc/default/kubelet"
KUBELET_LABELS = "KUBELET_NODE_LABELS"
EXPORTER_LABEL = "kubernetes.azure.com/dcgm-exporter=enabled"
MONITORING_PACKAGES = (
    "datacenter-gpu-manager-4-core",
    "datacenter-gpu-manager-4-proprietary",
    "dcgm-exporter",
)
APT = Retry(attempts=10, pause_s=2, timeout_s=300)
APT_ENVIRONMENT = (("DEBIAN_FRONTEND", "noninteractive"),)
START_LIMIT_S = 30.0

_BEFORE_SERVICES = ("start-fabric-manager", "stop-fabric-manager", "partition-gpu")
_GROUP = "AKS.CSE.configureManagedGPUExperience"
_START_GROUPS = (_GROUP, "AKS.CSE.startNvidiaManagedExpServices")


class Mode(enum.Enum):
    """How pods get GPUs on a managed node: by the device plugin, or by the DRA driver."""

    DEVICE_PLUGIN = DEVICE_PLUGIN
    DRA = DRA_DRIVER

    @property
    def unit(self) -> str:
        return self.value

    @property
    def other(self) -> Mode:
        """Return the other mode, which this mode excludes."""
        return Mode.DRA if self is Mode.DEVICE_PLUGIN else Mode.DEVICE_PLUGIN

    @property
    def packages(self) -> tuple[str, ...]:
        return (*MONITORING_PACKAGES, self.value)


CACHE_DIRECTORIES = tuple(
    f"/opt/{package}" for package in (*MONITORING_PACKAGES, DEVICE_PLUGIN, DRA_DRIVER)
)
assert PAYLOAD_DIRECTORY not in CACHE_DIRECTORIES  # noqa: S101  # removed on another condition


def choose_mode(configuration: Configuration, *, is_tagged: bool) -> Mode | None:
    """Return the mode that the configuration and the machine's tag choose, or None if no mode is on.

    Raises ProvisioningError if both modes are on, because two services would allocate the same GPU.
    """
    is_managed = is_tagged or configuration.enable_managed_gpu
    if is_managed and configuration.enable_managed_gpu_dra:
        raise ProvisioningError(
            ExitCode.ENABLE_MANAGED_GPU_EXPERIENCE,
            "The managed GPU experience and its DRA mode are both on; enable only one of them.",
        )
    if configuration.enable_managed_gpu_dra:
        return Mode.DRA
    return Mode.DEVICE_PLUGIN if is_managed else None


def render_device_plugin(configuration: Configuration) -> str:
    """Render the drop-in that starts the device plugin with this node's MIG strategy."""
    strategy = ""
    if configuration.mig_node:
        is_mixed = configuration.nvidia_mig_strategy == "Mixed"
        strategy = f" --mig-strategy {'mixed' if is_mixed else 'single'}"
    return (
        "[Service]\n"
        "ExecStart=\n"
        f"ExecStart=/usr/bin/nvidia-device-plugin{strategy} --pass-device-specs\n"
    )


def render_dra_driver(node_name: str) -> str:
    """Render the drop-in that starts the DRA driver after the kubelet, with this node's name."""
    return (
        "[Unit]\n"
        "Requires=kubelet.service\n"
        "After=kubelet.service\n"
        "\n"
        "[Service]\n"
        "ExecStart=\n"
        "ExecStart=/usr/bin/gpu-kubelet-plugin --kubeconfig /var/lib/kubelet/kubeconfig"
        f' --container-driver-root / --image-name "" --node-name={node_name}\n'
    )


def render_exporter() -> str:
    """Render the drop-in that moves the exporter to port 19400, and leaves port 9400 to users."""
    return (
        "[Service]\n"
        "StandardOutput=journal\n"
        "StandardError=journal\n"
        "ExecStart=\n"
        "ExecStart=/usr/bin/dcgm-exporter -f /etc/dcgm-exporter/default-counters.csv"
        ' --address ":19400"\n'
    )


def steps_on(configuration: Configuration, mode: Mode, node_name: str) -> list[Step]:
    """Return the steps that bring the managed services up.

    If the node had the other `Mode` before, the service of the other mode is stopped first, since
    both services would allocate the same GPU. The boot waits for the start of the device plugin,
    since no pod gets a GPU without the device plugin. The start of monitoring is only enqueued,
    since a slow start must not delay the node.
    """
    stop_other = _stop_step(mode.other.unit)
    return [
        stop_other,
        Step(
            name="install-managed-packages",
            actions=(_install_packages(mode),),
            exit_code=ExitCode.NVIDIA_DCGM_INSTALL,
            needs=(*_BEFORE_SERVICES, stop_other.name),
            event="AKS.CSE.installNvidiaManagedExpPkgFromCache",
            groups=(_GROUP,),
        ),
        Step(
            name="configure-managed-services",
            actions=(
                _mode_drop_in(configuration, mode, node_name),
                drop_in(DCGM_EXPORTER, "10-aks-override.conf", render_exporter()),
                Do(description=(f"label the node {EXPORTER_LABEL}",), function=_label_node),
                Write(path=MARKER_PATH, text=""),
            ),
            exit_code=ExitCode.NVIDIA_DCGM_EXPORTER_FAIL,
            needs=("install-managed-packages",),
            groups=(_GROUP,),
        ),
        _start_owner(mode),
        Step(
            name="start-dcgm",
            actions=enqueue(
                DCGM,
                START_LIMIT_S,
                f"warning: {DCGM} could not be enqueued; GPU monitoring will start asynchronously",
            ),
            exit_code=None,
            needs=("configure-managed-services", "start-device-plugin"),
            event=f"AKS.CSE.start.{DCGM}",
            groups=_START_GROUPS,
        ),
        Step(
            name="start-dcgm-exporter",
            actions=enqueue(
                DCGM_EXPORTER,
                START_LIMIT_S,
                f"warning: {DCGM_EXPORTER} could not be enqueued;"
                " GPU metrics will start asynchronously",
            ),
            exit_code=None,
            needs=("start-dcgm",),
            event=f"AKS.CSE.start.{DCGM_EXPORTER}",
            groups=_START_GROUPS,
        ),
    ]


def environment_step(environment: Mapping[str, str]) -> Step:
    """Return the step that tells the device plugin how containers get their devices.

    The names of the user's drop-ins sort after the name of this step's drop-in, so values of the
    user override values of this step.
    """
    lines = "".join(f"Environment={key}={value}\n" for key, value in environment.items())
    return Step(
        name="configure-device-plugin",
        actions=(drop_in(DEVICE_PLUGIN, "20-container-runtime.conf", f"[Service]\n{lines}"),),
        exit_code=ExitCode.NVIDIA_DCGM_EXPORTER_FAIL,
        needs=("configure-managed-services",),
        groups=(_GROUP,),
    )


def _mode_drop_in(configuration: Configuration, mode: Mode, node_name: str) -> Write:
    if mode is Mode.DEVICE_PLUGIN:
        text = render_device_plugin(configuration)
        return drop_in(DEVICE_PLUGIN, "10-device-plugin-config.conf", text)
    return drop_in(DRA_DRIVER, "10-dra-driver-nvidia-gpu.conf", render_dra_driver(node_name))


def _start_owner(mode: Mode) -> Step:
    """Return the step that starts the device plugin, or the DRA driver once kubelet is healthy."""
    event = f"AKS.CSE.start.{mode.unit}"
    if mode is Mode.DEVICE_PLUGIN:
        return Step(
            name="start-device-plugin",
            actions=start(DEVICE_PLUGIN, START_LIMIT_S),
            exit_code=ExitCode.GPU_DEVICE_PLUGIN_START_FAIL,
            needs=("configure-managed-services", "configure-device-plugin"),
            event=event,
            groups=_START_GROUPS,
        )
    healthy = Run(
        argv=("systemctl", "is-active", "--quiet", "kubelet"),
        retry=Retry(attempts=60, pause_s=1, timeout_s=5),
    )
    return Step(
        name="start-dra-driver",
        actions=(healthy, *start(DRA_DRIVER, START_LIMIT_S)),
        exit_code=ExitCode.DRA_DRIVER_START_FAIL,
        needs=("configure-managed-services", "start-kubelet"),
        event=event,
    )


def steps_off() -> list[Step]:
    """Return the steps that stop and disable the managed services if their units exist."""
    stops = [_stop_step(unit) for unit in UNITS]
    marker = Step(
        name="unmark-managed-services",
        actions=(Remove(path=MARKER_PATH),),
        exit_code=None,
        needs=tuple(stop.name for stop in stops),
        groups=(_GROUP,),
    )
    return [*stops, marker]


def _stop_step(unit: str) -> Step:
    """Return the step that stops and disables a service, if its unit exists."""
    return Step(
        name=f"stop-{unit}",
        actions=(where_loaded(unit, *stop(unit)),),
        exit_code=None,
        needs=_BEFORE_SERVICES,
        event=f"AKS.CSE.stop.{unit}",
        groups=(_GROUP,),
    )


def _install_packages(mode: Mode) -> Do:
    words = tuple(f"apt-get install {package} from /opt/{package}" for package in mode.packages)
    return Do(
        description=("if a unit of the services is missing:", *(f"  {word}" for word in words)),
        function=lambda node: _install_from_cache(node, mode),
    )


def _install_from_cache(node: NodeContext, mode: Mode) -> str | None:
    units = (mode.unit, DCGM, DCGM_EXPORTER)
    if all(says_present(node.runner.run(is_loaded_query(u), timeout_s=30)) for u in units):
        return "All units exist."
    archives = []
    for package in mode.packages:
        name = f"{package}_*.deb"
        cached = node.files.matching(f"/opt/{package}/downloads", name) or node.files.matching(
            f"/opt/{package}", name
        )
        if not cached:
            raise ProvisioningError(
                ExitCode.MANAGED_NVIDIA_EXP_INSTALL_FAIL,
                f"The package '{package}' is not in the image's cache '/opt/{package}'.",
            )
        archives.append(str(node.files.at(max(cached, key=_package_version))))
    try:
        return try_command(node, apt_install(*archives))
    except StepFailedError as error:
        raise ProvisioningError(ExitCode.APT_INSTALL_TIMEOUT, str(error)) from error


def _package_version(path: str) -> tuple[int, tuple[tuple[int, int, str], ...]]:
    """Return a key that sorts archives by version; a name is `PACKAGE_VERSION[_ARCH].deb`.

    In an archive's name, `%3a` stands for the colon after an epoch.
    """
    version = path.rpartition("/")[2].removesuffix(".deb").split("_")[1]
    epoch, colon, rest = version.replace("%3a", ":").partition(":")
    return (
        (int(epoch), version_key(rest))
        if colon and epoch.isdecimal()
        else (0, version_key(version))
    )


def apt_install(*packages: str) -> Run:
    """Install packages, each given by its name or by the path of its archive."""
    return Run(
        argv=("apt-get", "install", "-y", "--no-install-recommends", *packages),
        retry=APT,
        env=APT_ENVIRONMENT,
    )


def _label_node(node: NodeContext) -> None:
    """Add the label of the exporter to the labels with which kubelet registers the node."""
    text = node.files.read_whole(KUBELET_DEFAULTS) or ""
    labelled = add_node_label(text, EXPORTER_LABEL)
    if labelled != text:
        node.files.rewrite(KUBELET_DEFAULTS, labelled)


def add_node_label(text: str, label: str) -> str:
    """Return kubelet's defaults with `label` added, or unchanged if they contain `label`.

    If several lines set the variable with the labels, the last line counts, as it does for systemd.
    """
    found = _labels(text)
    if not found:
        line = render_assignment(KUBELET_LABELS, label)
        separator = "" if not text or text.endswith("\n") else "\n"
        appended = f"{text}{separator}{line}\n"
        # After an open quote or a final backslash, the value continues in the next line. Before
        # systemd 253, this is also true in a comment.
        is_open = text.removesuffix("\n").endswith("\\") or not _labels(appended)
        return f"{line}\n{text}" if is_open else appended
    last = found[-1]
    labels = [part.strip() for part in last.value.split(",") if part.strip()]
    if label in labels:
        return text
    line = render_assignment(KUBELET_LABELS, ",".join([*labels, label]))
    return f"{text[: last.start]}{line}{text[last.end :]}"


def _labels(text: str) -> list[Assignment]:
    return [each for each in read_environment(text) if each.name == KUBELET_LABELS]
