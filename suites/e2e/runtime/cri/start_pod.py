"""Starts a pod by the CRI, as a kubelet does, and runs a command in each of its containers.

The program runs in the guest, and needs only grpcio and protobuf. Its input is JSON, `{"image",
"containers"}`; each container is `{"config", "command"}` with a ContainerConfig of the CRI. The
output is a list of `{"exit_code", "stdout", "stderr"}`; for a container that the runtime refuses,
stderr is the runtime's error.
"""

from __future__ import annotations

import json
import sys
import threading
from pathlib import Path
from typing import Any

import grpc
from google.protobuf import descriptor_pb2, descriptor_pool, json_format, message_factory

SOCKET = "unix:///run/containerd/containerd.sock"
#: The time limit of one call: an emulated guest needs some seconds to start a container.
CALL_S = 120
#: The time limit until the CRI knows an imported image; containerd notifies the CRI by an event.
IMAGE_S = 60
#: The pod uses the node's network: a separate network would need a CNI plugin. The DNS server is
#: never queried; without a DNS server, the runtime copies a file that the guest may not have.
NAMESPACES = {"network": "NODE", "pid": "CONTAINER"}


class Runtime:
    """Calls the methods of a runtime by their names, with messages as dictionaries."""

    def __init__(self, channel: Any) -> None:
        files = descriptor_pb2.FileDescriptorSet()
        files.ParseFromString(Path(__file__).with_name("runtime_v1.binpb").read_bytes())
        pool = descriptor_pool.DescriptorPool()
        for file in files.file:
            pool.Add(file)
        self._channel = channel
        self._methods = {
            method.name: (f"/{service.full_name}/{method.name}", method)
            for service in map(
                pool.FindServiceByName,
                ("runtime.v1.RuntimeService", "runtime.v1.ImageService"),
            )
            for method in service.methods
        }

    def call(self, name: str, **fields: object) -> Any:
        path, method = self._methods[name]
        request = message_factory.GetMessageClass(method.input_type)()
        json_format.ParseDict(fields, request)
        answer = message_factory.GetMessageClass(method.output_type)
        return self._channel.unary_unary(
            path,
            request_serializer=type(request).SerializeToString,
            response_deserializer=answer.FromString,
        )(request, timeout=CALL_S)

    def wait_for_image(self, name: str) -> None:
        for _try in range(IMAGE_S * 5):
            if self.call("ImageStatus", image={"image": name}).image.id:
                return
            threading.Event().wait(0.2)
        raise TimeoutError(f"After {IMAGE_S} s the runtime does not know the image '{name}'.")

    def start_pod(self) -> tuple[str, dict[str, object]]:
        """Start a pod's sandbox, and return its name and its configuration."""
        config = {
            "metadata": {"name": "pod", "uid": "pod", "namespace": "default"},
            "dns_config": {"servers": ["127.0.0.1"]},
            "linux": {"security_context": {"namespace_options": NAMESPACES}},
        }
        return self.call("RunPodSandbox", config=config).pod_sandbox_id, config

    def run(
        self, pod: tuple[str, dict[str, object]], name: str, image: str, asked: dict[str, Any]
    ) -> dict[str, object]:
        """Start a container and run a command in it."""
        config = {
            **asked["config"],
            "metadata": {"name": name},
            "image": {"image": image},
            "linux": {"security_context": {"namespace_options": NAMESPACES}},
        }
        try:
            container = self.call(
                "CreateContainer", pod_sandbox_id=pod[0], config=config, sandbox_config=pod[1]
            ).container_id
            self.call("StartContainer", container_id=container)
        except grpc.RpcError as error:
            refusal: Any = error
            return {"exit_code": None, "stdout": "", "stderr": refusal.details()}
        done = self.call("ExecSync", container_id=container, cmd=asked["command"], timeout=CALL_S)
        return {
            "exit_code": done.exit_code,
            "stdout": done.stdout.decode(),
            "stderr": done.stderr.decode(),
        }


def main() -> None:
    asked = json.load(sys.stdin)
    image = asked["image"]
    with grpc.insecure_channel(SOCKET) as channel:
        runtime = Runtime(channel)
        runtime.wait_for_image(image)
        pod = runtime.start_pod()
        answers = [
            runtime.run(pod, f"container-{at}", image, container)
            for at, container in enumerate(asked["containers"])
        ]
    sys.stdout.write(json.dumps(answers))


if __name__ == "__main__":
    main()
