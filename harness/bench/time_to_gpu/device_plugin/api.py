"""The messages and methods of the device-plugin protocol, loaded from `v1beta1.binpb`.

This module runs in the guest beside `kubelet.py` and `plugin.py`, and needs only grpcio and protobuf.
"""

from __future__ import annotations

import json
import os
import threading
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

from google.protobuf import descriptor_pb2, descriptor_pool, message_factory

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

VERSION = "v1beta1"
HEALTHY = "Healthy"
KUBELET_SOCKET = "kubelet.sock"
REGISTRATION = f"{VERSION}.Registration"
DEVICE_PLUGIN = f"{VERSION}.DevicePlugin"


def _load() -> Any:
    files = descriptor_pb2.FileDescriptorSet()
    files.ParseFromString(Path(__file__).with_name("v1beta1.binpb").read_bytes())
    pool = descriptor_pool.DescriptorPool()
    for file in files.file:
        pool.Add(file)
    return pool


_POOL = _load()


def message(name: str) -> Any:
    """Return the class of a message, such as `RegisterRequest`."""
    return message_factory.GetMessageClass(_POOL.FindMessageTypeByName(f"{VERSION}.{name}"))


def methods(service: str) -> Iterator[tuple[str, Any, Any, bool]]:
    """Yield the name, the request class and the response class of each method of a service.

    The last item of each tuple says whether the method's response is a stream.
    """
    for method in _POOL.FindServiceByName(service).methods:
        yield (
            method.name,
            message_factory.GetMessageClass(method.input_type),
            message_factory.GetMessageClass(method.output_type),
            method.server_streaming,
        )


class Events:
    """Appends events to a file, each as a line of JSON with the monotonic time and the wall-clock time."""

    def __init__(self, path: str) -> None:
        self._path = path

    def write(self, name: str, **fields: object) -> None:
        stamp = {"name": name, "monotonic_s": time.monotonic(), "wall_s": time.time()}
        line = json.dumps({**stamp, **fields}) + "\n"
        descriptor = os.open(self._path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)
        try:
            os.write(descriptor, line.encode())
        finally:
            os.close(descriptor)


def obey(control: str, orders: dict[str, Callable[[], None]], events: Events) -> None:
    """Run each order that arrives as a line in the named pipe `control`, until the order `end` arrives."""
    # The pipe is opened for writing too, because a reader gets the end of file if a pipe has no
    # writer.
    with open(os.open(control, os.O_RDWR), encoding="utf-8") as lines:  # noqa: PTH123
        for line in lines:
            order = line.strip()
            if order == "end":
                return
            try:
                orders[order]()
            except Exception as error:  # any error is reported in the events
                events.write("error", order=order, error=repr(error))


class Restartable:
    """A gRPC server that several threads may stop and start again."""

    def __init__(self) -> None:
        self.lock = threading.RLock()
        self.server: Any = None

    def stop(self) -> None:
        with self.lock:
            if self.server is not None:
                self.server.stop(0).wait(5)
                self.server = None
