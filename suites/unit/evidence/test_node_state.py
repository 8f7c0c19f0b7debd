"""Parsers for the output of a node's tools."""

from __future__ import annotations

import json
import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from harness.errors import HarnessError
from harness.evidence.node_state import (
    DkmsBuild,
    LoadedModule,
    PciFunction,
    parse_boot_time,
    parse_cdi_device_nodes,
    parse_cdi_devices,
    parse_dkms_status,
    parse_driver_version,
    parse_gpu_name,
    parse_lspci,
    parse_modinfo_field,
    parse_modules,
    parse_pci_event,
    parse_prebake_lines,
    parse_refused_gpus,
    parse_stat,
    parse_units,
)


def test_malformed_line_of_proc_modules_raises_an_error() -> None:
    for line in ("nvidia", "nvidia x 0 - Live", "nvidia 1 two - Live", " "):
        with pytest.raises(HarnessError, match="'/proc/modules' has a line of an unknown format"):
            parse_modules(f"x 1 0 - Live 0x0\n{line}\n")


def test_both_formats_of_dkms_status_are_parsed() -> None:
    for line, build in (
        ("nvidia/580.126.09: added", ("580.126.09", None, "added")),
        (
            "nvidia/580.126.09, 6.1.0-56-cloud-amd64, x86_64: built",
            ("580.126.09", "6.1.0-56-cloud-amd64", "built"),
        ),
        (
            "nvidia, 580.126.09, 5.15.0-1050-azure, x86_64: installed",
            ("580.126.09", "5.15.0-1050-azure", "installed"),
        ),
        ("nvidia, 580.126.09: added", ("580.126.09", None, "added")),
        (
            "nvidia/535.54, 6.8.0-1015-azure, aarch64: broken",
            ("535.54", "6.8.0-1015-azure", "broken"),
        ),
        (
            "nvidia/470.1-0ubuntu1, 6.1+deb12, x86_64: built",
            ("470.1-0ubuntu1", "6.1+deb12", "built"),
        ),
        (
            "nvidia/580.126.09, 6.1.0-56-cloud-amd64, x86_64: installed (WARNING! Diff built)",
            ("580.126.09", "6.1.0-56-cloud-amd64", "installed"),
        ),
        (
            "nvidia/580.1, 6.1, x86_64: installed (WARNING! Missing some built modules!)",
            ("580.1", "6.1", "installed"),
        ),
        ("  nvidia/580.1, 6.1, x86_64: installedgrep: x", ("580.1", "6.1", "installed")),
        (
            "nvidia/470.1: broken\n\nError! nvidia/470.1: Missing the module source directory\nManual",
            ("470.1", None, "broken"),
        ),
        (
            "nvidia/580.1, 6.1, x86_64: installedDeprecated feature: CLEAN (/dkms/nvidia)\n (notes)",
            ("580.1", "6.1", "installed"),
        ),
    ):
        version, kernel, state = build

        assert parse_dkms_status(f"\nDeprecated feature: REMAKE_INITRD (/etc)\n{line}\n") == [
            DkmsBuild(name="nvidia", version=version, kernel=kernel, state=state)
        ]


def test_unknown_line_or_error_of_dkms_status_raises_an_error() -> None:
    for line in (
        "nvidia 580.126.09 6.1 x86_64 installed",
        "nvidia/580.126.09, 6.1, x86_64: Installed",
        "nvidia/580.126.09, 6.1, x86_64: disabled",
        "\x1b[1mnvidia/580.126.09, 6.1, x86_64: installed",
        "find: '/var/lib/dkms/nvidia/580.126.09': Permission denied",
        "dkms.conf: Error! No 'PACKAGE_VERSION' directive specified.",
        # DKMS 2.8 to 3.0.8 end their list here.
        "zfs/2.1, 6.1, x86_64: installedError! Could not locate dkms.conf file.\nFile: /a",
    ):
        with pytest.raises(
            HarnessError, match=r"DKMS reports an error|a line of an unknown format"
        ):
            parse_dkms_status(f"iser/24.10, 6.1, x86_64: installed\n{line}\n")
    for line in ("find: '/var/lib/dkms': Permission denied", "Killed", "\0"):
        with pytest.raises(HarnessError, match="'dkms status' has a line of an unknown format"):
            parse_dkms_status(f"Deprecated feature: REMAKE_INITRD (/etc)\n{line}\n")
    for text in ("Error! a\n", "nvidia/580.1: added\nnvidia-fs/2: added\nError! a"):
        with pytest.raises(
            HarnessError, match="DKMS reports an error, so its list may lack modules"
        ):
            parse_dkms_status(text)


