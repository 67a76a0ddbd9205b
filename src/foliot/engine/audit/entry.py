"""The audit entry of one moment of one call. Arguments are redacted here, before anything is stored.

Who called, what (tool, version, schema digest, arguments), what was decided by which layer and rule, which approval it
rests on, and what came of it, with what it took. The content of results is not here: the journal of the run has it.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from typing import Any, Final, cast

import msgspec
from msgspec import UNSET, Struct, UnsetType

from foliot.engine.approval.documents import shown
from foliot.engine.audit.words import Act, BudgetOutcome, CallOutcome, Decided
from foliot.engine.budgets.declared import Payer
from foliot.kernel.messages import Media, ToolResult, Usage
from foliot.sandbox.egress.rules import EgressRecord
from foliot.store.base import Document
from foliot.tools.base import ToolDefinition
from foliot.tools.pipeline.record import CallRecord
from foliot.tools.secrets.masking import MASK, Masker
from foliot.tools.workspaces import FenceOwner

LONGEST_NAME: Final = 500
LONGEST_MESSAGE: Final = 2000
LARGEST_ARGUMENTS: Final = 64 * 1024
SCHEMAS_KEPT: Final = 1024
DENIED: Final = "permission_denied"

_NOBODY_ASKED: Final[dict[str, Any]] = {"asks": []}
_OK: Final[dict[str, Any]] = {"status": "ok"}
# By the identity of a schema, which is kept with it: so that its number means nothing else.
_marked: Final[dict[int, tuple[Any, bool]]] = {}
_encode: Final = msgspec.json.Encoder(enc_hook=dict).encode
_decode: Final = msgspec.json.Decoder(dict[str, Any]).decode


class CallEntry(Struct, gc=False):
    """The record of one moment of one call. Its members stand in the order of their names: so it is canonical JSON.

    `seq` and `previous` are set when the record finds its place in the log. `recovered`: it was made up from the
    journal of the run, because the process was killed that should have written it.
    """

    agent: str
    approval: dict[str, Any] | UnsetType
    arguments: dict[str, Any]
    at: float
    attempt: int
    call_id: str
    caller: CallerEntry
    decision: dict[str, Any]
    effect: str
    idempotency_key: str
    metering: Metering | UnsetType
    moment: str
    namespace: str
    outcome: str
    previous: str
    recovered: bool | UnsetType
    result: dict[str, Any] | UnsetType
    run_id: str
    schema_digest: str
    seq: int
    step: int
    tool: str
    trace_id: str
    version: str


class CallerEntry(Struct, frozen=True, gc=False):
    """The identity behind a call. `by` is who acted for the user, `via` the way in, `ancestors` the agents above.

    `ordered_by` are the others whose order it is (see `Identity`).
    """

    ancestors: list[str] | UnsetType
    by: str | UnsetType
    depth: int
    model: str
    ordered_by: list[str] | UnsetType
    roles: list[str]
    system: str
    task: str
    user: str
    via: str | UnsetType


class Metering(Struct, frozen=True, gc=False):
    """The usage of a call. Tokens and money are those of the runs it delegated; other tools have none."""

    attempts: int
    bytes_in: int
    bytes_out: int
    cost_usd: float | UnsetType
    input_tokens: int | UnsetType
    output_tokens: int | UnsetType
    seconds: float


def entry_of(
    record: CallRecord, arguments: bytes, masker: Masker | None = None, usage: Usage | None = None
) -> CallEntry:
    """Builds the entry of a record in a form that any database can hold. `arguments` are from `snapshot`.

    `usage` is what runs took that the call delegated.
    """
    call, definition, caller = record.call, record.definition, record.call.caller
    version = call.version or (definition.version if definition else "")
    tool, run_id, call_id, key, trace_id, digest, version = _texts(
        call.tool, call.run_id, call.call_id, call.idempotency_key, call.trace_id, call.schema_digest, version
    )
    namespace, agent, model, task, system, user, by, via, *roles = _texts(
        caller.namespace,
        caller.agent,
        caller.model,
        caller.task,
        caller.system,
        caller.user,
        caller.by,
        caller.via,
        *caller.roles,
    )
    ended = record.result if record.moment == "finished" else None
    return CallEntry(
        agent,
        _approval(record) if record.parked is not None or call.grant or call.standing[0] else UNSET,
        _arguments(arguments, definition, masker),
        record.at,
        call.attempt,
        call_id,
        CallerEntry(
            [*_texts(*caller.ancestors)] if caller.ancestors else UNSET,
            by or UNSET,
            caller.depth,
            model,
            [*_texts(*caller.ordered_by)] if caller.ordered_by else UNSET,
            roles,
            system,
            task,
            user,
            via or UNSET,
        ),
        _decision(record, masker) if record.asks or record.moment == "refused" else _NOBODY_ASKED,
        definition.effect if definition else "",
        key,
        _metering(record, ended, len(arguments), usage) if ended is not None else UNSET,
        record.moment,
        namespace,
        outcome_of(record),
        "",
        UNSET,
        _result(ended, masker) if ended is not None else UNSET,
        run_id,
        digest,
        0,
        call.step,
        tool,
        trace_id,
        version,
    )


def decision_entry(document: Document, outcome: Decided, by: str, at: float, actor: str = "") -> dict[str, Any]:
    """The record of what was decided: about a parked call, or about calls in advance.

    `by` is in whose name, `actor` who did it when that is somebody else.
    """
    metadata, spec, status = document["metadata"], document["spec"], document["status"]
    digests = {"digest": spec.get("arguments_digest"), "granted_digest": status.get("granted_digest")}
    return {
        "at": at,
        "moment": "decided",
        "outcome": outcome,
        "namespace": _text(metadata.get("namespace", "default")),
        "agent": _text(spec.get("agent") or ""),
        "tool": _text(spec.get("tool") or ""),
        "run_id": _text(spec.get("run") or ""),
        "call_id": _text(spec.get("call_id") or ""),
        "decision": {"asks": [], "by": _text(by), "comment": _text(status.get("reason") or "", LONGEST_MESSAGE)},
        "approval": {
            "id": _text(metadata["name"]),
            "standing": bool(spec.get("standing")),
            "expires_at": status.get("expires_at"),
            **{name: digest for name, digest in digests.items() if digest},
        },
        **({"caller": {"user": _text(by), "by": _text(actor)}} if actor and actor != by else {}),
    }


def budget_entry(
    payer: Payer, run_id: str, act: str, outcome: BudgetOutcome, budget: str, message: str, at: float
) -> dict[str, Any]:
    """The record of a budget that had no room (`paused`, `stopped`), or of which much is spent (`warned`)."""
    kind, _, rest = act.partition("/")
    name = rest.rpartition("/")[0]
    return {
        "at": at,
        "moment": "budget",
        "outcome": outcome,
        "namespace": _text(payer.namespace),
        "agent": _text(payer.agents[0] if payer.agents else ""),
        "tool": "",
        "run_id": _text(run_id),
        "call_id": _text(name) if kind == "call" else "",
        "act": _text(act),
        "caller": {"user": _text(payer.user), "root": _text(payer.root)},
        "decision": {
            "asks": [],
            "layer": "budget",
            "rule": _text(f"Budget/{budget}"),
            "message": _text(message, LONGEST_MESSAGE),
        },
    }


def egress_entry(owner: FenceOwner, record: EgressRecord, at: float) -> dict[str, Any]:
    """The record of one request, or one tunnel, that left a sandbox or was refused there."""
    caller = owner.caller
    return {
        "at": at,
        "moment": "egress",
        "outcome": record.verdict,
        "namespace": _text(caller.namespace),
        "agent": _text(caller.agent),
        "tool": _text(owner.tool),
        "run_id": _text(owner.run_id),
        "call_id": _text(owner.call_id),
        "caller": {"user": _text(caller.user), "task": _text(caller.task), "system": _text(caller.system)},
        "egress": {
            "host": _text(record.host),
            "port": record.port,
            "method": _text(record.method),
            "bytes_in": record.bytes_in,
            "bytes_out": record.bytes_out,
            "seconds": round(record.seconds, 6),
        },
        "decision": {"asks": [], **({"layer": "egress", "message": _text(record.reason)} if record.reason else {})},
    }


def unfenced_entry(owner: FenceOwner, command: Sequence[str], at: float) -> dict[str, Any]:
    """The record of a program of an MCP server that is started with all rights of this process.

    Of the command only the program is kept: arguments may hold secrets.
    """
    caller = owner.caller
    return {
        "at": at,
        "moment": "unfenced",
        "outcome": "started",
        "namespace": _text(caller.namespace),
        "agent": _text(caller.agent),
        "tool": _text(owner.tool),
        "run_id": _text(owner.run_id),
        "call_id": _text(owner.call_id),
        "caller": {"user": _text(caller.user)},
        "decision": {"asks": [], "layer": "isolation", "message": "isolation: none"},
        "resource": {"kind": "McpServer", "name": _text(owner.tool), "program": _text(command[0] if command else "")},
    }


def outcome_of(record: CallRecord) -> CallOutcome:
    """One word: allowed, asked, denied (by a rule), refused (for another reason), ok, failed, or unknown.

    Unknown: the call may have acted, and nobody has been told how it ended.
    """
    failure = record.result.error if record.result else None
    match record.moment:
        case "admitted":
            return "allowed"
        case "parked":
            return "asked"
        case "refused":
            return "denied" if failure is not None and failure.code == DENIED else "refused"
        case "finished":
            if failure is None:
                return "ok"
            return "unknown" if failure.unknown else "failed"


def size_of(result: ToolResult) -> int:
    """Bytes of the content as it goes to the model."""
    size = 0
    for part in result.content:
        text = (part.data or "") if isinstance(part, Media) else part.text
        size += len(text) if text.isascii() else len(text.encode("utf-8", "replace"))
    return size


def _metering(record: CallRecord, result: ToolResult, bytes_in: int, usage: Usage | None) -> Metering:
    seconds, bytes_out = round(record.seconds, 6), size_of(result)
    if usage is None:
        return Metering(record.attempts, bytes_in, bytes_out, UNSET, UNSET, UNSET, seconds)
    cost = UNSET if usage.cost_usd is None else float(usage.cost_usd)
    return Metering(record.attempts, bytes_in, bytes_out, cost, usage.input_tokens, usage.output_tokens, seconds)


def _decision(record: CallRecord, masker: Masker | None) -> dict[str, Any]:
    decision: dict[str, Any] = {
        "asks": [
            {"layer": ask.layer, "rule": _text(ask.rule), "reason": _said(ask.reason, None)} for ask in record.asks
        ]
    }
    failure = record.result.error if record.result and record.moment == "refused" else None
    if failure is not None:
        decision |= {
            "layer": _text(str(failure.details.get("layer", ""))),
            "rule": _text(str(failure.details.get("rule", ""))),
            "code": _text(failure.code),
            "reason": _text(failure.reason),
            "message": _said(failure.message, masker),
        }
    return decision


def _approval(record: CallRecord) -> dict[str, Any]:
    parked = record.parked
    if parked is None and record.call.standing[0]:
        grant, giver = record.call.standing
        return {"id": _text(grant), "standing": True, "given_by": _text(giver)}
    if parked is None:
        return {"id": _text(record.call.grant)}
    return {
        "id": _text(parked.approval_id),
        "digest": parked.digest,
        "approvers": [_text(name) for name in parked.approvers],
        "expires_at": parked.expires_at,
        **({"required": parked.required} if parked.required > 1 else {}),
        **({"four_eyes": True} if parked.four_eyes else {}),
    }


def _result(result: ToolResult, masker: Masker | None) -> dict[str, Any]:
    failure = result.error
    if failure is None:
        return _OK
    return {
        "status": "error",
        "code": _text(failure.code),
        "reason": _text(failure.reason),
        "kind": _text(failure.kind),
        "retryable": failure.retryable,
        "message": _said(failure.message, masker),
    }


def _arguments(data: bytes, definition: ToolDefinition | None, masker: Masker | None) -> dict[str, Any]:
    if len(data) > LARGEST_ARGUMENTS:
        return {"(left out)": f"{len(data):,} bytes"}
    try:
        arguments = _decode(data)
        schema = definition.schema if definition is not None else None
        if schema is not None and _marks_secrets(schema):
            arguments = _without_secrets(arguments, schema)
        return shown(arguments, masker, longest=LONGEST_MESSAGE)
    except (RecursionError, msgspec.DecodeError):
        return {"(left out)": "nested too deeply"}


def _marks_secrets(schema: Any) -> bool:
    """Whether a mark may be anywhere in the schema; in the text of a description too, which costs nothing but time."""
    known = _marked.get(id(schema))
    if known is not None and known[0] is schema:
        return known[1]
    try:
        text = _encode(schema)
        marked = b'"writeOnly"' in text or b'"password"' in text
    except Exception:  # one that refers to itself, or is no JSON: then it is walked with the arguments
        marked = True
    if len(_marked) >= SCHEMAS_KEPT:
        _marked.clear()
    _marked[id(schema)] = schema, marked
    return marked


def _without_secrets(value: Any, schema: Any) -> Any:
    """Masks values that the schema marks as `writeOnly` or as a password, whatever their name."""
    if type(schema) is not dict and not isinstance(schema, Mapping):
        return value
    rules = cast("Mapping[str, Any]", schema)
    if rules.get("writeOnly") is True or rules.get("format") == "password":
        return MASK
    if isinstance(value, dict):
        fields: Any = rules.get("properties", {})
        known = cast("Mapping[str, Any]", fields if type(fields) is dict or isinstance(fields, Mapping) else {})
        return {key: _without_secrets(item, known.get(key)) for key, item in cast("dict[str, Any]", value).items()}
    if isinstance(value, list):
        return [_without_secrets(item, rules.get("items")) for item in cast("list[Any]", value)]
    return value


def _said(message: str, masker: Masker | None) -> str:
    text = masker.redact(message) if masker is not None else message
    return _text(text, LONGEST_MESSAGE)


def _texts(*values: str) -> tuple[str, ...]:
    """Each as `_text`. Almost always all are fit as they are, and one look at them together tells."""
    together = "".join(values)
    if len(together) <= LONGEST_NAME and together.isascii() and "\0" not in together:
        return values
    return tuple(map(_text, values))


def _text(value: str, longest: int = LONGEST_NAME) -> str:
    """Text that every database takes: models choose names, and NUL or half a character would stop a whole batch."""
    if len(value) > longest:
        value = f"{value[:longest]}…"
    if value.isascii() and "\0" not in value:
        return value
    return value.replace("\0", "\\0").encode("utf-8", "backslashreplace").decode()


# --- acts ------------------------------------------------------------------------------------------------------------


def act_entry(
    user: str, known_by: str, verb: Act, kind: str, namespace: str, name: str, /, *, request: str = "", **more: Any
) -> dict[str, Any]:
    """The members of the record of what somebody did to a resource. `verb` is in the past tense, and is the outcome."""
    return {
        "at": time.time(),
        "moment": "act",
        "outcome": verb,
        "namespace": namespace[:LONGEST_NAME],
        "agent": "",
        "tool": "",
        "run_id": str(more.pop("run_id", "")),
        "call_id": "",
        "caller": {"user": user, "known_by": known_by},
        "decision": {"asks": [], "by": user},
        "resource": {"kind": kind, "name": name[:LONGEST_NAME], **more},
        "request": request,
    }
