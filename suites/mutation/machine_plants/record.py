"""Defects of the decision and its inputs."""

from __future__ import annotations

from .plant import MachinePlant, corpus, plant

PLANTS: tuple[MachinePlant, ...] = (
    corpus(1, "record/test_decision.py", "another and kind"),
    corpus(2, "record/test_decision.py", "another and version"),
    corpus(11, "record/test_decision.py", "family or untouched"),
    corpus(
        12,
        "record/test_decision.py",
        "neither",
        hidden_by="A record with an empty kind counts as corrupt, so its kind is never compared. Each "
        "node has a driver type, from its configuration or else from its VM size.",
    ),
    plant(
        "the module's vermagic is not compared",
        "prebake.py",
        (
            "(Reason.VERMAGIC, proof.file.kernel == wanted.kernel)",
            "(Reason.VERMAGIC, proof.file.kernel is not None)",
        ),
        "record/test_decision.py",
        "another and kernel",
    ),
    plant(
        "all sizes with an A10 in their names get GRID",
        "nvidia.py",
        ("if size in _A10_SIZES:", 'if "_a10_" in size:'),
        "record/test_driver_type.py",
        "begins",
    ),
    plant(
        "the path of the record is not configurable",
        "configuration.py",
        (
            '"gpu_dkms_marker_file": _file_path,',
            '"gpu_dkms_marker_file": lambda _: DEFAULT_RECORD_PATH,',
        ),
        "record/test_decision.py",
        "path",
    ),
    plant(
        "libraries that cannot be linked are no reason to build",
        "prebake.py",
        (
            "if not proof.is_linker_ready or proof.file is None:",
            "if proof.file is None:",
        ),
        "record/test_decision.py",
        "linked",
    ),
    plant(
        "a size with an A10 is missing in the list",
        "nvidia.py",
        ('        "standard_nc32ads_a10_v4",\n', ""),
        "record/test_driver_type.py",
        "each_vm_size",
    ),
    plant(
        "the kernel is compared before kind and version",
        "prebake.py",
        (
            "    rows = (\n        (Reason.KIND,",
            "    rows = (\n        (Reason.KERNEL, record.kernel == wanted.kernel),\n        (Reason.KIND,",
        ),
        "record/test_decision.py",
        "kind and kernel",
    ),
    plant(
        "a module that DKMS installed for another kernel is accepted",
        "kernel_modules.py",
        (
            "(entry.version, entry.kernel, entry.arch) == (version, kernel, arch)",
            "(entry.version, entry.arch) == (version, arch)",
        ),
        "record/test_decision.py",
        "registered and kernel",
    ),
    plant(
        "a module that DKMS installed in another version is accepted",
        "kernel_modules.py",
        (
            "(entry.version, entry.kernel, entry.arch) == (version, kernel, arch)",
            "(entry.kernel, entry.arch) == (kernel, arch)",
        ),
        "record/test_decision.py",
        "registered and version",
    ),
    plant(
        "a module that DKMS installed for another architecture is accepted",
        "kernel_modules.py",
        (
            "(entry.version, entry.kernel, entry.arch) == (version, kernel, arch)",
            "(entry.version, entry.kernel) == (version, kernel)",
        ),
        "record/test_decision.py",
        "registered and architecture",
    ),
    plant(
        "a node without a GPU needs the machine's metadata",
        "facts.py",
        (
            "        return Metadata(), True\n",
            "        with _lookup(ExitCode.NVIDIA_DRIVER_INSTALL):\n            return read_metadata(node.files), True\n",
        ),
        "record/test_decision.py",
        "GPU",
    ),
    plant(
        "the mode of an opted-out node is looked up",
        "facts.py",
        (
            "    if not is_opted_out:\n        with _lookup",
            "    if configuration.gpu_node:\n        with _lookup",
        ),
        "record/test_decision.py",
        "both",
    ),
    plant(
        "a driver type that begins with a kind does not belong to this kind",
        "nvidia.py",
        ("if driver_type.startswith(kind):", 'if driver_type in {kind, f"{kind}-lts"}:'),
        "record/test_driver_type.py",
        "RTX and GRID",
    ),
    plant(
        "an empty value does not count as unset",
        "configuration.py",
        ('if value is None or value == "":', "if value is None:"),
        "record/test_inputs.py",
    ),
    plant(
        "the setting for an install is read case-insensitively",
        "configuration.py",
        ('return value in (True, "true")', 'return str(value).lower() == "true"'),
        "record/test_inputs.py",
    ),
    plant(
        "the file overrides the environment",
        "configuration.py",
        ("if name in environment:", "if name in environment and key not in document:"),
        "record/test_inputs.py",
    ),
    plant(
        "systems like Debian are refused",
        "families.py",
        ('for key in ("ID", "ID_LIKE") if', 'for key in ("ID",) if'),
        "record/test_inputs.py",
    ),
    plant(
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
    plant(
        "several feature flags are read as one flag",
        "configuration.py",
        ('for flag in value.split(",")', "for flag in [value]"),
        "observability/test_exit_codes.py",
        "tools",
    ),
    plant(
        "an install is requested by default",
        "configuration.py",
        ("config_gpu_driver_if_needed: bool = False", "config_gpu_driver_if_needed: bool = True"),
        "record/test_inputs.py",
    ),
    plant(
        "a node has a GPU by default",
        "configuration.py",
        ("gpu_node: bool = False", "gpu_node: bool = True"),
        "record/test_inputs.py",
    ),
    plant(
        "a plan writes the linker's cache",
        "__main__.py",
        ("is_read_only=True)", "is_read_only=False)"),
        "observability/test_status.py",
        "decision_of_a_boot",
    ),
    plant(
        "the output of an older DKMS is not parsed",
        "kernel_modules.py",
        ("(?:/|, ?)(?P<version>", "/(?P<version>"),
        "record/test_decision.py",
        "older",
    ),
    plant(
        "a module of any name is accepted if DKMS has it in this version",
        "kernel_modules.py",
        ("entry.module == MODULE\n            and (entry", "(entry"),
        "record/test_decision.py",
        "another and name",
    ),
    plant(
        "only one name of the architecture arm64 is known",
        "facts.py",
        ('ARM64 = frozenset({"aarch64", "arm64"})', 'ARM64 = frozenset({"arm64"})'),
        "record/test_inputs.py",
        "arm64",
    ),
)
