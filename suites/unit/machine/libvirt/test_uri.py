"""What URIs mean, and what is said of those that mean nothing."""

from __future__ import annotations

import pytest

from harness.errors import BadInputError
from harness.machine.libvirt.uri import HostUri


@pytest.mark.parametrize(
    ("text", "is_local", "is_session"),
    [
        ("qemu:///system", True, False),
        ("qemu:///session", True, True),
        ("qemu+unix:///system?socket=/a/b", True, False),
        ("qemu+ssh://root@far/system", False, False),
        ("qemu+ssh://[::1]:2222/session", False, True),
        ("qemu://far/system", False, False),
        ("qemu+ext:///system?command=/bin/way", False, False),
    ],
)
def test_uri_tells_whose_files_its_machines_see(
    text: str, *, is_local: bool, is_session: bool
) -> None:
    uri = HostUri.parse(text)

    assert (uri.is_local, uri.is_session) == (is_local, is_session)


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("", "its scheme is not 'qemu'"),
        ("xen:///system", "its scheme is not 'qemu'"),
        ("qemu+smoke://far/system", "its transport 'smoke' is none of unix, ssh"),
        ("qemu:///sytem", "its path '/sytem' is none of /system, /session"),
        ("qemu:///", "its path '/' is none of"),
        ("qemu+ssh:///system", "'ssh' needs a host"),
        ("qemu+ssh://[::1/system", "Invalid IPv6 URL"),
        ("qemu+ssh://far:many/system", "Port could not be cast to integer value"),
    ],
)
def test_what_is_no_uri_is_refused_with_examples(text: str, why: str) -> None:
    with pytest.raises(BadInputError) as caught:
        HostUri.parse(text)

    assert str(caught.value).startswith("--machine-uri: ")
    assert why in str(caught.value)
    assert "Such are 'qemu:///system'" in str(caught.value)


@pytest.mark.parametrize(
    ("text", "opened"),
    [
        ("qemu:///system", "qemu:///system"),
        ("qemu+ssh://far/system", "qemu+ssh://far/system?no_tty=1"),
        ("qemu+ssh://far/system?keyfile=/k", "qemu+ssh://far/system?keyfile=/k&no_tty=1"),
        ("qemu+ssh://far/system?no_tty=0", "qemu+ssh://far/system?no_tty=0"),
    ],
)
def test_ssh_asks_nobody_for_a_password(text: str, opened: str) -> None:
    assert HostUri.parse(text).unattended == opened
