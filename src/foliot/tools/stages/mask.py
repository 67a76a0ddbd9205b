"""Takes secrets out of whatever a tool answers, before anybody sees it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from foliot.kernel.messages import Text, ToolResult
from foliot.threads import unhurried
from foliot.tools.base import Invocation, OnOutput


class Stream(Protocol):
    def feed(self, text: str) -> str: ...

    def flush(self) -> str: ...


class Masker(Protocol):
    """Knows the secrets of the process; see masking.py."""

    @property
    def knows_none(self) -> bool:
        """Whether there is nothing to take out of anything."""
        ...

    def mask_result(self, result: ToolResult) -> ToolResult:
        """The result without any secret, in its texts and in its error."""
        ...

    def stream(self) -> Stream:
        """For a text that comes in pieces: a secret may lie across two of them."""
        ...


class Mask:
    """A masker that breaks is not passed over: the result is lost then, and a failure takes its place."""

    def __init__(self, masker: Masker) -> None:
        self._masker = masker

    def leaves(self, result: ToolResult) -> bool:
        return self._masker.knows_none

    async def __call__(self, call: Invocation, result: ToolResult) -> ToolResult:
        size = sum(len(part.text if isinstance(part, Text) else part.data or "") for part in result.content)
        return await unhurried(size, self._masker.mask_result, result)


def masked_output(masker: Masker, heard: OnOutput) -> tuple[OnOutput, Callable[[], None]]:
    """Where a tool's output goes instead; and what to do when it has ended."""
    stream = masker.stream()

    def on_output(text: str) -> None:
        if safe := stream.feed(text):
            heard(safe)

    def ended() -> None:
        if rest := stream.flush():
            heard(rest)

    return on_output, ended