def test_pci_functions_are_read_with_their_driver() -> None:
    text = (
        "00:02.0 PCI bridge [0604]: Red Hat, Inc. QEMU PCIe Root port [1b36:000c]\n"
        "\tKernel driver in use: pcieport\n"
        "0000:01:00.0 3D controller [0302]: NVIDIA Corporation GH100 [H100 SXM5 80GB] [10de:2330]"
        " (rev a1)\n"
        "\tSubsystem: NVIDIA Corporation Device [10de:16c1]\n"
        "\tKernel modules: nvidia, nouveau\n"
    )

    assert parse_lspci(text) == [
        PciFunction(
            slot="00:02.0",
            class_code="0604",
            vendor="1b36",
            device="000c",
            driver_in_use="pcieport",
        ),
        PciFunction(
            slot="0000:01:00.0",
            class_code="0302",
            vendor="10de",
            device="2330",
            driver_in_use=None,
        ),
    ]


def test_output_of_lspci_without_pci_functions_gives_an_empty_list() -> None:
    for text in ("", "pcilib: Cannot open /proc/bus/pci\n"):
        assert parse_lspci(text) == []


def test_output_of_lspci_without_a_known_line_raises_an_error() -> None:
    for text in ("zz\n", "<html>504</html>\n", "\0\0\n", "pcilib: x\nKilled\n"):
        with pytest.raises(HarnessError, match="'lspci' shows no PCI function, only unknown text"):
            parse_lspci(text)


def test_stat_paths_may_contain_line_separators_other_than_newline() -> None:
    names = [f"/a{sign}b" for sign in "\r\v\f\x1c\x85\u2028"]

    assert list(parse_stat("".join(f"f 755 0 1.0 {name}\n" for name in names))) == names


def test_malformed_line_of_stat_txt_raises_an_error() -> None:
    for text in ("f 755 0 1.0 /a\nb\n", "f 999 0 1.0 /x\n", "find: error\n"):
        with pytest.raises(
            HarnessError, match="The list of paths has a line of an unknown format"
        ):
            parse_stat(text)


def test_boot_time_is_read_from_the_btime_line_of_proc_stat() -> None:
    assert parse_boot_time("cpu 1\nbtime 1700000000\nprocesses 2\n") == 1_700_000_000
    with pytest.raises(HarnessError, match="no '/proc/stat' with a line 'btime'"):
        parse_boot_time("cpu 1\nnot btime 12\n")


def test_modinfo_field_is_matched_by_its_whole_name() -> None:
    for text, value in (
        ("srcversion: AB\nversion: 580\n", "580"),
        ("description: version: 1\nversion:\t580 \n", "580"),
        ("version: 580\nversion: 590\n", "580"),
        # For an empty value, the value of the next line is not returned.
        ("version:\nvermagic: 6.1 SMP\n", ""),
        ("version:  \n", ""),
        ("versions: 580\n", None),
        ("Version: 580\n", None),
        ("", None),
    ):
        assert parse_modinfo_field(text, "version") == value
    # The name of a field is no pattern.
    assert parse_modinfo_field("sig_key: a\nsigxkey: b\n", "sig.key") is None


