"""The kubelet and the device plugin that run in guests, here as processes of this host, over gRPC."""

from __future__ import annotations

import contextlib
import os
import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

import grpc
import pytest

from harness.bench.time_to_gpu import device_plugin
from harness.bench.time_to_gpu.device_plugin import api
from harness.bench.time_to_gpu.node_tools import parse_events
from harness.provisioning.command import end, spawn
from harness.provisioning.wait import Deadline, Observation, wait_for

if TYPE_CHECKING:
    from collections.abc import Iterator

_PROGRAMS = Path(device_plugin.__file__).parent
_ANSWER_S = 30.0


class Pair:
    """A loaded kubelet, a loaded plugin, and the folder that both use."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.sockets = folder / "device-plugins"
        self.device = folder / "nvidia0"
        self._events = folder / "events.jsonl"

    def order(self, program: str, order: str) -> None:
        (self.folder / program).write_text(f"{order}\n")

    def events(self) -> list[dict[str, object]]:
        return parse_events(self._events.read_text()) if self._events.exists() else []

    def wait_for(self, name: str, *, count: int = 1) -> list[dict[str, object]]:
        """Wait until there are `count` events called `name`, and return all events."""

        def look() -> Observation[list[dict[str, object]]]:
            events = self.events()
            found = [event for event in events if event["name"] == name]
            names = [event["name"] for event in events]
            return Observation(events if len(found) >= count else None, f"the events {names}")

        return wait_for(f"{count} events '{name}'", look, Deadline.after(_ANSWER_S))

    def capacities(self) -> list[object]:
        return [event["count"] for event in self.events() if event["name"] == "capacity"]


@pytest.fixture
def folder() -> Iterator[Path]:
    """Return a folder with a short path: a socket's path may have 107 bytes, and tmp_path is too long."""
    with tempfile.TemporaryDirectory() as name:
        yield Path(name)


@pytest.fixture
def pair(folder: Path) -> Iterator[Pair]:
    """Start both programs, which wait for orders and do not serve yet."""
    pair = Pair(folder)
    events = str(folder / "events.jsonl")
    more = {"kubelet": [], "plugin": [str(folder / "nvidia[0-9]*")]}
    with contextlib.ExitStack() as ends, (folder / "stderr").open("wb") as log:
        for name, arguments in more.items():
            control = folder / name
            os.mkfifo(control, 0o600)
            argv = [sys.executable, "-m", f"{_PROGRAMS.name}.{name}", str(pair.sockets)]
            process = spawn(
                [*argv, str(control), events, *arguments],
                stdout=log,
                stderr=log,
                env={**os.environ, "PYTHONPATH": str(_PROGRAMS.parent)},
            )
            ends.callback(end, process)
        pair.wait_for("kubelet-loaded")
        pair.wait_for("plugin-loaded")
        yield pair


def test_new_device_is_advertised_to_the_kubelet_and_allocated(pair: Pair) -> None:
    """The plugin does not register before it finds a device."""
    pair.order("kubelet", "start")
    pair.order("plugin", "start")
    pair.wait_for("plugin-started")
    assert pair.capacities() == []

    pair.device.touch()
    events = pair.wait_for("allocated")

    assert pair.capacities() == [1]
    allocated = events[-1]
    assert (allocated["device"], allocated["paths"]) == ("nvidia0", [str(pair.device)])
    assert "refused" not in allocated


def test_capacity_is_zero_after_a_restart_of_the_kubelet_until_the_plugin_registers_again(
    pair: Pair,
) -> None:
    pair.device.touch()
    pair.order("kubelet", "start")
    pair.order("plugin", "start")
    pair.wait_for("allocated")

    pair.order("kubelet", "stop")
    pair.order("kubelet", "start")
    events = pair.wait_for("allocated", count=2)

    names = [event["name"] for event in events]
    assert pair.capacities() == [1, 0, 1]
    assert names.index("kubelet-stopped") < len(names) - 1 - names[::-1].index("kubelet-started")


def test_capacity_is_zero_after_the_plugin_was_stopped(pair: Pair) -> None:
    pair.device.touch()
    pair.order("kubelet", "start")
    pair.order("plugin", "start")
    pair.wait_for("allocated")

    pair.order("plugin", "stop")
    pair.wait_for("capacity", count=2)

    assert pair.capacities() == [1, 0]


def test_allocation_event_mentions_the_error_of_a_device_that_cannot_be_opened(pair: Pair) -> None:
    """The event has the error's name; here the device is a folder, which cannot be opened for writing."""
    pair.device.mkdir()
    pair.order("kubelet", "start")
    pair.order("plugin", "start")

    events = pair.wait_for("allocated")

    assert events[-1]["refused"] == "EISDIR"
    assert "error" not in {event["name"] for event in events}


@pytest.mark.parametrize(
    ("field", "value", "message"),
    [
        ("version", "v1alpha", "version 'v1alpha' is not supported"),
        ("endpoint", "absent.sock", "there is no socket 'absent.sock'"),
    ],
)
def test_kubelet_refuses_an_invalid_registration(
    pair: Pair, field: str, value: str, message: str
) -> None:
    pair.order("kubelet", "start")
    pair.wait_for("kubelet-started")
    given = {"version": api.VERSION, "endpoint": "x.sock", "resource_name": "a/b", field: value}

    with pytest.raises(grpc.RpcError) as refusal:
        _register(pair.sockets, api.message("RegisterRequest")(**given))

    found: Any = refusal.value
    assert found.code() is grpc.StatusCode.INVALID_ARGUMENT
    assert message in found.details()


def _register(sockets: Path, request: Any) -> None:
    with grpc.insecure_channel(f"unix:{sockets / api.KUBELET_SOCKET}") as channel:
        channel.unary_unary(
            f"/{api.REGISTRATION}/Register",
            request_serializer=type(request).SerializeToString,
            response_deserializer=api.message("Empty").FromString,
        )(request, timeout=_ANSWER_S)


def test_grpc_method_names_match_the_device_plugin_api() -> None:
    """A real kubelet calls methods by these names."""
    names = {
        f"/{service}/{name}"
        for service in (api.REGISTRATION, api.DEVICE_PLUGIN)
        for name, *_ in api.methods(service)
    }

    assert names == {
        "/v1beta1.Registration/Register",
        "/v1beta1.DevicePlugin/GetDevicePluginOptions",
        "/v1beta1.DevicePlugin/ListAndWatch",
        "/v1beta1.DevicePlugin/GetPreferredAllocation",
        "/v1beta1.DevicePlugin/Allocate",
        "/v1beta1.DevicePlugin/PreStartContainer",
    }
