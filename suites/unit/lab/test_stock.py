"""What a stock image is given at its first boot."""

from __future__ import annotations

import base64
from pathlib import Path

import pytest
import yaml

from harness.errors import BadInputError
from harness.lab.stock import agent_commands, stock_seed

IMAGES = Path(__file__).parents[3] / "images"
TREE = IMAGES / "debian-12/root"


def test_agent_comes_before_cloud_init_writes_files() -> None:
    seed = stock_seed("stock", instance_id="stock-1", images=IMAGES)

    user_data = yaml.safe_load(seed.user_data)
    assert user_data["bootcmd"] == [list(argv) for argv in agent_commands(IMAGES)]
    assert "write_files" not in user_data
    assert yaml.safe_load(seed.meta_data)["instance-id"] == "stock-1"


def test_agents_files_arrive_as_they_are() -> None:
    loader = "/usr/lib/harness/agent-loader"

    (put,) = [argv for argv in agent_commands(IMAGES) if loader in argv]

    assert put[-1] == "0755"
    assert base64.b64decode(put[-2]) == (TREE / loader[1:]).read_bytes()


def test_agent_is_started_at_later_boots_too() -> None:
    commands = agent_commands(IMAGES)

    assert (
        "ln",
        "-sf",
        "../harness-agent.service",
        "/etc/systemd/system/dev-virtio\\x2dports-harness.agent.device.wants/harness-agent.service",
    ) in commands
    assert commands[-1] == ("systemctl", "start", "--no-block", "harness-agent.service")


def test_catalogue_without_the_loader_is_named(tmp_path: Path) -> None:
    with pytest.raises(BadInputError, match="agent's loader cannot be read"):
        agent_commands(tmp_path)