def test_prebake_lines_are_parsed_even_after_a_log_prefix() -> None:
    text = (
        "AKS_GPU_PREBAKE event=decision reason=ok action=install-skip-build\n"
        "noise\nAKS_GPU_PREBAKED a=b\nAKS_GPU_PREBAKE\nAKS_GPU_PREBAKE_LOG a=b\naks_gpu_prebake a=b\n"
        "[   12.3] cloud-init: AKS_GPU_PREBAKE action=teardown event=teardown why='two words'\n"
        "AKS_GPU_PREBAKE a=b=c d="
    )

    assert parse_prebake_lines(text) == [
        {"event": "decision", "reason": "ok", "action": "install-skip-build"},
        {"action": "teardown", "event": "teardown", "why": "two words"},
        {"a": "b=c", "d": ""},
    ]


def test_prebake_line_with_an_unclosed_quote_is_split_at_spaces() -> None:
    """A shell trace quotes the whole line, and a full disk truncates it."""
    (line,) = parse_prebake_lines("+ echo 'AKS_GPU_PREBAKE event=decision reason=ok'\n")

    assert line["event"] == "decision"


@given(st.text())
def test_malformed_prebake_line_does_not_affect_the_next_prebake_line(noise: str) -> None:
    line = "AKS_GPU_PREBAKE event=teardown status=cleaned"

    lines = parse_prebake_lines(f"AKS_GPU_PREBAKE {noise}\n{line}\n")

    assert {"event": "teardown", "status": "cleaned"} in lines


def test_version_of_the_loaded_driver_is_read_in_each_format_of_proc_version() -> None:
    for line in (
        "NVRM version: NVIDIA UNIX x86_64 Kernel Module  580.126.09  Mon Aug  3 UTC 2026",
        "NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  580.126.09  Release Build",
        "NVRM version: NVIDIA UNIX x86_64 Kernel Module  580.126.09",
    ):
        other = "GCC version:  gcc 12.2.0 (Debian)"

        assert parse_driver_version(f"{line}\n{other}\n") == "580.126.09"
        assert parse_driver_version(f"{other}\n{line}\n") == "580.126.09"


def test_error_for_a_driver_without_a_version_quotes_its_line() -> None:
    with pytest.raises(HarnessError, match=r"has an unknown format: 'GCC version: 12\.2'"):
        parse_driver_version("GCC version: 12.2")


VERSION = "cdiVersion: 0.5.0\n"
_EDITS = "  containerEdits: {env: [A=1]}\n"


def test_cdi_device_names_are_prefixed_with_the_kind_of_their_spec() -> None:
    for text, devices in (
        (
            f"cdiVersion: 0.6.0\nkind: nvidia.com/gpu\ndevices:\n- name: '0'\n{_EDITS}- name: all\n{_EDITS}",
            ["nvidia.com/gpu=0", "nvidia.com/gpu=all"],
        ),
        (
            (
                '{"cdiVersion": "v0.3.0", "kind": "nvidia.com/gpu", "devices": '
                '[{"name": "g0", "containerEdits": {"env": [], "mounts": [{"hostPath": "/a"}]}}]}'
            ),
            ["nvidia.com/gpu=g0"],
        ),
        ("cdiVersion: 1.0.0\nkind: nvidia.com/gpu\n", []),
        ("cdiVersion: 1.0.0\nkind: nvidia.com/gpu\ndevices:\n", []),
        (
            f"cdiVersion: 1.0.0\nkind: nvidia.com/gpu\ndevices:\n- name: 0\n{_EDITS}",
            ["nvidia.com/gpu=0"],
        ),
        (
            f"{VERSION}kind: nvidia.com/gpu\ndevices:\n- name: 0:1\n{_EDITS}- name: MIG-a_b.c\n{_EDITS}",
            ["nvidia.com/gpu=0:1", "nvidia.com/gpu=MIG-a_b.c"],
        ),
    ):
        assert parse_cdi_devices(text) == devices


