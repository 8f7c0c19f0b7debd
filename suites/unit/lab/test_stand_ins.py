"""The stand-ins of a node, which a test can make slow or let fail."""

from __future__ import annotations

import math
import re
from typing import Any

import pytest

from harness.cloudinit import GuestFile
from harness.errors import BadInputError
from harness.lab.stand_ins import STAND_INS, UNITS, VARIABLES, stand_in_files
from harness.settings import SHIPPED_IMAGES
from suites.unit.lab.builders import a_request

ROOT = SHIPPED_IMAGES / "stand-ins/services/root/usr/lib"


def test_variables_of_a_stand_in_are_written_to_its_environment_file() -> None:
    (dcgm,) = stand_in_files({"nvidia-dcgm": {"START_DELAY_S": "30", "START_RESULT": "fail"}})

    assert dcgm.path == "/etc/gpu-node/stand-ins/nvidia-dcgm.env"
    assert dcgm.content == b"START_DELAY_S=30\nSTART_RESULT=fail\n"


def test_list_of_units_has_every_unit_that_reads_variables() -> None:
    units = (ROOT / "systemd/system").glob("*.service")
    reading = {unit.stem for unit in units if f"{STAND_INS}/%N.env" in unit.read_text()}

    assert set(UNITS) == reading


def test_list_of_variables_has_every_variable_that_a_stand_in_reads() -> None:
    program = (ROOT / "gpu-node/stand-in").read_text()
    smi = (SHIPPED_IMAGES / "stand-ins/driver/userspace/nvidia-smi.in").read_text()

    assert set(VARIABLES["kubelet"]) == set(re.findall(r"\$\{([A-Z_]+):-", program))
    assert set(VARIABLES["nvidia-smi"]) == set(re.findall(r"^([A-Z_]+)=$", smi, re.MULTILINE))


def test_error_for_an_unknown_variable_of_a_stand_in_mentions_the_field() -> None:
    rows: list[tuple[dict[str, dict[str, str]], str]] = [
        (
            {"nvidia-dcmg": {"START_RESULT": "fail"}},
            r"NodeRequest: key 'stand_ins\.nvidia-dcmg': There is no stand-in .* did you mean 'nvidia-dcgm'\?",
        ),
        ({"cups": {}}, r"valid names are 'kubelet', 'node-problem-detector'"),
        (
            {"kubelet": {"START_DELAY": "3"}},
            r"key 'stand_ins\.kubelet\.START_DELAY': .* did you mean 'START_DELAY_S'\?",
        ),
        ({"kubelet": {"EXIT_CODE": "1"}}, r"valid names are 'START_DELAY_S', 'START_RESULT'\."),
        ({"nvidia-smi": {"START_RESULT": "fail"}}, r"has no variable 'START_RESULT'"),
        (
            {"kubelet": {"START_RESULT": "fails"}},
            r"key 'stand_ins\.kubelet\.START_RESULT': .* value 'fails'; .* has to match 'ok\|fail'",
        ),
        ({"kubelet": {"START_DELAY_S": "soon"}}, r"value 'soon'"),
    ]
    for stand_ins, message in rows:
        with pytest.raises(BadInputError, match=message):
            a_request(stand_ins=stand_ins)


def test_number_is_accepted_as_the_value_of_a_stand_in() -> None:
    for number, text in ((30, "30"), (0.5, "0.5"), (1e-05, "0.00001"), (1e22, "1" + "0" * 22),
                         (2.0, "2.0"), (math.inf, "infinity")):  # fmt: skip
        (file,) = stand_in_files(
            a_request(stand_ins={"kubelet": {"START_DELAY_S": number}}).stand_ins
        )

        assert file.content == f"START_DELAY_S={text}\n".encode()


def test_value_that_is_neither_text_nor_a_number_is_refused() -> None:
    values: list[Any] = [True, None, ["1"], b"1"]
    for value in values:
        with pytest.raises(
            BadInputError,
            match=rf"START_DELAY_S.*of type {type(value).__name__}, but a text or a number was exp",
        ):
            a_request(stand_ins={"kubelet": {"START_DELAY_S": value}})
    for number in (-1, math.nan, -math.inf):
        with pytest.raises(BadInputError, match=f"does not accept the value '{number}'"):
            a_request(stand_ins={"kubelet": {"START_DELAY_S": number}})


def test_user_unit_with_a_stand_in_environment_file_is_accepted_as_a_stand_in() -> None:
    unit = GuestFile(
        path="/etc/systemd/system/agent.service",
        content=f"[Service]\nEnvironmentFile=-{STAND_INS}/agent.env\n".encode(),
    )

    files = [GuestFile(path="/etc/first", content=b""), unit]
    request = a_request(files=files, stand_ins={"agent": {"START_DELAY_S": "1"}})
    assert request.stand_ins == {"agent": {"START_DELAY_S": "1"}}
    with pytest.raises(BadInputError, match="There is no stand-in 'agents'"):
        a_request(files=[unit], stand_ins={"agents": {"START_DELAY_S": "1"}})
    with pytest.raises(BadInputError, match="has no variable 'DELAY'"):
        a_request(files=[unit], stand_ins={"agent": {"DELAY": "1"}})


def test_file_that_mentions_a_known_stand_in_does_not_add_variables_to_the_stand_in() -> None:
    file = GuestFile(path="/opt/mine", content=f". {STAND_INS}/nvidia-smi.env\n".encode())

    a_request(files=[file], stand_ins={"nvidia-smi": {"INFOROM": "corrupted"}})
    with pytest.raises(BadInputError, match="has no variable 'START_RESULT'"):
        a_request(files=[file], stand_ins={"nvidia-smi": {"START_RESULT": "fail"}})
