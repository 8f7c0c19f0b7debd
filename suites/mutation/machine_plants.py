"""Realistic defects of provisioning, each with the machine tests that are to catch it.

They are regressions that a change could bring, not flipped operators. `./dev plants` plants one
after the other and runs only tests on machines.
"""

from __future__ import annotations

from dataclasses import dataclass

from .plants import Plant

_SUITES = "suites/e2e"


@dataclass(frozen=True, kw_only=True)
class MachinePlant:
    """A defect, and the tests that run with it: pytest's arguments below `suites/e2e`."""

    plant: Plant
    tests: str
    only: str | None = None
    """pytest's `-k`, where not all of the tests are about it."""

    @property
    def family(self) -> str:
        return self.tests.partition("/")[0]

    @property
    def selection(self) -> tuple[str, ...]:
        chosen = () if self.only is None else ("-k", self.only)
        return (f"{_SUITES}/{self.tests}", *chosen)


def _plant(
    name: str, file: str, change: tuple[str, str], tests: str, only: str | None = None
) -> MachinePlant:
    old, new = change
    return MachinePlant(
        plant=Plant(name=name, file=file, old=old, new=new), tests=tests, only=only
    )


PLANTS: tuple[MachinePlant, ...] = (
    _plant(
        "the kind is compared before it is mapped to its family",
        "prebake.py",
        (
            "is_same_kind(record.driver_kind, wanted.driver_type)",
            "record.driver_kind == wanted.driver_type",
        ),
        "record/test_decision.py",
        "untouched",
    ),
    _plant(
        "the version matches by its beginning",
        "prebake.py",
        (
            "record.driver_version == wanted.driver_version",
            "wanted.driver_version.startswith(record.driver_version)",
        ),
        "record/test_decision.py",
        "prefix",
    ),
    _plant(
        "the kernel matches by its beginning",
        "prebake.py",
        ("record.kernel == wanted.kernel", 'wanted.kernel.startswith(record.kernel or "")'),
        "record/test_decision.py",
        "kernel",
    ),
    _plant(
        "the architecture is not compared",
        "prebake.py",
        ("(Reason.ARCH, record.arch == wanted.arch)", "(Reason.ARCH, True)"),
        "record/test_decision.py",
        "architecture",
    ),
    _plant(
        "an unreadable record counts as none",
        "prebake.py",
        (
            "    except UnreadableFileError:\n        return Record()",
            "    except UnreadableFileError:\n        return None",
        ),
        "record/test_decision.py",
        "folder or pipe",
    ),
    _plant(
        "the success of `dkms status` proves that the module is installed",
        "kernel_modules.py",
        ("            and entry.state is DkmsState.INSTALLED\n", ""),
        "record/test_decision.py",
        "built",
    ),
    _plant(
        "the module's vermagic is not compared",
        "prebake.py",
        (
            "(Reason.VERMAGIC, proof.file.kernel == wanted.kernel)",
            "(Reason.VERMAGIC, proof.file.kernel is not None)",
        ),
        "record/test_decision.py",
        "module",
    ),
    _plant(
        "modules are unloaded in the wrong order",
        "kernel_modules.py",
        (
            'UNLOAD_ORDER = ("nvidia_uvm", "nvidia_drm", "nvidia_modeset", "nvidia_peermem", MODULE)',
            'UNLOAD_ORDER = (MODULE, "nvidia_peermem", "nvidia_modeset", "nvidia_drm", "nvidia_uvm")',
        ),
        "teardown/test_removal.py",
        "idle",
    ),
    _plant(
        "references of dependent modules make the driver busy",
        "kernel_modules.py",
        ("module.references > len(module.holders)", "module.references > 0"),
        "teardown/test_removal.py",
        "idle",
    ),
    _plant(
        "the record goes although the removal is incomplete",
        "teardown.py",
        (
            "is_clean = _has_nothing_left(node, after, removal) and _is_removed(node, scope.record_path)",
            "is_clean = _is_removed(node, scope.record_path) and _has_nothing_left(node, after, removal)",
        ),
        "teardown/test_removal.py",
        "in_use or cannot",
    ),
    _plant(
        "a driver of the customer is removed too",
        "teardown.py",
        (
            "version = customer_version(residue) if scope.is_opted_out else None",
            "version = None",
        ),
        "teardown/test_removal.py",
        "customer",
    ),
    _plant(
        "the driver image is looked for by a regular expression",
        "containerd.py",
        ('f"name=={image.name}"', 'f"name~={image.name}"'),
        "registry/test_pull.py",
        "dot",
    ),
    _plant(
        "the driver image is pulled although it is there",
        "containerd.py",
        ("is_met=_prints_nothing", "is_met=lambda _: True"),
        "registry/test_pull.py",
        "present",
    ),
    _plant(
        "a pull is tried once",
        "containerd.py",
        (
            "PULL = Retry(attempts=3, pause_s=5, timeout_s=120)",
            "PULL = Retry(attempts=1, pause_s=5, timeout_s=120)",
        ),
        "registry/test_pull.py",
        "refused_pull_is_tried_again",
    ),
    _plant(
        "the tries of a pull follow each other at once",
        "containerd.py",
        (
            "PULL = Retry(attempts=3, pause_s=5, timeout_s=120)",
            "PULL = Retry(attempts=3, pause_s=0.5, timeout_s=120)",
        ),
        "registry/test_pull.py",
        "refused_pull_is_tried_again",
    ),
    _plant(
        "an image of a sovereign cloud is not renamed",
        "containerd.py",
        (
            'Run(argv=(*CTR, "image", "tag", image.pull_reference, image.name), retry=LOCAL),',
            "",
        ),
        "registry/test_pull.py",
        "sovereign",
    ),
    _plant(
        "boot waits until the driver image is collected",
        "containerd.py",
        (
            'return Run(argv=(*CTR, "images", "rm", *names), retry=LOCAL)',
            'return Run(argv=(*CTR, "images", "rm", "--sync", *names), retry=LOCAL)',
        ),
        "registry/test_removal.py",
    ),
    _plant(
        "an error of the registry is taken for a missing precompiled image",
        "precompiled_driver.py",
        ("if result.ok or _MISSING not in result.stderr:", "if result.ok:"),
        "precompiled/test_precompiled.py",
        "refusing",
    ),
    _plant(
        "a precompiled image is wanted although the baked module fits",
        "driver.py",
        (
            "if precompiled is None or decision.action is Action.INSTALL_SKIP_BUILD:",
            "if precompiled is None:",
        ),
        "precompiled/test_precompiled.py",
        "baked",
    ),
    _plant(
        "the tag of a precompiled image does not name the kernel",
        "precompiled.py",
        (
            "{self.image}:{self.version}-{self.kernel}-{self.os_tag}",
            "{self.image}:{self.version}-{self.os_tag}",
        ),
        "precompiled/test_precompiled.py",
        "used",
    ),
    _plant(
        "the device plugin is not awaited",
        "services.py",
        (
            "            actions=start(DEVICE_PLUGIN, START_LIMIT_S),",
            '            actions=enqueue(DEVICE_PLUGIN, START_LIMIT_S, "late"),',
        ),
        "services/test_gpu_owners.py",
        "device_plugin",
    ),
    _plant(
        "monitoring is awaited",
        "systemd.py",
        (
            'argv=("systemctl", "restart", "--no-block", unit),',
            'argv=("systemctl", "restart", unit),',
        ),
        "services/test_monitoring.py",
        "slow or hanging",
    ),
    _plant(
        "nothing warns of monitoring that systemd refuses",
        "systemd.py",
        (
            "            is_optional=True,\n            warning=warning,",
            "            is_optional=True,",
        ),
        "services/test_monitoring.py",
        "masked or absent",
    ),
    _plant(
        "a masked unit is taken for a missing one",
        "systemd.py",
        ('in {"loaded", "masked"}', 'in {"loaded"}'),
        "services/test_monitoring.py",
        "masked",
    ),
    _plant(
        "the exporter keeps its own command",
        "services.py",
        ('"StandardError=journal\\n"\n        "ExecStart=\\n"', '"StandardError=journal\\n"'),
        "services/test_configuration.py",
        "units_run",
    ),
    _plant(
        "the strategy is compared in any case",
        "services.py",
        (
            'configuration.nvidia_mig_strategy == "Mixed"',
            '(configuration.nvidia_mig_strategy or "").lower() == "mixed"',
        ),
        "services/test_configuration.py",
        "partitioned",
    ),
    _plant(
        "the DRA driver starts before kubelet",
        "services.py",
        (
            'needs=("configure-managed-services", "start-kubelet"),',
            'needs=("configure-managed-services",),',
        ),
        "services/test_gpu_owners.py",
        "dra_driver_starts",
    ),
    _plant(
        "names of tags are compared by case",
        "tags.py",
        ("name.lower() == tag.lower()", "name == tag"),
        "services/test_gpu_owners.py",
        "tag_of",
    ),
    _plant(
        "stopped units stay enabled",
        "systemd.py",
        ('        Run(argv=("systemctl", "disable", unit), retry=STOP, is_optional=True),\n', ""),
        "services/test_configuration.py",
        "earlier",
    ),
    _plant(
        "a fabric manager that fails is ignored",
        "boot.py",
        (
            "            exit_code=ExitCode.GPU_DRIVERS_START_FAIL,\n            needs=needs,",
            "            exit_code=None,\n            needs=needs,",
        ),
        "services/test_base_units.py",
        "needed_fabric_manager_that",
    ),
    _plant(
        "the failure of kubelet is reported as that of the driver",
        "boot.py",
        (
            '            actions=start("kubelet", 240),\n            exit_code=ExitCode.SYSTEMCTL_START_FAIL',
            '            actions=start("kubelet", 240),\n            exit_code=ExitCode.GPU_DRIVERS_START_FAIL',
        ),
        "services/test_base_units.py",
        "kubelet",
    ),
    _plant(
        "an outcome that cannot be written hides the exit code",
        "__main__.py",
        ("except OSError as failed:", "except ZeroDivisionError as failed:"),
        "observability/test_exit_codes.py",
        "outcome_that",
    ),
    _plant(
        "SIGTERM leaves no outcome",
        "__main__.py",
        (
            "signal.signal(signal.SIGTERM, signal.default_int_handler)",
            "signal.signal(signal.SIGUSR1, signal.default_int_handler)",
        ),
        "observability/test_exit_codes.py",
        "143",
    ),
    _plant(
        "events of one millisecond overwrite one another",
        "journal.py",
        (
            '            while not self._files.create(f"{EVENTS_DIRECTORY}/{milliseconds}.json", text):\n                milliseconds += 1',
            '            self._files.write(f"{EVENTS_DIRECTORY}/{milliseconds}.json", text)',
        ),
        "observability/test_events.py",
        "ready_node",
    ),
    _plant(
        "a group that failed has no event",
        "executor.py",
        (
            "        finally:\n            self._enter(())",
            "        finally:\n            if failure is None:\n                self._enter(())",
        ),
        "observability/test_events.py",
        "failed_node",
    ),
    _plant(
        "readiness always says that the record was there",
        "facts.py",
        ("marker_present={render_bool(self.record is not None)}", "marker_present=true"),
        "observability/test_events.py",
        "marker",
    ),
    _plant(
        "a corrupted infoROM is reported as a failed driver",
        "driver.py",
        ("exit_code=ExitCode.GPU_INFO_ROM_CORRUPTED", "exit_code=ExitCode.GPU_DRIVERS_START_FAIL"),
        "observability/test_exit_codes.py",
        "87",
    ),
    _plant(
        "the failure of containerd is reported as that of the driver",
        "driver.py",
        ("exit_code=ExitCode.GPU_DRIVERS_INSTALL_TIMEOUT", "exit_code=_FAILED"),
        "observability/test_exit_codes.py",
        "containerd",
    ),
    _plant(
        "the fast path is not given up for a build",
        "driver.py",
        ("        replace(prebuilt, exit_code=None),\n", "        prebuilt,\n"),
        "kernel/test_builds.py",
        "does_not_work",
    ),
    _plant(
        "a loaded driver of another version is not seen",
        "driver.py",
        (
            "    resident = judge_resident_version(node, version=version)\n    return resident or judge_refusal",
            "    return judge_refusal",
        ),
        "kernel/test_builds.py",
        "another_version",
    ),
)