def test_invalid_cdi_spec_is_parsed_as_none() -> None:
    for text in (
        "",
        "kind: x/y\n",
        "cdiVersion: 0.5\nkind: x/y\n",
        "cdiVersion: '0.5'\nkind: x/y\n",
        "cdiVersion: 0.5.0-rc1\nkind: x/y\n",
        "cdiVersion: [0.5.0]\nkind: x/y\n",
        "cdiVersion: \nkind: x/y\n",
        "no",
        "[1]",
        f"{VERSION}devices: []",
        f"{VERSION}kind: x/y\ndevices: 3",
        f"{VERSION}kind: [",
        "\0",
        f"{VERSION}kind: x/y\ndevices:\n- name: '0'\n{_EDITS}- id: '1'\n{_EDITS}",
        f"{VERSION}kind: x/y\ndevices:\n- name: '0'\n{_EDITS}- name:\n{_EDITS}",
        f"{VERSION}kind: x/y\ndevices:\n- name: ''\n{_EDITS}",
        f"{VERSION}kind: x/y\ndevices:\n- name: a b\n{_EDITS}",
        f"{VERSION}kind: x/y\ndevices:\n- name: gpu-\n{_EDITS}",
        f"{VERSION}kind: x/y\ndevices:\n- name: [0]\n{_EDITS}",
        f"{VERSION}kind: x/y\ndevices:\n- name: '0'\n{_EDITS}- name: '1'\n",
        f"{VERSION}kind: x/y\ndevices:\n- name: '0'\n  containerEdits: {{env: [], mounts: }}\n",
        f"{VERSION}kind: x/y\ndevices:\n- name: '0'\n  containerEdits: [env]\n",
        f"{VERSION}kind: {{x: y}}\n",
        f"{VERSION}kind: x/{'x' * 300}\n",
        f"{VERSION}kind: x\n",
        f"{VERSION}kind: x/y/z\n",
        "cdiVersion: 0.2.0\nkind: x/y\n",
    ):
        assert parse_cdi_devices(text) is None


def test_cdi_spec_with_a_feature_that_is_newer_than_its_version_is_invalid() -> None:
    def spec(version: str, **changes: object) -> str:
        edits = {"env": ["A=1"]}
        device = {"name": "all", "containerEdits": edits}
        return json.dumps({"cdiVersion": version, "kind": "a/b", "devices": [device], **changes})

    def device(name: str = "all", **edits: object) -> dict[str, object]:
        return {"devices": [{"name": name, "containerEdits": edits}]}

    for before, since, changes in (
        ("0.3.0", "0.4.0", device(mounts=[{"hostPath": "/a", "type": "bind"}])),
        ("0.4.0", "0.5.0", device("0", env=["A=1"])),
        ("0.4.0", "0.5.0", device(deviceNodes=[{"path": "/dev/a", "hostPath": "/dev/a"}])),
        (
            "0.4.0",
            "0.5.0",
            {"containerEdits": {"deviceNodes": [{"path": "/a", "hostPath": "/a"}]}},
        ),
        ("0.5.0", "0.6.0", {"kind": "nvidia.com/gpu.mig"}),
        ("0.5.0", "0.6.0", {"annotations": {"a": "b"}}),
        ("0.6.0", "0.7.0", device(additionalGids=[44])),
        ("v0.6.0", "v0.7.0", device(intelRdt={"closID": "a"})),
        ("1.0.0", "1.1.0", device(intelRdt={"schemata": ["MB:0=50"]})),
        ("1.0.0", "1.1.0", device(netDevices=[{"hostInterfaceName": "eth0", "name": "eth1"}])),
    ):
        assert parse_cdi_devices(spec(before, **changes)) is None
        assert parse_cdi_devices(spec(since, **changes)) is not None


def test_cdi_spec_whose_devices_share_a_long_list_is_read_within_the_time_limit() -> None:
    number = 6000
    nodes = "{path: /a}," * number
    first = f"- &d {{name: a, containerEdits: {{deviceNodes: [{nodes}]}}}}\n"
    spec = f"{VERSION}kind: x/y\ndevices:\n{first}" + "- *d\n" * number
    began = time.process_time()

    assert parse_cdi_devices(spec) == ["x/y=a"] * (number + 1)
    assert parse_cdi_device_nodes(spec) == {"/a"}
    assert time.process_time() - began < 4


