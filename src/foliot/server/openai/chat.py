"""Chat completions: pieces of a run as chunks, and as one answer.

The tools that an agent calls have been called by the time a client hears of them. They are shown in a member of our
own, `foliot`, and never as `tool_calls`: whoever reads those would call them a second time. `tool_calls` are the calls
of tools that the client brought along; the run waits for their results.
"""

from __future__ import annotations

from typing import Any, Final, Literal, TypeAlias

from foliot.kernel.messages import StopReason, Usage
from foliot.server.openai.content import handed_out
from foliot.server.runs.waits import waiting_data, waiting_text
from foliot.server.streams.pieces import Called, Ended, Piece, Printed, Rested, Returned, Worked, Wrote

PREFIX: Final = "chatcmpl-"
FinishReason: TypeAlias = Literal["stop", "length", "content_filter", "tool_calls"]
_FINISH: Final[dict[StopReason, FinishReason]] = {"length": "length", "refusal": "content_filter"}


class Chat:
    """One answer as it comes about: `chunks` for a stream, `document` in the end."""

    def __init__(self, run_id: str, model: str, created: float, *, include_usage: bool = False, after: int = 0) -> None:
        """The first `after` events of the run were told in an earlier answer."""
        self.id = f"{PREFIX}{run_id}.{after}" if after else PREFIX + run_id
        self._run_id = run_id
        self._model = model
        self._created = int(created)
        self._include_usage = include_usage
        self._step = 0
        self._begun = False
        self._calls: dict[str, dict[str, Any]] = {}
        self._handed: list[dict[str, Any]] = []
        self._said = ""
        self._text: str | None = ""
        self._finish: FinishReason = "stop"
        self._usage = Usage()
        self._waiting: dict[str, Any] | None = None

    def chunks(self, piece: Piece) -> list[dict[str, Any]]:
        """Returns the chunks of a piece. An end that is a failure sends none: it is an error."""
        match piece:
            case Wrote(step, text, anew):
                # Text that was sent cannot be taken back, so a step, and an answer that began anew, is a paragraph.
                apart = self._step and (step != self._step or anew)
                self._step = step
                return [self._chunk({"content": f"\n\n{text}" if apart else text})]
            case Called(client=True):
                return self._hand_out(piece)
            case Called(call_id, name, arguments):
                self._calls[call_id] = call = {"id": call_id, "name": name, "arguments": arguments}
                return [self._chunk({}, foliot={"type": "tool.called", **call})]
            case Returned(call_id, name, _, error, arguments):
                self._returned(piece)
                told = {"type": "tool.returned", "id": call_id, "name": name, "arguments": arguments, "error": error}
                return [self._chunk({}, foliot=told)]
            case Printed(call_id, text):
                return [self._chunk({}, foliot={"type": "tool.output", "id": call_id, "text": text})]
            case Worked(agent, run_id, phase):
                return [self._chunk({}, foliot={"type": "agent", "agent": agent, "run_id": run_id, "phase": phase})]
            case Rested() if self._handed and all(asked.kind == "call" for asked in piece.asked):
                return self._last("tool_calls", piece.usage)
            case Rested():
                text = waiting_text(piece)
                said = self._chunk({"content": f"\n\n{text}" if self._step else text}, foliot=waiting_data(piece))
                return [said, *self._last("tool_calls" if self._handed else "stop", piece.usage)]
            case Ended("succeeded"):
                return self._last(_FINISH.get(piece.stop, "stop"), piece.usage)
            case _:
                return []

    def take(self, piece: Piece) -> None:
        """Remember what the one answer in the end is made of."""
        match piece:
            case Wrote(step, text, anew):
                self._said = text if anew or step != self._step else self._said + text
                self._step = step
            case Called(client=True):
                self._handed.append(self._tool_call(piece))
            case Called(call_id, name, arguments):
                self._calls[call_id] = {"id": call_id, "name": name, "arguments": arguments}
            case Returned():
                self._returned(piece)
            case Rested():
                self._usage, self._waiting = piece.usage, waiting_data(piece)
                self._text = waiting_text(piece)
                if self._handed:
                    self._finish = "tool_calls"
                    if all(asked.kind == "call" for asked in piece.asked):
                        self._text = self._said or None
            case Ended("succeeded"):
                self._text, self._usage = piece.output, piece.usage
                self._finish = _FINISH.get(piece.stop, "stop")
            case _:
                pass

    def document(self) -> dict[str, Any]:
        """The whole answer: what the agent said last."""
        return {
            "id": self.id,
            "object": "chat.completion",
            "created": self._created,
            "model": self._model,
            "choices": [
                {
                    "index": 0,
                    "message": {
                        "role": "assistant",
                        "content": self._text,
                        "refusal": None,
                        **({"tool_calls": self._handed} if self._finish == "tool_calls" else {}),
                    },
                    "finish_reason": self._finish,
                    "logprobs": None,
                }
            ],
            "usage": chat_usage(self._usage),
            "foliot": {
                "run_id": self._run_id,
                "tool_calls": list(self._calls.values()),
                **({"waiting": self._waiting} if self._waiting else {}),
            },
        }

    def _tool_call(self, call: Called) -> dict[str, Any]:
        function = {"name": call.name, "arguments": call.arguments}
        return {"id": handed_out(self._run_id, call.call_id), "type": "function", "function": function}

    def _hand_out(self, call: Called) -> list[dict[str, Any]]:
        """A call that the client makes: first what is called, then with which arguments, as it expects them."""
        index, whole = len(self._handed), self._tool_call(call)
        self._handed.append(whole)
        begun = {"index": index, **whole, "function": {"name": call.name, "arguments": ""}}
        written = {"index": index, "function": {"arguments": call.arguments}}
        return [self._chunk({"tool_calls": [each]}) for each in (begun, written)]

    def _returned(self, piece: Returned) -> None:
        call = self._calls.setdefault(piece.call_id, {"id": piece.call_id, "name": piece.name})
        call["arguments"] = piece.arguments  # those that it was sent with: a person may have changed them
        if piece.error:
            call["error"] = piece.error

    def _last(self, finish: FinishReason, usage: Usage) -> list[dict[str, Any]]:
        chunks = [self._chunk({}, finish)]
        if self._include_usage:
            chunks.append({**self._chunk({}), "choices": [], "usage": chat_usage(usage)})
        return chunks

    def _chunk(
        self, delta: dict[str, Any], finish: FinishReason | None = None, *, foliot: dict[str, Any] | None = None
    ) -> dict[str, Any]:
        if not self._begun:
            self._begun = True
            delta = {"role": "assistant", "content": "", **delta}
        chunk: dict[str, Any] = {
            "id": self.id,
            "object": "chat.completion.chunk",
            "created": self._created,
            "model": self._model,
            "choices": [{"index": 0, "delta": delta, "finish_reason": finish, "logprobs": None}],
        }
        if self._include_usage:
            chunk["usage"] = None
        if foliot is not None:
            chunk["foliot"] = {"run_id": self._run_id, **foliot}
        return chunk


def chat_usage(usage: Usage) -> dict[str, Any]:
    return {
        "prompt_tokens": usage.input_tokens,
        "completion_tokens": usage.output_tokens,
        "total_tokens": usage.total_tokens,
        "prompt_tokens_details": {"cached_tokens": usage.cache_read_tokens},
        "completion_tokens_details": {"reasoning_tokens": usage.reasoning_tokens},
    }
