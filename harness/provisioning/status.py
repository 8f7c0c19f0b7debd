"""The status of the node: the driver, the node's kernels, and what a boot would decide."""

from __future__ import annotations

from typing import TYPE_CHECKING

from .cdi import plugin_environment, toolkit_environment
from .configuration import ConfigurationError
from .exit_codes import ExitCode, ProvisioningError
from .facts import collect_facts
from .kernel_modules import (
    installed_files,
    kernels,
    prove_module,
    read_loaded,
    read_resident_version,
)
from .nvidia import DKMS_TREE
from .prebake import read_record
from .toolkit import has_spec

if TYPE_CHECKING:
    from .configuration import Configuration
    from .node_context import NodeContext
    from .toolkit import RuntimeFacts


def status(node: NodeContext, configuration: Configuration) -> dict[str, object]:
    """Return the status of the node as a document for JSON; change nothing, raise nothing."""
    kernel = node.kernel()
    proof = prove_module(node.runner, node.files, kernel, is_read_only=True)
    record = read_record(node.files, configuration.gpu_dkms_marker_file)
    return {
        "kernel": kernel,
        "arch": node.answer("uname", "-m"),
        "record": None if record is None else record.to_json(),
        "dkms": [
            {
                "module": entry.module,
                "version": entry.version,
                "kernel": entry.kernel,
                "arch": entry.arch,
                "state": entry.state.value,
            }
            for entry in proof.dkms
        ],
        "has_dkms_tree": node.files.exists(DKMS_TREE),
        "module": (
            None
            if proof.file is None
            else {"version": proof.file.version, "vermagic": proof.file.vermagic}
        ),
        "module_files": {
            name: list(files)
            for name in kernels(node.files)
            if (files := installed_files(node.files, name))
        },
        "loaded": {module.name: module.references for module in read_loaded(node.files)},
        "resident_version": read_resident_version(node.files),
        "has_cdi_spec": has_spec(node),
        "boot": _boot(node, configuration),
    }


def _boot(node: NodeContext, configuration: Configuration) -> dict[str, object]:
    try:
        facts = collect_facts(node, configuration, is_read_only=True)
    except ProvisioningError as error:
        return {"decision": None, "exit_code": int(error.exit_code), "error": str(error)}
    except ConfigurationError as error:
        code = ExitCode.INVALID_CONFIGURATION
        return {"decision": None, "exit_code": int(code), "error": str(error)}
    return {
        "decision": None if facts.decision is None else facts.decision.to_json(),
        "driver_type": facts.driver_type,
        "is_opted_out": facts.is_opted_out,
        "managed_services": None if facts.mode is None else facts.mode.unit,
        "cdi": None if facts.runtime is None else _cdi(facts.runtime),
    }


def _cdi(runtime: RuntimeFacts) -> dict[str, object]:
    return {
        "support": runtime.cdi.value,
        "toolkit_environment": toolkit_environment(runtime.choice),
        "plugin_environment": plugin_environment(runtime.choice),
    }
