"""Texts of the kernel to a model: results in place of a tool's, and corrections that it asks for.

Every text ends up in a recorded event, so a run keeps the words it was told, whatever a later version would say.
"""

from __future__ import annotations

from collections.abc import Iterable

from msgspec.structs import replace

from foliot.kernel.messages import Media, Message, Text, ToolFailure, ToolResult
from foliot.kernel.run.events import ModelCut, SessionCompacted, Synthetic, ToolFinished, ToolUnknown

EMPTY = "Your answer was empty. Answer the request with text, or call a tool."
TRUNCATED = "Your answer was cut off at the output limit. Answer again, more briefly."
NOT_AGAIN = "nobody knows whether it did, so do not call it again with the same arguments."
LAST_ANSWER = "No tool can be used any more. Give your final answer now, with what you know."


def user_message(text: str) -> Message:
    return Message("user", (Text(text),))


def cut_off(cut: ModelCut) -> Message:
    """Returns what people saw of an answer that did not come, as an answer of the model that says so."""
    why = {"failed": "the model failed", "stopped": "the run was stopped", "interrupted": "it was interrupted"}
    return Message("assistant", (Text(cut.text), Text(f"\n[cut off here: {why[cut.reason]}]")))


def compacted(event: SessionCompacted) -> str:
    """Returns what came of a compaction, in a sentence."""
    how = "" if event.made == "model" else ", without a model"
    count = event.last - event.first + 1
    return f"{count} messages were summarised{how}: about {event.tokens_before:,} tokens became {event.tokens_after:,}"


def budget_note(step: int, limit: int) -> str:
    """Returns the note to the model on how many of its steps are used, and what follows from it."""
    used = step * 100 // limit
    told = f"[Iteration Budget] Iteration {step} of {limit} ({used}% used)."
    if used > 75:
        return f"{told} Hardly any steps are left: give your final answer now, unless one more call is indispensable."
    if used > 50:
        return f"{told} More than half is gone: begin to bring the work to its end."
    return told


def failed(
    call_id: str,
    name: str,
    why: Synthetic,
    code: str,
    reason: str,
    message: str,
    kind: str = "execution",
    unknown: str = "",
    key: str = "",
) -> ToolFinished:
    """A failure as the one result of a call, in the tool's place."""
    failure = ToolFailure(code, reason, message, kind=kind, unknown=unknown, key=key if unknown else "")
    return ToolFinished(ToolResult(call_id, name, (Text(f"Error ({code}): {message}"),), failure), synthetic=why)


def unknown_tool(call_id: str, name: str, known: Iterable[str]) -> ToolFinished:
    names = ", ".join(known)
    there = f"The tools are: {names}." if names else "There are no tools: answer with text."
    message = f"there is no tool named {name!r}. {there}" if name else f"the call names no tool. {there}"
    return failed(call_id, name, "invalid", "unsupported_tool", "tool_unsupported", message, "unknown_tool")


def bad_arguments(call_id: str, name: str, problem: str) -> ToolFinished:
    message = f"the arguments are not a JSON object ({problem}); the tool was not run. Call it again with valid JSON."
    return failed(call_id, name, "invalid", "invalid_input", "tool_invalid_input", message, "invalid_arguments")


def denied(call_id: str, name: str, by: str, reason: str, *, expired: bool) -> ToolFinished:
    if expired:
        message = "nobody approved the call in time; it was not run"
    else:
        message = f"the call was not approved by {by or 'the approver'}: {reason or 'no reason given'}"
    code = "approval_expired" if expired else "permission_denied"
    return failed(call_id, name, "denied", code, "approval_denied", message, "denied")


def answered(call_id: str, name: str, answer: str | None, *, late: bool, files: tuple[Media, ...] = ()) -> ToolFinished:
    """Makes a person's answer the result, word for word.

    `late`: no answer came in time, and `answer` is the default.
    """
    if answer is None:
        return failed(call_id, name, "answered", "timeout", "question_expired", "nobody answered in time", "timeout")
    said = () if files and not answer else (Text(answer),)
    note = (Text("(Nobody answered in time; this is the default.)\n"),) if late else ()
    return ToolFinished(ToolResult(call_id, name, (*note, *said, *files)), synthetic="answered")


