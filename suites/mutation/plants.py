"""Bugs to plant: each replaces a text in one file."""

from __future__ import annotations

from dataclasses import dataclass

PACKAGE = "harness/provisioning"


@dataclass(frozen=True, kw_only=True)
class Plant:
    """A bug: in `file` of the package, the one occurrence of `old` becomes `new`."""

    name: str
    file: str
    old: str
    new: str

    @property
    def path(self) -> str:
        return f"{PACKAGE}/{self.file}"


def _plant(name: str, file: str, old: str, new: str) -> Plant:
    return Plant(name=name, file=file, old=old, new=new)


TARGETS = (
    # Installation
    _plant(
        "the driver image runs the action 'copy'",
        "driver.py",
        '"install-driver", "install"',
        '"install-driver", "copy"',
    ),
    _plant(
        "an install has one attempt of one minute",
        "containerd.py",
        "INSTALL = Retry(attempts=5, pause_s=10, timeout_s=600)",
        "INSTALL = Retry(attempts=1, pause_s=10, timeout_s=60)",
    ),
    _plant(
        "a pull is tried for ten hours",
        "containerd.py",
        "PULL = Retry(attempts=3, pause_s=5, timeout_s=120)",
        "PULL = Retry(attempts=30, pause_s=5, timeout_s=1200)",
    ),
    _plant(
        "a pulled image does not get its usual name",
        "containerd.py",
        '            Run(argv=(*CTR, "image", "tag", image.pull_reference, image.name), retry=LOCAL),\n',
        "",
    ),
    _plant(
        "a failed install is ignored",
        "driver.py",
        "        replace(again, only_after_failure_of=INSTALL_PREBUILT),",
        "        replace(again, exit_code=None, only_after_failure_of=INSTALL_PREBUILT),",
    ),
    _plant(
        "the driver image stays on the node",
        "containerd.py",
        'argv=(*CTR, "images", "rm", *names)',
        'argv=(*CTR, "images", "ls", *names)',
    ),
    _plant(
        "the driver image is removed synchronously",
        "containerd.py",
        '"images", "rm", *names)',
        '"images", "rm", "--sync", *names)',
    ),
    _plant(
        "the driver image runs without privileges",
        "containerd.py",
        '            "--privileged",\n',
        "",
    ),
    _plant(
        "a tag has another separator",
        "nvidia.py",
        'f"{self.version}-{self.sha}"',
        'f"{self.version}_{self.sha}"',
    ),
    # Checks
    _plant(
        "a failing nvidia-smi is ignored",
        "driver.py",
        "            actions=(query_device(replace(_UNTIL_READY, timeout_s=30)),),\n            exit_code=_FAILED,",
        "            actions=(query_device(replace(_UNTIL_READY, timeout_s=30)),),\n            exit_code=None,",
    ),
    _plant(
        "a failing nvidia-modprobe is ignored",
        "driver.py",
        "            actions=(_probe_once_installed(configuration.image(facts.driver_type)),),\n            exit_code=_FAILED,",
        "            actions=(_probe_once_installed(configuration.image(facts.driver_type)),),\n            exit_code=None,",
    ),
    _plant(
        "containerd is not restarted",
        "driver.py",
        '            actions=start("containerd", 30),',
        '            actions=start("containerd", 30)[:1],',
    ),
    _plant(
        "every driver gets the licence daemon",
        "families.py",
        'if family is Family.AZURE_LINUX and driver_kind(driver_type) == "grid":',
        "if family is Family.AZURE_LINUX and driver_kind(driver_type):",
    ),
    _plant(
        "configuration and validation are swapped",
        "driver.py",
        "_configure_steps if is_configured(configuration, decision) else _validate_steps",
        "_validate_steps if is_configured(configuration, decision) else _configure_steps",
    ),
    _plant(
        "a GRID node keeps the CUDA bake",
        "prebake.py",
        "    if reason in {Reason.CORRUPT, Reason.KIND, Reason.VERSION}:",
        "    if reason in {Reason.CORRUPT, Reason.VERSION}:",
    ),
    _plant(
        "a corrupted infoROM is reported as 84",
        "driver.py",
        "code = ExitCode.GPU_INFO_ROM_CORRUPTED if",
        "code = ExitCode.GPU_DRIVERS_START_FAIL if",
    ),
    _plant(
        "a driver failure is reported as 94",
        "exit_codes.py",
        "GPU_DRIVERS_START_FAIL = 84",
        "GPU_DRIVERS_START_FAIL = 94",
    ),
    _plant(
        "the record has another path",
        "prebake.py",
        'f"{RECORD_DIRECTORY}/dkms-marker"',
        'f"{RECORD_DIRECTORY}/marker"',
    ),
    # Services
    _plant(
        "the MIG strategy 'mixed' is ignored",
        "services.py",
        "{'mixed' if is_mixed else 'single'}",
        "{'single' if is_mixed else 'single'}",
    ),
    _plant(
        "the device plugin does not pass device specs",
        "services.py",
        "{strategy} --pass-device-specs",
        "{strategy}",
    ),
    _plant(
        "a failing device plugin is ignored",
        "services.py",
        "            exit_code=ExitCode.GPU_DEVICE_PLUGIN_START_FAIL,",
        "            exit_code=None,",
    ),
    _plant("the exporter listens on the users' port", "services.py", ":19400", ":9400"),
    _plant(
        "both managed modes are accepted together",
        "services.py",
        "    if is_managed and configuration.enable_managed_gpu_dra:",
        "    if False and configuration.enable_managed_gpu_dra:",
    ),
    # MIG
    _plant(
        "the partitioning unit has 3 s to start",
        "mig.py",
        "START_LIMIT_S = 300.0",
        "START_LIMIT_S = 3.0",
    ),
    _plant(
        "the partitioning unit does not get the profile",
        "mig.py",
        "        PROFILE_VARIABLE: configuration.gpu_instance_profile,\n",
        "",
    ),
    _plant("the profile MIG3g makes one instance", "mig.py", '"MIG3g": "9,9"', '"MIG3g": "9"'),
    # Teardown
    _plant(
        "the setuid probe is not removed",
        "nvidia.py",
        '    "/usr/bin/nvidia-cuda-mps-server",\n    PROBE_PROGRAM,\n',
        '    "/usr/bin/nvidia-cuda-mps-server",\n',
    ),
    _plant(
        "the linker configuration is not removed",
        "teardown.py",
        "(DKMS_TREE, STAGED_LIBRARIES, LINKER_CONFIGURATION, *DRIVER_PROGRAMS)",
        "(DKMS_TREE, STAGED_LIBRARIES, *DRIVER_PROGRAMS)",
    ),
    _plant(
        "the DKMS tree has another path",
        "nvidia.py",
        'DKMS_TREE = "/var/lib/dkms/nvidia"',
        'DKMS_TREE = "/var/lib/dkm/nvidia"',
    ),
    _plant(
        "modules are unloaded in reverse order",
        "kernel_modules.py",
        "for name in UNLOAD_ORDER if name in by_name",
        "for name in reversed(UNLOAD_ORDER) if name in by_name",
    ),
    _plant(
        "the record is removed after an incomplete teardown",
        "teardown.py",
        "_has_nothing_left(node, after, removal) and _is_removed(node, scope.record_path)",
        "_is_removed(node, scope.record_path) and _has_nothing_left(node, after, removal)",
    ),
    _plant(
        "the clean-up removes nothing",
        "driver.py",
        "        return f\"The teardown's status is '{tear_down(node, scope).value}'.\"",
        "        return f\"The teardown's status is '{scope.record_path}'.\"",
    ),
)
"""Bugs in behaviours that upstream's specs do not check; they missed 32 of 40 such mutants."""


