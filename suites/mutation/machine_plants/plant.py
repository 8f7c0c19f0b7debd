"""A defect of provisioning, with the machine tests that should catch the defect."""

from __future__ import annotations

from dataclasses import dataclass

from suites.mutation.plants import CORPUS, Plant

_SUITES = "suites/e2e"


@dataclass(frozen=True, kw_only=True)
class MachinePlant:
    """A defect, and the tests that run with it: pytest's arguments below `suites/e2e`."""

    plant: Plant
    tests: str
    only: str | None = None
    """The value of pytest's `-k`, if only some of the tests are about the defect."""
    hidden_by: str | None = None
    """Why the defect has no effect on a machine, so that only unit tests detect it."""

    @property
    def family(self) -> str:
        return self.tests.partition("/")[0]

    @property
    def selection(self) -> tuple[str, ...]:
        chosen = () if self.only is None else ("-k", self.only)
        return (f"{_SUITES}/{self.tests}", *chosen)


def plant(
    name: str, file: str, change: tuple[str, str], tests: str, only: str | None = None
) -> MachinePlant:
    """Return the defect that replaces a text, which must occur once in a module of provisioning."""
    old, new = change
    return MachinePlant(
        plant=Plant(name=name, file=file, old=old, new=new), tests=tests, only=only
    )


def corpus(
    number: int, tests: str, only: str | None = None, *, hidden_by: str | None = None
) -> MachinePlant:
    """Return the defect with this number in the regression corpus."""
    return MachinePlant(plant=CORPUS[number], tests=tests, only=only, hidden_by=hidden_by)
