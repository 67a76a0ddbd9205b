"""The past of a run: what its fold has to know of the messages that were said before it.

It grows with the messages. Who folds the turns of a conversation one after the other hands it on from turn to turn, and
no turn reads again what all the turns before it have said.
"""

from __future__ import annotations

from collections.abc import Iterable

from foliot.kernel.messages import Message, ToolCall, ToolResult
from foliot.kernel.tokens import ImageRule, estimate_messages


class CallIds(dict[str, int]):
    """The ids of calls that were made. They are only ever added, so that a free id is not looked for from the first.

    Each with the number from which on a free one like it is looked for. Each run has one of these: a set of ten ids
    takes twice the memory of a dict.
    """

    __slots__ = ()

    def __init__(self, ids: Iterable[str] = ()) -> None:
        super().__init__(dict.fromkeys(ids, 2))

    def add(self, call_id: str) -> None:
        self.setdefault(call_id, 2)

    def take(self, wanted: str) -> str:
        """Adds the id, with the first number behind it that makes it a new one; returns it as it was added."""
        number = self.get(wanted)
        if number is None:
            self[wanted] = 2
            return wanted
        while (found := f"{wanted}-{number}") in self:
            number += 1
        self[wanted], self[found] = number, 2
        return found


class Past:
    """The messages before a run. What is asked of them is found once for each."""

    def __init__(self, messages: Iterable[Message] = ()) -> None:
        self.messages = list(messages)
        self._read = 0
        self._call_ids = CallIds()
        self._outcomes: list[tuple[ToolCall, ToolResult]] = []
        self._written: dict[str, ToolCall] = {}
        self._doubted: set[str] = set()
        self._sizes: dict[ImageRule, tuple[int, int]] = {}

    @property
    def call_ids(self) -> CallIds:
        """The ids of all calls in them; the fold of the run adds its own."""
        self._read_on()
        return self._call_ids

    @property
    def outcomes(self) -> list[tuple[ToolCall, ToolResult]]:
        """The results, with their calls, by which a call may have acted, and later ones of the same tools.

        Those may say that the call need not be held any more.
        """
        self._read_on()
        return self._outcomes

    def _read_on(self) -> None:
        for message in self.messages[self._read :]:
            for part in message.parts:
                if isinstance(part, ToolCall):
                    self._call_ids.add(part.id)
                    self._written[part.id] = part
                elif isinstance(part, ToolResult) and (call := self._written.get(part.call_id)) is not None:
                    self._take_outcome(call, part)
        self._read = len(self.messages)

    def _take_outcome(self, call: ToolCall, result: ToolResult) -> None:
        if result.error is not None and result.error.unknown:
            self._doubted.add(call.name)
            self._outcomes.append((call, result))
        elif result.error is None and call.name in self._doubted:
            self._outcomes.append((call, result))

    def tokens(self, images: ImageRule) -> int:
        """The estimate of them all; each message is estimated once."""
        count, size = self._sizes.get(images, (0, 0))
        if count < len(self.messages):
            size += estimate_messages(self.messages[count:], images)
            self._sizes[images] = len(self.messages), size
        return size
