"""A stand-in device plugin: offers the GPUs for which a driver has made device nodes.

Start this program in the guest by

    python3 -m device_plugin.plugin FOLDER CONTROL EVENTS DEVICES

FOLDER is `/var/lib/kubelet/device-plugins`. CONTROL is a named pipe from which this program reads
the orders `start`, `stop` and `end`. EVENTS is the file to which this program appends events.
DEVICES is a glob pattern for device nodes. Each device node counts as a GPU. After its start, the
plugin waits for a device node and for the kubelet's socket, and registers. The plugin registers
again when the kubelet has restarted.
"""

from __future__ import annotations

import glob
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
    from collections.abc import Iterator, Sequence

RESOURCE = "nvidia.com/gpu"
_SOCKET = "nvidia-gpu.sock"
_CALL_S = 30.0
#: Seconds between two checks of the device nodes and the kubelet's socket.
_LOOK_S = 0.05


class Plugin(api.Restartable):
    """Serves the gRPC service DevicePlugin."""

    def __init__(self, folder: Path, events: api.Events, devices: str) -> None:
        super().__init__()
        self._folder = folder
        self._events = events
        self._pattern = devices
        self._devices: tuple[str, ...] = ()
        self._changed = threading.Condition()
        self._is_wanted = threading.Event()
        self._kubelet: tuple[int, int] | None = None
        threading.Thread(target=self._follow, daemon=True).start()

    def start(self) -> None:
        self._events.write("plugin-started")
        self._is_wanted.set()

    @override
    def stop(self) -> None:
        self._is_wanted.clear()
        with self._changed:
            self._changed.notify_all()
        super().stop()
        self._kubelet = None

    def _follow(self) -> None:
        """Check the device nodes and the kubelet's socket at regular intervals, until this process ends."""
        pause = threading.Event()
        while True:
            self._is_wanted.wait()
            try:
                self._look()
            except (OSError, grpc.RpcError) as error:
                self._kubelet = None
                self._events.write("retried", error=repr(error))
            pause.wait(_LOOK_S)

    def _look(self) -> None:
        devices = tuple(sorted(glob.glob(self._pattern)))  # noqa: PTH207 - Path.glob refuses absolute patterns
        if devices != self._devices:
            with self._changed:
                self._devices = devices
                self._changed.notify_all()
            self._events.write("devices", paths=devices)
        try:
            found = os.stat(self._folder / api.KUBELET_SOCKET)  # noqa: PTH116 - a new inode means a new kubelet
        except FileNotFoundError:
            self._kubelet = None
            return
        kubelet = (found.st_ino, found.st_ctime_ns)
        if devices and kubelet != self._kubelet:
            with self.lock:
                if self._is_wanted.is_set():
                    super().stop()
                    self._serve()
                    self._register()
                    self._kubelet = kubelet

    def _serve(self) -> None:
        socket = self._folder / _SOCKET
        socket.unlink(missing_ok=True)
        server = grpc.server(futures.ThreadPoolExecutor(4))
        own = {
            "GetDevicePluginOptions": self._options,
            "ListAndWatch": self._list_and_watch,
            "Allocate": self._allocate,
        }
        handlers = {}
        for name, request, answer, is_stream in api.methods(api.DEVICE_PLUGIN):
            if name in own:
                make = (
                    grpc.unary_stream_rpc_method_handler
                    if is_stream
                    else grpc.unary_unary_rpc_method_handler
                )
                handlers[name] = make(
                    own[name],
                    request_deserializer=request.FromString,
                    response_serializer=answer.SerializeToString,
                )
        generic = grpc.method_handlers_generic_handler(api.DEVICE_PLUGIN, handlers)
        server.add_generic_rpc_handlers((generic,))
        server.add_insecure_port(f"unix:{socket}")
        server.start()
        self.server = server

    def _register(self) -> None:
        request = api.message("RegisterRequest")(
            version=api.VERSION,
            endpoint=_SOCKET,
            resource_name=RESOURCE,
            options=api.message("DevicePluginOptions")(),
        )
        with grpc.insecure_channel(f"unix:{self._folder / api.KUBELET_SOCKET}") as channel:
            ((name, _, answer, _),) = api.methods(api.REGISTRATION)
            channel.unary_unary(
                f"/{api.REGISTRATION}/{name}",
                request_serializer=type(request).SerializeToString,
                response_deserializer=answer.FromString,
            )(request, timeout=_CALL_S, wait_for_ready=True)

    def _options(self, _request: Any, _context: Any) -> Any:
        return api.message("DevicePluginOptions")()

    def _list_and_watch(self, _request: Any, context: Any) -> Iterator[Any]:
        told: tuple[str, ...] | None = None
        while context.is_active() and self._is_wanted.is_set():
            with self._changed:
                devices = self._devices
                if devices == told:
                    self._changed.wait(1.0)
                    continue
            told = devices
            answer = api.message("ListAndWatchResponse")()
            for path in devices:
                answer.devices.add(ID=Path(path).name, health=api.HEALTHY)
            yield answer

    def _allocate(self, request: Any, context: Any) -> Any:
        folder = Path(self._pattern).parent
        answer = api.message("AllocateResponse")()
        for wanted in request.container_requests:
            container = answer.container_responses.add()
            container.envs["NVIDIA_VISIBLE_DEVICES"] = ",".join(wanted.devices_ids)
            for device in wanted.devices_ids:
                path = str(folder / device)
                if path not in self._devices:
                    context.abort(grpc.StatusCode.NOT_FOUND, f"there is no device {device!r}")
                container.devices.add(container_path=path, host_path=path, permissions="rw")
        return answer


def main(argv: Sequence[str]) -> None:
    folder, control, path, devices = argv
    events = api.Events(path)
    plugin = Plugin(Path(folder), events, devices)
    events.write("plugin-loaded")
    api.obey(control, {"start": plugin.start, "stop": plugin.stop}, events)
    plugin.stop()


if __name__ == "__main__":
    main(sys.argv[1:])
