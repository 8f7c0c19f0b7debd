"""A stateful fake of `ctr`, with containerd's images and containers."""

from __future__ import annotations

import contextlib
import hashlib
import re
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from typing_extensions import override

from harness.shell.fakes.arguments import checks_arguments
from harness.shell.fakes.fake import Fake
from harness.shell.fakes.invocation import Syntax, unknown_subcommand, unknown_use
from harness.shell.mocks.commands import Answer

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from harness.shell.fakes.fake import Handler
    from harness.shell.fakes.invocation import Invocation
    from harness.shell.mocks.commands import Call

DEFAULT_NAMESPACE = "default"
KUBERNETES_NAMESPACE = "k8s.io"

_GLOBAL = Syntax(
    options=(
        "-n,--namespace=",
        "-a,--address=",
        "--debug",
        "--timeout=",
        "--connect-timeout=",
        "-v,--version",
    ),
    is_posix=True,
)
_LIST = Syntax(options=("-q,--quiet",))
_PULL = Syntax(
    options=(
        "--plain-http", "--all-platforms", "--platform=", "--local", "-k,--skip-verify",
        "-u,--user=", "--hosts-dir=", "--snapshotter=", "--label=",
    )
)  # fmt: skip
_TAG = Syntax(options=("--force",))
_REMOVE = Syntax(options=("--sync",))
_RUN = Syntax(
    options=(
        "--rm", "--privileged", "--net-host", "--with-ns=", "--mount=", "--env=", "-t,--tty",
        "--runtime=", "--cwd=", "-u,--user=", "--gpus=",
    ),
    is_posix=True,
)  # fmt: skip
_PLAIN = Syntax()
#: Matches a filter without commas: in ctr a comma joins two conditions.
_FILTER = re.compile(r'name(?P<is>==|~=)(?:"(?P<quoted>[^"\\]+)"|(?P<plain>[^",]+))')
_HEADER = ("REF", "TYPE", "DIGEST", "SIZE", "PLATFORMS", "LABELS")
_TYPE = "application/vnd.oci.image.manifest.v1+json"
_LABEL = "io.cri-containerd.image=managed"
_REVISION = "1.7.24~ds1-6+deb13u1"
_GO = "go1.24.4"
_UUID = "f432d185-37fc-4bad-962b-a910d205a4fb"
_LOG_TIME = "2026-01-01T00:00:00Z"


@dataclass(frozen=True, kw_only=True)
class ContainerRun:
    """The parameters of one `ctr run`, which are passed to the program that `on_run` has set."""

    image: str
    container: str
    arguments: tuple[str, ...]
    is_privileged: bool
    has_host_network: bool
    mounts: tuple[str, ...]
    namespaces: tuple[str, ...]


@dataclass(kw_only=True)
class _Namespace:
    """A namespace of containerd; `exists` is false until the namespace is created or gets an image."""

    exists: bool = False
    images: dict[str, str] = field(default_factory=dict)
    containers: set[str] = field(default_factory=set)

    def add(self, image: str, digest: str) -> None:
        self.exists = True
        self.images[image] = digest


