"""Results and pieces of output on their way to whoever called."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Awaitable, Callable
from typing import Any, Final
from uuid import uuid4

from foliot.stopping import stop_tasks
from foliot.tools.base import OnOutput
from foliot.tools.serving.callers import KnownCaller
from foliot.tools.serving.handling import PublishFailed
from foliot.tools.serving.messages import (
    CallMessage,
    Meta,
    OutputMessage,
    ResultMessage,
    encode,
    output_subject,
    result_dedupe_id,
    result_subject,
)
from foliot.tools.serving.metrics import Metrics

SENDER: Final = "foliot-tools"
_MOST_WAITING: Final = 256
_LAST_PIECES_SECONDS: Final = 1.0


class NatsPublisher:
    """Results go through JetStream, each stored once; output is heard by whoever listens, and kept by nobody."""

    def __init__(self, client: Any, js: Any, metrics: Metrics, clock: Callable[[], float] = time.time) -> None:
        self._client = client
        self._js = js
        self._metrics = metrics
        self._clock = clock

    async def result(
        self, call: CallMessage, result: ResultMessage, to: KnownCaller | None, *, approval: bool = False
    ) -> None:
        from nats.errors import Error, MaxPayloadError

        subject = result_subject(call.id, to.prefix if to is not None else "")
        assert subject is not None, "checked when the call was read"
        dedupe = result_dedupe_id(call.execution_id, approval=approval)
        data = encode(dedupe, result, self._meta())
        if to is None:
            # Somebody unknown is told why. Under an id of its own: it must not use up that of a caller's result.
            headers = {"Nats-Msg-Id": uuid4().hex}
        elif to.signer is not None:
            headers = {"Nats-Msg-Id": to.signer.dedupe(dedupe)} | to.signer.sign("result", subject, data)
        else:
            headers = {"Nats-Msg-Id": dedupe}
        try:
            await self._js.publish(subject, data, headers=headers)
        except MaxPayloadError:
            raise PublishFailed(too_large=True) from None
        except (Error, TimeoutError):
            raise PublishFailed from None

    def output(self, call: CallMessage, to: KnownCaller) -> tuple[OnOutput, Callable[[], Awaitable[None]]]:
        """The tool is never held up: when pieces come faster than they can be sent, the newest are dropped."""
        waiting: asyncio.Queue[str | None] = asyncio.Queue(_MOST_WAITING)
        sender: asyncio.Task[None] | None = None

        def on_output(text: str) -> None:
            nonlocal sender
            if sender is None:
                sender = asyncio.create_task(self._send(call, to, waiting))
            try:
                waiting.put_nowait(text)
            except asyncio.QueueFull:
                self._metrics.count("outputs_dropped_total")

        async def ended() -> None:
            if sender is None:
                return
            with contextlib.suppress(asyncio.QueueFull):
                waiting.put_nowait(None)
            _, late = await asyncio.wait({sender}, timeout=_LAST_PIECES_SECONDS)
            for task in late:
                await stop_tasks(task)

        return on_output, ended

    async def _send(self, call: CallMessage, to: KnownCaller, waiting: asyncio.Queue[str | None]) -> None:
        from nats.errors import Error

        seq, subject = 0, output_subject(call.execution_id, to.prefix)
        while (text := await waiting.get()) is not None:
            seq += 1
            data = encode(call.id, OutputMessage(call.execution_id, seq, text), self._meta())
            headers = to.signer.sign("output", subject, data) if to.signer is not None else None
            try:
                await self._client.publish(subject, data, headers=headers)
            except Error:
                self._metrics.count("outputs_dropped_total")

    def _meta(self) -> Meta:
        return Meta(SENDER, round(self._clock() * 1000))
