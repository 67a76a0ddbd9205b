"""Approvals and questions as people on channels are shown them, and the codes that decide an approval there.

An approval is shown whole: the tool, all arguments on one line, and who asks. Nothing in them can begin a line, turn
text round or push the rest off the screen; what is too long for that has no code and is decided elsewhere. A code names
one approval with one digest of its arguments, so it decides nothing else.
"""

from __future__ import annotations

import base64
import re
from collections.abc import Sequence
from hashlib import sha256
from typing import Any, Final, cast

from foliot.common.text import one_line, safe_json
from foliot.engine.approval.documents import CUT, shown
from foliot.engine.approval.questions import list_questions, number_questions
from foliot.kernel.arguments import parse_object
from foliot.kernel.routing import bounded_key
from foliot.kernel.run.codec import decode
from foliot.kernel.run.events import ApprovalRequested
from foliot.kernel.run.state import Call, State
from foliot.store.journal.base import Entry
from foliot.tools.secrets.masking import MASK, Masker

# More than this could push what stands above it off the screen of a telephone.
LONGEST_ARGUMENTS: Final = 1500
LONGEST_NAME: Final = 80
LONGEST_REASON: Final = 200
_ORDER: Final = re.compile(r"/?(approve|deny)\s+([A-Z2-7]{4}-?[A-Z2-7]{4})", re.IGNORECASE)


def approval_code(asked: ApprovalRequested) -> str:
    """Returns the code by which people on channels decide an approval, as it was asked."""
    named = sha256(f"{asked.approval_id}\0{asked.digest}".encode()).digest()
    code = base64.b32encode(named).decode()[:8]
    return f"{code[:4]}-{code[4:]}"


def approval_codes(entries: Sequence[Entry]) -> set[str]:
    """Returns the codes of all approvals that events ask for, decided or not."""
    events = (decode(each.data) for each in entries if each.type == "approval.requested")
    return {approval_code(each) for each in events if isinstance(each, ApprovalRequested)}


def read_order(text: str) -> tuple[str, str] | None:
    """Returns `approve` or `deny` and the code, for a text that is nothing else; None for any other text."""
    found = _ORDER.fullmatch(text.strip())
    if found is None:
        return None
    code = found[2].upper().replace("-", "")
    return found[1].lower(), f"{code[:4]}-{code[4:]}"


def open_approvals(state: State) -> list[tuple[Call, ApprovalRequested]]:
    """Returns the calls of a run that wait for an approval, with what was asked."""
    asked = ((call, call.awaited) for call in state.calls)
    return [(call, each) for call, each in asked if isinstance(each, ApprovalRequested)]


def notice_key(state: State) -> str:
    """Returns the key of the notice that people get of what a run waits for now."""
    waiting = state.waiting
    assert waiting is not None, "asked of a run that waits"
    return bounded_key(f"{state.run_id}:", f"{waiting.reason}:{':'.join(waiting.calls)}")


def describe_asks(state: State, masker: Masker | None) -> str:
    """Describes everything that a run asks people: its questions, and its approvals with their codes."""
    parts = [_approval(state, call, asked, masker) for call, asked in open_approvals(state)]
    if questions := number_questions(state):
        which = " Begin the answer with what stands before its question." if len(questions) > 1 else ""
        parts.append(f"Your next message is the answer.{which}\n{list_questions(questions)}")
    return "\n\n".join(parts)


def _approval(state: State, call: Call, asked: ApprovalRequested, masker: Masker | None) -> str:
    arguments: dict[str, Any] = shown(parse_object(call.arguments)[0] or {}, masker)
    text = safe_json(arguments, indent=None, sort_keys=True)
    lines = [
        f"An approval is asked for: {one_line(asked.tool, LONGEST_NAME)}",
        f"asked by: {one_line(str(state.identity), LONGEST_NAME)}, agent {one_line(state.spec.agent, LONGEST_NAME)}",
    ]
    if asked.reason:
        lines.append(f"why: {one_line(asked.reason, LONGEST_REASON)}")
    if len(text) > LONGEST_ARGUMENTS or _is_cut(arguments):
        lines.append(f"Its arguments are too long to be shown here: `foliot approvals show {asked.approval_id}`")
        return "\n".join(lines)
    lines.append(f"arguments: {text}")
    if not text.isascii():
        lines.append(f"in ASCII: {text.encode('ascii', 'backslashreplace').decode()}"[: 2 * LONGEST_ARGUMENTS])
    if MASK in text:
        lines.append(f"{MASK} hides a secret, which is sent as it is")
    code = approval_code(asked)
    lines.append(f"Write `approve {code}` or `deny {code}`. It needs a linked account with the role approver.")
    return "\n".join(lines)


def _is_cut(value: Any) -> bool:
    if isinstance(value, dict):
        return any(map(_is_cut, cast("dict[str, Any]", value).values()))
    if isinstance(value, list):
        return any(map(_is_cut, cast("list[Any]", value)))
    return isinstance(value, str) and (value == "…" or CUT.search(value) is not None)
