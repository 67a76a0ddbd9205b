"""`ToolServer`: tools of a pipeline, served to whoever publishes calls on NATS.

    server = ToolServer(Pipeline([search]), NatsLink(NatsOptions(url)), callers=load_callers(path))
    await server.start()
    …
    await server.stop()

In:   `tool.execute.>` through a durable consumer, which all servers of a deployment share; `tool.list` as a request.
Out:  `tool.result.<call id>` through JetStream; `tool.output.<execution id>`.

Every call passes the same pipeline as any other call. What a delivery comes to is in calls.py.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import math
import time
from collections.abc import Awaitable, Callable, Iterable, Sequence
from typing import Any, Final, TypeAlias
from uuid import uuid4

import msgspec
from msgspec import Struct

from foliot.bus.nats_link import NatsLink
from foliot.common.cancellation import stop_tasks
from foliot.errors import Conflict, FoliotError, InvalidInput, Unavailable
from foliot.kernel.backoff import backoff
from foliot.tools.base import OnOutput, ToolDefinition
from foliot.tools.nats_worker.callers import Callers, KnownCaller
from foliot.tools.nats_worker.calls import AgentLookup, Disposition, Handler, PublishFailed, ServedTools
from foliot.tools.nats_worker.ledger import BUCKET, Ledger, StoreFailed
from foliot.tools.nats_worker.messages import (
    EVERY_CALL,
    LIST,
    CallMessage,
    Meta,
    OutputMessage,
    ResultMessage,
    call_subject,
    encode,
    output_subject,
    result_dedupe_id,
    result_subject,
)
from foliot.tools.nats_worker.metrics import WorkerHealth, WorkerMetrics
from foliot.tools.registry import schema_digest

# --- listing ---------------------------------------------------------------------------------------------------------

# Discovery: which tools a server has, and which of them may be called.

_EFFECTS: Final = {"read": "read_only", "idempotent": "mutating", "once": "external_effect"}
_encode = msgspec.json.Encoder(enc_hook=str).encode

WhyNot: TypeAlias = Callable[[ToolDefinition], str | None]


class ToolQuery(Struct, frozen=True, forbid_unknown_fields=True):
    """Which tools are asked for; a blank field is no limit. A field that nobody here knows is refused, not ignored."""

    name: str = ""
    category: str = ""
    effect: str = ""
    namespace: str = ""


_filter = msgspec.json.Decoder(ToolQuery)


def read_filter(data: bytes) -> ToolQuery:
    """Decodes the filter of a request; an empty request asks for everything. Raises `ValueError` for an unreadable one.

    A filter that cannot be read must not become no filter.
    """
    if not data.strip():
        return ToolQuery()
    try:
        return _filter.decode(data)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise ValueError(f"the filter cannot be read: {error}") from None


def listing(tools: Iterable[ToolDefinition], wanted: ToolQuery, why_not: WhyNot) -> bytes:
    """The answer to `tool.list`: tools by name, each with its schema as declared and whether it may be called."""
    found = [_entry(tool, why_not(tool)) for tool in sorted(tools, key=lambda tool: tool.name) if _fits(tool, wanted)]
    return _encode({"tools": found})


def _fits(tool: ToolDefinition, wanted: ToolQuery) -> bool:
    return (
        wanted.name in ("", tool.name)
        and wanted.category in ("", tool.category)
        and wanted.effect in ("", tool.effect, _EFFECTS[tool.effect])
        and wanted.namespace in ("", tool.namespace)
    )


def _entry(tool: ToolDefinition, why_not: str | None) -> dict[str, Any]:
    entry = {
        "name": tool.name,
        "description": tool.description,
        "provider": "internal",
        "available": why_not is None,
        "effect": _EFFECTS[tool.effect],
        "category": tool.category,
        "version": tool.version,
        "parameters": tool.schema if tool.schema is not None else {"type": "object"},
        "schema_digest": schema_digest(tool.schema),
    }
    return entry if why_not is None else {**entry, "reason": why_not}


# --- publishing ------------------------------------------------------------------------------------------------------

# Results and pieces of output on their way to whoever called.

SENDER: Final = "foliot-tools"
_MOST_WAITING: Final = 256
_LAST_PIECES_SECONDS: Final = 1.0


class NatsPublisher:
    """Results go through JetStream, each stored once; output is heard by whoever listens, and kept by nobody."""

    def __init__(self, client: Any, js: Any, metrics: WorkerMetrics, clock: Callable[[], float] = time.time) -> None:
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


# --- stream ----------------------------------------------------------------------------------------------------------

# The JetStream stream that keeps calls and results.

STREAM: Final = "AGENT"
CAPTURED: Final = ("tool.execute.>", "tool.result.*")
_WEEK: Final = 7 * 24 * 3600.0


async def ensure_stream(js: Any, *, name: str = STREAM, prefixes: Sequence[str] = ()) -> None:
    """Make the stream that keeps calls and results, unless there is one already. `prefixes` end with a dot."""
    from nats.js.api import StreamConfig
    from nats.js.errors import NotFoundError

    try:
        await js.stream_info(name)
    except NotFoundError:
        subjects = [f"{prefix}{subject}" for prefix in ("", *prefixes) for subject in CAPTURED]
        await js.add_stream(StreamConfig(name=name, subjects=subjects, max_age=_WEEK))


async def wait_for_stream(js: Any, *, name: str, tries: int, sleep: Callable[[float], Awaitable[None]]) -> None:
    """Waits until the stream exists: the operator of the deployment creates it. Raises `Unavailable`."""
    from nats.errors import Error
    from nats.js.errors import NotFoundError

    why = "it is not there"
    for attempt in range(tries):
        try:
            await js.stream_info(name)
            return
        except NotFoundError:
            why = "it is not there"
        except (Error, TimeoutError) as error:
            why = type(error).__name__
        if attempt + 1 < tries:
            await sleep(backoff(attempt + 1, 0.1, 2.0))
    raise Unavailable(
        f"the JetStream stream {name!r} cannot be used: {why}",
        hint="make it with the subjects tool.execute.> and tool.result.*, or start with --create-stream",
    )


# --- server ----------------------------------------------------------------------------------------------------------

log = logging.getLogger(__name__)

CONSUMER: Final = "foliot-tools"


class ServerConfig(Struct, frozen=True, kw_only=True):
    """`shared`: other programs serve other tools, so only calls of one's own are taken; otherwise a call of a tool that
    is not here is answered with that. `allowed_tools` None or empty allows all. Times are in seconds.
    """

    stream: str = STREAM
    create_stream: bool = False
    stream_tries: int = 30
    bucket: str = BUCKET
    consumer_suffix: str = ""
    shared: bool = False
    list_subject: str = LIST
    allowed_tools: tuple[str, ...] | None = None
    concurrency: int = 3
    max_deliver: int = 3
    ack_wait: float = 300.0
    call_limit: float = 600.0
    redelivery: tuple[float, ...] = (15.0, 60.0)
    fetch: float = 1.0

    def check(self) -> None:
        """Raises `InvalidInput`."""
        if self.concurrency < 1 or self.max_deliver < 1 or not self.redelivery:
            raise InvalidInput("a tool server needs room for one call, one delivery and one delay at least")
        # Written so that NaN, which is neither above nor below anything, does not pass.
        if not all(0 < time < math.inf for time in (self.ack_wait, self.call_limit, self.fetch, *self.redelivery)):
            raise InvalidInput("the times of a tool server must be above zero, and finite")
        if not self.list_subject.strip() or any(token in self.list_subject for token in ("*", ">", " ")):
            raise InvalidInput(f"{self.list_subject!r} is not one subject", hint="tools are listed on exactly one")


class ToolServer:
    """Started once, stopped once. `health()` and `metrics` tell how it is at any time."""

    def __init__(
        self,
        tools: ServedTools,
        link: NatsLink,
        config: ServerConfig | None = None,
        *,
        callers: Callers | None = None,
        agents: AgentLookup | None = None,
        clock: Callable[[], float] = time.time,
    ) -> None:
        """Makes the server. Without `callers` every call is refused."""
        self._config = config or ServerConfig()
        self._config.check()
        self._callers = callers or Callers()
        self._agents = agents
        self._tools = tools
        self._link = link
        self._clock = clock
        self._health = WorkerHealth(clock)
        self.metrics = WorkerMetrics()
        self.metrics.registered = len(tools.definitions)
        self._handler: Handler | None = None
        self._client: Any = None
        self._consumer: Any = None
        self._discovery: Any = None
        self._taking: asyncio.Task[None] | None = None
        self._calls: set[asyncio.Task[None]] = set()
        self._slots = asyncio.Semaphore(self._config.concurrency)
        self._stopping = False

    @property
    def consumer_name(self) -> str:
        """The durable consumer: servers with the same name share the work."""
        subjects = "own" if self._config.shared else EVERY_CALL.replace(".", "-").replace(">", "all")
        prefixes = "-".join(prefix.replace(".", "_") for prefix in self._callers.prefixes)
        return "-".join(filter(None, (CONSUMER, subjects, prefixes.rstrip("_"), self._config.consumer_suffix)))

    def health(self) -> dict[str, Any]:
        if self._taking is not None and self._link.client is None:
            self._health.trouble("nats", "the connection to NATS is lost")
        else:
            self._health.well("nats")
        return {**self._health.as_dict(), "in_flight": len(self._calls), "tools": self.metrics.registered}

    # --- starting and stopping -----------------------------------------------------------------------------------

    async def start(self) -> None:
        """Take calls from now on. Whatever cannot be set up undoes the rest. Raises `Unavailable`, `Conflict`."""
        if self._health.state != "stopped" or self._stopping:
            raise Conflict("a tool server is started once only")
        self._health.become("starting")
        try:
            await self._set_up()
        except BaseException:
            await self._unsubscribe()
            self._health.become("failed")
            raise
        self._taking = asyncio.create_task(self._take_calls())
        self._taking.add_done_callback(self._took_last)
        self._health.become("ready")

    async def stop(self, *, within: float = 30.0) -> None:
        """Take nothing new, let what is under way finish within a time, then let it go to be delivered again."""
        if self._stopping:
            return
        self._stopping = True
        if self._taking is None:
            self._health.become("stopped")
            return
        self._health.become("draining")
        await self._unsubscribe(discovery_only=True)
        now = asyncio.get_running_loop().time
        ends_at = now() + within
        # Not cancelled at once: a call that arrives at that moment would be lost until its acknowledgement is overdue.
        await asyncio.wait({self._taking, *self._calls}, timeout=max(within, self._config.fetch))
        if self._calls:
            await asyncio.wait(self._calls, timeout=max(0.0, ends_at - now()))
        await stop_tasks(self._taking, *self._calls)
        await self._unsubscribe()
        self._health.become("stopped")

    async def _set_up(self) -> None:
        """Make what belongs to one client: publisher, ledger, discovery, consumer. Raises `Unavailable`."""
        client: Any = await self._link.reached()
        js = await self._link.jetstream()
        if self._config.create_stream:
            await ensure_stream(js, name=self._config.stream, prefixes=self._callers.prefixes)
        await wait_for_stream(js, name=self._config.stream, tries=self._config.stream_tries, sleep=asyncio.sleep)
        publisher = NatsPublisher(client, js, self.metrics, self._clock)
        ledger = await Ledger.open(js, bucket=self._config.bucket, largest=client.max_payload)
        if self._handler is None:
            self._handler = Handler(
                self._tools,
                publisher,
                self.metrics,
                self._health,
                allowed=self._config.allowed_tools,
                callers=self._callers,
                agents=self._agents,
                limit_seconds=self._config.call_limit,
                clock=self._clock,
            )
        self._handler.publisher, self._handler.ledger = publisher, ledger
        self._discovery = await client.subscribe(self._config.list_subject, queue=self.consumer_name, cb=self._list)
        self._consumer = await self._consume(js)
        self._client = client

    async def _consume(self, js: Any) -> Any:
        from nats.js.api import AckPolicy, ConsumerConfig, DeliverPolicy

        config = ConsumerConfig(
            durable_name=self.consumer_name,
            deliver_policy=DeliverPolicy.NEW,
            ack_policy=AckPolicy.EXPLICIT,
            ack_wait=self._config.ack_wait,
            max_deliver=self._config.max_deliver,
            max_ack_pending=1000,  # the bound is on each server, see `concurrency`; this one is on all of them
        )
        prefixes = ("", *self._callers.prefixes)
        if self._config.shared:
            subjects = [call_subject(name, prefix) for name in self._tools.definitions for prefix in prefixes]
            config.filter_subjects = sorted(subject for subject in subjects if subject is not None)
        elif len(prefixes) > 1:
            config.filter_subjects = [f"{prefix}{EVERY_CALL}" for prefix in prefixes]
        else:
            config.filter_subject = EVERY_CALL
        await js.add_consumer(self._config.stream, config)
        return await js.pull_subscribe_bind(self.consumer_name, stream=self._config.stream)

    async def _unsubscribe(self, *, discovery_only: bool = False) -> None:
        from nats.errors import Error

        held = (self._discovery,) if discovery_only else (self._discovery, self._consumer)
        self._discovery = None
        if not discovery_only:
            self._consumer = None
        for subscription in held:
            if subscription is not None:
                with contextlib.suppress(Error):
                    await subscription.unsubscribe()

    # --- calls ---------------------------------------------------------------------------------------------------

    async def _take_calls(self) -> None:
        from nats.errors import Error

        assert self._handler is not None
        while not self._stopping:
            if not await self._may_take():
                await asyncio.sleep(min(self._config.redelivery))
                continue
            async with self._slots:
                pass  # until there is room; only this task starts calls
            if self._stopping:
                break
            try:
                for msg in await self._consumer.fetch(1, timeout=self._config.fetch):
                    await self._slots.acquire()
                    task = asyncio.create_task(self._deliver(msg))
                    self._calls.add(task)
                    task.add_done_callback(self._done)
            except TimeoutError:
                continue  # nobody called
            except (Error, ConnectionError) as error:
                log.info("calls cannot be fetched: %s", type(error).__name__)
                await asyncio.sleep(0.2)
                await self._follow_link()

    async def _follow_link(self) -> None:
        """Take calls from the link's new client after the old one gave up for good: a server refused it for a while."""
        from nats.errors import Error

        if self._client.is_closed:
            with contextlib.suppress(Unavailable, Error, TimeoutError):
                await self._set_up()

    async def _may_take(self) -> bool:
        """A server that cannot keep what it did takes nothing new."""
        assert self._handler is not None
        if not self._handler.must_hold:
            return True
        try:
            await self._handler.settle()
        except StoreFailed:
            return False
        return True

    def _took_last(self, task: asyncio.Task[None]) -> None:
        if not task.cancelled() and (error := task.exception()) is not None:
            log.error("no more calls are taken", exc_info=error)
            self._health.trouble("taking", f"no more calls are taken: {type(error).__name__}")
            self._health.become("failed")

    def _done(self, task: asyncio.Task[None]) -> None:
        self._calls.discard(task)
        self._slots.release()
        if not task.cancelled() and (error := task.exception()) is not None:
            log.error("a delivery broke", exc_info=error)
            self._health.errors += 1

    async def _deliver(self, msg: Any) -> None:
        """Handle one delivery and settle it; while it lasts, NATS is told that somebody is on it."""
        from nats.errors import Error

        assert self._handler is not None
        beating = asyncio.create_task(self._beat(msg))
        disposition = Disposition.RETRY
        try:
            disposition = await self._handler.handle(msg.subject, msg.headers, msg.data)
        except FoliotError as error:
            log.error("a call failed outside its tool: %s", error.message)
        finally:
            await stop_tasks(beating)
            with contextlib.suppress(Error):  # what cannot be settled is delivered again, and answered from the ledger
                await self._settle(msg, disposition)

    async def _settle(self, msg: Any, disposition: Disposition) -> None:
        match disposition:
            case Disposition.ACK:
                await msg.ack()
            case Disposition.TERMINATE:
                await msg.term()
            case Disposition.RETRY | Disposition.QUARANTINE:
                delays = self._config.redelivery
                await msg.nak(delay=delays[min(msg.metadata.num_delivered, len(delays)) - 1])

    async def _beat(self, msg: Any) -> None:
        from nats.errors import Error

        while True:
            await asyncio.sleep(min(self._config.ack_wait / 3, 120.0))
            with contextlib.suppress(Error):
                await msg.in_progress()

    async def _list(self, msg: Any) -> None:
        assert self._handler is not None
        try:
            answer = listing(self._tools.definitions.values(), read_filter(msg.data), self._handler.why_not)
        except ValueError as error:
            from msgspec import json

            answer = json.encode({"tools": [], "error": str(error)})
        await msg.respond(answer)
