"""Realistic defects of provisioning, each with the machine tests that are to catch it.

They are regressions that a change could bring, not flipped operators. `./dev plants` plants one
after the other and runs only tests on machines.
"""

from __future__ import annotations

from dataclasses import dataclass

from .plants import CORPUS, Plant

_SUITES = "suites/e2e"


@dataclass(frozen=True, kw_only=True)
class MachinePlant:
    """A defect, and the tests that run with it: pytest's arguments below `suites/e2e`."""

    plant: Plant
    tests: str
    only: str | None = None
    """pytest's `-k`, where not all of the tests are about it."""
    hidden_by: str | None = None
    """What keeps the defect from showing on a machine; unit tests alone see it."""

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


def _corpus(
    number: int, tests: str, only: str | None = None, *, hidden_by: str | None = None
) -> MachinePlant:
    return MachinePlant(plant=CORPUS[number], tests=tests, only=only, hidden_by=hidden_by)


PLANTS: tuple[MachinePlant, ...] = (
    _corpus(1, "record/test_decision.py", "another and kind"),
    _corpus(2, "record/test_decision.py", "another and version"),
    _corpus(3, "teardown/test_removal.py", "idle"),
    _corpus(4, "teardown/test_removal.py", "idle"),
    _corpus(5, "teardown/test_removal.py", "idle"),
    _corpus(6, "teardown/test_removal.py", "in_use"),
    _corpus(7, "teardown/test_removal.py", "customer"),
    _corpus(8, "teardown/test_modules.py", "busy"),
    _corpus(9, "teardown/test_modules.py", "another_kernel"),
    _corpus(10, "teardown/test_modules.py", "grid"),
    _corpus(11, "record/test_decision.py", "family or untouched"),
    _corpus(
        12,
        "record/test_decision.py",
        "neither",
        hidden_by="A record with an empty kind counts as corrupt, so it is never compared; and a "
        "node has a driver type in any case, by its VM size if not by its configuration.",
    ),
    _corpus(13, "teardown/test_removal.py", "setuid"),
    _corpus(15, "registry/test_pull.py", "dot"),
    _corpus(16, "registry/test_pull.py", "sovereign"),
    _corpus(17, "runtime/test_refresh.py", "early or during"),
    _corpus(18, "runtime/test_refresh.py", "lasting"),
    _corpus(19, "runtime/test_refresh.py", "old_spec"),
    _corpus(20, "observability/test_status.py", "added"),
    _corpus(
        21,
        "kernel/test_builds.py",
        "second_bake",
        hidden_by="The driver image empties the folder too before it stages, as the contract says; "
        "provisioning does it for an image that does not.",
    ),
    _corpus(22, "kernel/test_builds.py", "does_not_work"),
    _corpus(23, "teardown/test_modules.py", "dkms_builds"),
    _corpus(24, "observability/test_exit_codes.py", "bake and kernel"),
    _corpus(25, "observability/test_exit_codes.py", "224"),
    _corpus(26, "services/test_gpu_owners.py", "contains"),
    _corpus(27, "observability/test_events.py", "marker"),
    _corpus(28, "observability/test_events.py", "ready_node"),
    _corpus(29, "teardown/test_modules.py", "similar_name"),
    _corpus(30, "runtime/test_detection.py", "without and key"),
    _plant(
        "the module's vermagic is not compared",
        "prebake.py",
        (
            "(Reason.VERMAGIC, proof.file.kernel == wanted.kernel)",
            "(Reason.VERMAGIC, proof.file.kernel is not None)",
        ),
        "record/test_decision.py",
        "another and kernel",
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
        "a loaded driver of another version is not seen",
        "driver.py",
        (
            "    resident = judge_resident_version(node, version=version)\n    return resident or judge_refusal",
            "    return judge_refusal",
        ),
        "kernel/test_builds.py",
        "another_version",
    ),
    _plant(
        "the driver image is pulled although it is there",
        "containerd.py",
        ("is_met=_prints_nothing", "is_met=lambda _: True"),
        "registry/test_pull.py",
        "present",
    ),
    _plant(
        "an error of the registry is taken for a missing precompiled image",
        "precompiled_driver.py",
        ("if result.ok or _MISSING not in result.stderr:", "if result.ok:"),
        "precompiled/test_precompiled.py",
        "refusing",
    ),
    _plant(
        "the tag of a precompiled image does not name the kernel",
        "precompiled.py",
        (
            "{self.image}:{self.version}-{kernel}-{self.os_tag}",
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
        "containerd keeps a configuration that is newer than its start",
        "facts.py",
        (
            "is_stale=node.files.is_newer(toolkit.CONTAINERD_CONFIG, toolkit.CONTAINERD_SOCKET),",
            "is_stale=False,",
        ),
        "interruption/test_killed.py",
        "new_configuration",
    ),
    _plant(
        "CDI stays switched off",
        "toolkit.py",
        (
            "if facts.cdi is CdiSupport.CAPABLE and facts.is_cdi_enabled:",
            "if facts.cdi is CdiSupport.CAPABLE and not facts.is_cdi_enabled:",
        ),
        "runtime/test_pods.py",
        "containerd_2",
    ),
    _plant(
        "an older containerd drops the annotations that name a GPU",
        "toolkit.py",
        (
            "f\"[{render_string(LEGACY_PREFIX + '*')}]\"",
            'f"[{render_string(LEGACY_PREFIX)}]"',
        ),
        "runtime/test_pods.py",
        "debian-12 and CDI",
    ),
    _plant(
        "the runtime is written in a format that containerd 2 ignores",
        "toolkit.py",
        (
            'text = _with_format(facts.text or "")',
            'text = facts.text or "version = 2\\n"',
        ),
        "runtime/test_configuration.py",
        "older_file",
    ),
    _plant(
        "the record goes before the removal that may be interrupted",
        "teardown.py",
        (
            "    _carry_out_removal(node, removal)\n    after",
            "    node.files.remove(scope.record_path)\n    _carry_out_removal(node, removal)\n    after",
        ),
        "interruption/test_killed.py",
        "teardown and modules",
    ),
    _plant(
        "files can be read by root alone",
        "node_files.py",
        ("os.fchmod(file.fileno(), mode)", "pass"),
        "services/test_configuration.py",
        "readable_for_all",
    ),
    _plant(
        "a profile makes an instance too few",
        "mig.py",
        ('"MIG1g": "19,19,19,19,19,19,19"', '"MIG1g": "19,19,19,19,19,19"'),
        "services/test_mig.py",
        "MIG1g",
    ),
    _plant(
        "a GPU whose MIG mode is pending gets no reboot",
        "mig.py",
        ('modes != {"Enabled"}', "not modes"),
        "services/test_mig.py",
        "reboot",
    ),
    _plant(
        "a lost GPU is waited for",
        "driver.py",
        ("if result.exit_code == GPU_IS_LOST:", "if result.exit_code == -GPU_IS_LOST:"),
        "observability/test_exit_codes.py",
        "lost",
    ),
    _plant(
        "all sizes with an A10 in their names get GRID",
        "nvidia.py",
        ("if size in _A10_SIZES:", 'if "_a10_" in size:'),
        "record/test_driver_type.py",
        "begins",
    ),
    _plant(
        "a bake believes the record of another architecture",
        "bake.py",
        ("elif record.arch != arch:", "elif record.arch is None:"),
        "kernel/test_failed_bake.py",
        "architecture",
    ),
    _plant(
        "a failed bake stays in the image",
        "bake.py",
        ("    tear_down(node, teardown_scope(configuration, is_opted_out=False))", "    return"),
        "kernel/test_failed_bake.py",
        "compile",
    ),
    _plant(
        "a flag counts as a part of a word",
        "configuration.py",
        (
            "return PREBAKE_FLAG in self.feature_flags",
            'return PREBAKE_FLAG in ",".join(self.feature_flags)',
        ),
        "kernel/test_failed_bake.py",
        "similar",
    ),
    _plant(
        "a node problem detector that fails keeps the node from getting ready",
        "driver.py",
        (
            '            exit_code=None,\n            needs=("start-containerd",),',
            '            exit_code=_FAILED,\n            needs=("start-containerd",),',
        ),
        "services/test_base_units.py",
        "detector and failing",
    ),
    _plant(
        "a run leaves the node's decision out of its log",
        "__main__.py",
        ("self.node.journal.line(facts.decision.render_line())", "pass"),
        "observability/test_events.py",
        "marker",
    ),
    _plant(
        "a device that cannot be probed at once is given up",
        "driver.py",
        (
            "_UNTIL_READY = Retry(attempts=120, pause_s=5, timeout_s=25)",
            "_UNTIL_READY = Retry(attempts=1, pause_s=5, timeout_s=25)",
        ),
        "kernel/test_retries.py",
        "first_is_tried and probe",
    ),
    _plant(
        "a full install has one attempt",
        "containerd.py",
        (
            "INSTALL = Retry(attempts=5, pause_s=10, timeout_s=600)",
            "INSTALL = Retry(attempts=1, pause_s=10, timeout_s=600)",
        ),
        "kernel/test_retries.py",
        "install_that",
    ),
    _plant(
        "a refusal by an earlier release ends the run",
        "driver.py",
        ("    judge = partial(judge_refusal, version=image.version)", "    judge = judge_refusal"),
        "kernel/test_retries.py",
        "another_release",
    ),
    _plant(
        "a present driver that does not work is not installed",
        "driver.py",
        (
            "else replace(step, only_after_failure_of=VALIDATE_PROBE)",
            'else replace(step, only_after_failure_of="nothing")',
        ),
        "kernel/test_retries.py",
        "does_not_work",
    ),
    _plant(
        "kernels are compared as text",
        "kernel_modules.py",
        (
            "return max(buildable, key=version_key, default=None)",
            "return max(buildable, default=None)",
        ),
        "kernel/test_builds.py",
        "newest",
    ),
    _plant(
        "the DRA driver gets a name that Kubernetes does not have",
        "facts.py",
        (
            'node_name=(node.answer("uname", "-n") or "").lower(),',
            'node_name=node.answer("uname", "-n") or "",',
        ),
        "services/test_gpu_owners.py",
        "dra_driver_starts",
    ),
    _plant(
        "a unit that was started stays disabled",
        "systemd.py",
        ('        Run(argv=("systemctl", "enable", unit), retry=ENABLE),\n', ""),
        "services/test_base_units.py",
        "are_enabled",
    ),
    _plant(
        "the DRA driver goes on where it is switched off",
        "services.py",
        (
            "UNITS = (DEVICE_PLUGIN, DRA_DRIVER, DCGM, DCGM_EXPORTER)",
            "UNITS = (DEVICE_PLUGIN, DCGM, DCGM_EXPORTER)",
        ),
        "services/test_configuration.py",
        "earlier_mode",
    ),
    _plant(
        "a node is ready without the unit that loads its driver",
        "driver.py",
        (
            '            exit_code=_FAILED,\n            needs=("restart-node-problem-detector", "validate-query"),',
            '            exit_code=None,\n            needs=("restart-node-problem-detector", "validate-query"),',
        ),
        "observability/test_exit_codes.py",
        "unit and driver",
    ),
    _plant(
        "a module file of the customer is removed too",
        "teardown.py",
        ("        if _module_version(node, path) == record.driver_version\n", ""),
        "teardown/test_removal.py",
        "customer",
    ),
    _plant(
        "a managed node preserves another version",
        "teardown.py",
        (
            "    version = customer_version(residue) if scope.is_opted_out else None\n",
            "    version = customer_version(residue)\n",
        ),
        "teardown/test_removal.py",
        "caches",
    ),
    _plant(
        "the removal ends at the first path that stays",
        "teardown.py",
        (
            "    for path in removal.paths:\n        _is_removed(node, path)\n",
            "    for path in removal.paths:\n        if not _is_removed(node, path):\n            break\n",
        ),
        "teardown/test_removal.py",
        "cannot_be_removed",
    ),
    _plant(
        "the linker configuration of the customer is removed",
        "teardown.py",
        (
            "for path in residue.present if path == STAGED_LIBRARIES)",
            "for path in residue.present if path in {STAGED_LIBRARIES, LINKER_CONFIGURATION})",
        ),
        "teardown/test_removal.py",
        "customer",
    ),
    _plant(
        "no depmod beside the driver of a customer",
        "teardown.py",
        ("        depmod_kernels=_kernels_of(residue.record_version_files),\n", ""),
        "teardown/test_modules.py",
        "another_kernel",
    ),
    _plant(
        "no depmod after a removal",
        "teardown.py",
        (
            "paths=residue.present, depmod_kernels=_kernels_of(residue.module_files)",
            "paths=residue.present",
        ),
        "teardown/test_removal.py",
        "idle",
    ),
    _plant(
        "the version of the customer's driver is the module's",
        "teardown.py",
        (
            'f" installed_version={removal.customer_version}"',
            'f" installed_version={before.installed_version}"',
        ),
        "teardown/test_removal.py",
        "customer",
    ),
    _plant(
        "sources of other drivers of NVIDIA are removed",
        "teardown.py",
        (
            'files.matching(SOURCES_DIRECTORY, "nvidia-[0-9]*")',
            'files.matching(SOURCES_DIRECTORY, "nvidia-*")',
        ),
        "teardown/test_removal.py",
        "without_a_version",
    ),
    _plant(
        "a teardown reads the record at its default path",
        "teardown.py",
        (
            "read_record(files, scope.record_path)",
            'read_record(files, "/opt/azure/aks-gpu/dkms-marker")',
        ),
        "teardown/test_removal.py",
        "configured_path",
    ),
    _plant(
        "links to our version stay beside the driver of a customer",
        "teardown.py",
        (
            'links = tuple(path for path, target in residue.dkms_links if ours in target.split("/"))',
            "links: tuple[str, ...] = ()",
        ),
        "teardown/test_modules.py",
        "another_kernel",
    ),
    _plant(
        "a file of the user becomes readable for all",
        "services.py",
        (
            "node.files.rewrite(KUBELET_DEFAULTS, labelled)",
            "node.files.write(KUBELET_DEFAULTS, labelled)",
        ),
        "services/test_configuration.py",
        "owner_and_mode",
    ),
    _plant(
        "the path of the record is not configurable",
        "configuration.py",
        (
            '"gpu_dkms_marker_file": _file_path,',
            '"gpu_dkms_marker_file": lambda _: DEFAULT_RECORD_PATH,',
        ),
        "record/test_decision.py",
        "path",
    ),
    _plant(
        "libraries that cannot be linked are no reason to build",
        "prebake.py",
        (
            "if not proof.is_linker_ready or proof.file is None:",
            "if proof.file is None:",
        ),
        "record/test_decision.py",
        "linked",
    ),
    _plant(
        "a bake goes on without its compiler",
        "bake.py",
        (
            "actions=(apt_install(*BUILD_TOOLS),),\n                exit_code=ExitCode.COMMAND_FAILED,",
            "actions=(apt_install(*BUILD_TOOLS),),\n                exit_code=None,",
        ),
        "observability/test_exit_codes.py",
        "tools",
    ),
    _plant(
        "a module of the driver counts as one of others",
        "kernel_modules.py",
        (
            'UNLOAD_ORDER = ("nvidia_uvm", "nvidia_drm", "nvidia_modeset",',
            'UNLOAD_ORDER = ("nvidia_uvm", "nvidia_modeset",',
        ),
        "teardown/test_modules.py",
        "each_module_of",
    ),
    _plant(
        "a module of others that holds the driver is overlooked",
        "kernel_modules.py",
        (
            "not ours.issuperset(module.holders) or module.references > len(module.holders)",
            "module.references > len(module.holders)",
        ),
        "teardown/test_modules.py",
        "foreign_module",
    ),
    _plant(
        "the packages of the DRA driver stay on a node without a GPU",
        "services.py",
        (
            "for package in (*MONITORING_PACKAGES, DEVICE_PLUGIN, DRA_DRIVER)",
            "for package in (*MONITORING_PACKAGES, DEVICE_PLUGIN)",
        ),
        "teardown/test_removal.py",
        "payload_and",
    ),
    _plant(
        "a size with an A10 is missing in the list",
        "nvidia.py",
        ('        "standard_nc32ads_a10_v4",\n', ""),
        "record/test_driver_type.py",
        "each_size",
    ),
    _plant(
        "a GPU that takes its time is not partitioned",
        "mig.py",
        ("START_LIMIT_S = 300.0", "START_LIMIT_S = 3.0"),
        "services/test_mig.py",
        "slow_gpu",
    ),
    _plant(
        "the kernel is compared before kind and version",
        "prebake.py",
        (
            "    rows = (\n        (Reason.KIND,",
            "    rows = (\n        (Reason.KERNEL, record.kernel == wanted.kernel),\n        (Reason.KIND,",
        ),
        "record/test_decision.py",
        "kind and kernel",
    ),
    _plant(
        "a module that DKMS has installed for another kernel counts",
        "kernel_modules.py",
        (
            "(entry.version, entry.kernel, entry.arch) == (version, kernel, arch)",
            "(entry.version, entry.arch) == (version, arch)",
        ),
        "record/test_decision.py",
        "registered and kernel",
    ),
    _plant(
        "a module that DKMS has installed in another version counts",
        "kernel_modules.py",
        (
            "(entry.version, entry.kernel, entry.arch) == (version, kernel, arch)",
            "(entry.kernel, entry.arch) == (kernel, arch)",
        ),
        "record/test_decision.py",
        "registered and version",
    ),
    _plant(
        "a module that DKMS has installed for another architecture counts",
        "kernel_modules.py",
        (
            "(entry.version, entry.kernel, entry.arch) == (version, kernel, arch)",
            "(entry.version, entry.kernel) == (version, kernel)",
        ),
        "record/test_decision.py",
        "registered and architecture",
    ),
    _plant(
        "a node without a GPU needs the machine's metadata",
        "facts.py",
        (
            "        return Metadata(), True\n",
            "        with _lookup(ExitCode.NVIDIA_DRIVER_INSTALL):\n            return read_metadata(node.files), True\n",
        ),
        "record/test_decision.py",
        "GPU",
    ),
    _plant(
        "the mode of an opted-out node is looked up",
        "facts.py",
        (
            "    if not is_opted_out:\n        with _lookup",
            "    if configuration.gpu_node:\n        with _lookup",
        ),
        "record/test_decision.py",
        "both",
    ),
    _plant(
        "a bake passes without a module",
        "bake.py",
        (
            '    elif not installed_files(node.files, target):\n        problem = f"left no module for kernel {target}"\n',
            "",
        ),
        "kernel/test_failed_bake.py",
        "fit and module",
    ),
    _plant(
        "a bake passes without a record",
        "bake.py",
        ("""problem = f"left no record '{path}'\"""", "return"),
        "kernel/test_failed_bake.py",
        "absent",
    ),
    _plant(
        "a failed bake removes the caches of packages",
        "bake.py",
        (
            "teardown_scope(configuration, is_opted_out=False)",
            "teardown_scope(configuration, is_opted_out=True)",
        ),
        "kernel/test_failed_bake.py",
        "absent",
    ),
    _plant(
        "a bake takes no version but the latest",
        "bake.py",
        (
            '(version.get("latestVersion"), version.get("previousLatestVersion"))',
            '(version.get("latestVersion"),)',
        ),
        "kernel/test_failed_bake.py",
        "before",
    ),
    _plant(
        "a bake takes the tag of another driver image",
        "bake.py",
        (
            '.rpartition("/")[2] == f"aks-gpu-{driver_type}":',
            '.rpartition("/")[2].startswith("aks-gpu-"):',
        ),
        "kernel/test_failed_bake.py",
        "type",
    ),
    _plant(
        "a bake has the usual driver type only",
        "bake.py",
        ("configuration.gpu_driver_type or DEFAULT_DRIVER_TYPE", "DEFAULT_DRIVER_TYPE"),
        "kernel/test_failed_bake.py",
        "before",
    ),
    _plant(
        "a bake runs the driver image on each system",
        "bake.py",
        (
            "arch in ARM64 or family_of(node.files.read_or_empty(OS_RELEASE)) is not Family.DEBIAN:",
            "arch in ARM64:",
        ),
        "kernel/test_failed_bake.py",
        "another_system",
    ),
    _plant(
        "the line of a bake names the kernel of the build machine",
        "bake.py",
        ("(kernel {record.kernel})", "(kernel {node.kernel()})"),
        "kernel/test_builds.py",
        "newest",
    ),
    _plant(
        "a bake is for the kernel of the build machine",
        "bake.py",
        ("newest_kernel_with_headers(node.files) or node.kernel()", "node.kernel()"),
        "kernel/test_builds.py",
        "newest",
    ),
    _plant(
        "a bake removes its driver image",
        "bake.py",
        (
            "image, target, arch),\n                    ),\n",
            "image, target, arch),\n                    ),\n                    containerd.remove(image),\n",
        ),
        "kernel/test_builds.py",
        "second_bake",
    ),
    _plant(
        "a bake leaves the record before it while it builds",
        "bake.py",
        ("                    Write(path=record_path, text=PROVISIONAL_RECORD),\n", ""),
        "interruption/test_killed.py",
        "before_it_compiled",
    ),
    _plant(
        "output that is not UTF-8 ends a run",
        "command.py",
        ('stdout=out.decode(errors="replace"),', "stdout=out.decode(),"),
        "observability/test_exit_codes.py",
        "answer",
    ),
    _plant(
        "a command runs without the variables of its own",
        "retry.py",
        ("env = dict(run.env) or None", "env = None"),
        "observability/test_exit_codes.py",
        "tools",
    ),
    _plant(
        "there is no status where the tags cannot be looked up",
        "status.py",
        (
            "    except ProvisioningError as error:\n",
            "    except RecursionError as error:\n",
        ),
        "observability/test_status.py",
        "decide",
    ),
    _plant(
        "a command that takes too long goes on",
        "command.py",
        (
            "                start_new_session=True,\n            )\n        except OSError as error:",
            "            )\n        except OSError as error:",
        ),
        "services/test_base_units.py",
        "kubelet_that_never_starts and hanging",
    ),
    _plant(
        "a teardown does not know the configured path of the record",
        "facts.py",
        (
            "record_path=configuration.gpu_dkms_marker_file,",
            'record_path="/opt/azure/aks-gpu/dkms-marker",',
        ),
        "teardown/test_removal.py",
        "configured_path",
    ),
    _plant(
        "a unit starts as systemd had loaded it before",
        "systemd.py",
        (
            '        reload_units(),\n        Run(\n            argv=("systemctl", "restart", unit),',
            '        Run(\n            argv=("systemctl", "restart", unit),',
        ),
        "services/test_configuration.py",
        "tells and Mixed",
    ),
    _plant(
        "the device plugin of a GPU that is not partitioned gets a strategy",
        "services.py",
        (
            "if configuration.mig_node:",
            "if configuration.nvidia_mig_strategy is not None:",
        ),
        "services/test_configuration.py",
        "options_of",
    ),
    _plant(
        "at the next boot the device plugin does not wait for the partition",
        "mig.py",
        ('        "Before=nvidia-device-plugin.service\\n"\n', ""),
        "services/test_configuration.py",
        "tells and Mixed",
    ),
    _plant(
        "at the next boot the GPU is partitioned before its driver is loaded",
        "mig.py",
        ('        "After=nvidia-modprobe.service\\n"\n', ""),
        "services/test_configuration.py",
        "tells and Mixed",
    ),
    _plant(
        "the output of the exporter goes where its unit says",
        "services.py",
        ('        "StandardOutput=journal\\n"\n', ""),
        "services/test_configuration.py",
        "options_of",
    ),
    _plant(
        "the unit that partitions is not told the layout",
        "mig.py",
        ("""        f'Environment="NVIDIA_MIG_PROFILE_LAYOUT={layout}"\\n'\n""", ""),
        "services/test_configuration.py",
        "tells and Mixed",
    ),
    _plant(
        "a GPU is partitioned without an event",
        "mig.py",
        ('        event="AKS.CSE.ensureMigPartition",\n', ""),
        "services/test_configuration.py",
        "tells and Mixed",
    ),
    _plant(
        "a type of GRID is not of its kind",
        "nvidia.py",
        ("if driver_type.startswith(kind):", 'if driver_type in {kind, f"{kind}-lts"}:'),
        "record/test_driver_type.py",
        "RTX and GRID",
    ),
    _plant(
        "the device plugin starts before its environment is written",
        "services.py",
        (
            'needs=("configure-managed-services", "configure-device-plugin"),',
            'needs=("configure-managed-services",),',
        ),
        "runtime/test_configuration.py",
        "agree and CDI and not without and not CRI",
    ),
    _plant(
        "a failed daemon-reload ends the run",
        "systemd.py",
        (
            "retry=Retry(timeout_s=25), is_optional=True)\n\n\ndef start",
            "retry=Retry(timeout_s=25))\n\n\ndef start",
        ),
        "services/test_base_units.py",
        "are_enabled",
    ),
    _plant(
        "the DRA driver needs the package of the device plugin",
        "services.py",
        ("(*MONITORING_PACKAGES, self.value)", "(*MONITORING_PACKAGES, DEVICE_PLUGIN)"),
        "services/test_gpu_owners.py",
        "dra_driver_starts",
    ),
    _plant(
        "the DRA driver starts without kubelet at the next boot",
        "services.py",
        (
            '"Requires=kubelet.service\\n"\n        "After=kubelet.service\\n"\n',
            '""\n',
        ),
        "services/test_gpu_owners.py",
        "dra_driver_starts",
    ),
    _plant(
        "the DRA driver starts without an event",
        "services.py",
        (
            'needs=("configure-managed-services", "start-kubelet"),\n        event=event,\n',
            'needs=("configure-managed-services", "start-kubelet"),\n',
        ),
        "services/test_gpu_owners.py",
        "dra_driver_starts",
    ),
    _plant(
        "a node that changes its mode keeps the service of the earlier one",
        "services.py",
        ("        stop_other,\n        Step(", "        Step("),
        "services/test_gpu_owners.py",
        "changes_its_mode and DRA",
    ),
    _plant(
        "packages have one attempt",
        "services.py",
        ("APT = Retry(attempts=10, pause_s=2, timeout_s=300)", "APT = Retry(timeout_s=300)"),
        "services/test_monitoring.py",
        "absent",
    ),
    _plant(
        "packages in the downloads of a cache are not found",
        "services.py",
        (
            'for directory in (f"/opt/{package}", f"/opt/{package}/downloads")',
            'for directory in (f"/opt/{package}",)',
        ),
        "services/test_monitoring.py",
        "absent",
    ),
    _plant(
        "the reboot does not wait for the DRA driver",
        "mig.py",
        ('needs=("start-kubelet", "start-dra-driver"),', 'needs=("start-kubelet",),'),
        "services/test_mig.py",
        "reboot and DRA",
    ),
    _plant(
        "a missing device plugin is no reason to install its package",
        "services.py",
        ("units = (mode.unit, DCGM, DCGM_EXPORTER)", "units = (DCGM, DCGM_EXPORTER)"),
        "services/test_gpu_owners.py",
        "device_plugin and absent",
    ),
    _plant(
        "services of an earlier mode stop without an event",
        "services.py",
        ('        event=f"AKS.CSE.stop.{unit}",\n', ""),
        "services/test_configuration.py",
        "earlier_mode",
    ),
    _plant(
        "the fabric manager starts without an event",
        "boot.py",
        ("            needs=needs,\n            event=event,\n", "            needs=needs,\n"),
        "services/test_base_units.py",
        "needed_fabric_manager_holds",
    ),
    _plant(
        "the fabric manager stops without an event",
        "boot.py",
        (
            "        exit_code=None,\n        needs=needs,\n        event=event,\n",
            "        exit_code=None,\n        needs=needs,\n",
        ),
        "services/test_base_units.py",
        "not_needed and running",
    ),
    _plant(
        "the unit that writes the CDI spec is configured without an event",
        "driver.py",
        ('            event=f"{_CONFIGURE_STEP}.configureNvidiaCDIRefresh",\n', ""),
        "runtime/test_refresh.py",
        "early_failures",
    ),
    _plant(
        "a teardown for GRID has no event",
        "driver.py",
        (
            '        event=f"{_ENSURE}.cleanUpGridNodeCudaPrebake" if is_grid_over_other else None,\n',
            "",
        ),
        "teardown/test_modules.py",
        "incomplete_removal_for",
    ),
    _plant(
        "an empty value is not unset",
        "configuration.py",
        ('if value is None or value == "":', "if value is None:"),
        "record/test_inputs.py",
    ),
    _plant(
        "an install is asked for in any case of letters",
        "configuration.py",
        ('return value in (True, "true")', 'return str(value).lower() == "true"'),
        "record/test_inputs.py",
    ),
    _plant(
        "the file overrides the environment",
        "configuration.py",
        ("if name in environment:", "if name in environment and key not in document:"),
        "record/test_inputs.py",
    ),
    _plant(
        "systems like Debian are refused",
        "families.py",
        ('for key in ("ID", "ID_LIKE") if', 'for key in ("ID",) if'),
        "record/test_inputs.py",
    ),
    _plant(
        "the driver image runs without the host's network",
        "containerd.py",
        ('            "--net-host",\n', ""),
        "kernel/test_builds.py",
        "prebuilt_module_is_loaded",
    ),
    _plant(
        "the container of the driver image stays",
        "containerd.py",
        ('            "--rm",\n', ""),
        "kernel/test_builds.py",
        "prebuilt_module_is_loaded",
    ),
    _plant(
        "a bake that fails before it builds removes an earlier one",
        "__main__.py",
        ('if self._has_done("prepare-build"):', "if True:"),
        "observability/test_exit_codes.py",
        "bake and fails",
    ),
    _plant(
        "the baked driver goes before the precompiled one is there",
        "precompiled_driver.py",
        (
            "            _fetch(image, facts.node_name, has_fallback=has_fallback),\n            # What a bake registered for another kernel, the unit nvidia-modprobe would compile for this one.\n            Remove(path=DKMS_TREE),\n",
            "            Remove(path=DKMS_TREE),\n            _fetch(image, facts.node_name, has_fallback=has_fallback),\n",
        ),
        "precompiled/test_precompiled.py",
        "another_kernel",
    ),
    _plant(
        "CRI-O goes on with the files that it has read",
        "toolkit.py",
        (
            "return (drop, hook, where_loaded(CRI_O_UNIT, *start(CRI_O_UNIT, 30)))",
            "return (drop, hook)",
        ),
        "runtime/test_configuration.py",
        "CRI-O and not without",
    ),
    _plant(
        "CRI-O keeps the file of an earlier mode",
        "toolkit.py",
        (
            "return (drop, hook, where_loaded(",
            "return (drop if choice is None or choice.mode else hook, where_loaded(",
        ),
        "runtime/test_configuration.py",
        "CRI-O and not without",
    ),
    _plant(
        "CRI-O gets the path of the hook for that of the runtime",
        "toolkit.py",
        (
            'f"runtime_path = {render_string(CONTAINER_RUNTIME)}\\n"',
            'f"runtime_path = {render_string(HOOK_PROGRAM)}\\n"',
        ),
        "runtime/test_configuration.py",
        "CRI-O and not without",
    ),
    _plant(
        "the options of runc are not copied",
        "toolkit.py",
        ('        **values_below(text, (*runtimes, FALLBACK_RUNTIME, "options")),\n', ""),
        "runtime/test_configuration.py",
        "own and options",
    ),
    _plant(
        "an attempt at its time limit takes the name of all later ones",
        "containerd.py",
        ("        cleanup=_removal(container),\n", ""),
        "kernel/test_retries.py",
        "install_that",
    ),
    _plant(
        "a spec without devices counts as one with a GPU",
        "toolkit.py",
        ("offers_device(text, CDI_DEVICE_KIND)", "CDI_DEVICE_KIND in text"),
        "runtime/test_refresh.py",
        "without and devices",
    ),
    _plant(
        "a link in place of a folder is never removed",
        "node_files.py",
        (
            "        if target.is_dir() and not target.is_symlink():\n            shutil",
            "        if target.is_dir():\n            shutil",
        ),
        "teardown/test_removal.py",
        "payload_and",
    ),
    _plant(
        "metadata without tags counts as one with none",
        "tags.py",
        ('.get("tagsList")', '.get("tagsList", [])'),
        "observability/test_exit_codes.py",
        "without and tags",
    ),
    _plant(
        "the log has another name",
        "journal.py",
        (
            'LOG_PATH = "/var/log/azure/cluster-provision.log"',
            'LOG_PATH = "/var/log/azure/provision.log"',
        ),
        "observability/test_events.py",
        "marker_was_there and wanted",
    ),
    _plant(
        "folders of CDI specs say nothing about CDI",
        "cdi.py",
        (
            'if "cdi_spec_dirs" in keys or _is_at_least(number, (2, 4, 0)):',
            "if _is_at_least(number, (2, 4, 0)):",
        ),
        "runtime/test_detection.py",
        "folders",
    ),
    _plant(
        "a native node gets the prefix of older ones",
        "cdi.py",
        (
            "    if choice.annotation_prefix == LEGACY_PREFIX:\n        environment",
            "    if choice.annotation_prefix is not None:\n        environment",
        ),
        "runtime/test_detection.py",
        "folders",
    ),
    _plant(
        "an array on several lines is not read to its end",
        "toml_text.py",
        ('            depth += (char in {"[", "{"}) - (char in {"]", "}"})\n', ""),
        "runtime/test_configuration.py",
        "imports",
    ),
    _plant(
        "a log that cannot be written ends the run",
        "journal.py",
        ("self._console(f\"The log '{LOG_PATH}' cannot be written: {error}.\")", "raise"),
        "observability/test_events.py",
        "cannot_be_written",
    ),
    _plant(
        "containerd is asked once",
        "containerd.py",
        ("retry=Retry(attempts=240, pause_s=0.1, timeout_s=1)", "retry=Retry(timeout_s=1)"),
        "kernel/test_retries.py",
        "first_is_tried and containerd",
    ),
    _plant(
        "a driver that was just built is cleaned up as on a node that opted out",
        "boot.py",
        (
            "facts.decision.action is Action.TEARDOWN:",
            "facts.decision.action.has_teardown:",
        ),
        "observability/test_events.py",
        "of_another_kind",
    ),
    _plant(
        "a managed node is torn down as one that opted out",
        "driver.py",
        (
            "scope = teardown_scope(configuration, is_opted_out=False)",
            "scope = teardown_scope(configuration, is_opted_out=True)",
        ),
        "observability/test_events.py",
        "of_another_kind",
    ),
    _plant(
        "a node goes on although containerd does not restart",
        "boot.py",
        (
            'actions=start("containerd", 30),\n                exit_code=ExitCode.SYSTEMCTL_START_FAIL,',
            'actions=start("containerd", 30),\n                exit_code=None,',
        ),
        "observability/test_exit_codes.py",
        "come_back and validated",
    ),
    _plant(
        "another system is refused although the node wants no driver",
        "boot.py",
        (
            "    steps = [*_runtime_steps(configuration, facts)]\n",
            """    if facts.family is not Family.DEBIAN:
        raise ProvisioningError(ExitCode.UNSUPPORTED_OS, OS_RELEASE)
    steps = [*_runtime_steps(configuration, facts)]
""",
        ),
        "record/test_decision.py",
        "mixed and case",
    ),
    _plant(
        "a GRID driver of another version counts as a bake for CUDA",
        "driver.py",
        (
            'driver_kind(facts.driver_type) == "grid" and not facts.is_kind_recorded',
            'driver_kind(facts.driver_type) == "grid"',
        ),
        "observability/test_events.py",
        "counted_by and version",
    ),
    _plant(
        "a failing nvidia-smi is ignored after an install",
        "driver.py",
        (
            "actions=(query_device(replace(_UNTIL_READY, timeout_s=30)),),\n            exit_code=_FAILED,",
            "actions=(query_device(replace(_UNTIL_READY, timeout_s=30)),),\n            exit_code=None,",
        ),
        "kernel/test_retries.py",
        "lost_after",
    ),
    _plant(
        "an install for an unsupported GPU is tried again",
        "driver.py",
        (
            "    return resident or judge_refusal(node, result, version=version)",
            "    return resident",
        ),
        "kernel/test_retries.py",
        "release_does_not_support and full",
    ),
    _plant(
        "nothing is cleaned up after a failed attempt",
        "retry.py",
        ("        _clean_up(node, run)\n", ""),
        "kernel/test_retries.py",
        "reaches_its_limit",
    ),
    _plant(
        "the early step for CDI leaves no event",
        "driver.py",
        ('event=f"{_CONFIGURE_STEP}.configureNvidiaCDIRefresh",', "event=None,"),
        "runtime/test_refresh.py",
        "old_spec",
    ),
    _plant(
        "validation ignores nvidia-smi",
        "driver.py",
        (
            "exit_code=_FAILED,\n                needs=(VALIDATE_PROBE,),",
            "exit_code=None,\n                needs=(VALIDATE_PROBE,),",
        ),
        "runtime/test_refresh.py",
        "validation_finds and lost",
    ),
    _plant(
        "a node that opted out keeps the runtime of CRI-O",
        "boot.py",
        (
            "choice = None if facts.is_opted_out else facts.runtime.choice",
            "choice = facts.runtime.choice",
        ),
        "runtime/test_configuration.py",
        "runtime_of_cri_o",
    ),
    _plant(
        "a node that opted out removes its driver before kubelet starts",
        "boot.py",
        (
            """        steps.append(
            Step(
                name="clean-up-driver",
                actions=(teardown_action(facts, scope),),
                exit_code=None,
                needs=("start-kubelet",),
                event="AKS.CSE.cleanUpGPUDrivers",
            )
        )
""",
            """        steps.insert(
            0,
            Step(
                name="clean-up-driver",
                actions=(teardown_action(facts, scope),),
                exit_code=None,
                event="AKS.CSE.cleanUpGPUDrivers",
            ),
        )
""",
        ),
        "runtime/test_configuration.py",
        "loses_the_runtime_and_nothing",
    ),
    _plant(
        "a failed step leaves no event",
        "executor.py",
        (
            "        if step.event is not None:",
            "        if step.event is not None and error is None:",
        ),
        "services/test_base_units.py",
        "needed_fabric_manager_that_never_starts and failing",
    ),
    _plant(
        "an attempt is not limited to what is left of the time budget",
        "retry.py",
        ("limit = node.retries.cap(run.retry.timeout_s)", "limit = run.retry.timeout_s"),
        "registry/test_pull.py",
        "with_the_time_budget",
    ),
    _plant(
        "a failed pull does not end the run",
        "driver.py",
        (
            "actions=(containerd.fetch(image),),\n        exit_code=_FAILED,",
            "actions=(containerd.fetch(image),),\n        exit_code=None,",
        ),
        "registry/test_pull.py",
        "missing_image_gives_up",
    ),
    _plant(
        "the fast path gets five attempts",
        "driver.py",
        (
            '"install-skip-build", containerd.INSTALL_ONCE)',
            '"install-skip-build", containerd.INSTALL)',
        ),
        "kernel/test_builds.py",
        "prebuilt_module_that_does_not_work",
    ),
    _plant(
        "a driver is built for a GPU that the fast path found unsupported",
        "driver.py",
        (
            "again = replace(full, actions=(expect_no_refusal(image.version), *full.actions))",
            "again = full",
        ),
        "kernel/test_retries.py",
        "release_does_not_support and without",
    ),
    _plant(
        "a failed full install is ignored",
        "driver.py",
        (
            "        return [full]\n",
            "        return [replace(full, exit_code=None)]\n",
        ),
        "kernel/test_builds.py",
        "headers",
    ),
)
