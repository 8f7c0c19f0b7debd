"""`harness gpu release` makes a release's data from headers, here of a very small driver."""

from __future__ import annotations

import json
import shutil
from typing import TYPE_CHECKING

import pytest

from harness.cli import main
from harness.gpu.gsp.layouts import Field, read_layouts
from harness.provisioning.command import LocalRunner

if TYPE_CHECKING:
    from pathlib import Path

pytest.importorskip("elftools")
pytestmark = [
    pytest.mark.skipif(
        not (shutil.which("cc") and shutil.which("make")), reason="needs the programs cc and make"
    ),
]

_FILES = {
    "version.mk": "NVIDIA_VERSION = 999.10.01\n",
    "src/nvidia/Makefile": """\
all:
\tprintf " CC" && cc -I inc -I generated -I ../common/sdk/nvidia/inc -DWIDE=2 \
-c src/kernel/gpu/gsp/kernel_gsp.c -o kernel_gsp.o -MMD
""",
    "src/nvidia/inc/kernel/gpu/intr/engine_idx.h": """\
#define MC_ENGINE_IDX_NULL 0
#define MC_ENGINE_IDX_COPY(i) (10 + (i))
#define MC_ENGINE_IDX_COPY0 MC_ENGINE_IDX_COPY(0)
#define OTHER_NUMBER 7
""",
    "src/nvidia/inc/gpu/gsp/gsp_static_config.h": """\
typedef struct { unsigned char id[WIDE]; unsigned long size; } Region;
typedef struct GspStaticConfigInfo_t {
    const Region regions[3];
    struct { short low, high; } pair;
    union { int number; float fraction; };
    unsigned bits : 3;
    void *unused;
    unsigned matrix[2][WIDE];
    unsigned char rest[];
} GspStaticConfigInfo;
typedef enum { RM_ENGINE_TYPE_NULL, RM_ENGINE_TYPE_GR0 = 5 } RM_ENGINE_TYPE;
struct never_defined;
""",
    "src/nvidia/inc/gpu/gsp/message_queue_priv.h": "",
    "src/nvidia/generated/g_rpc-structures.h": "#ifdef RPC_STRUCTURES\n"
    "typedef struct rpc_free_v03_00 { int object; } rpc_free_v03_00;\n"
    "typedef rpc_free_v03_00 rpc_free_v;\n#endif\n",
    "src/nvidia/generated/g_rpc-message-header.h": "",
    "src/common/sdk/nvidia/inc/ctrl/ctrl2080/ctrl2080one.h": """\
typedef struct { unsigned long long value; } ONE_PARAMS;
typedef struct { unsigned value; } DISPLAY_PARAMS;
typedef struct { unsigned value; } NV2080_CTRL_INTERNAL_ONE_PARAMS;
#define NV2080_CTRL_CMD_INTERNAL_ONE (0x20800aa5U) /* evaluated */
#define NV2080_CTRL_CMD_INTERNAL_ONE_FLAG (0x00000001)
GspStaticConfigInfo *the_compiler_keeps_only_what_is_used;
""",
    "src/nvidia/generated/g_one_nvoc.c": """\
    /*flags=*/      0x2210u,
    /*accessRight=*/0x0u,
    /*methodId=*/   0x20800101u,
    /*paramSize=*/  sizeof(ONE_PARAMS),
    /*func=*/       "ctrlOne"
    /*flags=*/      0x10u,
    /*methodId=*/   0x00730102u,
    /*paramSize=*/  sizeof(DISPLAY_PARAMS),
    /*func=*/       "ctrlOfADisplay"
    /*flags=*/      0x400u,
    /*methodId=*/   0x20800a03u,
    /*paramSize=*/  0,
    /*func=*/       "ctrlWithoutParameters"
""",
}


@pytest.fixture
def source(tmp_path: Path) -> Path:
    folder = tmp_path / "driver-999.10.01"
    for name, text in _FILES.items():
        file = folder / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)
    return folder


def test_data_of_a_release_has_the_structure_layouts_that_the_compiler_computes(
    source: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    models = tmp_path / "models"

    assert main(["gpu", "release", str(source), f"--output={models}"]) == 0

    printed = capsys.readouterr()
    assert printed.out.splitlines()[0] == str(models / "releases" / "999.10.01.json")
    assert "changes since release 550.163.01" in printed.err
    assert "~ structure GspStaticConfigInfo: size 2184 -> 88" in printed.out
    layouts = read_layouts("999.10.01", models)
    assert layouts.struct("GspStaticConfigInfo").fields == {
        "regions": Field(0, 16, "Region", 3),
        "pair": Field(48, 4, "GspStaticConfigInfo_t.pair", 1),
        "number": Field(52, 4, "i32", 1),
        "fraction": Field(52, 4, "f32", 1),
        "unused": Field(64, 8, "pointer", 1),
        "matrix": Field(72, 4, "u32", 4),
        "rest": Field(88, 1, "u8", 0),
    }
    assert layouts.struct("Region").fields["id"] == Field(0, 1, "u8", 2)
    assert layouts.struct("GspStaticConfigInfo_t.pair").fields["high"] == Field(2, 2, "i16", 1)
    assert layouts.struct("rpc_free_v").size == 4
    assert {number: (each.name, each.struct) for number, each in layouts.commands.items()} == {
        0x20800101: ("ctrlOne", "ONE_PARAMS"),
        0x20800A03: ("ctrlWithoutParameters", None),
        0x20800AA5: ("NV2080_CTRL_CMD_INTERNAL_ONE", "NV2080_CTRL_INTERNAL_ONE_PARAMS"),
    }
    assert layouts.constants == {
        "MC_ENGINE_IDX_COPY0": 10,
        "MC_ENGINE_IDX_NULL": 0,
        "RM_ENGINE_TYPE_GR0": 5,
        "RM_ENGINE_TYPE_NULL": 0,
    }


def test_source_archive_and_source_folder_give_the_same_data(source: Path, tmp_path: Path) -> None:
    archive = tmp_path / "driver.orig.tar.xz"
    LocalRunner().run(
        ["tar", "-cJf", str(archive), "-C", str(tmp_path), source.name], timeout_s=60
    ).check("Packing")

    assert main(["gpu", "release", str(source), f"--output={tmp_path / 'one'}"]) == 0
    assert main(["gpu", "release", str(archive), f"--output={tmp_path / 'two'}"]) == 0

    one, two = (
        json.loads((tmp_path / each / "releases" / "999.10.01.json").read_text())
        for each in ("one", "two")
    )
    assert one == two


@pytest.mark.parametrize(
    ("lacking", "said"),
    [
        ("version.mk", "'version.mk' cannot be read"),
        ("src/nvidia/Makefile", "'src/nvidia/Makefile' cannot be read"),
    ],
)
def test_folder_that_lacks_a_source_file_is_refused(
    source: Path, lacking: str, said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    (source / lacking).unlink()

    assert main(["gpu", "release", str(source)]) == 2

    assert said in capsys.readouterr().err


def test_error_for_headers_that_do_not_compile_quotes_the_compiler(
    source: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (source / "src/nvidia/inc/gpu/gsp/message_queue_priv.h").write_text("#error torn\n")

    assert main(["gpu", "release", str(source)]) == 2

    assert "#error torn" in capsys.readouterr().err