class Containerd(Fake):
    """A fake of `ctr`; the fake's state consists of namespaces with images and containers.

    `images` lists the images in `namespace`, and `registry` lists the references that can be
    pulled. The next `pull_failures` pulls fail as if the registry did not have the image. `on_run`
    sets the program that `ctr run` runs for an image; `runs` lists all calls of `ctr run`.
    `version` is the version that `ctr version` prints.
    """

    @checks_arguments
    def __init__(
        self,
        images: Iterable[str] = (),
        *,
        registry: Iterable[str] = (),
        namespace: str = KUBERNETES_NAMESPACE,
        version: str = "1.7.24~ds1",
    ) -> None:
        super().__init__()
        self.version = version
        self._namespaces: dict[str, _Namespace] = {}
        self.registry = set(registry)
        self.pull_failures = 0
        self.runs: list[ContainerRun] = []
        self._programs: dict[str, Callable[[ContainerRun], Answer | None]] = {}
        for image in images:
            self._namespace(namespace).add(image, _digest(image))

    @property
    @override
    def commands(self) -> Mapping[str, Handler]:
        return {"ctr": self._ctr}

    def images(self, namespace: str = KUBERNETES_NAMESPACE) -> tuple[str, ...]:
        """Return the references of a namespace's images, sorted."""
        return tuple(sorted(self._namespace(namespace).images))

    def containers(self, namespace: str = KUBERNETES_NAMESPACE) -> tuple[str, ...]:
        """Return the ids of a namespace's containers, sorted."""
        return tuple(sorted(self._namespace(namespace).containers))

    def on_run(self, image: str, program: Callable[[ContainerRun], Answer | None]) -> None:
        """Let containers of `image` run `program`; if `program` returns None, the run succeeds."""
        self._programs[image] = program

    def _namespace(self, name: str) -> _Namespace:
        return self._namespaces.setdefault(name, _Namespace())

    def _ctr(self, call: Call) -> Answer:
        invocation = _GLOBAL.parse(call)
        if invocation.has("--version"):
            module = "containerd/v2" if self.version.lstrip("v").startswith("2.") else "containerd"
            return Answer(stdout=f"ctr github.com/containerd/{module} {self.version}\n")
        name = invocation.value("--namespace") or call.env.get("CONTAINERD_NAMESPACE")
        namespace = self._namespace(name or DEFAULT_NAMESPACE)
        group, *rest = invocation.operands or ("",)
        if group == "run":
            return self._run(call, namespace, rest)
        if group in {"version", "v"}:
            _operands(call, _PLAIN.parse(call, rest), 0)
            return Answer(stdout=_version(self.version))
        groups: dict[str, dict[str, Callable[[Call, _Namespace, Sequence[str]], Answer]]] = {
            "images": {
                "ls": self._list_images,
                "pull": self._pull,
                "tag": self._tag,
                "rm": self._remove_images,
            },
            "containers": {"ls": self._list_containers, "rm": self._remove_containers},
            "namespaces": {"ls": self._list_namespaces, "create": self._create_namespace},
        }
        aliases = {
            "image": "images", "i": "images", "c": "containers", "container": "containers",
            "namespace": "namespaces", "ns": "namespaces",
        }  # fmt: skip
        group = aliases.get(group, group)
        if group not in groups:
            raise unknown_subcommand(call, group, ("run", "version", *groups))
        name = rest[0] if rest else ""
        name = {"list": "ls", "remove": "rm", "del": "rm", "delete": "rm"}.get(name, name)
        if (group, name) == ("namespaces", "c"):
            name = "create"
        if name not in groups[group]:
            raise unknown_subcommand(call, f"{group} {name}", tuple(groups[group]))
        return groups[group][name](call, namespace, rest[1:])

    def _list_namespaces(self, call: Call, _: _Namespace, words: Sequence[str]) -> Answer:
        invocation = _LIST.parse(call, words)
        _operands(call, invocation, 0)
        found = sorted(name for name, each in self._namespaces.items() if each.exists)
        if invocation.has("--quiet"):
            return Answer(stdout="".join(f"{name}\n" for name in found))
        return Answer(stdout=_table([("NAME", "LABELS"), *((name, "") for name in found)]))

    def _create_namespace(self, call: Call, _: _Namespace, words: Sequence[str]) -> Answer:
        (name,) = _operands(call, _PLAIN.parse(call, words), 1)
        namespace = self._namespace(name)
        if namespace.exists:
            return _failed(f'namespace "{name}": already exists')
        namespace.exists = True
        return Answer()

    def _list_images(self, call: Call, namespace: _Namespace, words: Sequence[str]) -> Answer:
        invocation = _LIST.parse(call, words)
        patterns = [_pattern(call, each) for each in invocation.operands]
        found = [
            ref
            for ref in sorted(namespace.images)
            if not patterns or any(pattern.search(ref) for pattern in patterns)
        ]
        if invocation.has("--quiet"):
            return Answer(stdout="".join(f"{ref}\n" for ref in found))
        rows = [
            (ref, _TYPE, namespace.images[ref], "2.6 MiB", "linux/amd64", _LABEL) for ref in found
        ]
        return Answer(stdout=_table([_HEADER, *rows]))

    def _pull(self, call: Call, namespace: _Namespace, words: Sequence[str]) -> Answer:
        (reference,) = _operands(call, _PULL.parse(call, words), 1)
        progress = f"{reference}: resolving      |--------------------------------------| \n"
        if reference not in self.registry or self.pull_failures > 0:
            self.pull_failures = max(0, self.pull_failures - 1)
            host = reference.partition("/")[0]
            return Answer(
                stdout=progress,
                stderr=_log("info", "trying next host - response was http.StatusNotFound")
                + f' host="{host}"\n'
                + f'ctr: failed to resolve reference "{reference}": {reference}: not found\n',
                exit_code=1,
            )
        digest = _digest(reference)
        namespace.add(reference, digest)
        return Answer(
            stdout=f"{progress}unpacking linux/amd64 {digest}...\ndone: 1.000000000s\t\n"
        )

    def _tag(self, call: Call, namespace: _Namespace, words: Sequence[str]) -> Answer:
        invocation = _TAG.parse(call, words)
        source, *targets = _operands(call, invocation, 2, at_least=True)
        shown: list[str] = []
        if source not in namespace.images:
            return _failed(f'image "{source}": not found')
        for target in targets:
            if target in namespace.images and not invocation.has("--force"):
                answer = _failed(f'image "{target}": already exists')
                return Answer(stdout="".join(shown), stderr=answer.stderr, exit_code=1)
            namespace.add(target, namespace.images[source])
            shown.append(f"{target}\n")
        return Answer(stdout="".join(shown))

    def _remove_images(self, call: Call, namespace: _Namespace, words: Sequence[str]) -> Answer:
        """Remove images. For a missing image, print a warning and succeed."""
        shown: list[str] = []
        warnings: list[str] = []
        for reference in _REMOVE.parse(call, words).operands:
            if namespace.images.pop(reference, None) is None:
                warnings.append(_log("warning", f"{reference}: image not found") + "\n")
            else:
                shown.append(f"{reference}\n")
        return Answer(stdout="".join(shown), stderr="".join(warnings))

    def _run(self, call: Call, namespace: _Namespace, words: Sequence[str]) -> Answer:
        invocation = _RUN.parse(call, words)
        image, container, *arguments = _operands(call, invocation, 2, at_least=True)
        if image not in namespace.images:
            return _failed(f'image "{image}": not found')
        if container in namespace.containers:
            return _failed(f'snapshot "{container}": already exists')
        run = ContainerRun(
            image=image,
            container=container,
            arguments=tuple(arguments),
            is_privileged=invocation.has("--privileged"),
            has_host_network=invocation.has("--net-host"),
            mounts=tuple(invocation.all("--mount")),
            namespaces=tuple(invocation.all("--with-ns")),
        )
        self.runs.append(run)
        if not invocation.has("--rm"):
            namespace.containers.add(container)
        program = self._programs.get(image)
        return (program(run) if program is not None else None) or Answer()

    def _list_containers(self, call: Call, namespace: _Namespace, words: Sequence[str]) -> Answer:
        if not _LIST.parse(call, words).has("--quiet"):
            raise unknown_use(call, "the fake of 'ctr' lists containers only with '-q'")
        return Answer(stdout="".join(f"{name}\n" for name in sorted(namespace.containers)))

    def _remove_containers(
        self, call: Call, namespace: _Namespace, words: Sequence[str]
    ) -> Answer:
        for name in _PLAIN.parse(call, words).operands:
            if name not in namespace.containers:
                known = next(key for key, value in self._namespaces.items() if value is namespace)
                text = f'container "{name}" in namespace "{known}": not found'
                escaped = text.replace('"', '\\"')
                log = _log("error", f'failed to delete container \\"{name}\\"')
                return Answer(stderr=f'{log} error="{escaped}"\nctr: {text}\n', exit_code=1)
            namespace.containers.remove(name)
        return Answer()


