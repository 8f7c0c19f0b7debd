"""The meaning of libvirt URIs, and the errors for refused URIs."""

from __future__ import annotations

import re

import pytest

from harness.errors import BadInputError
from harness.machine.libvirt.uri import HostUri


def test_session_uri_and_system_uri_are_distinguished() -> None:
    kinds = {
        "qemu:///system": False,
        "qemu:///session": True,
        "qemu+unix:///system?socket=/a/b": False,
    }

    assert [HostUri.parse(text) for text in kinds] == [
        HostUri(text=text, is_session=is_session) for text, is_session in kinds.items()
    ]


def test_invalid_uri_is_refused_with_examples() -> None:
    for text, why in (
        ("xen:///system", "its scheme is not 'qemu'"),
        ("qemu:///sytem", "its path '/sytem' is not one of /system, /session"),
        ("qemu+ssh://[::1/system", "Invalid IPv6 URL"),
    ):
        with pytest.raises(BadInputError, match=rf"^--machine-uri: .*{re.escape(why)}"):
            HostUri.parse(text)


def test_error_for_a_remote_uri_suggests_one_shard_of_the_tests_on_each_host() -> None:
    for text in (
        "qemu://far/system",
        "qemu+ssh://root@far/system",
        "qemu+unix://far/system",
        "qemu+ext:///system?command=/bin/way",
    ):
        with pytest.raises(
            BadInputError, match=r"^--machine-uri: .* one shard of the tests on each"
        ):
            HostUri.parse(text)
