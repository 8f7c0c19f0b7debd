"""Precompiled driver containers."""

from __future__ import annotations

import re
from dataclasses import replace

import pytest

from harness.provisioning.precompiled import (
    KERNEL_LABEL,
    ClusterNode,
    KernelGroup,
    PrecompiledError,
    PrecompiledImage,
    choose_driver,
    group_by_kernel,
    kernel_suffix,
    label_value,
    may_delete,
    os_tag,
)

JAMMY = "5.15.0-1041-azure"
GROUP = KernelGroup(
    kernel=JAMMY, os_tag="ubuntu22.04", nodes=("a", "b"), selector={KERNEL_LABEL: JAMMY}
)


def node(name: str, kernel: str | None, tag: str = "ubuntu22.04") -> ClusterNode:
    labels = {} if kernel is None else {KERNEL_LABEL: kernel}
    return ClusterNode(name=name, os_tag=tag, labels=labels)


def test_os_tag_is_derived_from_os_release() -> None:
    rows = {
        'ID=ubuntu\nVERSION_ID="22.04"\n': "ubuntu22.04",
        'ID="rhel"\nVERSION_ID="9.4"\n': "rhel9.4",
        'ID="rhel"\nVERSION_ID="10.0"\n': "rhel10",
        'ID="rocky"\nID_LIKE="rhel"\nVERSION_ID="9.4"\n': "rocky9",
        'ID="ol"\nID_LIKE="fedora"\nVERSION_ID="9.6"\n': "ol9",
        'ID="centos"\nVERSION_ID="10.1"\n': "centos10.1",
        "ID=rhel\nVERSION_ID=stream\n": "rhelstream",
        "ID=rhel\nVERSION_ID=1²\n": "rhel1²",
    }

    assert {text: os_tag(text) for text in rows} == rows
    for text in ("ID=debian\n", "VERSION_ID=12\n"):
        with pytest.raises(PrecompiledError, match="has no ID or no VERSION_ID"):
            os_tag(text)


def test_daemonset_suffix_is_derived_from_the_kernel() -> None:
    rows = {
        "5.14.0-284.43.1.el9_2.x86_64": "5.14.0-284.43.1.el9.2",
        "5.14.0-284.EL9_2.aarch64": "5.14.0-284.el9.2",
        "6.1.0-56-cloud-amd64": "6.1.0-56-cloud-amd64",
        "6.12.117+deb13-cloud-amd64": "6.12.117.deb13-cloud-amd64",
        "5.14.0-1.el9_4.x86_64_64k": "5.14.0-1.el9.4",
        "5.14.0-1.x86_64.rt": "5.14.0-1.rt",
        "5.14.0-427.13.1.el9_4.x86_64+rt": "5.14.0-427.13.1.el9.4.rt",
        "5.14.0-427.13.1.el9_4.aarch64+64k-debug": "5.14.0-427.13.1.el9.4.debug",
        "6.1.100+": "6.1.100",
    }

    assert {kernel: kernel_suffix(kernel) for kernel in rows} == rows


def test_image_tag_has_no_plus_sign() -> None:
    image = PrecompiledImage(
        repository="registry.test/gpu",
        image="driver",
        version="580.1",
        kernel="6.12.117+deb13-cloud-amd64",
        os_tag="debian13",
    )

    assert image.reference == "registry.test/gpu/driver:580.1-6.12.117_deb13-cloud-amd64-debian13"
    assert image.pull_reference == image.name == image.reference


def test_nodes_are_grouped_by_kernel_in_the_order_in_which_they_are_listed() -> None:
    kernels = (("a", "6.2"), ("b", JAMMY), ("c", "6.3"), ("d", JAMMY), ("e", "6.2"))
    grouping = group_by_kernel([node(*each) for each in kernels], is_label_required=True)

    assert [(group.kernel, group.nodes) for group in grouping.groups] == [
        ("6.2", ("a", "e")),
        (JAMMY, ("b", "d")),
        ("6.3", ("c",)),
    ]
    assert grouping.groups[1] == replace(GROUP, nodes=("b", "d"))
    assert grouping.groups[0].selector == {"feature.node.kubernetes.io/kernel-version.full": "6.2"}
    assert grouping.warnings == ()


