"""JSON lines between Foliot and a program, and what they mean. Pure: no line ever raises, whatever it holds.

What is nested deeper than the arguments of any call may be is no line (`parsed`).

To a program that speaks lines, one object each, on its standard input:

    {"type": "start", "run_id", "session_id", "resume", "system", "prompt", "messages": […], "tools": […]}
    {"type": "input", "text"}                          something said to it later
    {"type": "tool_result", "id", "name", "text", "error"}   what became of a call; `error` is null, or code and message
    {"type": "answer", "id", "text"}                   what a person answered; null when nobody did

From it, on its standard output. What is no object of these types is a line of its log:

    {"type": "text", "text"}                           a piece of the answer
    {"type": "log", "text"}                            for whoever watches
    {"type": "session", "id"}                          the name by which it goes on with this conversation
    {"type": "tool_call", "id", "name", "arguments"}   calls a tool of the agent, and waits; `tool_calls` with `calls`
                                                       for several at once
    {"type": "question", "id", "text", "choices", "default"}  asks a person, and waits
    {"type": "usage", "input_tokens", "output_tokens", "cost_usd", …}  what it used since the last such line
    {"type": "result", "text"}                         the turn is over; without `text` the pieces are the answer
    {"type": "error", "message", "outcome"}            the turn has failed: error, timeout, cancelled or lost
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any, Final, TypeAlias, cast

import msgspec
from msgspec import Struct

from foliot.kernel.arguments import DEEPEST, read_json
from foliot.kernel.execution import Outcome
from foliot.kernel.json_texts import deeper_than
from foliot.kernel.messages import Message, Text, ToolCall, ToolResult, Usage

# More of one kind in a line than any program means.
MOST_CALLS: Final = 64
LONGEST_NAME: Final = 256
LONGEST_SESSION: Final = 512
# Arguments of a call may be nested as deep as those of a model's; a line has up to three levels around them.
_DEEPEST_LINE: Final = DEEPEST + 4
_MOST_TOKENS: Final = 10**12
_MOST_DOLLARS: Final = 10**6


class SaidText(Struct, frozen=True):
    text: str


class SaidLog(Struct, frozen=True):
    text: str


class SaidSession(Struct, frozen=True):
    id: str


class CallAsked(Struct, frozen=True):
    """A call as the program wrote it; `id` is its own name for it."""

    id: str
    name: str
    arguments: str


class SaidCalls(Struct, frozen=True):
    calls: tuple[CallAsked, ...]


class SaidQuestion(Struct, frozen=True):
    id: str
    text: str
    choices: tuple[str, ...] = ()
    default: str | None = None


class SaidUsage(Struct, frozen=True):
    usage: Usage


class SaidEnd(Struct, frozen=True):
    """`text` is the whole answer; None when the pieces are."""

    text: str | None = None


class SaidError(Struct, frozen=True):
    message: str
    outcome: Outcome | None = None


Said: TypeAlias = SaidText | SaidLog | SaidSession | SaidCalls | SaidQuestion | SaidUsage | SaidEnd | SaidError
_OUTCOMES: Final = frozenset({"error", "timeout", "cancelled", "lost"})


def parsed(line: bytes) -> Mapping[str, Any] | None:
    """The object of a line; None for a line that is none. Raises `msgspec.ValidationError` for a name twice in one."""
    if line.lstrip()[:1] != b"{":
        return None
    try:
        found = read_json(line)
    except msgspec.ValidationError:
        raise
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return None
    # How deep the stack is differs from place to place: what can be read here must be written elsewhere.
    if not isinstance(found, dict) or deeper_than(found, _DEEPEST_LINE):
        return None
    return cast("Mapping[str, Any]", found)


def clean(text: Any) -> str:
    """Text that can be stored: no half characters and no NUL; what is no text is none."""
    return text.encode("utf-8", "replace").decode().replace("\0", "") if isinstance(text, str) else ""


# --- from the program ------------------------------------------------------------------------------------------------


def read_line(line: Mapping[str, Any]) -> list[Said]:
    """Returns the meaning of a line of Foliot's own format."""
    match line.get("type"):
        case "text":
            return [SaidText(clean(line.get("text")))]
        case "session" if name := _session(line.get("id")):
            return [SaidSession(name)]
        case "tool_call":
            return _calls([line])
        case "tool_calls":
            return _calls(line.get("calls"))
        case "question" if text := clean(line.get("text")).strip():
            choices = line.get("choices")
            given = tuple(map(clean, cast("list[Any]", choices))) if isinstance(choices, list) else ()
            default = line.get("default")
            return [SaidQuestion(_id(line.get("id")), text, given, clean(default) or None)]
        case "usage":
            return _usage(line)
        case "result":
            text = line.get("text")
            return [SaidEnd(clean(text) if isinstance(text, str) else None)]
        case "error":
            outcome = line.get("outcome")
            known = cast("Outcome", outcome) if isinstance(outcome, str) and outcome in _OUTCOMES else None
            return [SaidError(clean(line.get("message")) or "it gave no reason", known)]
        case _:
            return [SaidLog(clean(line.get("text")) or _short(line))]


