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
        (
            "qemu+smoke://remote/system",
            "its transport 'smoke' is not one of unix, ssh, libssh, libssh2, tls, tcp, ext",
        ),
        ("qemu:///sytem", "its path '/sytem' is not one of /system, /session"),
        ("qemu:///", "its path '/' is not one of /system, /session"),
        ("qemu+ssh:///system", "'ssh' needs a host"),
        ("qemu+libssh2:///system", "'libssh2' needs a host"),
        ("qemu+ssh://[::1/system", "Invalid IPv6 URL"),
        (
            "qemu+ssh://remote:many/system",
            "Port could not be cast to integer value as 'many'",
        ),
    ],
)
def test_invalid_uri_is_refused_with_examples(text: str, why: str) -> None:
    with pytest.raises(BadInputError) as caught:
        HostUri.parse(text)

    assert str(caught.value) == (
        f"--machine-uri: '{text}' is not a URI of libvirt's QEMU driver: {why}. Examples are "
        "'qemu:///system', 'qemu:///session' and 'qemu+ssh://user@host/system'."
    )


@pytest.mark.parametrize(
    "text",
    ["qemu://[::1/system", "xen:///system", "qemu+x:///system", "qemu:///", "qemu+ssh:///system"],
)
def test_invalid_uri_is_refused_where_it_was_written(text: str) -> None:
    with pytest.raises(BadInputError) as caught:
        HostUri.parse(text, source="harness.ini")

    assert caught.value.source == "harness.ini"


@pytest.mark.parametrize(
    ("text", "transport"),
    [
        ("qemu:///system", "unix"),
        ("qemu://remote/system", "tls"),
        ("qemu+tcp://remote/system", "tcp"),
        ("qemu+ext:///system?command=/bin/way", "ext"),
    ],
)
def test_transport_is_libvirts_own_choice_where_none_is_named(text: str, transport: str) -> None:
    assert HostUri.parse(text).transport == transport


@pytest.mark.parametrize(
    ("text", "command"),
    [
        ("qemu+ssh://remote/system", "ssh remote true"),
        ("qemu+ssh://ada@remote/system", "ssh ada@remote true"),
        ("qemu+ssh://remote:22022/system", "ssh -p 22022 remote true"),
        ("qemu+ssh://a$b@remote/system", "ssh 'a$b@remote' true"),
    ],
)
def test_way_to_the_host_can_be_tried_in_a_shell(text: str, command: str) -> None:
    assert HostUri.parse(text).ssh_command == command


@pytest.mark.parametrize(
    ("text", "opened"),
    [
        ("qemu:///system", "qemu:///system"),
        ("qemu+ssh://remote/system", "qemu+ssh://remote/system?no_tty=1"),
        ("qemu+ssh://remote/system?keyfile=/k", "qemu+ssh://remote/system?keyfile=/k&no_tty=1"),
        ("qemu+ssh://remote/system?no_tty=0", "qemu+ssh://remote/system?no_tty=0"),
        ("qemu+libssh2://remote/system", "qemu+libssh2://remote/system"),
    ],
)
def test_ssh_never_prompts_for_a_password(text: str, opened: str) -> None:
    assert HostUri.parse(text).unattended == opened