def test_missing_kernel_label_is_an_error_if_labels_are_required_and_else_a_warning() -> None:
    for missing in (None, ""):
        nodes = [node("b", missing), node("a", "6.1"), node("c", missing)]

        with pytest.raises(PrecompiledError, match=rf"The node 'b' has no label '{KERNEL_LABEL}'"):
            group_by_kernel(nodes, is_label_required=True)
        grouping = group_by_kernel(nodes, is_label_required=False)

        assert [group.nodes for group in grouping.groups] == [("a",)]
        assert grouping.warnings == tuple(
            f"The node '{name}' has no label '{KERNEL_LABEL}'. The node is left out."
            for name in "bc"
        )


ARCH = "kubernetes.io/arch"
SYSTEM = "feature.node.kubernetes.io/system-os_release.ID"
SYSTEM_VERSION = "feature.node.kubernetes.io/system-os_release.VERSION_ID"


def labelled(name: str, kernel: str, tag: str, **labels: str) -> ClusterNode:
    keys = {"arch": ARCH, "system": SYSTEM, "version": SYSTEM_VERSION}
    own = {keys[key]: value for key, value in labels.items()}
    return ClusterNode(name=name, os_tag=tag, labels={KERNEL_LABEL: kernel, **own})


def test_nodes_with_the_same_kernel_but_different_distributions_form_two_groups() -> None:
    kernel = "5.14.0-427.13.1.el9_4.x86_64"
    grouping = group_by_kernel(
        [
            labelled("a", kernel, "rhel9.4", arch="amd64", system="rhel", version="9.4"),
            labelled("b", kernel, "rocky9", arch="amd64", system="rocky", version="9.4"),
        ],
        is_label_required=True,
    )

    assert [group.nodes for group in grouping.groups] == [("a",), ("b",)]
    assert [group.name_suffix for group in grouping.groups] == [
        "rhel9.4-5.14.0-427.13.1.el9.4-amd64",
        "rocky9-5.14.0-427.13.1.el9.4-amd64",
    ]
    assert grouping.groups[0].selector == {
        KERNEL_LABEL: kernel,
        ARCH: "amd64",
        SYSTEM: "rhel",
        SYSTEM_VERSION: "9.4",
    }
    assert grouping.warnings == ()


def test_nodes_with_the_same_kernel_but_different_architectures_form_two_groups() -> None:
    """The kernel names of Ubuntu do not contain the architecture."""
    nodes = [labelled(arch, JAMMY, "ubuntu22.04", arch=arch) for arch in ("amd64", "arm64")]

    grouping = group_by_kernel(nodes, is_label_required=True)

    assert [(g.architecture, g.nodes) for g in grouping.groups] == [
        ("amd64", ("amd64",)),
        ("arm64", ("arm64",)),
    ]
    assert grouping.warnings == ()


def test_each_flavour_of_a_kernel_has_a_valid_unique_name() -> None:
    flavours = ("", "+64k", "_64k-debug", "+debug", "+rt", "+rt-debug", "+64k+rt")
    kernels = [f"5.14.0-427.el9.aarch64{flavour}" for flavour in flavours]
    nodes = [node(each, each, "rhel9.4") for each in (*kernels, "5.14.0-1.el9_4.x86_64")]
    groups = group_by_kernel(nodes, is_label_required=True).groups

    names = [group.name_suffix for group in groups]

    assert len(set(names)) == len(nodes)
    label = r"[a-z0-9]([-a-z0-9]*[a-z0-9])?"
    assert all(re.fullmatch(rf"{label}(\.{label})*", name) for name in names)
    assert names[1] == "rhel9.4-5.14.0-427.el9-arm64-64k"
    assert names[-1] == "rhel9.4-5.14.0-1.el9.4-amd64"


def test_processor_label_is_preferred_to_the_kernel_name() -> None:
    rows = {
        ("arm64", "5.14.0-1.el9_4.x86_64"): "arm64",
        ("", "5.14.0-1.el9_4.x86_64"): "amd64",
        ("", "5.14.0-1.el9_4.aarch64"): "arm64",
        ("", JAMMY): None,
        ("amd64", JAMMY): "amd64",
    }

    assert {
        (label, kernel): labelled("a", kernel, "rhel9.4", arch=label).architecture
        for label, kernel in rows
    } == rows


