"""A worker gets the examples of a spec file as a whole."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace

from harness.plugin.specs.scheduling import SpecScheduling


@dataclass(eq=False)
class _Node:
    sent: list[int] = field(default_factory=list)

    def send_runtest_some(self, indices: list[int]) -> None:
        self.sent.extend(indices)


class _Scheduling(SpecScheduling):
    """The scheduler with two workers and a list of collected tests, but without a session."""

    def __init__(self, collection: list[str], root: Path = Path("/no/project")) -> None:
        self.config = SimpleNamespace(rootpath=root)
        self.collection = collection
        self.pending = list(range(len(collection)))
        self.node2pending: dict[_Node, list[int]] = {_Node(): [], _Node(): []}

    def send(self, num: int) -> list[str]:
        node = next(iter(self.node2pending))
        node.sent.clear()
        self._send_tests(node, num)
        return [self.collection[index] for index in node.sent]


def _file(name: str, count: int, group: str = "g") -> list[str]:
    return [f"{name}_spec.sh::{group}::{number}" for number in range(count)]


def test_chunk_of_tests_is_extended_to_the_end_of_its_last_spec_file() -> None:
    files = [_file(name, 5) for name in "abcdefgh"]
    scheduling = _Scheduling([nodeid for ids in files for nodeid in ids])

    assert scheduling.send(7) == files[0] + files[1]
    assert scheduling.send(5) == files[2]


def test_large_spec_file_is_split_only_between_groups() -> None:
    groups = [_file("a", 5, group) for group in "uvwxyz"]
    scheduling = _Scheduling([nodeid for ids in groups for nodeid in ids])

    assert scheduling.send(7) == groups[0] + groups[1]


def test_spec_file_is_split_if_it_exceeds_half_of_the_share_of_a_worker() -> None:
    """With 28 tests, the share of a worker is 14 tests."""
    for size, sent in ((3, 6), (4, 4)):
        large = [*_file("a", size, "u"), *_file("a", size, "v")]
        scheduling = _Scheduling([*large, *_file("b", 28 - len(large))])

        assert scheduling.send(2) == large[:sent], size


def test_chunk_of_tests_may_end_after_any_python_test() -> None:
    scheduling = _Scheduling([f"test_a.py::test_{number}" for number in range(20)])

    assert len(scheduling.send(7)) == 7


def test_spec_files_that_match_the_shellspec_pattern_are_not_split(
    tmp_path: Path,
) -> None:
    for pattern in ("*.spec.bash", "*/tests/*"):
        (tmp_path / ".shellspec").write_text(f"--pattern '{pattern}'\n")
        files = [
            [f"tests/{name}.spec.bash::g::{number}" for number in range(5)] for name in "abcdefgh"
        ]
        scheduling = _Scheduling([nodeid for ids in files for nodeid in ids], tmp_path)

        assert scheduling.send(7) == files[0] + files[1], pattern
