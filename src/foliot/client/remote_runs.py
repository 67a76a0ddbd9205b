"""Runs that a server drives: begun and taken up there, and watched from here while they go on."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import aclosing
from typing import Any, Final
from urllib.parse import quote

import msgspec
from msgspec import Struct

from foliot.client import wire
from foliot.client.asking import Asking
from foliot.client.run_standing import ForkOrder, Replayed, RunOrder, RunStanding
from foliot.client.work import Settled
from foliot.engine.live import Live, Output, Recorded, Streamed
from foliot.kernel.codec import decode
from foliot.kernel.messages import Delta
from foliot.store.doubts import Doubt, DoubtPage
from foliot.store.runs import RunInfo

RUNS: Final = "/v1/work/runs"


class Left(Struct, frozen=True):
    runs: list[RunInfo]


class _Event(Struct, frozen=True):
    type: str
    run: str
    seq: int
    at: float
    data: dict[str, Any]


class _Piece(Struct, frozen=True):
    step: int
    delta: Delta


class _Output(Struct, frozen=True):
    call: str
    text: str


class RemoteRuns(Asking):
    """What is only asked of a server: in this process a runtime does it."""

    async def begin_run(self, order: RunOrder) -> RunInfo:
        """Have an agent do something; the run is durable on return, and goes on there whoever watches.

        A run of this id that exists already is gone on with. Raises `NotFound` (the agent), `Conflict` when the id
        belongs to other work, `InvalidInput`.
        """
        return await self._post(RUNS, order, RunInfo, namespace=order.namespace, repeatable=True)

    async def resume_run(self, run_id: str) -> RunInfo:
        """Have a run go on that nobody drives. One that has ended, or that is driven, stays as it is."""
        return await self._post(f"{_at(run_id)}/resume", {}, RunInfo, repeatable=True)

    async def live(self, run_id: str, *, after: int = 0) -> AsyncGenerator[Live]:
        """What happens to a run behind the event `after`, until it has ended: each event once, whatever breaks.

        Pieces of answers and of output come between, when the run is driven by the server that answers.
        """
        path = f"/v1/runs/{quote(run_id, safe='')}/events"
        async with aclosing(self._http.stream(path, after=str(after))) as events:
            async for event in events:
                match event.name:
                    case "event":
                        yield _recorded(wire.read(event.data, _Event))
                    case "delta":
                        piece = wire.read(event.data, _Piece)
                        yield Streamed(run_id, piece.step, piece.delta)
                    case "output":
                        printed = wire.read(event.data, _Output)
                        yield Output(run_id, printed.call, printed.text)
                    case _:
                        pass

    async def standing(self, run_id: str) -> RunStanding:
        return await self._get(f"{_at(run_id)}/standing", RunStanding)

    async def fork_run(self, run_id: str, order: ForkOrder) -> RunInfo:
        """Begin a run that shares the past of another; durable on return. Raises `NotFound`, `InvalidInput`."""
        return await self._post(f"{_at(run_id)}/fork", order, RunInfo, repeatable=True)

    async def replay_run(self, run_id: str) -> Replayed:
        return await self._get(f"{_at(run_id)}/replay", Replayed)

    async def interrupted(self, namespace: str | None = None) -> list[RunInfo]:
        return (await self._get("/v1/work/interrupted", Left, namespace=namespace)).runs

    async def unknown_calls(
        self, namespace: str | None = None, *, ended: bool = False, limit: int = 100, after: str | None = None
    ) -> DoubtPage:
        """See `Work`. A server gives a thousand at most with one answer: more are asked for one after another."""
        calls: list[Doubt] = []
        while True:
            asked = {"ended": str(ended).lower(), "limit": str(limit - len(calls)), "after": after}
            page = await self._get("/v1/work/unknown", DoubtPage, namespace=namespace, **asked)
            calls += page.calls
            if len(calls) >= limit or page.cursor is None:
                return DoubtPage(calls, page.total, page.cursor)
            after = page.cursor

    async def settle_call(
        self,
        run_id: str,
        call: str,
        decision: Settled,
        *,
        result: str | None = None,
        by: str = "",
        reason: str = "",
    ) -> RunInfo:
        """See `Work`."""
        body = {"call": call, "decision": decision, "result": result, "by": by, "reason": reason}
        return await self._post(f"{_at(run_id)}/settle", body, RunInfo)


def _at(run_id: str) -> str:
    return f"{RUNS}/{quote(run_id, safe='')}"


def _recorded(told: _Event) -> Recorded:
    return Recorded(told.run, told.seq, told.at, decode(msgspec.json.encode({"type": told.type, **told.data})))