def test_selector_has_only_labels_that_all_nodes_of_the_group_have() -> None:
    nodes = [
        labelled("a", "6.1", "debian12", system="debian", version="12", arch="amd64"),
        labelled("b", "6.1", "debian12", system="debian", arch="amd64"),
    ]
    for each in (nodes, nodes[::-1]):
        (group,) = group_by_kernel(each, is_label_required=True).groups

        assert group.selector == {KERNEL_LABEL: "6.1", ARCH: "amd64", SYSTEM: "debian"}


def test_label_value_of_a_kernel_has_only_allowed_characters() -> None:
    assert label_value("_6.1-.") == "6.1"
    assert label_value("6.1+a+b") == "6.1_a_b"
    assert label_value("5.14-1.el9_4.X86-64") == "5.14-1.el9_4.X86-64"


def test_minor_versions_of_a_system_are_in_one_group_if_they_use_the_same_driver() -> None:
    nodes = [
        labelled(version, "6.12", "rhel10", system="rhel", version=version)
        for version in ("10.0", "10.0", "10.1")
    ]

    (group,) = group_by_kernel(nodes, is_label_required=True).groups

    assert group.selector == {KERNEL_LABEL: "6.12", SYSTEM: "rhel"}


def test_warning_is_given_for_groups_that_labels_do_not_distinguish() -> None:
    nodes = [node("a", "6.1", "ubuntu24.04"), node("b", "6.1", "debian12")]

    grouping = group_by_kernel(nodes, is_label_required=False)

    assert [group.os_tag for group in grouping.groups] == ["ubuntu24.04", "debian12"]
    first, second = grouping.warnings
    assert "of the group 'ubuntu24.04-6.1' select the nodes of 'debian12-6.1' too: b." in first
    assert "of the group 'debian12-6.1'" in second


def test_group_whose_selector_finds_nodes_of_another_group_gets_a_warning() -> None:
    nodes = [
        labelled("a", "6.1", "ubuntu24.04"),
        labelled("b", "6.1", "debian12", system="debian", version="12"),
        labelled("c", "6.1", "debian12", system="debian", version="12"),
    ]

    (warning,) = group_by_kernel(nodes, is_label_required=False).warnings

    assert (
        "of the group 'ubuntu24.04-6.1' select the nodes of 'debian12-6.1' too: b, c." in warning
    )


def test_driver_is_built_only_if_the_registry_lacks_the_image_for_the_kernel() -> None:
    reference = f"nvcr.io/nvidia/driver:535.104.05-{JAMMY}-ubuntu22.04"
    for found in ({reference}, set[str]()):
        choice = choose_driver(
            GROUP,
            repository="nvcr.io/nvidia",
            image="driver",
            version="535.104.05",
            is_available=found.__contains__,
        )

        assert choice.group is GROUP
        assert (choice.image and choice.image.reference) == (reference if found else None)
        assert choice.message == (
            f"'{reference}' was compiled for the kernel '{JAMMY}'."
            if found
            else f"The registry has no '{reference}': the driver is built on the 2 node(s) of the "
            f"kernel '{JAMMY}'."
        )


def test_daemonset_is_deleted_only_if_no_node_needs_it() -> None:
    assert may_delete(desired=0, misscheduled=0)
    assert not may_delete(desired=1, misscheduled=0)
    assert not may_delete(desired=0, misscheduled=1)


def test_selector_of_a_group_has_only_the_kernel_and_the_architecture_and_the_system() -> None:
    labels = {"zone": "1", KERNEL_LABEL: "6.1", ARCH: "", SYSTEM: "debian"}
    (group,) = group_by_kernel(
        [ClusterNode(name="a", os_tag="x", labels=labels)], is_label_required=True
    ).groups

    assert group.selector == {KERNEL_LABEL: "6.1", ARCH: "", SYSTEM: "debian"}


def test_groups_that_differ_in_one_label_value_get_no_warning() -> None:
    nodes = [
        labelled("a", "6.1", "rhel9.4", system="rhel", version="9.4", arch="amd64"),
        labelled("b", "6.1", "rhel9.5", system="rhel", version="9.5"),
    ]

    assert group_by_kernel(nodes, is_label_required=True).warnings == ()
