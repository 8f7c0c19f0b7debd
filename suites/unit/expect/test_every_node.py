"""Expectations on every GPU node: each is met, not met, or unknown, with a reason."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import TYPE_CHECKING

import pytest

from harness.errors import BadInputError, ExpectationError, HarnessError
from harness.evidence import RECORD_PATH
from harness.evidence.gaps import UNREADABLE_NAME
from harness.evidence.request import AdditionalEvidence
from harness.expect.every_node import (
    DRIVER_REPORT,
    NODE_EXPECTATIONS,
    NodeExpectation,
    VerdictState,
    evidence_of,
    judge_node,
    node_expectations,
)
from suites.unit.evidence.folders import (
    CONTAINERD_CONFIG,
    KERNEL,
    MODULE,
    OTHER_KERNEL,
    VERSION,
    EvidenceFolder,
    a_cdi_spec,
    a_serving_node,
)

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from harness.evidence import Evidence

    Change = Callable[[EvidenceFolder], EvidenceFolder]

BRIDGE = "00:00.0 Host bridge [0600]: Intel Corporation 82G33/G31 [8086:29c0]\n"
VERSION_FILE = "files/proc/driver/nvidia/version"
GONE = "modinfo: ERROR: Module nvidia not found.\n"
SPEC_FILE = "files/run/cdi/nvidia.yaml"


@dataclass(frozen=True)
class Case:
    """A change to a healthy node, and a part of the message that the change must cause."""

    name: str
    change: Change
    words: str


def without_path(folder: EvidenceFolder, path: str) -> EvidenceFolder:
    lines = (folder.root / "stat.txt").read_text().splitlines()
    return folder.paths(*(line for line in lines if not line.endswith(f" {path}")))


def closed(folder: EvidenceFolder, path: str) -> EvidenceFolder:
    """Change the evidence as if the user who gathered it had no permission for a path."""
    kept = folder.root / "files" / path.lstrip("/")
    kept.unlink(missing_ok=True)
    (folder.root / UNREADABLE_NAME).write_text(f"{path}\n")
    return folder


NOT_MET = (
    Case("gpu", lambda f: f.command("lspci", BRIDGE), "none of the bus's 1 functions is a GPU"),
    Case("driver", lambda f: f.without(VERSION_FILE), "no module 'nvidia' is loaded. Install"),
    Case(
        "driver",
        lambda f: f.command("lspci", BRIDGE).without(VERSION_FILE),
        "no module 'nvidia' is loaded, and there is no GPU",
    ),
    Case(
        "driver",
        lambda f: f.command("lspci", BRIDGE),
        f"The NVIDIA driver {VERSION} was expected to drive a GPU, but there is none on the PCI bus",
    ),
    Case("driver", lambda f: without_path(f, "/dev/nvidia0"), "['/dev/nvidia0'] are missing"),
    Case(
        "module",
        lambda f: without_path(f, f"/lib/modules/{KERNEL}").without(VERSION_FILE),
        f"there is no '/lib/modules/{KERNEL}'",
    ),
    Case(
        "module",
        lambda f: without_path(
            f.command(f"modinfo-{KERNEL}", GONE, 1).without(VERSION_FILE), MODULE
        ),
        "but modinfo finds none",
    ),
    Case(
        "tools",
        lambda f: without_path(f, "/usr/bin/nvidia-smi").without(VERSION_FILE),
        "expected, but ['/usr/bin/nvidia-smi'] do not exist",
    ),
    Case(
        "log",
        lambda f: f.command("dmesg", "[9.1] NVRM: Xid (PCI:0000:01:00): 79, GPU has fallen off\n"),
        "1 lines with an error; the last is '[9.1] NVRM: Xid (PCI:0000:01:00): 79",
    ),
    Case(
        "record",
        lambda f: f.without(f"files{RECORD_PATH}"),
        f"provisioning did not install the loaded driver {VERSION}",
    ),
    Case(
        "record",
        lambda f: f.without(f"files{RECORD_PATH}").without(VERSION_FILE),
        "no driver was baked into the node's image",
    ),
    Case(
        "record",
        lambda f: f.file(
            RECORD_PATH,
            f"kernel={OTHER_KERNEL}\ndriver_version={VERSION}\ndriver_kind=cuda\narch=x86_64\n",
        ),
        f"but has {{'kernel': '{OTHER_KERNEL}'",
    ),
    Case("cdi", lambda f: f.without(SPEC_FILE), "in /etc/cdi or /run/cdi, but there is none"),
    Case(
        "cdi",
        lambda f: f.file("/run/cdi/half.yaml", "kind: [nvi"),
        "expected in ['/run/cdi/half.yaml'], but these files are not",
    ),
    Case(
        "cdi",
        lambda f: f.file(
            "/run/cdi/nvidia.yaml", "cdiVersion: 0.5.0\nkind: nvidia.com/gpu\ndevices: []\n"
        ),
        "but ['/run/cdi/nvidia.yaml'] offer none",
    ),
    Case(
        "cdi",
        lambda f: f.file("/run/cdi/x.json", json.dumps(a_cdi_spec(2))),
        "['nvidia.com/gpu=0', 'nvidia.com/gpu=all'] are there several times, and container runtimes offer "
        "none of these. Remove all but one of the specs ['/run/cdi/nvidia.yaml', '/run/cdi/x.json'].",
    ),
    Case(
        "runtime",
        lambda f: f.command("containerd-config", "timeout: failed to run command\n", 127),
        "but it is not installed",
    ),
    Case(
        "runtime",
        lambda f: f.command("containerd-config", "version = 2\n"),
        "'nvidia-container-runtime' was expected in containerd's configuration, but is not",
    ),
    Case(
        "runtime",
        lambda f: f.command(
            "containerd-config",
            CONTAINERD_CONFIG.replace("nvidia-container-runtime", "runc")
            + "# nvidia-container-runtime\n",
        ),
        "is not the program of any runtime whose type is a runc shim; the runtimes are ['nvidia', 'runc']",
    ),
    Case(
        "runtime",
        lambda f: f.command(
            "containerd-config",
            CONTAINERD_CONFIG.replace("_plugins = []", '_plugins = ["io.containerd.grpc.v1.cri"]'),
        ),
        "its configuration disables the CRI plugin",
    ),
    Case(
        "runtime",
        lambda f: f.command("containerd-config", 'disabled_plugins = ["cri"]\n'),
        "its configuration disables the CRI plugin",
    ),
    Case(
        "runtime",
        lambda f: f.command(
            "containerd-config",
            CONTAINERD_CONFIG.replace('_name = "runc"', '_name = "nvidia-cdi"'),
        ),
        "its default runtime 'nvidia-cdi' is not one of its runtimes ['nvidia', 'runc']",
    ),
    Case(
        "services",
        lambda f: without_path(f, "/run/systemd/system"),
        "there is no '/run/systemd/system'",
    ),
    Case(
        "services",
        lambda f: f.command(
            "failed-units",
            "cron.service loaded failed failed cron\nkubelet.service loaded failed failed kubelet\n",
        ),
        "but ['kubelet.service'] have. Read `journalctl -b -u kubelet.service`",
    ),
    Case(
        "services",
        lambda f: f.command("units", "containerd.service loaded inactive dead containerd\n"),
        "'containerd.service' was expected to be 'active', but is 'inactive'",
    ),
    Case(
        "services",
        lambda f: f.command("units", "containerd.service loaded active running containerd\n"),
        "because '/opt/azure/containers/managed-gpu-experience.enabled' exists, but none of them is",
    ),
)

UNKNOWN = (
    Case(
        "gpu",
        lambda f: f.command("lspci", "timeout: failed to run command\n", 127),
        "ran no 'lspci' and has no '/sys/bus/pci/devices'",
    ),
    Case("driver", lambda f: f.command("lspci", "", 124), "'lspci' ended with exit code 124"),
    Case(
        "module",
        lambda f: f.command(f"modinfo-{KERNEL}", "modinfo: not found\n", 127),
        f"'modinfo-{KERNEL}' ended with exit code 127",
    ),
    Case(
        "module",
        lambda f: without_path(f, f"/lib/modules/{KERNEL}"),
        f"The driver {VERSION} is loaded, so modules for the running kernel '{KERNEL}' must be",
    ),
    Case(
        "module",
        lambda f: without_path(f.command(f"modinfo-{KERNEL}", GONE, 1), MODULE),
        f"The driver {VERSION} is loaded, so a module 'nvidia' for the running kernel",
    ),
    Case(
        "module",
        lambda f: f.command(f"modinfo-{KERNEL}", GONE, 1).without(VERSION_FILE),
        f"['{MODULE}'] exists, so the kernel's list of modules",
    ),
    Case("tools", lambda f: f.without("stat.txt"), "does not say which paths exist"),
    Case(
        "tools",
        lambda f: without_path(f, "/usr/bin/nvidia-smi"),
        f"The driver {VERSION} is loaded, so the driver's programs ['/usr/bin/nvidia-smi'] must be",
    ),
    Case(
        "log",
        lambda f: f.command("dmesg", "dmesg: read kernel buffer: Operation not permitted\n", 1),
        "Operation not permitted",
    ),
    Case("record", lambda f: closed(f, RECORD_PATH), f"no permission to read '{RECORD_PATH}'"),
    Case("cdi", lambda f: closed(f, "/etc/cdi"), "no permission to read '/etc/cdi'"),
    Case(
        "cdi",
        lambda f: f.file("/run/cdi/nvidia.yaml", json.dumps(a_cdi_spec(1)) + " " * (256 << 10)),
        "'/run/cdi/nvidia.yaml': one YAML file: more than 256 KiB",
    ),
    Case(
        "runtime",
        lambda f: f.command("containerd-config", "containerd: permission denied\n", 1),
        "permission denied",
    ),
    Case(
        "runtime",
        lambda f: f.command("containerd-config", "words that [nobody knows\n"),
        "containerd's configuration has an unknown format: line 1: expected a table or a key",
    ),
    Case(
        "runtime",
        lambda f: f.command("containerd-config", "version = 9\n"),
        "has a format that the harness does not know",
    ),
    Case(
        "runtime",
        lambda f: f.command(
            "containerd-config", CONTAINERD_CONFIG.replace("version = 2", "version = '2'")
        ),
        "has a format that the harness does not know",
    ),
    Case(
        "runtime",
        lambda f: f.command("containerd-config", "\n"),
        "`containerd config dump` printed no configuration",
    ),
    Case(
        "runtime",
        lambda f: f.command("containerd-config", 'time="2026-08-03" level=warning msg="[x] y"\n'),
        "`containerd config dump` printed no configuration",
    ),
    Case("services", lambda f: f.command("failed-units", "no bus\n", 1), "no bus"),
    Case(
        "services",
        lambda f: f.command("units", "containerd.service loaded\n"),
        "has a line of an unknown format: 'containerd.service loaded'",
    ),
)


def verdict_on(folder: EvidenceFolder, name: str) -> tuple[VerdictState, str]:
    (verdict,) = judge_node(folder.evidence, node_expectations([name], source="the test"))
    return verdict.state, verdict.sentence


def test_node_that_serves_gpus_meets_every_expectation(tmp_path: Path) -> None:
    """Each message has the facts that led to the verdict, so that a wrong verdict is noticed."""
    sentences = {
        verdict.expectation.name: verdict.sentence
        for verdict in judge_node(a_serving_node(tmp_path).evidence)
        if verdict.state is VerdictState.MET
    }

    assert sentences == {
        "gpu": "The PCI bus has 10de:2330 at 01:00.0.",
        "driver": f"The NVIDIA driver {VERSION} drives 10de:2330 at 01:00.0.",
        "module": f"The module 'nvidia' {VERSION} is for the running kernel '{KERNEL}' and is "
        "loaded.",
        "tools": "The driver's programs exist: /usr/bin/nvidia-smi, /usr/bin/nvidia-modprobe.",
        "log": "The kernel log has no GPU error.",
        "record": f"The prebake record names the driver {VERSION} (cuda) and the running kernel.",
        "cdi": "'/run/cdi/nvidia.yaml' offers nvidia.com/gpu=0, nvidia.com/gpu=all.",
        "runtime": "containerd's configuration has 'nvidia-container-runtime'.",
        "services": "No GPU service has failed; active: containerd.service, "
        "nvidia-device-plugin.service.",
    }


def test_verdict_that_is_unmet_or_unknown_states_the_reason(tmp_path: Path) -> None:
    for number, case in enumerate((*NOT_MET, *UNKNOWN)):
        folder = tmp_path / str(number)
        state, sentence = verdict_on(case.change(a_serving_node(folder)), case.name)
        assert case.words in sentence
        assert (state is VerdictState.NOT_MET) == (case in NOT_MET), sentence
        if state is VerdictState.NOT_MET:
            # The report says once, for all verdicts, where the evidence is.
            assert str(folder) not in sentence


def test_every_expectation_for_any_node_has_a_test_case() -> None:
    names = {each.name for each in NODE_EXPECTATIONS}

    assert {case.name for case in NOT_MET} == names
    assert {case.name for case in UNKNOWN} == names


def test_node_with_a_customers_own_driver_fails_only_the_record_expectation(
    tmp_path: Path,
) -> None:
    """A driver that provisioning did not install has no record; the other expectations still apply."""
    folder = a_serving_node(tmp_path).without(f"files{RECORD_PATH}")

    wrong = [
        verdict.expectation.name
        for verdict in judge_node(folder.evidence)
        if verdict.state is not VerdictState.MET
    ]

    assert wrong == ["record"]


def test_record_and_module_expectations_are_met_even_if_the_driver_is_not_loaded(
    tmp_path: Path,
) -> None:
    folder = a_serving_node(tmp_path).without(VERSION_FILE)

    for name, words in (("record", "and the running kernel."), ("module", "and is not loaded.")):
        state, sentence = verdict_on(folder, name)
        assert state is VerdictState.MET
        assert sentence.endswith(words)


def test_unknown_name_of_an_expectation_is_refused() -> None:
    with pytest.raises(
        BadInputError, match=r"--only: 'gpus' is not an expectation .* 'gpu', 'driver'"
    ):
        node_expectations(["gpus"], source="--only")


def test_chosen_expectations_keep_the_order_in_which_they_were_given() -> None:
    def names(*wanted: str, asks_driver: bool = False) -> list[str]:
        found = node_expectations(wanted, source="a test", asks_driver=asks_driver)
        return [each.name for each in found]

    own = [each.name for each in NODE_EXPECTATIONS]
    assert names("cdi", "gpu") == ["cdi", "gpu"]
    assert names()[: len(own)] == own
    assert "nvidia-smi" not in names()
    assert names(asks_driver=True) == [*names(), "nvidia-smi"]
    assert names("nvidia-smi", asks_driver=True) == ["nvidia-smi"]
    with pytest.raises(BadInputError, match="'nvidia-smi' is not an expectation on a node"):
        names("gpu", "nvidia-smi")
    with pytest.raises(BadInputError, match="'second' is not an expectation on a node"):
        names("gpu", "second", "third")


def test_each_expectation_gets_one_verdict_in_the_given_order(tmp_path: Path) -> None:
    def fails(_evidence: Evidence) -> str:
        raise ExpectationError("Wrong.")

    def cannot_tell(_evidence: Evidence) -> str:
        raise HarnessError("Dark.")

    judges = [fails, cannot_tell, lambda _: "Fine.", cannot_tell, fails]
    expectations = [
        NodeExpectation(name=str(number), words="x", judge=judge)
        for number, judge in enumerate(judges)
    ]
    evidence = a_serving_node(tmp_path).evidence

    met, not_met, unknown = VerdictState.MET, VerdictState.NOT_MET, VerdictState.UNKNOWN
    assert [
        (each.expectation.name, each.state, each.sentence)
        for each in judge_node(evidence, expectations)
    ] == [
        ("0", not_met, "Wrong."),
        ("1", unknown, "Dark."),
        ("2", met, "Fine."),
        ("3", unknown, "Dark."),
        ("4", not_met, "Wrong."),
    ]
    assert judge_node(evidence, []) == []


def test_evidence_request_combines_the_requests_of_all_expectations() -> None:
    def needing(**commands: list[str]) -> NodeExpectation:
        more = AdditionalEvidence(commands=commands, files=[f"/{name}" for name in commands])
        return NodeExpectation(name="x", words="x", judge=lambda _: "", evidence=more)

    first = AdditionalEvidence(commands={"a": ("a",)})
    expectations = [
        NodeExpectation(name="y", words="y", judge=lambda _: "", evidence=first),
        *(needing(a=["a"]), needing(b=["b", "c"]), DRIVER_REPORT),
    ]
    both = evidence_of(expectations)

    assert dict(both.commands) == {
        "a": ["a"],
        "b": ["b", "c"],
        "nvidia-smi-q": ["nvidia-smi", "-q"],
    }
    assert list(both.files) == ["/a", "/b"]
    assert not evidence_of([]).commands
    with pytest.raises(BadInputError, match=r"uses the name '.*' for the output of \['a'\]"):
        evidence_of([needing(a=["a"]), needing(b=["b"]), needing(a=["a", "-x"])])