def not_run(
    call_id: str, name: str, why: Synthetic, *, started: bool, reads: bool = False, unknown: str = "", key: str = ""
) -> ToolFinished:
    """A call that the run no longer waits for. `started`: nobody knows whether it took effect, and `unknown` why.

    One that only `reads` has no effect, however far it came.
    """
    what = {
        "cancelled": "the run was cancelled",
        "interrupted": "someone interrupted the run with a new message",
        "budget": "no more tool calls are allowed in this run",
        "contract": "the contract of this run does not allow the call",
    }.get(why, "the run ended")
    doubtful = "it only reads, and was stopped" if reads else "the call had been started and may have taken effect"
    message = f"{what}; {doubtful if started else 'it was not run'}"
    kind = "cancelled"
    if unknown:
        message = f"{message}: {NOT_AGAIN}"
    code = {"cancelled": "cancelled", "budget": "budget_exceeded", "contract": "runtime_policy_invalid"}.get(why, why)
    if unknown == "timeout":
        code = kind = "timeout"
    return failed(call_id, name, why, code, f"run_{why}", message, kind, unknown, key)


def stopped_before_acting(call_id: str, name: str) -> ToolFinished:
    """An agent that was stopped with the run which had asked it, before it had called anything. It is no program."""
    message = "the run was cancelled; the agent was stopped before it had called any tool"
    return failed(call_id, name, "cancelled", "cancelled", "run_cancelled", message, "cancelled")


def blocked(call_id: str, name: str, message: str) -> ToolFinished:
    """The result of a call that a hook refused."""
    return failed(
        call_id, name, "blocked", "blocked_by_hook", "tool_blocked", f"{message}; it was not run", "policy_denied"
    )


def refused_repeat(call_id: str, name: str) -> ToolFinished:
    """A call that was made before with the same arguments, by an agent whose `duplicate_tool_call_policy` is `deny`."""
    message = "the same call has succeeded before, and this agent may not repeat it; it was not run. Use that result"
    return failed(call_id, name, "contract", "runtime_policy_invalid", "duplicate_call", message, "policy_denied")


def lost(name: str, unknown: ToolUnknown | None) -> str:
    """Describes a call that may have acted. Without `unknown` its process died before it could report anything."""
    return _LOST["process_died" if unknown is None else unknown.reason].format(name=name)


def doubted(result: ToolResult, unknown: ToolUnknown, key: str) -> ToolResult:
    """The failure of a call to be repeated, of which an earlier attempt may have acted."""
    assert result.error is not None
    note = Text(f"\n({lost(result.name, unknown)} before; that may have taken effect: {NOT_AGAIN})")
    return ToolResult(
        result.call_id,
        result.name,
        (*result.content, note),
        replace(result.error, unknown=unknown.reason, key=key),
    )


def never_known(call_id: str, name: str, unknown: ToolUnknown, tries: int, key: str) -> ToolFinished:
    """The result of a call that was repeated as its tool allows, and of which nothing was heard any time."""
    message = f"{lost(name, unknown)}, {tries} times in a row; it may have taken effect. {NOT_AGAIN}"
    return failed(call_id, name, "unknown", "timeout", "unknown_effect", message, "timeout", unknown.reason, key)


def repeated(call_id: str, earlier: ToolResult) -> ToolFinished:
    """The result of an earlier call with the same arguments, which is not made again."""
    note = Text("\n(This is the result of the same call made earlier in this run; the tool was not run again.)")
    return ToolFinished(ToolResult(call_id, earlier.name, (*earlier.content, note)), synthetic="duplicate")


def happened(call_id: str, name: str, by: str, result: ToolResult | None) -> ToolFinished:
    """Makes the result of a call that a person confirmed after its outcome was lost."""
    if result is None:
        text = f"The call took effect, as {by or 'a person'} confirmed; what it returned is lost."
        return ToolFinished(ToolResult(call_id, name, (Text(text),)), synthetic="decided")
    return ToolFinished(ToolResult(call_id, name, result.content, result.error), synthetic="decided")


def edited(result: ToolResult, arguments: str, *, ran: bool) -> ToolResult:
    """The model must know that the result belongs to other arguments than it wrote."""
    changed = f"; it was run with {arguments}" if ran else f" to {arguments}; it was not run"
    note = Text(f"(A person changed the arguments of this call{changed})\n")
    return ToolResult(result.call_id, result.name, (note, *result.content), result.error)


def missing_tools(names: Iterable[str]) -> str:
    return f"Before you give your final answer, these tools must have been used with success: {', '.join(names)}."


def missing_markers(markers: Iterable[str]) -> str:
    listed = ", ".join(repr(marker) for marker in markers)
    return f"Your final answer must contain, exactly as written: {listed}. Give the complete answer again."


_LOST = {
    "timeout": "{name} did not end in time",
    "cancelled": "{name} was under way when it was cancelled",
    "lease_lost": "the worker lost the run while {name} was under way",
    "connection_lost": "the connection was lost while {name} was under way",
    "process_died": "the worker died while {name} was under way",
    "broken": "the result of {name} was lost",
    "interrupted": "{name} was in progress when someone interrupted the run",
}
