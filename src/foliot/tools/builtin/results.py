"""`read_result`: the whole of a result, page by page: of an earlier call of this run, or of a run it may see.

A page never cuts a character in half, is never empty while there is more, and says where the next one begins.
"""

from __future__ import annotations

import re
from itertools import islice
from typing import Any, Final

import msgspec

from foliot.common.threads import unhurried
from foliot.errors import InvalidInput, NotFound
from foliot.kernel.messages import Text, ToolResult
from foliot.kernel.run.events import RunCancelled, RunDeadLettered, RunFailed, RunSucceeded, Terminal
from foliot.tools.base import Invocation, OnOutput, ToolArgumentsInvalid, ToolDefinition, ToolDenied, ToolError
from foliot.tools.builtin.arguments import object_schema, optional, optional_text, whole_number
from foliot.tools.builtin.journal import History, Past, past_of

DEFAULT_PAGE: Final = 4096
# With the lines around it still shorter than the limit at which results are cut: a page that was cut would lie.
LARGEST_PAGE: Final = 48 * 1024
# For people, who are not cut short.
RESULT_PAGE: Final = 1024 * 1024
# What the cut leaves behind: how much is missing, and under which digest the whole is kept.
_CUT: Final = re.compile(
    r"\n\n\[… (?P<missing>\d+) of (?P<size>\d+) characters left out; [^\]\n]*"
    r"kept as (?P<digest>sha256:[0-9a-f]{64})\]\n\n"
)
_MARK: Final = re.compile(r"\n…\[truncated: (?P<size>\d+) bytes → \d+\]\Z")
# A tool can print such a mark itself. It is believed only if this much of what is shown is in the kept text as well.
_LEAST_SHOWN: Final = 200
_MOST_MARKS: Final = 8


class ToolNothingThere(ToolError):
    """The requested thing does not exist, or not yet."""

    kind = "not_found"
    retryable = False


class CallResult(msgspec.Struct):
    """A result of a run. `cut`: the model was shown only a part of it."""

    call: str
    tool: str
    bytes: int
    cut: bool
    failed: bool


class ResultPage(msgspec.Struct):
    """A part of one result, as the tool gave it; `next` is where the following one begins, None at the end."""

    run: str
    call: str
    tool: str
    failed: bool
    offset: int
    total: int
    next: int | None
    text: str


async def results_of(history: History, run_id: str) -> list[CallResult]:
    """The results of a run, in the order of its calls. Raises `NotFound`."""
    past = await past_of(history, run_id)
    return await unhurried(sum(50 + len(result.text) for result in past.results.values()), _listed, past)


def _listed(past: Past) -> list[CallResult]:
    return [
        CallResult(
            call,
            past.calls[call].name if call in past.calls else "",
            int(found["size"]) if (found := _MARK.search(result.text)) else len(result.text.encode("utf-8", "replace")),
            found is not None,
            result.error is not None,
        )
        for call, result in past.results.items()
    ]


async def result_page(history: History, run_id: str, call_id: str, *, offset: int = 0, most: int) -> ResultPage:
    """Show people the result of a call of a run, also what was cut. Raises `NotFound`, `InvalidInput`."""
    if offset < 0:
        raise InvalidInput("offset: must be at least 0")
    past = await past_of(history, run_id)
    result = past.results.get(call_id)
    if result is None:
        raise NotFound(
            f"run {run_id} has no result of a call {call_id!r}"[:300], hint=f"`foliot results {run_id}` lists them"
        )
    try:
        whole = await whole_of(result, history)
    except ToolNothingThere as error:
        raise NotFound(error.message, hint="what was shown is in the trace") from None
    start, end = page_of(whole, offset, most)
    tool = past.calls[call_id].name if call_id in past.calls else ""
    more = end if end < len(whole) else None
    text = whole[start:end].decode("utf-8", "replace")
    return ResultPage(run_id, call_id, tool, result.error is not None, start, len(whole), more, text)


