"""Tools whose result is the answer of the run: a decision of a coordinator, and submitted work."""

from __future__ import annotations

import logging
import math
from collections.abc import Iterable, Sequence
from typing import Any, Final
from uuid import NAMESPACE_URL, uuid5

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


# --- findings --------------------------------------------------------------------------------------------------------

# `emit_diagnosis`: what an agent that watches over others has found. Each finding is a result in the journal.

SEVERITIES: Final = ("info", "warn", "critical")


class EmitDiagnosis:
    """The id comes from the idempotency key: a call that is repeated after a crash is the same finding."""

    definition = ToolDefinition(
        name="emit_diagnosis",
        description=(
            "Records one finding about how agents or runs behave, with your recommendation and the evidence. Call it "
            "once for each finding; your run goes on."
        ),
        schema=object_schema(
            {
                "finding": text("What is wrong or worth knowing.", minLength=1),
                "recommendation": text("What should be done about it.", minLength=1),
                "confidence": {"type": "number", "description": "How sure you are, from 0 to 1."},
                "evidence": {
                    "type": "array",
                    "items": {"type": "string"},
                    "minItems": 1,
                    "description": "Ids of the runs, calls or things that show it.",
                },
                "observed_role": optional("string", "The role of the agent that it is about."),
                # Small models invent values, so this is not an enum: what is unknown counts as info.
                "severity": optional("string", "info, warn or critical; info when not given."),
            },
            ["finding", "recommendation", "confidence", "evidence"],
        ),
        effect="idempotent",
        category="inspect",
        timeout=5.0,
    )

    async def invoke(self, call: Invocation, *, on_output: OnOutput | None = None) -> Any:
        finding, recommendation = required_text(call, "finding"), required_text(call, "recommendation")
        confidence, evidence = _confidence(call), _evidence(call)
        role, severity = optional_text(call, "observed_role"), optional_text(call, "severity")
        unique = uuid5(NAMESPACE_URL, f"foliot:diagnosis:{call.idempotency_key}")
        found: dict[str, Any] = {
            "entity_id": f"{call.namespace}.{call.agent or 'agent'}.ops.diagnosis.finding.{unique}",
            "finding": finding,
            "recommendation": recommendation,
            "confidence": confidence,
            "evidence": evidence,
            "severity": severity if severity in SEVERITIES else "info",
            "run_id": call.run_id,
        }
        return found if role is None else {**found, "observed_role": role}


def _confidence(call: Invocation) -> float:
    value = call.arguments.get("confidence")
    if value is None:
        raise ToolArgumentsInvalid("confidence is required", field="confidence")
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise ToolArgumentsInvalid("confidence must be a number", field="confidence")
    if math.isnan(value) or not 0 <= value <= 1:
        raise ToolArgumentsInvalid(f"confidence must be between 0.0 and 1.0, got {value}", field="confidence")
    return value


def _evidence(call: Invocation) -> list[str]:
    if call.arguments.get("evidence") is None:
        raise ToolArgumentsInvalid("evidence is required", field="evidence")
    found = texts(call, "evidence")
    if not found:
        raise ToolArgumentsInvalid("evidence must contain at least 1 entity ID, got 0", field="evidence")
    return found
