"""The seed that cloud-init gets, and the result and status that cloud-init writes."""

from __future__ import annotations

import gzip
import io
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pycdlib
import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from harness.cloudinit import (
    FINISHED,
    CloudInitReport,
    CloudInitResult,
    CloudInitStatus,
    GuestFile,
    SeedFiles,
    SshAccess,
    UserData,
    render_meta_data,
    render_network_config,
    render_seed,
    render_user_data,
    write_seed,
)
from harness.errors import HarnessError
from harness.fixtures.recordings import load_recording
from suites.unit.user_data import content_of

ACCESS = SshAccess(
    authorized_key="ssh-ed25519 AAAA harness-user",
    host_private_key="-----BEGIN OPENSSH PRIVATE KEY-----\nb3Bl\n-----END OPENSSH PRIVATE KEY-----\n",
    host_public_key="ssh-ed25519 BBBB harness-host",
)
NODE = UserData(hostname="node", access=ACCESS)

#: Text that means something to YAML, to a shell, or to nobody.
HOSTILE = (
    "yes",
    "null",
    "0x10",
    "1e3",
    "~",
    "- item",
    "key: value",
    "# comment",
    "{flow: [map]}",
    "&anchor *alias",
    "!!python/object/apply:os.system [reboot]",
    "%YAML 1.2",
    "--- \n...",
    "|\n  block",
    'it\'s "quoted"',
    "back\\slash \\n",
    "tab\there",
    "line\nbreak\n\n",
    "\r\n",
    "trailing blank ",
    "é \u2028 \U0001f600 \ufeff",
    "$(reboot) `reboot` ;",
    "",
)


def document_of(user_data: UserData) -> dict[str, Any]:
    text = render_user_data(user_data)
    assert text.startswith("#cloud-config\n")
    document: dict[str, Any] = yaml.safe_load(text)
    return document


def read_volume(path: Path) -> dict[str, bytes]:
    """Read a volume back by its Rock Ridge names, as Linux does."""
    iso = pycdlib.PyCdlib()
    iso.open(str(path))
    try:
        contents = {}
        for child in iso.list_children(rr_path="/"):
            if child.is_file():
                name = child.rock_ridge.name().decode()
                buffer = io.BytesIO()
                iso.get_file_from_iso_fp(buffer, rr_path=f"/{name}")
                contents[name] = buffer.getvalue()
        return contents
    finally:
        iso.close()


def test_user_data_of_a_plain_node_has_ssh_keys_and_no_empty_lists() -> None:
    """Schemas of cloud-init 22 refuse empty lists."""
    document = document_of(NODE)

    assert document["users"] == [
        {"name": "root", "ssh_authorized_keys": ["ssh-ed25519 AAAA harness-user"]}
    ]
    assert document["ssh_keys"] == {
        "ed25519_private": ACCESS.host_private_key,
        "ed25519_public": ACCESS.host_public_key,
    }
    assert document["final_message"] == FINISHED
    assert not {"write_files", "runcmd"} & document.keys()
    # An RSA key takes a minute under emulation.
    assert document_of(UserData(hostname="node"))["ssh_genkeytypes"] == ["ed25519"]


def test_password_login_is_disabled() -> None:
    assert document_of(NODE)["ssh_pwauth"] is False


def test_private_key_is_not_in_the_log() -> None:
    assert "PRIVATE" not in repr(NODE)


@given(st.binary() | st.binary().map(lambda part: part * 99))
def test_any_file_content_is_unchanged_in_the_user_data(content: bytes) -> None:
    file = GuestFile(path="/x", content=content)

    (written,) = document_of(replace(NODE, files=[file]))["write_files"]

    assert content_of(written) == content


