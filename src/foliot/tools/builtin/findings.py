"""`emit_diagnosis`: what an agent that watches over others has found. Each finding is a result in the journal."""

from __future__ import annotations

import math
from typing import Any, Final
from uuid import NAMESPACE_URL, uuid5

from foliot.tools.base import Invocation, OnOutput, ToolArgumentsInvalid, ToolDefinition
from foliot.tools.builtin.arguments import object_schema, optional, optional_text, required_text, text, texts

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
