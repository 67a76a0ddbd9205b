"""Keeps the stored approvals of one run in step with its journal, while a driver has it in hand."""

from __future__ import annotations

import logging
from collections.abc import Iterable

from foliot.engine.base import Approvals
from foliot.errors import FoliotError
from foliot.kernel.run.events import ApprovalDecided, ApprovalRequested, Event, ToolFinished
from foliot.kernel.run.state import State
from foliot.tools.base import Toolbox

log = logging.getLogger(__name__)


class ApprovalRequests:
    """Hears what has become durable. A store that fails here stops no run: the object is made when somebody looks."""

    __slots__ = ("_approvals", "_open", "_state", "_tools")

    def __init__(self, approvals: Approvals, state: State, tools: Toolbox) -> None:
        self._approvals = approvals
        self._state = state
        self._tools = tools
        self._open: dict[str, str] | None = None  # ids of open approvals, by those of their calls
        if asked := [call for call in state.calls if call.approval and not call.grant]:
            self._open = {call.id: call.approval.approval_id for call in asked if call.approval}

    def is_concerned(self, events: Iterable[Event]) -> bool:
        """Whether any of these is worth hearing: almost always none is."""
        if self._open:
            return True
        for event in events:  # noqa: SIM110 - asked for every append, and a generator costs more than the loop
            if type(event) is ApprovalRequested:
                return True
        return False

    async def recorded(self, events: Iterable[Event]) -> None:
        for event in events:
            kind = type(event)
            if kind is not ApprovalRequested and not self._open:
                continue
            try:
                await self._take(event)
            except FoliotError as error:
                log.warning("run %s: an approval could not be stored: %s", self._state.run_id, error)

    async def _take(self, event: Event) -> None:
        match event:
            case ApprovalRequested():
                self._open = {**(self._open or {}), event.call_id: event.approval_id}
                definition = self._tools.definition(event.tool)
                await self._approvals.ask(self._state, event, definition.classes if definition else ())
            case ApprovalDecided(call_id=call_id, decision=decision):
                approval = self._closed(call_id)
                if approval is not None and decision == "expired":
                    await self._approvals.withdraw(self._state.spec.namespace, approval, "nobody decided in time")
            case ToolFinished(result=result):
                approval = self._closed(result.call_id)
                if approval is not None:
                    why = result.error.message if result.error else "the call has its result"
                    await self._approvals.withdraw(self._state.spec.namespace, approval, why)
            case _:
                pass

    def _closed(self, call_id: str) -> str | None:
        return None if self._open is None else self._open.pop(call_id, None)
