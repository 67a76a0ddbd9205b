"""A ticket on the wire: JSON that other programs can read, on a subject for each agent."""

from __future__ import annotations

import re
from datetime import UTC, datetime
from typing import Final, Literal

import msgspec
from msgspec import Struct

from foliot.bus.base import Ticket

DEFAULT_NAMESPACE: Final = "default"
_UNFIT: Final = re.compile(r"[\s.>*/:\x00-\x1f\x7f]")


class Undecodable(ValueError):
    """A message that is no envelope. Says what is wrong with it, and nothing of what it holds."""


class BusEnvelope(Struct, frozen=True, omit_defaults=True):
    """Blank fields are left out. `task_id` is `namespace/name`; `due_at` is in seconds since 1970."""

    to_agent: str
    message_id: str = ""
    idempotency_key: str = ""
    task_id: str = ""
    attempt: int = 0
    system: str = ""
    namespace: str = ""
    from_agent: str = ""
    branch_id: str = ""
    parent_branch_id: str = ""
    type: str = ""
    payload: str = ""
    timestamp: str = ""
    trace_id: str = ""
    parent_id: str = ""
    run_id: str = ""
    due_at: float | None = None  # not 0.0: only what is the very default object is left out


_decoder: Final = msgspec.json.Decoder(BusEnvelope)


def subject_for(prefix: str, namespace: str, agent: str) -> str:
    """`<prefix>.<namespace>.<agent>.inbox`."""
    return f"{prefix}.{subject_token(namespace)}.{subject_token(agent)}.inbox"


def subject_token(text: str) -> str:
    """Lower case, without what divides or widens subjects; blank is `default`."""
    return _UNFIT.sub("_", text.strip().lower()) or DEFAULT_NAMESPACE


def encode(ticket: Ticket, *, now: float, largest: int) -> bytes:
    """The message; without its payload when it would be larger than `largest` bytes: the database has it."""
    namespace = ticket.namespace.strip() or DEFAULT_NAMESPACE
    attempt = max(1, ticket.attempt)
    envelope = BusEnvelope(
        to_agent=ticket.agent.strip(),
        message_id=ticket.message_id or ticket.id,
        idempotency_key=ticket.id,
        task_id=f"{namespace}/{ticket.task}" if ticket.task else "",
        attempt=attempt,
        system=ticket.system,
        namespace=namespace,
        from_agent=ticket.sender,
        branch_id=ticket.branch,
        parent_branch_id=ticket.parent_branch,
        type=ticket.kind,
        payload=ticket.payload,
        timestamp=datetime.fromtimestamp(now, UTC).isoformat().replace("+00:00", "Z"),
        trace_id=f"{namespace}/{ticket.task}/a{attempt:03d}" if ticket.task else "",
        parent_id=ticket.parent_id,
        run_id=ticket.run_id,
        due_at=ticket.due_at or None,
    )
    data = msgspec.json.encode(envelope)
    if len(data) > largest:
        data = msgspec.json.encode(msgspec.structs.replace(envelope, payload=""))
    return data


def decode(data: bytes) -> Ticket:
    """The ticket of a message, from whomever. Raises `Undecodable`."""
    try:
        envelope = _decoder.decode(data)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise Undecodable(f"not an envelope: {type(error).__name__}") from None
    if not envelope.to_agent.strip():
        raise Undecodable("not an envelope: it names no receiver")
    namespace = envelope.namespace.strip() or DEFAULT_NAMESPACE
    id = envelope.idempotency_key or envelope.message_id
    kind: Literal["task_start", "task_handoff"] = "task_start" if envelope.type == "task_start" else "task_handoff"
    return Ticket(
        id=id,
        run_id=envelope.run_id,
        namespace=namespace,
        agent=envelope.to_agent.strip(),
        task=envelope.task_id.removeprefix(f"{namespace}/"),
        message_id="" if envelope.message_id == id else envelope.message_id,
        attempt=max(1, envelope.attempt),
        due_at=envelope.due_at or 0.0,
        system=envelope.system,
        sender=envelope.from_agent,
        branch=envelope.branch_id,
        parent_branch=envelope.parent_branch_id,
        parent_id=envelope.parent_id,
        kind=kind,
        payload=envelope.payload,
    )