class ReadResult:
    def __init__(self, history: History) -> None:
        self._history = history
        self.definition = ToolDefinition(
            name="read_result",
            description=(
                "Reads a long result page by page: of an earlier tool call of this run by `call_id`, or the final "
                "result of another run by `run_id` (one that you started, or of the same task). Begins with a line of "
                "JSON: `has_more` says whether there is more, `next_offset` is the offset of the next page."
            ),
            schema=object_schema(
                {
                    "call_id": optional("string", "The id of an earlier call of this run."),
                    "run_id": optional("string", "The id of another run. Give this or call_id."),
                    "offset": optional("integer", "Where to begin, in bytes; 0 when not given."),
                    "max_bytes": optional(
                        "integer", f"How much to read: {DEFAULT_PAGE} when not given, at most {LARGEST_PAGE}."
                    ),
                }
            ),
            effect="read",
            category="knowledge",
        )

    async def invoke(self, call: Invocation, *, on_output: OnOutput | None = None) -> Any:
        call_id, run_id = optional_text(call, "call_id"), optional_text(call, "run_id")
        if bool(call_id) == bool(run_id):
            raise ToolArgumentsInvalid("either call_id or run_id is required and must be a non-empty string")
        if call_id:
            about: dict[str, Any] = {"call_id": call_id}
            whole = await self._of_call(call, call_id)
        else:
            about, whole = await self._of_run(call, run_id or "")
        offset = whole_number(call, "offset", 0, least=0, most=len(whole))
        most = whole_number(call, "max_bytes", DEFAULT_PAGE, least=1, most=LARGEST_PAGE)
        start, end = page_of(whole, offset, most)
        about |= {
            "offset": start,
            "returned_bytes": end - start,
            "total_bytes": len(whole),
            "has_more": end < len(whole),
            "next_offset": end,
        }
        more = f"\n\n[pagination: more results available; pass offset={end} to continue]" if end < len(whole) else ""
        return Text(f"{msgspec.json.encode(about).decode()}\n\n{whole[start:end].decode()}{more}")

    async def _of_call(self, call: Invocation, call_id: str) -> bytes:
        past = await past_of(self._history, call.run_id)
        result = past.results.get(call_id)
        if result is not None:
            return await whole_of(result, self._history)
        if call_id in past.calls:
            raise ToolNothingThere(f"the call {call_id!r} has no result yet", call_id=call_id)
        known = ", ".join(list(past.results)[-10:]) or "none"
        raise ToolNothingThere(f"this run has no call {call_id!r}; the last with results are: {known}")

    async def _of_run(self, call: Invocation, run_id: str) -> tuple[dict[str, Any], bytes]:
        run_id = run_id.rpartition(".")[2]
        try:
            row = await self._history.get(run_id)
            past = await past_of(self._history, run_id)
        except NotFound:
            raise ToolNothingThere(f"there is no run {run_id!r}", run_id=run_id) from None
        if row.namespace != call.namespace or not _may_see(call, row.parent, past):
            raise ToolDenied(
                f"the result of run {run_id!r} is not for this run: only runs that it started, and those of its task",
                layer="read_result",
            )
        if past.ended is None:
            raise ToolNothingThere(f"run {run_id!r} has no result yet: it is {row.phase}", phase=row.phase)
        about = {"run_id": run_id, "agent": row.agent, "outcome": row.phase, "completed_at": past.ended_at}
        why, whole = _outcome(past.ended)
        return about | why, whole.encode("utf-8", "replace")


async def whole_of(result: ToolResult, history: History) -> bytes:
    """The text before it was cut for the model. Raises `ToolNothingThere` when that was not kept."""
    shown = result.text
    shown = _MARK.sub("", shown) if _CUT.search(shown) else shown
    for cut in islice(_CUT.finditer(shown), _MOST_MARKS):
        head, tail = shown[: cut.start()], shown[cut.end() :]
        size = int(cut["size"])
        if len(head) + len(tail) != size - int(cut["missing"]) or len(head) + len(tail) < _LEAST_SHOWN:
            continue
        try:
            kept = await history.get_blob(cut["digest"])
        except NotFound:
            raise ToolNothingThere("the rest of this result is no longer kept", digest=cut["digest"]) from None
        if (whole := await unhurried(len(kept), _between, kept, head, tail, size)) is not None:
            return whole
    return shown.encode("utf-8", "replace")


def _between(kept: bytes, head: str, tail: str, size: int) -> bytes | None:
    """Return what was kept, if it begins and ends as it was shown."""
    text = kept.decode("utf-8", "replace")
    return text.encode() if text.startswith(head) and (text.endswith(tail) or len(text) < size) else None


def _may_see(call: Invocation, parent: str | None, past: Past) -> bool:
    created = past.created
    started_here = parent == call.run_id or (created is not None and created.parent == call.run_id)
    same_task = bool(call.caller.task) and created is not None and created.task == call.caller.task
    return started_here or same_task


def _outcome(ended: Terminal) -> tuple[dict[str, str], str]:
    """Why it ended as it did, and the text to read."""
    match ended:
        case RunSucceeded():
            return {}, ended.output
        case RunFailed():
            return {"error": ended.message, "reason": ended.reason}, ended.message
        case RunCancelled() | RunDeadLettered():
            return {"reason": ended.reason}, ended.reason


def page_of(whole: bytes, offset: int, most: int) -> tuple[int, int]:
    """Returns the bounds of a page: on whole characters, and with at least one if there is one left."""
    start = min(offset, len(whole))
    while start < len(whole) and _continues(whole[start]):
        start += 1
    end = min(start + most, len(whole))
    while end > start and end < len(whole) and _continues(whole[end]):
        end -= 1
    if end == start:  # the page is smaller than the next character
        end = min(start + 1, len(whole))
        while end < len(whole) and _continues(whole[end]):
            end += 1
    return start, end


def _continues(byte: int) -> bool:
    """Whether it is inside of a UTF-8 sequence."""
    return byte & 0xC0 == 0x80
