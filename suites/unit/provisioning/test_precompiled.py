"""Precompiled driver containers."""

from __future__ import annotations

import re

import pytest

from harness.provisioning.precompiled import (
    KERNEL_LABEL,
    ClusterNode,
    Grouping,
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


@pytest.mark.parametrize(
    ("text", "tag"),
    [
        ('ID=ubuntu\nVERSION_ID="22.04"\n', "ubuntu22.04"),
        ('ID="rhel"\nVERSION_ID="9.4"\n', "rhel9.4"),
        ('ID="rhel"\nVERSION_ID="10.0"\n', "rhel10"),
        ('ID="rocky"\nID_LIKE="rhel"\nVERSION_ID="9.4"\n', "rocky9"),
        ('ID="centos"\nVERSION_ID="10.1"\n', "centos10.1"),
        ("ID=talos\nVERSION_ID=v1.6.1\n", "talosv1.6.1"),
        ("ID=rhel\nVERSION_ID=stream\n", "rhelstream"),
        ("ID=rhel\nVERSION_ID=1²\n", "rhel1²"),
    ],
)
def test_os_tag_is_derived_from_os_release(text: str, tag: str) -> None:
    assert os_tag(text) == tag


@pytest.mark.parametrize("text", ["", "ID=debian\n", "VERSION_ID=12\n"])
def test_os_release_without_name_or_version_is_refused(text: str) -> None:
    with pytest.raises(PrecompiledError) as error:
        os_tag(text)

    assert str(error.value) == "The os-release file has no ID or no VERSION_ID."


@pytest.mark.parametrize(
    ("kernel", "suffix"),
    [
        ("5.14.0-284.43.1.el9_2.x86_64", "5.14.0-284.43.1.el9.2"),
        ("5.14.0-284.EL9_2.aarch64", "5.14.0-284.el9.2"),
        ("6.1.0-56-cloud-amd64", "6.1.0-56-cloud-amd64"),
        ("6.12.117+deb13-cloud-amd64", "6.12.117.deb13-cloud-amd64"),
        ("5.14.0-1.el9_4.x86_64_64k", "5.14.0-1.el9.4"),
        ("5.14.0-1.x86_64.rt", "5.14.0-1.rt"),
        ("5.14.0-427.13.1.el9_4.x86_64+rt", "5.14.0-427.13.1.el9.4.rt"),
        ("5.14.0-427.13.1.el9_4.aarch64+64k-debug", "5.14.0-427.13.1.el9.4.debug"),
        ("6.1.100+", "6.1.100"),
    ],
)
def test_daemonset_suffix_is_derived_from_the_kernel(kernel: str, suffix: str) -> None:
    assert kernel_suffix(kernel) == suffix


def test_tag_has_no_character_that_a_registry_refuses() -> None:
    image = PrecompiledImage(
        repository="registry.test/gpu",
        image="driver",
        version="580.1",
        kernel="6.12.117+deb13-cloud-amd64",
        os_tag="debian13",
    )

    assert image.reference == "registry.test/gpu/driver:580.1-6.12.117_deb13-cloud-amd64-debian13"
    assert image.pull_reference == image.name == image.reference


def test_nodes_are_grouped_by_kernel() -> None:
    grouping = group_by_kernel(
        [node("a", JAMMY), node("c", "6.1", "debian12"), node("b", JAMMY)], is_label_required=True
    )

    assert grouping == Grouping(
        groups=(
            GROUP,
            KernelGroup(
                kernel="6.1", os_tag="debian12", nodes=("c",), selector={KERNEL_LABEL: "6.1"}
            ),
        )
    )
    assert grouping.groups[0].selector == {"feature.node.kubernetes.io/kernel-version.full": JAMMY}


def test_missing_label_is_an_error_under_a_cluster_policy() -> None:
    with pytest.raises(PrecompiledError) as error:
        group_by_kernel([node("a", JAMMY), node("b", None)], is_label_required=True)

    assert str(error.value) == f"The node 'b' has no label '{KERNEL_LABEL}'."


@pytest.mark.parametrize("kernel", [None, ""])
def test_missing_label_is_a_warning_under_an_nvidia_driver(kernel: str | None) -> None:
    grouping = group_by_kernel(
        [node("b", kernel), node("a", "6.1"), node("c", kernel)], is_label_required=False
    )

    assert [group.nodes for group in grouping.groups] == [("a",)]
    assert grouping.warnings == tuple(
        f"The node '{name}' has no label '{KERNEL_LABEL}'. The node is left out." for name in "bc"
    )


ARCH = "kubernetes.io/arch"
SYSTEM = "feature.node.kubernetes.io/system-os_release.ID"
SYSTEM_VERSION = "feature.node.kubernetes.io/system-os_release.VERSION_ID"


def labelled(name: str, kernel: str, tag: str, **labels: str) -> ClusterNode:
    keys = {"arch": ARCH, "system": SYSTEM, "version": SYSTEM_VERSION}
    own = {keys[key]: value for key, value in labels.items()}
    return ClusterNode(name=name, os_tag=tag, labels={KERNEL_LABEL: kernel, **own})


def test_nodes_with_one_kernel_on_two_systems_form_two_groups() -> None:
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


def test_nodes_with_one_kernel_on_two_processors_form_two_groups() -> None:
    """The kernel names of Ubuntu do not contain the architecture."""
    grouping = group_by_kernel(
        [
            labelled("a", JAMMY, "ubuntu22.04", arch="amd64"),
            labelled("b", JAMMY, "ubuntu22.04", arch="arm64"),
        ],
        is_label_required=True,
    )

    assert [(g.architecture, g.nodes) for g in grouping.groups] == [
        ("amd64", ("a",)),
        ("arm64", ("b",)),
    ]
    assert grouping.warnings == ()


def test_processor_is_derived_from_the_kernel_if_no_label_has_it() -> None:
    kernels = ("5.14.0-1.el9_4.x86_64", "5.14.0-1.el9_4.aarch64_64k")
    grouping = group_by_kernel(
        [node(kernel, kernel, "rhel9.4") for kernel in kernels], is_label_required=True
    )

    assert [group.name_suffix for group in grouping.groups] == [
        "rhel9.4-5.14.0-1.el9.4-amd64",
        "rhel9.4-5.14.0-1.el9.4-arm64-64k",
    ]


def test_each_flavour_of_a_kernel_has_a_valid_unique_name() -> None:
    flavours = ("", "+64k", "_64k-debug", "+debug", "+rt", "+rt-debug", "+64k+rt")
    kernels = [f"5.14.0-427.el9.aarch64{flavour}" for flavour in flavours]
    groups = group_by_kernel(
        [labelled(each, each, "rhel9.4", arch="arm64") for each in kernels], is_label_required=True
    ).groups

    names = [group.name_suffix for group in groups]

    assert len(set(names)) == len(kernels)
    label = r"[a-z0-9]([-a-z0-9]*[a-z0-9])?"
    assert all(re.fullmatch(rf"{label}(\.{label})*", name) for name in names)


@pytest.mark.parametrize(
    ("label", "kernel", "architecture"),
    [
        ("arm64", "5.14.0-1.el9_4.x86_64", "arm64"),
        ("", "5.14.0-1.el9_4.x86_64", "amd64"),
        ("", "5.14.0-1.el9_4.aarch64", "arm64"),
        ("", JAMMY, None),
        ("amd64", JAMMY, "amd64"),
    ],
)
def test_processor_label_is_preferred_to_the_kernel_name(
    label: str, kernel: str, architecture: str | None
) -> None:
    (group,) = group_by_kernel(
        [labelled("a", kernel, "rhel9.4", arch=label)], is_label_required=True
    ).groups

    assert group.architecture == architecture


def test_groups_keep_the_order_of_their_nodes() -> None:
    kernels = ("6.2", "6.1", "6.3", "6.1", "6.2")
    nodes = [node(str(number), kernel) for number, kernel in enumerate(kernels)]

    groups = group_by_kernel(nodes, is_label_required=True).groups

    assert [(group.kernel, group.nodes) for group in groups] == [
        ("6.2", ("0", "4")),
        ("6.1", ("1", "3")),
        ("6.3", ("2",)),
    ]


def test_selector_has_only_labels_that_all_nodes_of_the_group_have() -> None:
    nodes = [
        labelled("a", "6.1", "debian12", system="debian", version="12", arch="amd64"),
        labelled("b", "6.1", "debian12", system="debian", arch="amd64"),
    ]
    for each in (nodes, nodes[::-1]):
        (group,) = group_by_kernel(each, is_label_required=True).groups

        assert group.selector == {KERNEL_LABEL: "6.1", ARCH: "amd64", SYSTEM: "debian"}


@pytest.mark.parametrize(
    ("kernel", "spelled"),
    [("_6.1-.", "6.1"), ("6.1+a+b", "6.1_a_b"), ("5.14-1.el9_4.X86-64", "5.14-1.el9_4.X86-64")],
)
def test_label_value_of_a_kernel_has_only_allowed_characters(kernel: str, spelled: str) -> None:
    assert label_value(kernel) == spelled


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
    assert first == (
        f"The labels {{'{KERNEL_LABEL}': '6.1'}} of the group 'ubuntu24.04-6.1' select the nodes of "
        "'debian12-6.1' too: b. Let node feature discovery label the nodes with their system."
    )
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


def test_image_for_the_kernel_is_chosen_if_the_registry_has_it() -> None:
    asked: list[str] = []

    def is_available(reference: str) -> bool:
        asked.append(reference)
        return True

    choice = choose_driver(
        GROUP,
        repository="nvcr.io/nvidia",
        image="driver",
        version="535.104.05",
        is_available=is_available,
    )

    reference = f"nvcr.io/nvidia/driver:535.104.05-{JAMMY}-ubuntu22.04"
    assert asked == [reference]
    assert choice.image is not None
    assert choice.image.reference == reference
    assert choice.group is GROUP
    assert choice.message == f"'{reference}' was compiled for the kernel '{JAMMY}'."


def test_build_of_the_driver_is_announced_if_the_registry_lacks_the_image() -> None:
    choice = choose_driver(
        GROUP, repository="r", image="i", version="1", is_available=lambda _: False
    )

    assert choice.image is None
    assert choice.group is GROUP
    assert choice.message == (
        f"The registry has no 'r/i:1-{JAMMY}-ubuntu22.04': the driver is built on the 2 node(s) "
        f"of the kernel '{JAMMY}'."
    )


@pytest.mark.parametrize(
    ("desired", "misscheduled", "may"), [(0, 0, True), (1, 0, False), (0, 1, False), (1, 1, False)]
)
def test_daemonset_is_deleted_only_if_no_node_needs_it(
    desired: int, misscheduled: int, *, may: bool
) -> None:
    assert may_delete(desired=desired, misscheduled=misscheduled) is may


def test_selector_of_a_group_has_only_the_kernel_and_the_architecture_and_the_system() -> None:
    each = ClusterNode(
        name="a", os_tag="x", labels={"zone": "1", KERNEL_LABEL: "6.1", ARCH: "", SYSTEM: "debian"}
    )
    (group,) = group_by_kernel([each], is_label_required=True).groups

    assert group.selector == {KERNEL_LABEL: "6.1", ARCH: "", SYSTEM: "debian"}
    assert list(group.selector) == [KERNEL_LABEL, ARCH, SYSTEM]


def test_sets_of_labels_that_differ_in_one_value_do_not_overlap() -> None:
    nodes = [
        labelled("a", "6.1", "rhel9.4", system="rhel", version="9.4", arch="amd64"),
        labelled("b", "6.1", "rhel9.5", system="rhel", version="9.5"),
    ]

    assert group_by_kernel(nodes, is_label_required=True).warnings == ()
