"""A stand-in kubelet: registers device plugins, watches their devices, and allocates a device.

This program runs no pods and needs no API server. Start the program in the guest by

    python3 -m device_plugin.kubelet FOLDER CONTROL EVENTS

FOLDER is `/var/lib/kubelet/device-plugins`. CONTROL is a named pipe from which this program reads
the orders `start`, `stop`, `ready`, `mark` and `end`. EVENTS is the file to which this program
appends events. Like a real kubelet, this program removes the sockets in FOLDER at each order
`start`, so plugins have to register again.
"""

from __future__ import annotations

import errno
import os
import sys
import threading
from concurrent import futures
from pathlib import Path
from typing import TYPE_CHECKING, Any

import grpc
from typing_extensions import override

from . import api

if TYPE_CHECKING:
    from collections.abc import Sequence

_CALL_S = 60.0
_END_S = 5.0


class Kubelet(api.Restartable):
    """Serves the gRPC service Registration, and is the client of each device plugin that registers."""

    def __init__(self, folder: Path, events: api.Events) -> None:
        super().__init__()
        self._folder = folder
        self._events = events
        self._watches: list[tuple[Any, threading.Thread]] = []

    def start(self) -> None:
        with self.lock:
            self.stop()
            self._folder.mkdir(parents=True, exist_ok=True)
            for left in self._folder.glob("*.sock"):
                left.unlink(missing_ok=True)
            server = grpc.server(futures.ThreadPoolExecutor(4))
            handlers = {
                name: grpc.unary_unary_rpc_method_handler(
                    self._register,
                    request_deserializer=request.FromString,
                    response_serializer=answer.SerializeToString,
                )
                for name, request, answer, _ in api.methods(api.REGISTRATION)
            }
            generic = grpc.method_handlers_generic_handler(api.REGISTRATION, handlers)
            server.add_generic_rpc_handlers((generic,))
            server.add_insecure_port(f"unix:{self._folder / api.KUBELET_SOCKET}")
            server.start()
            self.server = server
        self._events.write("kubelet-started")

    @override
    def stop(self) -> None:
        """Stop serving, end the watches, and return when the watches have written all their events."""
        with self.lock:
            was_serving = self.server is not None
            super().stop()
            for channel, watch in self._watches:
                channel.close()
                watch.join(_END_S)
            self._watches.clear()
        if was_serving:
            self._events.write("kubelet-stopped")

    def _register(self, request: Any, context: Any) -> Any:
        if request.version != api.VERSION:
            context.abort(
                grpc.StatusCode.INVALID_ARGUMENT,
                f"requested API version {request.version!r} is not supported; use {api.VERSION!r}",
            )
        if not (self._folder / request.endpoint).is_socket():
            context.abort(
                grpc.StatusCode.INVALID_ARGUMENT, f"there is no socket {request.endpoint!r}"
            )
        self._events.write("plugin-registered", resource=request.resource_name)
        channel = grpc.insecure_channel(f"unix:{self._folder / request.endpoint}")
        watch = threading.Thread(
            target=self._watch, args=(channel, request.resource_name), daemon=True
        )
        self._watches.append((channel, watch))
        watch.start()
        return api.message("Empty")()

    def _watch(self, channel: Any, resource: str) -> None:
        """Read a plugin's devices until the stream ends, and allocate the first healthy device."""
        calls = _calls(channel)
        capacity, is_allocated = 0, False
        try:
            calls["GetDevicePluginOptions"](api.message("Empty")(), timeout=_CALL_S)
            for answer in calls["ListAndWatch"](api.message("Empty")()):
                healthy = [each.ID for each in answer.devices if each.health == api.HEALTHY]
                if len(healthy) != capacity:
                    capacity = len(healthy)
                    self._events.write("capacity", resource=resource, count=capacity)
                if healthy and not is_allocated:
                    is_allocated = True
                    self._allocate(calls["Allocate"], healthy[0])
        except grpc.RpcError as failed:
            self._events.write("stream-ended", resource=resource, why=str(failed)[:200])
        except (OSError, ValueError) as failed:
            # A closed channel raises ValueError too.
            if self.server is not None:
                self._events.write("error", resource=resource, error=repr(failed))
        if capacity:
            self._events.write("capacity", resource=resource, count=0)

    def _allocate(self, allocate: Any, device: str) -> None:
        request = api.message("AllocateRequest")()
        request.container_requests.add().devices_ids.append(device)
        (container,) = allocate(request, timeout=_CALL_S).container_responses
        paths = [each.host_path for each in container.devices]
        if not paths:
            raise ValueError("the plugin allocated no device node")
        refused = {} if (name := _refusal(paths)) is None else {"refused": name}
        self._events.write("allocated", device=device, paths=paths, **refused)


def _refusal(paths: Sequence[str]) -> str | None:
    """Open each device node. Return the name of the first error, such as `EIO`, or None if all nodes open."""
    try:
        for path in paths:
            os.close(os.open(path, os.O_RDWR))
    except OSError as error:
        return errno.errorcode.get(error.errno or 0, str(error))
    return None


def _calls(channel: Any) -> dict[str, Any]:
    """Return the callable methods of the device plugin at the other end of `channel`, by name."""
    return {
        name: (channel.unary_stream if is_stream else channel.unary_unary)(
            f"/{api.DEVICE_PLUGIN}/{name}",
            request_serializer=request.SerializeToString,
            response_deserializer=answer.FromString,
        )
        for name, request, answer, is_stream in api.methods(api.DEVICE_PLUGIN)
    }


def main(argv: Sequence[str]) -> None:
    folder, control, path = argv
    events = api.Events(path)
    kubelet = Kubelet(Path(folder), events)
    events.write("kubelet-loaded")
    orders = {
        "start": kubelet.start,
        "stop": kubelet.stop,
        "ready": lambda: events.write("node-ready"),
        "mark": lambda: events.write("mark"),
    }
    api.obey(control, orders, events)
    kubelet.stop()


if __name__ == "__main__":
    main(sys.argv[1:])