def _operands(
    call: Call, invocation: Invocation, count: int, *, at_least: bool = False
) -> tuple[str, ...]:
    """Return the operands of a command. Raises UnknownInvocationError for a wrong number of operands."""
    found = len(invocation.operands)
    if found < count or (found > count and not at_least):
        least = "at least " if at_least else ""
        noun = "operand" if count == 1 else "operands"
        raise unknown_use(
            call,
            f"the fake of 'ctr' expects {least}{count} {noun} of this subcommand, but got {found}",
        )
    return invocation.operands


def _pattern(call: Call, filter_: str) -> re.Pattern[str]:
    """Return the regular expression for the image names that a filter selects."""
    found = _FILTER.fullmatch(filter_)
    if found is not None:
        with contextlib.suppress(re.error):
            value = found["quoted"] or found["plain"]
            return re.compile(rf"\A{re.escape(value)}\Z" if found["is"] == "==" else value)
    raise unknown_use(call, f"the fake of 'ctr' does not know the filter '{filter_}'")


def _version(version: str) -> str:
    """Return the output of `ctr version` for a ctr and a containerd of the same release."""
    return (
        f"Client:\n  Version:  {version}\n  Revision: {_REVISION}\n  Go version: {_GO}\n\n"
        f"Server:\n  Version:  {version}\n  Revision: {_REVISION}\n  UUID: {_UUID}\n"
    )


def _digest(reference: str) -> str:
    """Return a digest for an image, computed from the last part of its reference."""
    name = reference.rpartition("/")[2]
    return f"sha256:{hashlib.sha256(name.encode()).hexdigest()}"


def _failed(message: str) -> Answer:
    return Answer(stderr=f"ctr: {message}\n", exit_code=1)


def _log(level: str, message: str) -> str:
    return f'time="{_LOG_TIME}" level={level} msg="{message}"'


def _table(rows: Sequence[Sequence[str]]) -> str:
    """Return the rows as Go's tabwriter prints them: cells padded to their column's width."""
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    return "".join(
        "".join(f"{cell:<{width}} " for cell, width in zip(row, widths, strict=True)) + "\n"
        for row in rows
    )