def test_file_is_compressed_only_if_that_makes_it_smaller() -> None:
    source = Path(__file__).read_bytes()

    for content, encoding in ((source, "gz+b64"), (gzip.compress(source), "b64"), (b"", "b64")):
        (written,) = document_of(replace(NODE, files=[GuestFile(path="/x", content=content)]))[
            "write_files"
        ]

        assert written["encoding"] == encoding
        assert len(written["content"]) <= 4 * ((len(content) + 2) // 3)


@pytest.mark.parametrize(("mode", "permissions"), [(0o644, "0644"), (0o4755, "4755"), (0, "0000")])
def test_mode_of_a_file_is_written_as_octal_text(mode: int, permissions: str) -> None:
    """As a YAML number it would be read as octal by one parser and as decimal by another."""
    file = GuestFile(path="/x", content=b"", mode=mode)

    (written,) = document_of(replace(NODE, files=[file]))["write_files"]

    assert written["permissions"] == permissions


def test_hostile_instance_id_is_unchanged_in_the_meta_data() -> None:
    for text in HOSTILE:
        meta_data = yaml.safe_load(render_meta_data(instance_id=text, hostname="node"))

        assert meta_data == {"instance-id": text, "local-hostname": "node"}


def test_network_config_matches_the_card_by_its_mac_address() -> None:
    assert yaml.safe_load(render_network_config()) == {
        "version": 2,
        "ethernets": {
            "eth0": {
                "match": {"macaddress": "52:54:00:67:70:75"},
                "set-name": "eth0",
                "dhcp4": True,
                "dhcp6": False,
            }
        },
    }


def test_volume_has_user_data_and_meta_data_and_network_config(tmp_path: Path) -> None:
    seed = render_seed(NODE, instance_id="node-1")

    path = write_seed(seed, tmp_path / "seed.iso")

    assert read_volume(path) == {
        "user-data": seed.user_data.encode(),
        "meta-data": seed.meta_data.encode(),
        "network-config": seed.network_config.encode(),
    }


def test_volume_has_the_label_that_cloud_init_looks_for(tmp_path: Path) -> None:
    path = write_seed(render_seed(NODE, instance_id="node-1"), tmp_path / "seed.iso")

    assert path.read_bytes()[0x8028:0x8048].decode().rstrip() == "CIDATA"


def test_hostile_paths_and_contents_and_arguments_are_unchanged_on_the_volume(
    tmp_path: Path,
) -> None:
    """Lists run without a shell, so arguments need only YAML quoting."""
    file = GuestFile(path='/a b/it\'s, "x"\n', content=b"\0\xff'\"\n\r\\${x}")
    user_data = replace(NODE, files=[file], commands=[HOSTILE])

    path = write_seed(render_seed(user_data, instance_id="x"), tmp_path / "a b, 100%.iso")

    document = yaml.safe_load(read_volume(path)["user-data"])
    (written,) = document["write_files"]
    assert (written["path"], content_of(written)) == (file.path, file.content)
    assert document["runcmd"] == [list(HOSTILE)]


def test_user_data_that_is_larger_than_a_block_is_complete(tmp_path: Path) -> None:
    large = replace(NODE, files=[GuestFile(path="/x", content=bytes(range(256)) * 512)])
    seed = render_seed(large, instance_id="x")

    path = write_seed(seed, tmp_path / "seed.iso")

    assert read_volume(path)["user-data"] == seed.user_data.encode()


def test_volume_with_the_private_key_is_readable_only_for_its_owner(tmp_path: Path) -> None:
    path = write_seed(render_seed(NODE, instance_id="x"), tmp_path / "seed.iso")

    assert path.stat().st_mode & 0o777 == 0o600
    assert list(tmp_path.iterdir()) == [path]


def test_new_seed_replaces_an_older_seed(tmp_path: Path) -> None:
    path = tmp_path / "seed.iso"
    path.write_bytes(b"half")

    write_seed(SeedFiles(user_data="a", meta_data="b", network_config="c"), path)

    assert read_volume(path) == {"user-data": b"a", "meta-data": b"b", "network-config": b"c"}


def test_result_of_a_clean_run_has_no_errors() -> None:
    text = json.dumps({"v1": {"datasource": "DataSourceNoCloud [seed=/dev/vdb]", "errors": []}})

    result = CloudInitResult.from_json(text)

    assert result == CloudInitResult(datasource="DataSourceNoCloud [seed=/dev/vdb]", errors=())


def test_result_without_a_data_source_is_read() -> None:
    text = json.dumps({"v1": {"datasource": None, "errors": ["no datasource"]}})

    assert CloudInitResult.from_json(text) == CloudInitResult(
        datasource="", errors=("no datasource",)
    )


@pytest.mark.parametrize(
    "text",
    [
        *("{", "[]", "{}", '{"v1": null}', '{"v1": {"errors": 1}}'),
        '{"v1": {"datasource": null, "errors": "none"}}',
        '{"v1": {"datasource": ["DataSourceNoCloud"], "errors": []}}',
        '{"v1": {"datasource": false, "errors": []}}',
    ],
)
def test_malformed_result_is_refused(text: str) -> None:
    with pytest.raises(HarnessError, match="cloud-init's result file has an unknown format"):
        CloudInitResult.from_json(text)


#: In the forms of cloud-init 22 and 25; the older one has no key for what is recoverable.
STATUS_22 = """{"v1": {"datasource": "DataSourceNoCloud [seed=/dev/vdb][dsmode=net]", "init":
{"errors": [], "finished": 9.1, "start": 7.2}, "modules-final": {"errors": [], "finished": 12.0,
"start": 11.0}, "stage": null}}"""
STATUS_25 = """{"v1": {"datasource": "nocloud", "init": {"errors": [], "finished": 9.1,
"recoverable_errors": {"WARNING": ["Unable to find a hostname"]}, "start": 7.2}, "modules-final":
{"errors": [], "finished": 12.0, "recoverable_errors": {}, "start": 11.0}, "stage": null}}"""


def test_status_without_errors_is_done() -> None:
    assert CloudInitReport.from_json(STATUS_22).status is CloudInitStatus.DONE


def test_recoverable_errors_are_separated_from_errors() -> None:
    report = CloudInitReport.from_json(STATUS_25)

    assert report.status is CloudInitStatus.RECOVERABLE
    assert report.recoverable == ("WARNING: Unable to find a hostname",)
    grave = CloudInitReport.from_json(
        STATUS_25.replace("[]", '["x", "y"]', 1)
        .replace("[]", '["z"]', 1)
        .replace("{}", '{"ERROR": ["late"]}')
    )
    assert grave.status is CloudInitStatus.ERROR
    assert grave.errors == ("x", "y", "z")
    assert grave.recoverable == (*report.recoverable, "ERROR: late")


@pytest.mark.parametrize("version", ["22.4.2", "25.1.4"])
def test_recorded_status_of_a_clean_boot_is_done(version: str) -> None:
    report = CloudInitReport.from_json(load_recording(f"cloud-init/{version}-status").text)

    assert report.status is CloudInitStatus.DONE
    assert report.errors == ()


@pytest.mark.parametrize(
    "text",
    [
        *(
            "",
            "[]",
            '{"v1": {"init": {}}}',
            '{"v1": []}',
            '{"v1": {}}',
            '{"v1": {"stage": "init"}}',
        ),
        '{"v1": {"init": {"errors": "none"}}}',
        '{"v1": {"init": {"errors": {}}}}',
        '{"v1": {"init": {"errors": [], "recoverable_errors": {"WARNING": "text"}}}}',
    ],
)
def test_status_of_an_unknown_form_is_refused(text: str) -> None:
    with pytest.raises(HarnessError, match="status file has an unknown format"):
        CloudInitReport.from_json(text)