def read_claude_line(line: Mapping[str, Any]) -> list[Said]:
    """Returns the meaning of a line of Claude Code's `stream-json`. The tools it uses are its own; they are logged."""
    found: list[Said] = []
    if name := _session(line.get("session_id")):
        found.append(SaidSession(name))
    match line.get("type"):
        case "assistant":
            for part in _parts(line):
                if part.get("type") == "text":
                    found.append(SaidText(clean(part.get("text"))))
                elif part.get("type") == "tool_use":
                    found.append(SaidLog(f"{clean(part.get('name'))[:LONGEST_NAME]} {_short(part.get('input'))}"))
        case "result":
            used = line.get("usage")
            counts: dict[str, Any] = dict(cast("Mapping[str, Any]", used)) if isinstance(used, dict) else {}
            found += _usage(_claude_usage(counts, line.get("total_cost_usd")))
            said = clean(line.get("result"))
            if line.get("is_error") or line.get("subtype") not in (None, "success"):
                found.append(SaidError(said or clean(line.get("subtype")) or "it gave no reason", "error"))
            else:
                found.append(SaidEnd(said if isinstance(line.get("result"), str) else None))
        case _:
            pass
    return found


def _claude_usage(counts: Mapping[str, Any], cost: Any) -> dict[str, Any]:
    """Converts its counts to ours, where tokens that a cache read or wrote are part of the input."""
    read, written = counts.get("cache_read_input_tokens"), counts.get("cache_creation_input_tokens")
    own = counts.get("input_tokens")
    parts = [each for each in (own, read, written) if isinstance(each, int)]
    return {
        "input_tokens": sum(parts),
        "output_tokens": counts.get("output_tokens"),
        "cache_read_tokens": read,
        "cache_write_tokens": written,
        "cost_usd": cost,
    }


