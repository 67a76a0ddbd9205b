"""Responses: pieces of a run as events of a stream, and as one object.

The tools that an agent calls are shown as items of type `mcp_call`, the ones that a server has called itself. Clients
show them; a `function_call` they call: those are of tools that the client brought along. An approval that a run waits
for is an `mcp_approval_request`. Clients put the texts of all steps together, so each but the last ends with an empty
line.

A piece of text has the number of its last character, so that a stream has the same numbers however its text is cut into
pieces: while it is written, or told again from the journal. That is what makes any number a place to go on from.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final, Literal, TypeAlias

from foliot.kernel.messages import Usage
from foliot.server.openai.content import handed_out
from foliot.server.runs.waits import waiting_data, waiting_text
from foliot.server.streams.pieces import Called, Ended, Piece, Rested, Returned, Wrote

SERVER_LABEL: Final = "foliot"
DELTA: Final = "response.output_text.delta"
Status: TypeAlias = Literal["queued", "in_progress", "completed", "incomplete", "failed", "cancelled"]
Event: TypeAlias = dict[str, Any]


class ResponseAnswer:
    """One response as it comes about. `echo` are members of the request that the object repeats."""

    def __init__(self, id: str, model: str, created: float, echo: Mapping[str, Any], where: str) -> None:
        """`where` is the run or the task, for people."""
        self.id = id
        self._where = where
        self._model = model
        self._created = int(created)
        self._echo = dict(echo)
        self._status: Status = "in_progress"
        self._output: list[dict[str, Any]] = []
        self._places: dict[str, int] = {}
        self._open: int | None = None
        self._step = 0
        self._usage: Usage | None = None
        self._error: dict[str, Any] | None = None
        self._incomplete: dict[str, Any] | None = None
        self._waiting: dict[str, Any] | None = None
        self._handed = False
        self._sent = -1

    def begin(self) -> list[Event]:
        return [self._event(f"response.{word}", response=self.document()) for word in ("created", "in_progress")]

    def take(self, piece: Piece) -> list[Event]:
        """The events of a piece. The last one holds the whole response."""
        match piece:
            case Wrote(step, text, anew):
                events = self._close("commentary") if step != self._step or anew else []
                self._step = step
                return [*events, *self._write(text)]
            case Called(client=True):
                return [*self._close(), *self._hand_out(piece)]
            case Called():
                return [*self._close("commentary"), *self._call(piece)]
            case Returned():
                return self._return(piece)
            case Rested():
                return self._rest(piece)
            case Ended():
                return self._end(piece)
            case _:
                return []

    def document(self) -> dict[str, Any]:
        return {
            "id": self.id,
            "object": "response",
            "created_at": self._created,
            "status": self._status,
            "error": self._error,
            "incomplete_details": self._incomplete,
            "model": self._model,
            "output": [dict(item) for item in self._output],
            "parallel_tool_calls": True,
            "tool_choice": "auto",
            "tools": [],
            "truncation": "disabled",
            "store": True,
            "usage": None if self._usage is None else response_usage(self._usage),
            **self._echo,
            "foliot": {"run_id": self._where, **({"waiting": self._waiting} if self._waiting else {})},
        }

    # --- text ----------------------------------------------------------------------------------------------------

    def _write(self, text: str) -> list[Event]:
        events: list[Event] = []
        if self._open is None:
            self._open = len(self._output)
            item: dict[str, Any] = {
                "id": f"msg_{self._where}_{self._open}",
                "type": "message",
                "role": "assistant",
                "status": "in_progress",
                "content": [],
            }
            events.append(self._add(item))
            part = _text_part("")
            item["content"] = [part]
            events.append(self._event("response.content_part.added", **self._at(), content_index=0, part=dict(part)))
        part = self._output[self._open]["content"][0]
        part["text"] += text
        self._sent += max(0, len(text) - 1)
        delta = self._event(DELTA, **self._at(), content_index=0, delta=text, logprobs=[])
        return [*events, delta]

    def _close(self, phase: Literal["commentary", "final_answer"] | None = None) -> list[Event]:
        """The message that is being written is whole. Behind a comment there is more to say: it ends its paragraph."""
        if self._open is None:
            return []
        events = self._write("\n\n") if phase == "commentary" else []
        item = self._output[self._open]
        item["status"], item["phase"] = "completed", phase or "commentary"
        part = item["content"][0]
        at = self._at()
        events += [
            self._event("response.output_text.done", **at, content_index=0, text=part["text"], logprobs=[]),
            self._event("response.content_part.done", **at, content_index=0, part=dict(part)),
            self._event("response.output_item.done", output_index=self._open, item=dict(item)),
        ]
        self._open = None
        return events

    def _at(self) -> dict[str, Any]:
        assert self._open is not None, "a message is being written"
        return {"item_id": self._output[self._open]["id"], "output_index": self._open}

    # --- calls ---------------------------------------------------------------------------------------------------

    def _hand_out(self, call: Called) -> list[Event]:
        """A call that the client makes itself."""
        item: dict[str, Any] = {
            "id": f"fc_{self._where}_{call.call_id}",
            "type": "function_call",
            "call_id": handed_out(self._where, call.call_id),
            "name": call.name,
            "arguments": "",
            "status": "in_progress",
        }
        self._handed = True
        added = self._add(item)
        at = {"item_id": item["id"], "output_index": added["output_index"]}
        item["arguments"], item["status"] = call.arguments, "completed"
        return [
            added,
            self._event("response.function_call_arguments.delta", **at, delta=call.arguments),
            self._event("response.function_call_arguments.done", **at, name=call.name, arguments=call.arguments),
            self._event("response.output_item.done", output_index=at["output_index"], item=dict(item)),
        ]

    def _call(self, call: Called) -> list[Event]:
        self._places[call.call_id] = len(self._output)
        item: dict[str, Any] = {
            "id": f"mcp_{call.call_id}",
            "type": "mcp_call",
            "server_label": SERVER_LABEL,
            "name": call.name,
            "arguments": "",
            "status": "in_progress",
            "output": None,
            "error": None,
        }
        # Clients put the arguments together from what comes behind: an item that has them already has them twice.
        added = self._add(item)
        item["arguments"] = call.arguments
        at = {"item_id": item["id"], "output_index": added["output_index"]}
        return [
            added,
            self._event("response.mcp_call.in_progress", **at),
            self._event("response.mcp_call_arguments.delta", **at, delta=call.arguments),
            self._event("response.mcp_call_arguments.done", **at, arguments=call.arguments),
        ]

    def _return(self, returned: Returned) -> list[Event]:
        place = self._places.get(returned.call_id)
        if place is None:  # it was called in an earlier answer, and its approval is what this one began with
            events = self._call(Called(returned.call_id, returned.name, returned.arguments))
            return [*events, *self._return(returned)]
        item = self._output[place]
        item["arguments"] = returned.arguments  # those that it was sent with: a person may have changed them
        item["status"] = "failed" if returned.error else "completed"
        item["output"] = None if returned.error else returned.output
        if returned.error:
            item["error"] = {"type": "mcp_tool_execution_error", "content": returned.error}
        done = "failed" if returned.error else "completed"
        return [
            self._event(f"response.mcp_call.{done}", item_id=item["id"], output_index=place),
            self._event("response.output_item.done", output_index=place, item=dict(item)),
        ]

    # --- the end -------------------------------------------------------------------------------------------------

    def _rest(self, rested: Rested) -> list[Event]:
        if self._handed and all(asked.kind == "call" for asked in rested.asked):
            self._waiting = waiting_data(rested)
            return [*self._close(), self._over("completed", rested.usage)]
        events = self._close("commentary")
        for asked in rested.asked:
            if asked.kind != "approval":
                continue
            item = {
                "id": asked.id,
                "type": "mcp_approval_request",
                "server_label": SERVER_LABEL,
                "name": asked.tool,
                "arguments": asked.arguments,
            }
            events.append(self._add(item))
            events.append(self._event("response.output_item.done", output_index=len(self._output) - 1, item=item))
        events += self._write(waiting_text(rested))
        events += self._close()
        kinds = sorted({asked.kind for asked in rested.asked})
        self._waiting = waiting_data(rested)
        if self._handed:  # the client has something to do first
            return [*events, self._over("completed", rested.usage)]
        return [*events, self._over("incomplete", rested.usage, f"waiting_for_{kinds[0] if kinds else 'budget'}")]

    def _end(self, ended: Ended) -> list[Event]:
        events = self._close("final_answer")
        match ended.phase:
            case "succeeded":
                cut = {"length": "max_output_tokens", "refusal": "content_filter"}.get(ended.stop)
                return [*events, self._over("incomplete" if cut else "completed", ended.usage, cut)]
            case "failed" | "cancelled":
                self._error = {"code": "server_error", "message": ended.error or ended.phase, "reason": ended.reason}
                return [*events, self._over(ended.phase, ended.usage)]

    def _over(self, status: Status, usage: Usage, why: str | None = None) -> Event:
        for item in self._output:
            if item.get("status") == "in_progress":
                item["status"] = "incomplete"
        self._status, self._usage = status, usage
        self._incomplete = {"reason": why} if why else None
        name = "failed" if status == "cancelled" else status
        return self._event(f"response.{name}", response=self.document())

    def _add(self, item: dict[str, Any]) -> Event:
        self._output.append(item)
        return self._event("response.output_item.added", output_index=len(self._output) - 1, item=dict(item))

    def _event(self, type: str, **members: Any) -> Event:
        self._sent += 1
        return {"type": type, "sequence_number": self._sent, **members}


def behind(event: Event, number: int) -> Event | None:
    """Returns the part of an event behind this number: all, nothing, or the rest of a text."""
    unheard = event["sequence_number"] - number
    if unheard <= 0:
        return None
    if event["type"] != DELTA or len(event["delta"]) <= unheard:
        return event
    return {**event, "delta": event["delta"][-unheard:]}


def response_usage(usage: Usage) -> dict[str, Any]:
    return {
        "input_tokens": usage.input_tokens,
        "input_tokens_details": {
            "cached_tokens": usage.cache_read_tokens,
            "cache_write_tokens": usage.cache_write_tokens,
        },
        "output_tokens": usage.output_tokens,
        "output_tokens_details": {"reasoning_tokens": usage.reasoning_tokens},
        "total_tokens": usage.total_tokens,
    }


def _text_part(text: str) -> dict[str, Any]:
    return {"type": "output_text", "text": text, "annotations": [], "logprobs": []}
