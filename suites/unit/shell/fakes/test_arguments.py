"""A fake's constructor refuses an argument that the fake can't use."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from harness.errors import BadInputError
from harness.shell import fakes

if TYPE_CHECKING:
    from collections.abc import Callable


_CYCLE = {
    "nvidia-uvm": fakes.Module(needs=["nvidia"]),
    "nvidia": fakes.Module(needs=["drm"]),
    "drm": fakes.Module(needs=["nvidia_uvm", "missing"]),
}


def test_argument_of_a_wrong_type_is_refused() -> None:
    refusals: list[tuple[Callable[[Callable[[Any], Any]], object], str]] = [
    (lambda a: fakes.Containerd(a("nginx:1")), r"fakes\.Containerd.*images.*'nginx:1'.*a list \(each item: a text\)"),
    (lambda a: fakes.Containerd(a([1])), "images.*list.*each item: a text"),
    (lambda a: fakes.Containerd(registry=a(7)), "registry.*type int"),
    (lambda a: fakes.Containerd(namespace=a(None)), "namespace.*a text was expected"),
    (lambda a: fakes.Systemd(a(["gpu"])), r"units.*mapping \(each value: a fakes\.Unit"),
    (lambda a: fakes.Systemd(a({"gpu": "unit"})), r"units.*each value: a fakes\.Unit"),
    (lambda a: fakes.Unit(start_failures=a("2")), r"fakes\.Unit.*start_failures.*'2'.*a number"),
    (lambda a: fakes.Unit(is_active=a("no")), "is_active.*True or False"),
    (lambda a: fakes.Dkms(a([fakes.Module()])), r"sources.*each item: a fakes\.Source"),
    (lambda a: fakes.Dkms(kernels=a([])), "kernels.*empty"),
    (lambda a: fakes.Module(needs=a("drm")), "needs.*'drm'.*a list"),
    (lambda a: fakes.Module(size=a(True)), "size.*a number"),
    (lambda a: fakes.KernelModules(a({"a": fakes.Module(needs=["a"])})), "KernelModules.*modules.*'a' needs 'a'"),
    (lambda a: fakes.KernelModules(a(_CYCLE)), "'nvidia_uvm' needs 'nvidia' needs 'drm' needs 'nvidia_uvm'"),
    (lambda a: fakes.KernelModules({}).add("b", a(fakes.Module(needs=["b"]))), "'b' needs 'b'"),
    (lambda a: fakes.Packages(installed=a(["make"])), r"installed.*each item: a fakes\.Package"),
    (lambda a: fakes.Package(name="a", version=a(1)), r"fakes\.Package.*version.*a text"),
    (lambda a: fakes.InstanceMetadata(a("{}")), "document"),
    (lambda a: fakes.InstanceMetadata.with_tags(Skip=a(True)), "with_tags.*Skip.*a text"),
    ]  # fmt: skip
    for make, message in refusals:
        with pytest.raises(BadInputError, match=f"(?s){message}"):
            make(lambda value: value)


def test_arguments_of_the_declared_types_are_accepted() -> None:
    unit = fakes.Unit(start_failures=fakes.ALWAYS, on_start=lambda: None)
    fakes.Systemd({"gpu": unit})
    fakes.Systemd()
    fakes.Containerd((name for name in ("a:1", "b:2")), registry={"a:1"})
    fakes.Packages(installed=[fakes.Package(name="a", version="1", depends=("b",))])
    fakes.KernelModules({"drm": fakes.Module()}, loaded=["drm"])
    fakes.InstanceMetadata({"compute": {}})
