"""Detects failures of the GPU driver that a retry cannot fix, by the driver's own messages."""

from __future__ import annotations

from typing import TYPE_CHECKING

from .driver_messages import find_tool_words, parse_messages
from .plan import Do, PermanentFailure
from .retry import StepFailedError

if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import TypeAlias

    from .command import CommandResult
    from .driver_messages import DriverMessage
    from .driver_words import DriverWords
    from .node_context import NodeContext

    _IsHopeless: TypeAlias = Callable[[DriverWords], bool]


def parse_refusals(log: str) -> tuple[DriverMessage, ...]:
    """Return the kernel log's messages about unsupported GPUs, in order, without repetitions."""
    refusals = {
        message.describe(): message
        for message in parse_messages(log)
        if message.words is not None and message.words.is_refusal
    }
    return tuple(refusals.values())


def judge_probe(
    node: NodeContext, result: CommandResult, *, version: str | None = None
) -> PermanentFailure | None:
    """Return a PermanentFailure if the failed command cannot succeed when it is run again.

    With a `version`, messages of other driver releases are left out: a replaced driver may have
    logged these messages earlier in the same boot. Without a `version`, the installed release of
    the driver is unknown, so messages of all releases count.
    """
    return _judge(node, result, version, lambda words: not words.can_retry_help)


def judge_refusal(
    node: NodeContext, result: CommandResult, *, version: str
) -> PermanentFailure | None:
    """Return a PermanentFailure if another install of the driver `version` cannot succeed."""
    return _judge(node, result, version, _is_beyond_a_build)


def expect_no_refusal(version: str) -> Do:
    """Return the action that fails if this version of the driver cannot drive a GPU.

    The action fails only for reasons that a new build of the same driver version cannot remove.
    """

    def look(node: NodeContext) -> None:
        reasons = _read_reasons(node, version, _is_beyond_a_build)
        if reasons:
            raise StepFailedError(" ".join(reasons))

    return Do(description=(f"expect that the driver {version} supports all GPUs",), function=look)


def _is_beyond_a_build(words: DriverWords) -> bool:
    return not words.can_rebuild_help


def _judge(
    node: NodeContext, result: CommandResult, version: str | None, is_hopeless: _IsHopeless
) -> PermanentFailure | None:
    if result.ok:
        return None
    reasons = _read_reasons(node, version, is_hopeless)
    words = find_tool_words(f"{result.stdout}\n{result.stderr}")
    if words is not None and is_hopeless(words):
        reasons.append(f"{words.meaning} {words.remedy}")
    return PermanentFailure(message=" ".join(reasons)) if reasons else None


def _read_reasons(node: NodeContext, version: str | None, is_hopeless: _IsHopeless) -> list[str]:
    """Return reasons in the kernel log why another attempt cannot succeed.

    The result is empty if the kernel log cannot be read. Reasons about unsupported GPUs come first,
    since an unsupported GPU causes further messages.
    """
    log = node.answer("dmesg")
    messages = () if log is None else parse_messages(log)
    reasons = {
        message.describe(): message.words.is_refusal
        for message in messages
        if message.words is not None and message.is_of(version) and is_hopeless(message.words)
    }
    return sorted(reasons, key=lambda reason: not reasons[reason])
