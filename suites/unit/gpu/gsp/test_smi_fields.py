"""Each field that `nvidia-smi -q` shows of an emulated GPU is marked in the documentation's table."""

from __future__ import annotations

import pytest

from docs.generator.smi_fields import EMULATED, field_page, marked, read_fields
from harness.errors import HarnessError
from harness.fixtures.recordings import Recording, load_recording

A100, H100 = "a100-sxm4-40gb", "h100-sxm5-80gb"


def shown(text: str) -> list[tuple[str, str]]:
    """Return name and value of each line that has both."""
    lines = [line.partition(" : ") for line in text.splitlines()]
    return [(name.strip(), value.strip()) for name, colon, value in lines if colon]


@pytest.mark.parametrize("model", EMULATED)
def test_field_table_lists_each_recorded_nvidia_smi_field_with_its_origin(model: str) -> None:
    recorded = shown(load_recording(EMULATED[model]).text)
    fields = marked(model)

    assert [(each.path.split(" / ")[-1], each.value) for each in fields] == recorded
    assert len(recorded) > 150
    assert len({each.path for each in fields}) == len(fields)
    rows = field_page().splitlines()
    for each in fields:
        head, end = f"| {each.path} | `{each.value}` |", f"| {each.origin.mark.value} |"
        assert [row for row in rows if row.startswith(head) and row.endswith(end)], each


def test_output_with_unknown_fields_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    text = load_recording(EMULATED[A100]).text
    for line, changed, words in (
        ("    Fan Speed", "    Fan Noise", "Field 'Fan Noise' .* is not marked"),
        ("40960 MiB", "40961 MiB", "to be '40960 MiB' .* showed '40961 MiB'"),
        ("92 C", "93 C", "Shutdown Temp' was expected to be '92 C'"),
    ):
        assert line in text
        other = Recording(tool="nvidia-smi", case="", text=text.replace(line, changed))
        monkeypatch.setattr(
            "docs.generator.smi_fields.load_recording", lambda _name, other=other: other
        )

        with pytest.raises(HarnessError, match=words):
            marked(A100)


def test_path_of_a_nested_field_contains_the_name_of_the_outer_field() -> None:
    fields = dict(read_fields(load_recording("nvidia-smi/580.159.04-h100-q").text))

    assert fields["Clocks Event Reasons / HW Slowdown / HW Thermal Slowdown"] == "Not Active"
    assert fields["Driver Version"] == "580.159.04"
    assert fields["Capabilities / EGM"] == "disabled"
