"""Defects of the removal of a driver."""

from __future__ import annotations

from .plant import MachinePlant, corpus, plant

PLANTS: tuple[MachinePlant, ...] = (
    corpus(3, "teardown/test_removal.py", "idle"),
    corpus(4, "teardown/test_removal.py", "idle"),
    corpus(5, "teardown/test_removal.py", "idle"),
    corpus(6, "teardown/test_removal.py", "in_use"),
    corpus(7, "teardown/test_removal.py", "customer"),
    corpus(8, "teardown/test_modules.py", "busy"),
    corpus(9, "teardown/test_modules.py", "another_kernel"),
    corpus(10, "teardown/test_modules.py", "grid"),
    corpus(13, "teardown/test_removal.py", "setuid"),
    corpus(23, "teardown/test_modules.py", "dkms_built"),
    corpus(29, "teardown/test_modules.py", "similar_name"),
    plant(
        "the record is removed although the removal is incomplete",
        "teardown.py",
        (
            "is_clean = _has_nothing_left(node, after, removal) and _is_removed(node, scope.record_path)",
            "is_clean = _is_removed(node, scope.record_path) and _has_nothing_left(node, after, removal)",
        ),
        "teardown/test_removal.py",
        "in_use or cannot",
    ),
    plant(
        "a module file of the customer is removed too",
        "teardown.py",
        ("        if _module_version(node, path) == record.driver_version\n", ""),
        "teardown/test_removal.py",
        "customer",
    ),
    plant(
        "a managed node preserves another version",
        "teardown.py",
        (
            "    version = customer_version(residue) if scope.is_opted_out else None\n",
            "    version = customer_version(residue)\n",
        ),
        "teardown/test_removal.py",
        "caches",
    ),
    plant(
        "the removal ends at the first path that cannot be removed",
        "teardown.py",
        (
            "            _is_removed(node, path)\n",
            "            if not _is_removed(node, path):\n                break\n",
        ),
        "teardown/test_removal.py",
        "cannot_be_removed",
    ),
    plant(
        "the linker configuration of the customer is removed",
        "teardown.py",
        (
            "for path in residue.present if path == STAGED_LIBRARIES)",
            "for path in residue.present if path in {STAGED_LIBRARIES, LINKER_CONFIGURATION})",
        ),
        "teardown/test_removal.py",
        "customer",
    ),
    plant(
        "depmod does not run beside the driver of a customer",
        "teardown.py",
        ("        depmod_kernels=_kernels_of(residue.record_version_files),\n", ""),
        "teardown/test_modules.py",
        "another_kernel",
    ),
    plant(
        "depmod does not run after a removal",
        "teardown.py",
        (
            "            depmod_kernels=_kernels_of(residue.module_files),\n",
            "",
        ),
        "teardown/test_removal.py",
        "idle",
    ),
    plant(
        "the version of the module counts as the version of the customer's driver",
        "teardown.py",
        (
            'f" installed_version={removal.customer_version}"',
            'f" installed_version={before.installed_version}"',
        ),
        "teardown/test_removal.py",
        "customer",
    ),
    plant(
        "sources of other drivers of NVIDIA are removed",
        "teardown.py",
        (
            'files.matching(SOURCES_DIRECTORY, "nvidia-[0-9]*")',
            'files.matching(SOURCES_DIRECTORY, "nvidia-*")',
        ),
        "teardown/test_removal.py",
        "without_a_version",
    ),
    plant(
        "a teardown reads the record at its default path",
        "teardown.py",
        (
            "read_record(files, scope.record_path)",
            'read_record(files, "/opt/azure/aks-gpu/dkms-marker")',
        ),
        "teardown/test_removal.py",
        "configured_path",
    ),
    plant(
        "links to the baked version are kept beside the driver of a customer",
        "teardown.py",
        (
            'links = tuple(path for path, target in residue.dkms_links if ours in target.split("/"))',
            "links: tuple[str, ...] = ()",
        ),
        "teardown/test_modules.py",
        "another_kernel",
    ),
    plant(
        "a module of the driver counts as a module of another driver",
        "kernel_modules.py",
        (
            '*("nvidia_uvm", "nvidia_drm", "nvidia_modeset",',
            '*("nvidia_uvm", "nvidia_modeset",',
        ),
        "teardown/test_modules.py",
        "each_module_of",
    ),
    plant(
        "a foreign module that uses the driver is ignored",
        "kernel_modules.py",
        (
            "not ours.issuperset(module.holders) or module.references > len(module.holders)",
            "module.references > len(module.holders)",
        ),
        "teardown/test_modules.py",
        "foreign_module",
    ),
    plant(
        "the packages of the DRA driver stay on a node without a GPU",
        "services.py",
        (
            "for package in (*MONITORING_PACKAGES, DEVICE_PLUGIN, DRA_DRIVER)",
            "for package in (*MONITORING_PACKAGES, DEVICE_PLUGIN)",
        ),
        "teardown/test_removal.py",
        "payload_and",
    ),
    plant(
        "a teardown ignores the configured path of the record",
        "facts.py",
        (
            "record_path=configuration.gpu_dkms_marker_file,",
            'record_path="/opt/azure/aks-gpu/dkms-marker",',
        ),
        "teardown/test_removal.py",
        "configured_path",
    ),
    plant(
        "a teardown for GRID has no event",
        "driver.py",
        (
            '        event=f"{_ENSURE}.cleanUpGridNodeCudaPrebake" if is_grid_over_other else None,\n',
            "",
        ),
        "teardown/test_modules.py",
        "incomplete_removal_on",
    ),
    plant(
        "a link in place of a folder is never removed",
        "node_files.py",
        (
            "        if target.is_dir() and not target.is_symlink():\n            shutil",
            "        if target.is_dir():\n            shutil",
        ),
        "teardown/test_removal.py",
        "payload_and",
    ),
    plant(
        "an incomplete removal on a managed node is no failure",
        "__main__.py",
        ("is TeardownStatus.INCOMPLETE and not is_opted_out:", "is None:"),
        "teardown/test_removal.py",
        "managed_node_is_a_failure",
    ),
    plant(
        "the sources of a customer's driver are removed too",
        "teardown.py",
        (
            "tuple(path for path in residue.sources if _source_version(path) == ours)",
            "residue.sources",
        ),
        "teardown/test_removal.py",
        "preserved and DKMS",
    ),
    plant(
        "the record is removed although a baked file is left beside a customer's driver",
        "teardown.py",
        (
            "    if any(node.files.exists(path) for path in removal.paths):\n        return False\n",
            "",
        ),
        "teardown/test_modules.py",
        "stays_beside",
    ),
    plant(
        "all sources of drivers count as sources of the baked driver",
        "teardown.py",
        (
            "tuple(path for path, version in found.items() if version in {recorded, *dkms_versions})",
            "tuple(found)",
        ),
        "teardown/test_removal.py",
        "driver_sources",
    ),
    plant(
        "each folder in DKMS's tree counts as a version",
        "teardown.py",
        (
            'if name != "original_module" and files.is_directory(path)',
            "if files.is_directory(path)",
        ),
        "teardown/test_removal.py",
        "driver_sources",
    ),
    plant(
        "DKMS removes the module for all kernels",
        "teardown.py",
        (
            "    for path in removal.paths:\n",
            '    for version in node.files.names(DKMS_TREE):\n        node.runner.run(("dkms", "remove", f"nvidia/{version}", "--all"), timeout_s=60.0)\n    for path in removal.paths:\n',
        ),
        "teardown/test_removal.py",
        "idle",
    ),
)