def test_cdi_spec_with_a_list_of_many_aliases_as_a_name_is_invalid() -> None:
    aliases = "".join(f"a{at}: &a{at} [{f'*a{at - 1},' * 10}]\n" for at in range(1, 8))
    spec = f"{VERSION}kind: x/y\na0: &a0 [x]\n{aliases}devices: [{{name: *a7, containerEdits: {{env: [A=b]}}}}]\n"
    began = time.process_time()

    assert parse_cdi_devices(spec) is None
    assert time.process_time() - began < 2


def test_device_nodes_of_a_cdi_spec_are_read() -> None:
    for text, nodes in (
        ('{"devices": [{"containerEdits": {"deviceNodes": [{"path": "/dev/a"}]}}]}', {"/dev/a"}),
        ('{"containerEdits": {"deviceNodes": [{"path": "/dev/b"}]}, "devices": []}', {"/dev/b"}),
        ('{"containerEdits": {"deviceNodes": [{"path": "/dev/b"}]}}', {"/dev/b"}),
        ('{"containerEdits": {"deviceNodes": [{"path": "/dev/b"}]}, "devices": null}', {"/dev/b"}),
        ('{"devices": [{"name": "0"}, {"containerEdits": {"env": ["A=1"]}}]}', set()),
        ('{"kind": "a/b"}', set()),
        ("[", set()),
        ("3", set()),
        (
            (
                '{"containerEdits": {"deviceNodes": [{"path": "/dev/c"}]}, "devices": ['
                '{"containerEdits": {"deviceNodes": [{"path": "/dev/a"}, {"path": "/dev/b"}]}},'
                '{"containerEdits": null}, {"containerEdits": {"deviceNodes": null}},'
                '{"containerEdits": {"deviceNodes": [{"path": "/dev/d", "hostPath": "/dev/x"}]}}]}'
            ),
            {"/dev/a", "/dev/b", "/dev/c", "/dev/d"},
        ),
        ('{"devices": [{"containerEdits": {"deviceNodes": [{"type": "c"}]}}]}', set()),
        ('{"devices": 3}', set()),
        ('{"devices": ["a"]}', set()),
        ('{"containerEdits": {"deviceNodes": [{"path": ["/dev/a"]}, {"path": "/b"}]}}', {"/b"}),
    ):
        assert parse_cdi_device_nodes(text) == nodes


def test_refused_gpu_is_parsed_from_kernel_log_lines_with_timestamps() -> None:
    log = "".join(
        f"[  9.{number}] {line}\n"
        for number, line in enumerate(
            (
                "usb 1-1: new device",
                "NVRM: The NVIDIA GPU 0000:0b:00.0 (PCI ID: 10de:2bb5)",
                "NVRM: installed in this system is not supported by the",
            )
        )
    )

    assert parse_refused_gpus(log) == ["2bb5"]
    assert parse_refused_gpus(log.replace("[  9.0]", "")) == ["2bb5"]


def test_other_nvrm_messages_are_not_parsed_as_refused_gpus() -> None:
    for line in (
        "NVRM: Xid (PCI:0000:01:00): 79, pid=1, GPU has fallen off the bus.",
        "NVRM: GPU 0000:01:00.0 is already bound to nouveau.",
        "NVRM: ignore invalid BAR failure for BAR2",
        "NVRM: something that no release has said yet",
    ):
        refusal = "NVRM: ignoring the legacy GPU 0000:05:00.0"

        assert parse_refused_gpus(f"[ 9.1] {line}\n") == []
        assert parse_refused_gpus(f"[ 9.1] {line}\n[ 9.2] {refusal}\n[ 9.3] {line}\n") == [
            "0000:05:00.0"
        ]


