"""One JSON object per line on stdout, for programs.

Events of the journal, when they are durable:

    {"type": "tool.finished", "run": "01k…", "seq": 6, "at": 1735689600.1, "data": {…}}

`data` is the event as it is stored (see kernel/events.py), so its shape is kept for ever. Pieces that are only for
show, and are never stored, have no `seq`:

    {"type": "text.delta", "run": "01k…", "step": 1, "data": {"text": "Hel"}}
    {"type": "tool.output", "run": "01k…", "data": {"call_id": "c1", "text": "…"}}

The other pieces are `reasoning.delta`, `tool_call.delta` and `restart.delta`. The last line says how the run stands,
also when it had ended before and nothing happened:

    {"type": "result", "run": "01k…", "data": {"phase": "succeeded", "output": "…", "value": null, "steps": 2, …}}
"""

from __future__ import annotations

import sys
from typing import Any

import msgspec

from foliot.cli.runview.base import Opening
from foliot.cli.terminal import out
from foliot.engine.live import Live, Output, Recorded, Streamed
from foliot.kernel.codec import encode, type_of
from foliot.printable import visible_json
from foliot.results import RunResult


class JsonView:
    def __init__(self) -> None:
        self._out = sys.stdout  # as it is now: while tools run, what they print is sent elsewhere

    def begin(self, opening: Opening) -> None:
        pass

    def show(self, item: Live) -> None:
        self._print(as_dict(item))

    def tick(self) -> None:
        pass

    def note(self, text: str) -> None:
        out(text, err=True)

    def end(self, result: RunResult | None, seconds: float) -> bool:
        if result is not None:
            self._print({"type": "result", "run": result.run_id, "data": result_dict(result)})
        return True

    def _print(self, value: dict[str, Any]) -> None:
        out(visible_json(msgspec.json.encode(value).decode()), file=self._out)


def as_dict(item: Live) -> dict[str, Any]:
    match item:
        case Recorded(run_id=run_id, seq=seq, at=at, event=event):
            data = msgspec.json.decode(encode(event))
            data.pop("type", None)
            return {"type": type_of(event), "run": run_id, "seq": seq, "at": at, "data": data}
        case Streamed(run_id=run_id, step=step, delta=delta):
            data = msgspec.to_builtins(delta)
            return {"type": data.pop("type"), "run": run_id, "step": step, "data": data}
        case Output(run_id=run_id, call_id=call_id, text=text):
            return {"type": "tool.output", "run": run_id, "data": {"call_id": call_id, "text": text}}


def result_dict(result: RunResult) -> dict[str, Any]:
    return {
        "phase": result.phase,
        "output": result.output,
        "value": result.value,
        "error": result.error,
        "reason": result.reason,
        "steps": result.steps,
        "usage": msgspec.to_builtins(result.usage),
        "waiting": msgspec.to_builtins(result.waiting) if result.waiting else None,
    }
