"""Tools whose result is the answer of the run: a decision of a coordinator, and submitted work."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Sequence
from typing import Any, Final

import msgspec

from foliot.tools.base import Invocation, OnOutput, ToolArgumentsInvalid, ToolDefinition
from foliot.tools.builtin.arguments import object_schema, optional, optional_text, required_text, text, texts

log = logging.getLogger(__name__)

_STRINGS: Final = {"type": "string"}


class Decide:
    """Ends the run with what a coordinator has decided.

    With `actions`, only these can be chosen; one that differs only in case, blanks or `-` for `_` is taken as meant.
    `restricted` ones cannot be chosen whatever `actions` says.
    """

    def __init__(self, actions: Sequence[str] = (), restricted: Iterable[str] = ()) -> None:
        self._actions = tuple(actions)
        self._restricted = frozenset(map(_normal, restricted))
        free = [action for action in self._actions if _normal(action) not in self._restricted]
        action: dict[str, Any] = text("What should happen next, as one short name.", minLength=1)
        if free:
            action["description"] += f" One of: {', '.join(free)}."
        self.definition = ToolDefinition(
            name="decide",
            description=(
                "Records your final decision and ends your run with it. Call it once, when you have decided; nothing "
                "can be done afterwards."
            ),
            schema=object_schema(
                {
                    "action": action,
                    "reason": text("Why, in a sentence or two.", minLength=1),
                    "subtopics": optional("array", "Parts that should be worked on separately.", items=_STRINGS),
                    "retry_hint": optional("string", "What should be done differently if this is tried again."),
                },
                ["action", "reason"],
            ),
            effect="idempotent",
            category="orchestration",
            timeout=5.0,
            ends_run=True,
        )

    async def invoke(self, call: Invocation, *, on_output: OnOutput | None = None) -> Any:
        raw = required_text(call, "action")
        decision: dict[str, Any] = {"action": self._allowed(raw), "reason": required_text(call, "reason")}
        if call.arguments.get("subtopics") is not None:
            decision["subtopics"] = texts(call, "subtopics")
        if (hint := optional_text(call, "retry_hint")) is not None:
            decision["retry_hint"] = hint
        if decision["action"] != raw:
            log.warning("run %s decided %r, taken as %r", call.run_id, raw, decision["action"])
            decision["raw_action"] = raw
        return decision

    def _allowed(self, raw: str) -> str:
        action = raw
        if self._actions and raw not in self._actions:
            alike = [known for known in self._actions if _normal(known) == _normal(raw)]
            if not alike:
                listed = ", ".join(self._actions)
                raise ToolArgumentsInvalid(
                    f'action "{raw}" is not in the allowed set for this role: [{listed}]', field="action"
                )
            action = alike[0]
        if _normal(action) in self._restricted:
            raise ToolArgumentsInvalid(
                f'action "{raw}" is restricted by deployment policy and cannot be used in this run', field="action"
            )
        return action


def _normal(action: str) -> str:
    return action.strip().lower().replace("-", "_")


class SubmitWork:
    """Ends the run with its result. Without artifacts the answer is the text itself."""

    definition = ToolDefinition(
        name="submit_work",
        description=(
            "Hands in the finished work and ends your run: `result` becomes your final answer, word for word. Call it "
            "once, alone, when everything else is done."
        ),
        schema=object_schema(
            {
                "result": text("The whole answer, as whoever asked should read it.", minLength=1),
                "artifacts": optional("array", "Paths or ids of what was made, if anything.", items=_STRINGS),
            },
            ["result"],
        ),
        effect="idempotent",
        category="core",
        timeout=5.0,
        ends_run=True,
    )

    async def invoke(self, call: Invocation, *, on_output: OnOutput | None = None) -> Any:
        result, artifacts = required_text(call, "result"), texts(call, "artifacts")
        return msgspec.json.encode({"result": result, "artifacts": artifacts}).decode() if artifacts else result