def _parts(line: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    message = line.get("message")
    content = cast("Mapping[str, Any]", message).get("content") if isinstance(message, dict) else None
    return [each for each in cast("list[Any]", content) if isinstance(each, dict)] if isinstance(content, list) else []


def _calls(given: Any) -> list[Said]:
    calls: list[CallAsked] = []
    for each in cast("list[Any]", given) if isinstance(given, list) else []:
        if isinstance(each, dict) and (name := clean(cast("Mapping[str, Any]", each).get("name"))):
            call = cast("Mapping[str, Any]", each)
            arguments: Any = call.get("arguments", {})
            text = clean(arguments) if isinstance(arguments, str) else msgspec.json.encode(arguments).decode()
            calls.append(CallAsked(_id(call.get("id")), name[:LONGEST_NAME], text))
    if not calls or len(calls) > MOST_CALLS:
        why = f"{len(calls)} calls at once, and at most {MOST_CALLS} are taken" if calls else "a call without a name"
        return [SaidError(f"it asked for {why}", "error")]
    return [SaidCalls(tuple(calls))]


_COUNTS: Final = ("input_tokens", "output_tokens", "cache_read_tokens", "cache_write_tokens", "reasoning_tokens")


def _usage(line: Mapping[str, Any]) -> list[Said]:
    """Reads a usage. Nobody earns by it: a count below nothing, or beyond all measure, is none at all."""
    counts: dict[str, Any] = {name: value for name in _COUNTS if (value := _count(line.get(name)))}
    cost = line.get("cost_usd")
    paid = None
    # Compared before it is converted: a whole number of JSON can be larger than any float. NaN compares with nothing.
    if isinstance(cost, int | float) and not isinstance(cost, bool) and 0 <= cost <= _MOST_DOLLARS:
        paid = float(cost)
    return [SaidUsage(Usage(**counts, cost_usd=paid))] if counts or paid is not None else []


def _count(value: Any) -> int:
    return value if isinstance(value, int) and not isinstance(value, bool) and 0 < value <= _MOST_TOKENS else 0


def _id(value: Any) -> str:
    return clean(value)[:LONGEST_NAME] if isinstance(value, str) else _short(value) if isinstance(value, int) else ""


_SESSION: Final = re.compile(r"[A-Za-z0-9][\w.:/@+=-]*", re.ASCII)


def _session(value: Any) -> str:
    """A name for a session that may become an argument of the program: a word, and no option."""
    return value if isinstance(value, str) and len(value) <= LONGEST_SESSION and _SESSION.fullmatch(value) else ""


def _short(value: Any) -> str:
    return clean(msgspec.json.encode(value).decode())[:1000]


# --- to the program --------------------------------------------------------------------------------------------------


def encoded(line: Mapping[str, Any]) -> bytes:
    return msgspec.json.encode(line) + b"\n"


def told_messages(messages: Sequence[Message]) -> list[dict[str, Any]]:
    """A conversation as a program is told it: texts, calls and results."""
    return [told_message(message) for message in messages]


def told_message(message: Message) -> dict[str, Any]:
    told: dict[str, Any] = {"role": message.role, "text": message.text}
    if calls := [{"name": each.name, "arguments": each.arguments} for each in message.calls]:
        told["calls"] = calls
    if results := [told_result(each) for each in message.parts if isinstance(each, ToolResult)]:
        told["results"] = results
    return told


def told_result(result: ToolResult, call_id: str = "") -> dict[str, Any]:
    failure = result.error
    return {
        "type": "tool_result",
        "id": call_id or result.call_id,
        "name": result.name,
        "text": result.text,
        "error": None if failure is None else {"code": failure.code, "message": failure.message},
    }


def as_text(messages: Sequence[Message]) -> str:
    """A conversation for a program that is given one text: what was said alone, or who said what."""
    said = [(message.role, _said(message)) for message in messages]
    said = [(role, text) for role, text in said if text.strip()]
    if all(role != "assistant" for role, _ in said):
        return "\n\n".join(text for _, text in said)
    return "\n\n".join(f"{role.capitalize()}: {text}" for role, text in said)


def _said(message: Message) -> str:
    parts: list[str] = []
    for part in message.parts:
        if isinstance(part, Text):
            parts.append(part.text)
        elif isinstance(part, ToolCall):
            parts.append(f"[{part.name} {part.arguments}]")
        elif isinstance(part, ToolResult):
            parts.append(part.text)
    return "\n".join(parts)


# --- terminals -------------------------------------------------------------------------------------------------------

# Control sequences (CSI, OSC and the other strings, two-character escapes), and single control characters that are
# neither a tab nor the end of a line.
_SEQUENCES: Final = re.compile(
    r"\x1b\[[0-?]*[ -/]*[@-~]|\x1b[\]PX^_][^\x07\x1b]*(?:\x07|\x1b\\)?|\x1b[ -/]*[0-~]?|\x9b[0-?]*[ -/]*[@-~]"
    r"|[\x00-\x07\x0b\x0c\x0e-\x1f\x7f-\x9f]"
)
_ERASED: Final = re.compile(r"[^\n\x08]\x08")


def stripped(text: str) -> str:
    """The text of a terminal without what only a terminal understands; of a line that was written over, its end."""
    plain = _SEQUENCES.sub("", text.replace("\r\n", "\n"))
    for _ in range(64):  # what was typed and taken back, as far as anybody does
        plain, changed = _ERASED.subn("", plain)
        if not changed:
            break
    lines = (line.rstrip("\r").rpartition("\r")[2] for line in plain.replace("\x08", "").split("\n"))
    return "\n".join(line.rstrip() for line in lines).strip("\n")