def test_status_mark_of_systemctl_is_not_part_of_the_unit_name() -> None:
    for mark in (
        *("*", "x", "\N{BLACK CIRCLE}", "\N{WHITE CIRCLE}", "\N{MULTIPLICATION SIGN}"),
        "\N{CLOCKWISE OPEN CIRCLE ARROW}",
    ):
        rows = parse_units(
            f"{mark} a.service loaded failed failed A\n\n  b.service loaded active running B\n"
        )

        assert [row[:3] for row in rows] == [
            ["a.service", "loaded", "failed"],
            ["b.service", "loaded", "active"],
        ]


def test_line_separators_in_a_unit_description_do_not_start_a_new_row() -> None:
    description = "A\u2028b.service loaded failed failed B\x85\v\x1c"

    (row,) = parse_units(f"a.service loaded active running {description}\n")

    assert row[0] == "a.service"


def test_unknown_line_of_systemctl_raises_an_error() -> None:
    for line in (
        "Running in chroot, ignoring command 'list-units'",
        "\x1b[0;1;31m\N{BLACK CIRCLE}\x1b[0m b.service loaded failed failed B",
        "0 loaded units listed.",
        "b loaded failed failed B",
        "b.service loaded",
        "*",
        "\0",
        "a." * 200_000 + "!",
    ):
        with pytest.raises(HarnessError, match="'systemctl list-units' has a line of an unknown"):
            parse_units(f"a.service loaded active running A\n{line}\n")


def test_gpu_name_is_read_from_the_model_line() -> None:
    for text, name in (
        ("Model: \t\t NVIDIA H100 80GB HBM3 \t\nIRQ:   42\n", "NVIDIA H100 80GB HBM3"),
        ("IRQ: 42\nModel:\t Tesla T4\n", "Tesla T4"),
        ("Model:\nIRQ: 42\n", ""),
        ("IRQ: 42\nBad Model: x\n", None),
        (f"Model: A{' ' * 50_000}B\t\n", f"A{' ' * 50_000}B"),
        ("", None),
    ):
        assert parse_gpu_name(text) == name


def test_each_module_and_kernel_of_dkms_is_listed() -> None:
    text = "nvidia/580.1, 6.1, x86_64: installed\nnvidia/580.1, 6.2, x86_64: built\nnvidia-fs/2.1: added\n"

    assert [(each.name, each.kernel, each.state) for each in parse_dkms_status(text)] == [
        ("nvidia", "6.1", "installed"),
        ("nvidia", "6.2", "built"),
        ("nvidia-fs", None, "added"),
    ]


GPU = (
    "02:00.0 3D controller [0302]: NVIDIA GH100 [10de:2330]\n\tFlags: fast devsel\n"
    "\tKernel driver in use: nvidia\n"
)


def test_error_line_anywhere_in_the_output_of_lspci_is_ignored() -> None:
    for error in (
        "pcilib: sysfs_read_vpd: read failed: Input/output error",
        "lspci: Unable to load libkmod resources: error -2",
        "libkmod: kmod_config_parse: /etc/modprobe.d/a.conf line 1: ignoring bad line",
    ):
        texts = [f"{GPU[:at]}{error}\n{GPU[at:]}" for at in range(len(GPU) + 1)]

        assert [text for text in texts if parse_lspci(text) != parse_lspci(GPU)] == []


def test_overlong_or_unknown_text_in_lspci_output_is_refused() -> None:
    for error in ("cat: read error\n", "x" * 5000 + "\n"):
        with pytest.raises(HarnessError, match="a PCI function in an unknown format") as caught:
            parse_lspci(GPU.replace("\tFlags", f"{error}\tFlags"))

        assert len(str(caught.value)) < 600
    with pytest.raises(HarnessError, match="a PCI function in an unknown format"):
        parse_lspci(f"01:00.0 {'[0302]: ' * 200_000}\n")


def test_many_empty_lines_of_lspci_do_not_delay_the_parser() -> None:
    assert len(parse_lspci(GPU + "\n" * 200_000 + "\tx\n")) == 1


