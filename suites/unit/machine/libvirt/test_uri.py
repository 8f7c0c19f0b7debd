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
        ("qemu+ssh://root@remote/system", False, False),
        ("qemu+ssh://[::1]:2222/session", False, True),
        ("qemu://remote/system", False, False),
        ("qemu+ext:///system?command=/bin/way", False, False),
    ],
)
def test_uri_says_which_hosts_files_its_machines_see(
    text: str, *, is_local: bool, is_session: bool
) -> None:
    uri = HostUri.parse(text)

    assert (uri.is_local, uri.is_session) == (is_local, is_session)


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("", "its scheme is not 'qemu'"),
        ("xen:///system", "its scheme is not 'qemu'"),
        ("qemu+smoke://remote/system", "its transport 'smoke' is not one of unix, ssh"),
        ("qemu:///sytem", "its path '/sytem' is not one of /system, /session"),
        ("qemu:///", "its path '/' is not one of"),
        ("qemu+ssh:///system", "'ssh' needs a host"),
        ("qemu+ssh://[::1/system", "Invalid IPv6 URL"),
        ("qemu+ssh://remote:many/system", "Port could not be cast to integer value"),
    ],
)
def test_invalid_uri_is_refused_with_examples(text: str, why: str) -> None:
    with pytest.raises(BadInputError) as caught:
        HostUri.parse(text)

    assert str(caught.value).startswith("--machine-uri: ")
    assert why in str(caught.value)
    assert "Examples are 'qemu:///system'" in str(caught.value)


@pytest.mark.parametrize(
    ("text", "opened"),
    [
        ("qemu:///system", "qemu:///system"),
        ("qemu+ssh://remote/system", "qemu+ssh://remote/system?no_tty=1"),
        ("qemu+ssh://remote/system?keyfile=/k", "qemu+ssh://remote/system?keyfile=/k&no_tty=1"),
        ("qemu+ssh://remote/system?no_tty=0", "qemu+ssh://remote/system?no_tty=0"),
    ],
)
def test_ssh_never_prompts_for_a_password(text: str, opened: str) -> None:
    assert HostUri.parse(text).unattended == opened
