"""ToolApproval documents: how one is written for a parked call, and what one says."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from datetime import UTC, datetime
from functools import lru_cache
from itertools import pairwise
from typing import Any, Final, cast

from foliot.common.durations import canonical
from foliot.common.times import iso
from foliot.errors import Conflict, Denied, InvalidInput
from foliot.kernel.arguments import DEEPEST, arguments_digest
from foliot.kernel.identity import Person
from foliot.kernel.run.events import ApprovalDecided, ApprovalRequested
from foliot.kernel.run.state import Call, State
from foliot.store.base import Document, Key, Put
from foliot.tools.secrets.masking import MASK, Masker

KIND: Final = "ToolApproval"
API_VERSION: Final = "foliot.dev/v1"
RUN_LABEL: Final = "foliot.dev/run"
_GRAVITY: Final = ("admin", "delete", "write", "read")
_DECISION: Final = {"approved": "approve", "denied": "deny", "edited": "edit"}
_SAID: Final = {"approved": "approved", "denied": "denied", "edited": "approved with other arguments"}


def question(state: State, call: Call, asked: ApprovalRequested, now: float, seen: dict[str, Any]) -> Document:
    """The object for a parked call, as it is first stored. `seen` are its arguments as people may see them."""
    spec: dict[str, Any] = {
        "run": state.run_id,
        "call_id": call.id,
        "tool": call.name,
        "agent": state.spec.agent,
        "arguments": seen,
        "arguments_digest": asked.digest,
        "reason": asked.reason,
        "approvers": list(asked.approvers),
        "required_approvals": asked.required if asked.required > 1 else None,
        "four_eyes": asked.four_eyes or None,
        "asked_by": str(state.identity),
    }
    status: dict[str, Any] = {"phase": "Pending"}
    if state.created is not None and state.created.task:
        spec["task_ref"] = state.created.task
    if asked.expires_at is not None:
        spec["ttl"] = canonical(f"{max(1, round(asked.expires_at - now))}s")
        status["expires_at"] = iso(asked.expires_at)
    return _document(asked.approval_id, state.spec.namespace, spec, status)


def standing_grant(name: str, namespace: str, spec: dict[str, Any], status: dict[str, Any]) -> Document:
    """The object for a grant that covers calls before they are made."""
    return _document(name, namespace, {**spec, "standing": True}, status)


def _document(name: str, namespace: str, spec: dict[str, Any], status: dict[str, Any]) -> Document:
    return {
        "apiVersion": API_VERSION,
        "kind": KIND,
        "metadata": {"name": name, "namespace": namespace},
        "spec": {key: value for key, value in spec.items() if value not in (None, "", [], {})},
        "status": status,
    }


def creation(document: Document) -> list[Put]:
    """Returns both writes of a new object: a store takes a status only by a change of its own."""
    return [Put(document, expect="absent", own=True), Put(document, only="status")]


def gravest(classes: Iterable[str]) -> str:
    """The one operation class that a person should know of."""
    given = list(classes)
    return next((name for name in _GRAVITY if name in given), given[0] if given else "")


# --- what one says -----------------------------------------------------------------------------------------------


def key_of(namespace: str, name: str) -> Key:
    return Key(KIND, namespace, name)


def name_of(document: Document) -> str:
    return document["metadata"]["name"]


def phase_at(document: Document, now: float) -> str:
    """The phase as of now: what is past its end counts as expired, whether or not anybody has written that down."""
    spec, status = document["spec"], document["status"]
    phase = status.get("phase") or "Pending"
    ends = seconds_at(status.get("expires_at"))
    living = phase == "Pending" or (phase == "Approved" and spec.get("standing"))
    if living and ends is not None and ends <= now:
        return "Expired"
    if phase == "Approved" and (uses_left(document) or 0) < 1 and uses_left(document) is not None:
        return "Expired"
    return phase


def uses_left(document: Document) -> int | None:
    """How many calls a standing grant still covers; None when they are not counted."""
    most = document["spec"].get("max_uses")
    return None if most is None else max(0, most - len(document["status"].get("uses", ())))


def seconds_at(time: str | None) -> float | None:
    """Seconds since 1970 of an RFC 3339 time; None for none. A time that cannot be read is long past: it refuses."""
    if not time:
        return None
    try:
        moment = datetime.fromisoformat(time)
    except ValueError:
        return 0.0
    return (moment if moment.tzinfo else moment.replace(tzinfo=UTC)).timestamp()


def decided_arguments(document: Document) -> tuple[dict[str, Any], bool]:
    """The arguments that a call is or would be made with, as people may see them, and whether somebody edited them.

    While several people have to approve, these are the ones that the last of them has approved.
    """
    edited = document["status"].get("edited_arguments")
    if edited is None or document["status"].get("phase") not in ("Pending", "Approved"):
        return document["spec"].get("arguments") or {}, False
    return edited, True


def verdict(document: Document) -> str:
    """`approved by ann at 2026-01-01T10:00:00.000Z: fine`"""
    status = document["status"]
    what = _SAID.get(status.get("decision", ""), str(status.get("phase", "Pending")).lower())
    by = f" by {status['decided_by']}" if status.get("decided_by") else ""
    at = f" at {status['decided_at']}" if status.get("decided_at") else ""
    return f"{what}{by}{at}{': ' + status['reason'] if status.get('reason') else ''}"


def check_open(document: Document, now: float) -> None:
    """Raises `Conflict` when it was decided, has expired, or is a standing grant."""
    name, spec, status = name_of(document), document["spec"], document["status"]
    if spec.get("standing"):
        raise Conflict(f"approval {name} is a standing grant: nobody asks", hint=f"`foliot approvals revoke {name}`")
    phase = phase_at(document, now)
    if phase == "Expired":
        when = f" at {status['expires_at']}" if status.get("expires_at") and not status.get("reason") else ""
        why = f": {status['reason']}" if status.get("reason") else ""
        raise Conflict(f"approval {name} has expired{when}{why}", hint="the call was not made", phase=phase)
    if phase != "Pending":
        raise Conflict(
            f"approval {name} was decided before: {verdict(document)}",
            phase=phase,
            decided_by=status.get("decided_by", ""),
            decided_at=status.get("decided_at", ""),
        )


def check_voter(name: str, asked: ApprovalRequested, askers: Iterable[str], voter: Person) -> None:
    """Raises `Denied` when they may not decide. `askers` are who ordered the run, and who told it what to do.

    By the journal of the run, which nobody can write to, and not by the stored object.
    """
    by = voter.name
    if asked.approvers and by not in asked.approvers:
        raise Denied(f"{by} may not decide approval {name}", hint=f"these may: {', '.join(asked.approvers)}")
    if asked.four_eyes and voter.is_among(askers):
        raise Denied(
            f"{by} may not decide approval {name}: the run acts for them, or was ordered or told by them what to do",
            hint="somebody else has to decide",
        )


def current_digest(document: Document) -> str:
    """The digest of the arguments that are to be decided about: as the model wrote them, or as somebody edited them."""
    return document["status"].get("proposed_digest") or document["spec"].get("arguments_digest", "")


def scope_digest(spec: Document) -> str:
    """Names what a standing grant was given for: a grant whose spec was changed afterwards is none."""
    return arguments_digest(
        {part: spec[part] for part in ("tool", "agent", "when", "max_uses", "ttl") if spec.get(part)}
    )


def answer_of(document: Document, arguments: str | None) -> ApprovalDecided | None:
    """The fact for the run, or None while nobody has decided. `arguments` are those that were edited in."""
    spec, status = document["spec"], document["status"]
    decision = _DECISION.get(status.get("decision", ""))
    if decision is None or status.get("phase") not in ("Approved", "Denied"):
        return None
    return ApprovalDecided(
        call_id=spec["call_id"],
        decision=decision,  # pyright: ignore[reportArgumentType] - a value of the table above
        by=status.get("decided_by", ""),
        reason=status.get("reason", ""),
        arguments=arguments if decision == "edit" else None,
        approval_id=name_of(document),
    )


def covers(document: Document, *, call_id: str, digest: str) -> bool:
    """Whether this approval was given to this call with these arguments. (Its id is made from the run and the call.)"""
    spec, status = document["spec"], document["status"]
    given = status.get("phase") == "Approved" and not spec.get("standing")
    return bool(given and spec.get("call_id") == call_id and digest and status.get("granted_digest") == digest)


# --- redaction -------------------------------------------------------------------------------------------------------

# Arguments of a call as people may see them: secrets masked, long texts cut.
#
# What is shown can be edited and given back: `restored` puts what was hidden into its place again.

LONGEST: Final = 20_000
"""Characters of one text that are shown; a longer one is cut, and says so."""
CUT: Final = re.compile(r"… \([0-9,]+ characters\)\Z")
_WORD: Final = re.compile(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+|[0-9]+")
# A word of a name that gives it away; and pairs that do so together. `max_tokens` and `key` hide nothing.
_SECRET_WORDS: Final = frozenset(
    {"password", "passwd", "passphrase", "passcode", "pwd", "secret", "secrets", "token", "apikey", "authorization"}
    | {"credential", "credentials", "cookie", "bearer", "jwt", "cvv", "cvc", "otp", "pin"}
)
_SECRET_PAIRS: Final = frozenset({("api", "key"), ("private", "key"), ("access", "key"), ("signing", "key")})


def shown(arguments: Mapping[str, Any], masker: Masker | None = None, *, longest: int = LONGEST) -> dict[str, Any]:
    """A copy of the arguments that can be stored and printed. `masker` knows secrets by value, wherever they stand."""
    seen = {name: _shown(value, name, 1, longest) for name, value in arguments.items()}
    return masker.mask_value(seen) if masker is not None else seen


def shows(seen: Any, original: Any) -> bool:
    """Whether `seen` is what `shown` makes of the original, whichever secrets were known at the time."""
    if isinstance(seen, str) and (MASK in seen or seen == "…"):
        if not isinstance(original, str):
            return seen in (MASK, "…")
        return re.fullmatch(".*".join(map(re.escape, seen.split(MASK))), original, re.DOTALL) is not None
    if isinstance(seen, str) and isinstance(original, str) and (cut := CUT.search(seen)):
        return seen == original or (len(original) > cut.start() and original.startswith(seen[: cut.start()]))
    parts, real = _object(seen), _object(original)
    if parts is not None and real is not None:
        return parts.keys() == real.keys() and all(shows(item, real[name]) for name, item in parts.items())
    rows, kept = _array(seen), _array(original)
    if rows is not None and kept is not None:
        return len(rows) == len(kept) and all(shows(*pair) for pair in zip(rows, kept, strict=True))
    return type(seen) is type(original) and bool(seen == original)


def restored(edited: dict[str, Any], seen: Mapping[str, Any], original: Mapping[str, Any]) -> dict[str, Any]:
    """The edited arguments, with what was hidden in `seen` taken from the original where it was left as it was shown.

    Raises `InvalidInput` when a mask stands where nothing was masked: it would be sent as a value.
    """
    whole: dict[str, Any] = _restored(edited, dict(seen), dict(original))
    if place := _masked_at(whole, ()):
        raise InvalidInput(
            f"{'/'.join(place)} holds {MASK}, which only stands for a value that is hidden there",
            hint="give the value itself, or leave the masked one where it was",
        )
    return whole


@lru_cache(maxsize=4096)
def looks_secret(name: str) -> bool:
    """Whether a value under this name is one that nobody should read over a shoulder."""
    words = [word.lower() for word in _WORD.findall(name)]
    return not _SECRET_WORDS.isdisjoint(words) or not _SECRET_PAIRS.isdisjoint(pairwise(words))


def _shown(value: Any, name: str, depth: int, longest: int) -> Any:
    if value is not None and value != "" and not isinstance(value, bool) and looks_secret(name):
        return MASK
    if isinstance(value, str):
        return value if len(value) <= longest else f"{value[:longest]}… ({len(value):,} characters)"
    if depth >= DEEPEST and isinstance(value, dict | list):
        return "…"
    if isinstance(value, dict):
        return {key: _shown(item, key, depth + 1, longest) for key, item in cast("dict[str, Any]", value).items()}
    if isinstance(value, list):
        return [_shown(item, "", depth + 1, longest) for item in cast("list[Any]", value)]
    return value


def _restored(edited: Any, seen: Any, original: Any) -> Any:
    parts, before, real = _object(edited), _object(seen), _object(original)
    if parts is not None and before is not None and real is not None:
        return {
            key: _restored(item, before[key], real[key]) if key in before and key in real else item
            for key, item in parts.items()
        }
    rows, was, kept = _array(edited), _array(seen), _array(original)
    if rows is not None and was is not None and kept is not None:
        return [_restored(*row) for row in zip(rows, was, kept, strict=True)] if len(rows) == len(kept) else rows
    same = type(edited) is type(seen) and edited == seen  # `1` is not the `true` that was there
    return original if same else edited


def _object(value: Any) -> dict[str, Any] | None:
    return cast("dict[str, Any]", value) if isinstance(value, dict) else None


def _array(value: Any) -> list[Any] | None:
    return cast("list[Any]", value) if isinstance(value, list) else None


def _masked_at(value: Any, place: tuple[str, ...]) -> tuple[str, ...] | None:
    if isinstance(value, str):
        return place if MASK in value else None
    items = list((_object(value) or {}).items()) or [(str(i), item) for i, item in enumerate(_array(value) or ())]
    return next((found for name, item in items if (found := _masked_at(item, (*place, name)))), None)