def test_line_of_lspci_in_an_unknown_form_raises_an_error() -> None:
    for slot in ("01:00.0", "0000:01:00.0", "10000:01:00.7"):
        known = "02:00.0 3D controller [0302]: NVIDIA [10de:2330]\n"

        with pytest.raises(
            HarnessError, match="'lspci' shows a PCI function in an unknown format"
        ):
            parse_lspci(f"{known}{slot} 3D controller: NVIDIA Corporation GH100\n")
        assert len(parse_lspci(f"\n{known}pcilib: 01:00.0 cannot be read\n")) == 1


_LEGACY = (
    "NVRM: The NVIDIA {model} GPU installed in this system is\n"
    "NVRM:  supported through the NVIDIA 470.xx Legacy drivers. Please\n"
)
_K80, _K40 = (_LEGACY.format(model=f"Tesla {model}") for model in ("K80", "K40m"))
_IGNORED = "NVRM: ignoring the legacy GPU 0000:0{}:00.0\n"
_OPEN = (
    "NVRM: The NVIDIA GPU 0000:03:00.0 (PCI ID: 10de:2bb1)\n"
    "NVRM: installed in this system requires use of the NVIDIA open kernel modules.\n"
)


def test_refused_gpu_that_appears_in_two_lines_is_listed_once() -> None:
    """The driver logs the model first and then the address; a K80 has two addresses."""
    for log, refused in (
        (_K80 + _IGNORED.format(5), ["Tesla K80"]),
        ((_K80 + _IGNORED.format(5)) * 2, ["Tesla K80"]),
        (_K80 + _IGNORED.format(5) + _K80 + _IGNORED.format(6), ["Tesla K80", "Tesla K80"]),
        (_K80 + _IGNORED.format(5) + _K40 + _IGNORED.format(6), ["Tesla K40m", "Tesla K80"]),
        (_K80 + _IGNORED.format(5) + _IGNORED.format(6), ["0000:06:00.0", "Tesla K80"]),
        (_K80 + _OPEN, ["2bb1", "Tesla K80"]),
        (_OPEN + _K80 + _IGNORED.format(5), ["2bb1", "Tesla K80"]),
        (_IGNORED.format(5) * 2, ["0000:05:00.0"]),
        (_K80 * 2 + _K40, ["Tesla K40m", "Tesla K80"]),
        (_OPEN * 2, ["2bb1"]),
        (_OPEN + _IGNORED.format(3), ["2bb1"]),
        (
            _OPEN.partition("requires")[0] + "is not supported by open\nNVRM: nvidia.ko.\n",
            ["2bb1"],
        ),
        (
            _K80
            + _IGNORED.format(5)
            + "NVRM: Open nvidia.ko is only ready for use on Data Center GPUs.\n",
            ["NVRM: Open nvidia.ko is only ready for use on Data Center GPUs.", "Tesla K80"],
        ),
    ):
        assert parse_refused_gpus(log) == refused


def test_pci_function_with_revision_ff_or_an_unknown_header_is_not_answering() -> None:
    for line, is_answering in (
        ("[10de:20b0] (rev a1)", True),
        ("[10de:20b0] (rev a1) (prog-if 00 [VGA controller])", True),
        ("[10de:20b0] (rev fe)", True),
        ("[10de:20b0] (rev ff)", False),
        ("[10de:20b0] (rev ff) (prog-if ff)\n\t!!! Unknown header type 7f", False),
        ("[10de:20b0]\n\t!!! Unknown header type 7f", False),
        ("[10de:20b0] (rev a1)\n\tSubsystem: Device [ffff:ffff]", True),
        ("[ffff:ffff] (rev ff)", False),
    ):
        text = f"65:00.0 3D controller [0302]: NVIDIA Corporation GA100 {line}\n\tKernel driver in use: nvidia\n"

        (function,) = parse_lspci(text)

        assert function.is_answering is is_answering
        assert function.driver_in_use == "nvidia"