CORPUS = {
    1: _plant(
        "kinds are not compared",
        "prebake.py",
        "is_same_kind(record.driver_kind, wanted.driver_type)",
        "True",
    ),
    2: _plant(
        "versions are not compared",
        "prebake.py",
        "(Reason.VERSION, record.driver_version == wanted.driver_version)",
        "(Reason.VERSION, True)",
    ),
    3: _plant(
        "loaded modules are never unloaded",
        "teardown.py",
        "tuple(m.name for m in residue.loaded)",
        "()",
    ),
    4: _plant(
        "any reference counts as use",
        "kernel_modules.py",
        "module.references > len(module.holders)",
        "module.references > 0",
    ),
    5: _plant(
        "a device node counts as use",
        "teardown.py",
        "    removal = choose_removal(scope, before)\n    _carry_out_removal",
        '    removal = choose_removal(scope, before)\n    if node.files.exists("/dev/nvidia0"):\n        removal = replace(removal, unload=())\n    _carry_out_removal',
    ),
    6: _plant(
        "a busy module is unloaded",
        "teardown.py",
        "() if is_busy(residue.loaded) else",
        "() if not residue.loaded else",
    ),
    7: _plant(
        "a customer's driver is not detected",
        "teardown.py",
        "    version = customer_version(residue) if scope.is_opted_out else None",
        "    version = None",
    ),
    8: _plant(
        "a busy baked module beside a customer's driver is ignored",
        "teardown.py",
        "    return not (after.loaded and after.is_ours_loaded)\n",
        "    return True\n",
    ),
    9: _plant(
        "baked modules of other kernels are not removed",
        "teardown.py",
        "*sources, *staged, *residue.record_version_files)",
        "*sources, *staged)",
    ),
    10: _plant(
        "a teardown is followed by a validation only",
        "driver.py",
        "configuration.config_gpu_driver_if_needed or decision.action.has_teardown",
        "configuration.config_gpu_driver_if_needed",
    ),
    11: _plant(
        "kinds are compared without normalization",
        "nvidia.py",
        "kind is not None and kind == driver_kind(other)",
        "kind is not None and one == other",
    ),
    12: _plant(
        "two empty kinds are equal",
        "nvidia.py",
        "kind is not None and kind == driver_kind(other)",
        "kind == driver_kind(other)",
    ),
    13: _plant(
        "the removal of the probe is not checked",
        "teardown.py",
        "        return not after.loaded and not after.present",
        "        return not after.loaded and not set(after.present) - {PROBE_PROGRAM}",
    ),
    14: _plant(
        "temporary files have predictable names",
        "node_files.py",
        "tempfile.mkstemp(prefix=_prefix(target), dir=target.parent)",
        '(os.open(target.parent / f".{target.name}.tmp", os.O_CREAT | os.O_WRONLY), str(target.parent / f".{target.name}.tmp"))',
    ),
    15: _plant(
        "image names are matched as regular expressions",
        "containerd.py",
        'f"name=={image.name}"',
        'f"name~={image.name}"',
    ),
    16: _plant(
        "images are always pulled from the public registry",
        "containerd.py",
        '"pull", image.pull_reference)',
        '"pull", image.name)',
    ),
    17: _plant(
        "failed refresh units are not reset",
        "toolkit.py",
        "            reset_failed(service, path),\n",
        "",
    ),
    18: _plant(
        "the CDI spec is not checked",
        "toolkit.py",
        "            _expect_spec_action(),\n        ),",
        "        ),",
    ),
    19: _plant(
        "the toolkit is configured before the driver works",
        "driver.py",
        '            needs=("query-device",),\n            groups=groups,\n        ),\n        Step(\n            name="regenerate-cdi-spec"',
        '            needs=("query-device",),\n            groups=groups,\n        ),\n        *_toolkit_steps(facts.runtime),\n        Step(\n            name="regenerate-cdi-spec"',
    ),
    20: _plant(
        "a DKMS line with the state 'added' is not parsed",
        "kernel_modules.py",
        r'    r": ?(?P<state>added|built|installed)(?![a-z])"',
        r'    r": ?(?P<state>built|installed)(?![a-z])"',
    ),
    21: _plant(
        "old staged libraries stay on the node",
        "bake.py",
        '                    Remove(path=f"{STAGED_LIBRARIES}/lib64"),\n',
        "",
    ),
    22: _plant(
        "a failed fast path ends the run",
        "driver.py",
        "        replace(prebuilt, exit_code=None),",
        "        prebuilt,",
    ),
    23: _plant(
        "only the modules of one kernel are found",
        "teardown.py",
        "for kernel in kernels(files) for path",
        "for kernel in kernels(files)[:1] for path",
    ),
    24: _plant(
        "the kernel of the record is not compared",
        "bake.py",
        "    elif record.kernel != target:",
        "    elif record.kernel is None:",
    ),
    25: _plant(
        "a failed lookup of tags is ignored",
        "facts.py",
        '        raise ProvisioningError(\n            code, f"The machine\'s tags cannot be looked up. {error}"\n        ) from error',
        "        del error",
    ),
    26: _plant(
        "a tag matches a part of a name",
        "tags.py",
        "if name.lower() == tag.lower()]",
        "if tag.lower() in name.lower()]",
    ),
    27: _plant(
        "the readiness is recorded after the install",
        "driver.py",
        "actions=(log_line(facts.render_readiness()),)",
        'actions=(log_line(facts.render_readiness().replace("marker_present=false", "marker_present=true")),)',
    ),
    28: _plant(
        "events overwrite one another",
        "journal.py",
        '            while not self._files.create(f"{EVENTS_DIRECTORY}/{milliseconds}.json", text):\n                milliseconds += 1',
        '            self._files.write(f"{EVENTS_DIRECTORY}/{milliseconds}.json", text)',
    ),
    29: _plant(
        "modules are matched by a prefix of their names",
        "kernel_modules.py",
        "return tuple(by_name[name] for name in UNLOAD_ORDER if name in by_name)",
        'return tuple(m for m in modules if m.name.startswith("nvidia"))',
    ),
    30: _plant(
        "a missing key means no CDI",
        "cdi.py",
        '    if "cdi_spec_dirs" in keys or _is_at_least(number, (2, 4, 0)):',
        '    if "cdi_spec_dirs" in keys:',
    ),
}
"""One bug for each number of the regression corpus."""
