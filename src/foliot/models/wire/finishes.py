"""Why an answer ended, in the words of each format, and what follows from it.

    end       the answer is whole
    cut       it is not, and the model is asked for a shorter one; one that paused goes on
    refusal   the model, or a filter before it, does not want to answer
    failure   it broke off: the question is asked again, as after a lost connection

A reason that stands in no table is a failure: a word that nobody knows must not make half an answer a whole one.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, Literal, TypeAlias

from foliot.kernel.messages import StopReason
from foliot.models.wire.base import WireError

Finish: TypeAlias = Literal["end", "cut", "refusal", "failure"]

CHAT: Final[Mapping[str, Finish]] = {
    "stop": "end",
    "tool_calls": "end",
    "function_call": "end",
    "length": "cut",
    "content_filter": "refusal",
    # What servers that are like OpenAI say besides, compared in lower case.
    "eos": "end",
    "eos_token": "end",
    "end_turn": "end",
    "stop_sequence": "end",
    "tool_use": "end",
    "max_tokens": "cut",
    "model_length": "cut",  # Mistral: the context is full
    "refusal": "refusal",
    "safety": "refusal",
    "recitation": "refusal",
    "sensitive": "refusal",
    "abort": "failure",  # vLLM, SGLang
    "error": "failure",  # Mistral, OpenRouter
    "network_error": "failure",
    "repetition": "failure",
    "insufficient_system_resource": "failure",  # DeepSeek
}
RESPONSES: Final[Mapping[str, Finish]] = {
    "completed": "end",
    # What `incomplete_details` give as the reason.
    "max_output_tokens": "cut",
    "max_messages": "cut",
    "content_filter": "refusal",
    "steered": "failure",
    "queued": "failure",
    "in_progress": "failure",
    "cancelled": "failure",
    "failed": "failure",
}
MESSAGES: Final[Mapping[str, Finish]] = {
    "end_turn": "end",
    "stop_sequence": "end",
    "tool_use": "end",
    "max_tokens": "cut",
    "pause_turn": "cut",
    "model_context_window_exceeded": "cut",
    "refusal": "refusal",
}
GEMINI: Final[Mapping[str, Finish]] = {
    "STOP": "end",
    "MAX_TOKENS": "cut",
    "CONTINUATION": "cut",
    "SAFETY": "refusal",
    "RECITATION": "refusal",
    "LANGUAGE": "refusal",
    "BLOCKLIST": "refusal",
    "PROHIBITED_CONTENT": "refusal",
    "SPII": "refusal",
    "IMAGE_SAFETY": "refusal",
    "IMAGE_PROHIBITED_CONTENT": "refusal",
    "IMAGE_RECITATION": "refusal",
    "FINISH_REASON_UNSPECIFIED": "failure",
    "OTHER": "failure",
    "IMAGE_OTHER": "failure",
    "NO_IMAGE": "failure",
    "MALFORMED_FUNCTION_CALL": "failure",
    "MALFORMED_RESPONSE": "failure",
    "UNEXPECTED_TOOL_CALL": "failure",
    "TOO_MANY_TOOL_CALLS": "failure",
}
OLLAMA: Final[Mapping[str, Finish]] = {
    "stop": "end",
    "length": "cut",
    "load": "failure",
    "unload": "failure",
}
# The turn is the model's still: it goes on where it was, without a word from anybody.
_PAUSES: Final = frozenset({"pause_turn"})
_LONGEST: Final = 60


def stop_of(table: Mapping[str, Finish], reason: str | None, *, calls: bool, refused: bool = False) -> StopReason:
    """Foliot's word for why an answer ended. Raises `WireError` for one that broke off.

    `calls`: it asks for tools, which many servers do not say in the reason; `refused`: a refusal stands in its place.
    """
    finish = table.get(reason or "", "failure")
    if finish == "failure":
        why = f"({reason[:_LONGEST]})" if reason else "and does not say why it ended"
        raise WireError(f"its answer broke off {why}")
    if finish == "cut":
        return "pause" if reason in _PAUSES else "length"
    if finish == "refusal":
        return "refusal"
    return "tool_calls" if calls else "refusal" if refused else "end"