def test_driver_and_state_are_read_for_each_pci_function_separately() -> None:
    for lost in (0, 1):
        lines = [f"000{n}:0a:00.{n} VGA [0300]: A [B] [10de:20b{n}] (rev a1)\n" for n in range(2)]
        lines[lost] = lines[lost].replace("(rev a1)", "(rev ff)")
        lines[1 - lost] += "\tKernel driver in use: nvidia\n\tKernel modules: nouveau\n"

        seen = parse_lspci("".join(lines))

        assert [(each.slot, each.device) for each in seen] == [
            ("0000:0a:00.0", "20b0"),
            ("0001:0a:00.1", "20b1"),
        ]
        assert (seen[lost].is_answering, seen[lost].driver_in_use) == (False, None)
        assert (seen[1 - lost].is_answering, seen[1 - lost].driver_in_use) == (True, "nvidia")


def test_pci_class_of_a_uevent_is_read_without_the_programming_interface() -> None:
    for number, class_code in (
        ("30000", "0300"),
        ("120000", "1200"),
        ("10802", "0108"),
        ("C0330", "0c03"),
        ("0", "0000"),
    ):
        text = (
            f"PCI_CLASS={number}\nPCI_ID=10DE:1EB8\nPCI_SUBSYS_ID=10DE:16C1\n"
            "PCI_SLOT_NAME=0001:00:00.0\nMODALIAS=pci:v000010DEd00002330\n"
        )

        for line, driver in (("", None), ("DRIVER=a=b=c\n", "a=b=c")):
            assert parse_pci_event(line + text, "uevent") == PciFunction(
                slot="0001:00:00.0",
                class_code=class_code,
                vendor="10de",
                device="1eb8",
                driver_in_use=driver,
            )


def test_uevent_file_with_a_missing_or_wrong_line_is_refused() -> None:
    for name in ("PCI_ID", "PCI_SLOT_NAME", "PCI_CLASS", "=", "DRIVER"):
        number = "red" if name == "DRIVER" else "30200"
        lines = ("DRIVER=nvidia", f"PCI_CLASS={number}", "PCI_ID=10DE:2330", "PCI_SLOT_NAME=x")

        with pytest.raises(HarnessError, match="'some/uevent' has an unknown format"):
            parse_pci_event("\n".join(each for each in lines if name not in each), "some/uevent")


def test_stat_line_is_parsed_with_any_number_format_of_the_mtime() -> None:
    for line, modified in (
        ("f 644 0 1700000000.5 /x", 1_700_000_000.5),
        ("f 644 0 1700000000 /x", 1_700_000_000),
        ("f 644 0 1700000000. /x", 1_700_000_000),
        ("f 644 0 -1.5 /x", -1.5),
    ):
        states = parse_stat(f"{line}\nd 2777 4096 2.0 /srv\nf 4755 12 3.5 /usr/nvidia modprobe\n")

        assert states["/x"].modified_at_s == modified
        assert [
            (path, each.kind, each.mode, each.size, each.is_setuid)
            for path, each in states.items()
        ] == [
            ("/x", "f", 0o644, 0, False),
            ("/srv", "d", 0o2777, 4096, False),
            ("/usr/nvidia modprobe", "f", 0o4755, 12, True),
        ]


def test_holders_of_a_module_are_read_as_a_list() -> None:
    for holders, names in (
        ("-", ()),
        ("a,", ("a",)),
        ("a,b", ("a", "b")),
        ("a,-", ("a",)),
        ("[permanent],", ("[permanent]",)),
    ):
        modules = parse_modules(
            f"x 1 12 {holders} Live 0x0 (OE)\ny 2 0 - Unloading 0x0\nfixed 2 - - Live 0x0\n"
        )

        assert modules == {
            "x": LoadedModule(name="x", references=12, holders=names),
            "y": LoadedModule(name="y", references=0, holders=()),
            # A kernel that cannot unload modules does not count references.
            "fixed": LoadedModule(name="fixed", references=0, holders=()),
        }
