"""Tools that are served over NATS, in any language: a call is published, its one result is waited for.

The call goes to `tool.execute.<name>` through JetStream, so it is kept until somebody takes it. The result comes on
`tool.result.<call id>`. It is heard as it is published, and also looked for in the stream: after a reconnect, and when
the call turns out to have been published before (by a process that crashed since). So the same call may be made again
at any time; it keeps its execution id, and what was done once is answered from what was kept.

Exactly one result counts. Repeated ones, late ones and those for other calls change nothing.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections import OrderedDict, deque
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager, suppress
from typing import TYPE_CHECKING, Any, Final

from foliot.bus.nats_link import NatsLink
from foliot.errors import Unavailable
from foliot.tools.base import (
    Invocation,
    OnOutput,
    ToolAnswerLost,
    ToolDefinition,
    ToolError,
    ToolPolicyInvalid,
    ToolTimeout,
    ToolUnreachable,
)
from foliot.tools.nats_worker.callers import BadSignature, Kind, Signer
from foliot.tools.nats_worker.messages import (
    EXECUTE,
    CallMessage,
    Meta,
    Poison,
    ResultMessage,
    call_dedupe_id,
    call_subject,
    decode_output,
    decode_result,
    encode,
    execution_id,
    output_subject,
    prefix_of,
    result_subject,
    value_of,
    wire_call_id,
)

if TYPE_CHECKING:
    from nats.aio.msg import Msg

log = logging.getLogger(__name__)

SENDER: Final = "foliot"
# How often a waiting call looks into the stream, for a result that was published while nobody could hear it.
LOOK_EVERY: Final = 2.0
_PUBLISH_SECONDS: Final = 2.0
_NO_STREAM_TRIES: Final = 10
_REMEMBERED: Final = 1024


class NatsTool:
    """A `Tool` of the type `queue`. Its endpoint is the subject, by default `tool.execute.<name>`."""

    isolation = "none"

    def __init__(
        self,
        definition: ToolDefinition,
        link: NatsLink,
        *,
        signer: Signer | None = None,
        clock: Callable[[], float] = time.time,
        look_every: float = LOOK_EVERY,
    ) -> None:
        """Makes the tool. With a `signer` calls are signed, and only results signed with its key count.

        Raises `ToolPolicyInvalid` when the definition cannot be carried out.
        """
        if definition.auth is not None:
            raise ToolPolicyInvalid(
                f"tool {definition.name!r} has auth, and messages are kept: a credential in one would be kept too",
                hint="let the tool's server hold the credential, and protect the subject in NATS",
            )
        self._definition = definition
        self._subject = definition.endpoint.strip() or f"{EXECUTE}.{definition.name}"
        self._prefix = prefix_of(self._subject)
        place = f"{self._prefix}{EXECUTE}."
        self._remote_name = self._subject.removeprefix(place)
        if call_subject(self._remote_name) is None:
            raise ToolPolicyInvalid(f"tool {definition.name!r} cannot be reached: its endpoint is not a NATS subject")
        if not self._subject.startswith(place):
            self._remote_name = definition.name
        self._signer = signer
        self._warned: deque[str] = deque(maxlen=64)
        self._link = link
        self._clock = clock
        self._look_every = look_every
        # A call that was answered with a failure is another execution when it is tried again.
        self._failures: OrderedDict[tuple[str, str], int] = OrderedDict()

    @property
    def definition(self) -> ToolDefinition:
        return self._definition

    async def invoke(self, call: Invocation, *, on_output: OnOutput | None = None) -> Any:
        """Raises the `ToolError` that the result reports, `ToolTimeout`, `ToolUnreachable`."""
        limit = asyncio.timeout(self._seconds(call))
        message, published = self.message(call), asyncio.Event()
        try:
            async with limit:
                result = await self._ask(call, message, published, on_output)
        except TimeoutError:
            if not limit.expired():
                raise
            late = ToolTimeout(f"nobody answered the call of {call.tool!r} in time", tool=call.tool)
            late.before_effect = not published.is_set()
            raise late from None
        except ToolError as error:
            error.before_effect = not published.is_set()
            raise
        key = (call.run_id, call.call_id)
        try:
            value = value_of(result)
        except ToolError:
            self._failures[key] = self._failures.get(key, 0) + 1
            if len(self._failures) > _REMEMBERED:
                self._failures.popitem(last=False)
            raise
        self._failures.pop(key, None)
        return value

    def message(self, call: Invocation) -> CallMessage:
        """The call as it is published: the same bytes for every attempt that has no answer yet."""
        failed = self._failures.get((call.run_id, call.call_id), 0)
        request = f"{call.run_id}:step:{call.step}" + (f":again:{failed}" if failed else "")
        id = wire_call_id(call.call_id, f"{call.namespace}\0{request}")
        caller = call.caller
        metadata: dict[str, Any] = {
            "namespace": caller.namespace,
            "agent.run_id": call.run_id,
            "agent.name": caller.agent,
            "agent.roles": list(caller.roles),
            "user": caller.user,
        }
        if caller.advertised is not None:
            # The far side knows the tool by its own name.
            names = {self._remote_name if name == call.tool else name for name in caller.advertised}
            metadata["agent.tools.advertised"] = sorted(names)
        return CallMessage(
            id=id,
            name=self._remote_name,
            arguments=call.arguments,
            metadata=metadata,
            loop_id=call.run_id,
            trace_id=call.trace_id,
            approved_by=call.grant,
            request_id=request,
            execution_id=execution_id(request, id, 1),
            call_ordinal=1,
        )

    async def _ask(
        self, call: Invocation, message: CallMessage, published: asyncio.Event, on_output: OnOutput | None
    ) -> ResultMessage:
        """Publishes the call and waits for its result. `published` is set while JetStream may have the call."""
        from nats.errors import Error

        subject = result_subject(message.id, self._prefix)
        assert subject is not None, "wire_call_id gives one token"
        answered: asyncio.Future[ResultMessage] = asyncio.get_running_loop().create_future()
        look = asyncio.Event()

        async def hear(msg: Msg) -> None:
            self._take(subject, msg, message, answered)

        try:
            client = await self._link.reached()
            stop_listening = self._link.on_connect(look.set)
            try:
                async with _subscribed(client, {subject: hear, **self._output_handler(message, on_output)}):
                    ack = await self._publish(call, message, answered, published)
                    if ack is not None and ack.duplicate:
                        look.set()
                    return await self._wait(answered, look, subject, None if ack is None else ack.stream, message)
            finally:
                stop_listening()
        except Unavailable as error:
            raise ToolUnreachable(f"{call.tool!r} cannot be called: {error.message}", hint=error.hint) from None
        except Error as error:
            raise ToolUnreachable(f"{call.tool!r} cannot be called over NATS: {type(error).__name__}") from error

    async def _publish(
        self, call: Invocation, message: CallMessage, answered: asyncio.Future[Any], published: asyncio.Event
    ) -> Any:
        """Publishes the call until JetStream has it. Publishing again is harmless: the call is stored once."""
        from nats.errors import Error, MaxPayloadError
        from nats.js.errors import APIError, NoStreamResponseError

        js = await self._link.jetstream(timeout=_PUBLISH_SECONDS)
        deadline = round((call.deadline or 0) * 1000)
        meta = Meta(SENDER, round(self._clock() * 1000), call.attempt, deadline, call.idempotency_key)
        data = encode(message.execution_id, message, meta)
        headers = {"Nats-Msg-Id": call_dedupe_id(message)}
        if self._signer is not None:
            headers = {"Nats-Msg-Id": self._signer.dedupe(call_dedupe_id(message))}
            headers |= self._signer.sign("call", self._subject, data, expires=call.deadline)
        no_stream, unsure = 0, False
        while not answered.done():
            published.set()
            try:
                return await js.publish(self._subject, data, headers=headers)
            except MaxPayloadError:
                if not unsure:
                    published.clear()
                raise ToolError(
                    f"the arguments of {call.tool!r} are larger than a message may be", retryable=False, size=len(data)
                ) from None
            except NoStreamResponseError:
                no_stream += 1
                if not unsure:
                    published.clear()
                if no_stream >= _NO_STREAM_TRIES:
                    raise ToolUnreachable(
                        f"{call.tool!r} cannot be called: no stream takes {self._subject}",
                        hint="make a JetStream stream with tool.execute.> and tool.result.*, or `foliot tools serve`",
                    ) from None
            except (Error, TimeoutError, APIError) as error:
                unsure = True  # only the acknowledgement may be lost
                log.debug("the call of %s was not acknowledged: %s", call.tool, type(error).__name__)
            except (ValueError, KeyError):
                return None  # a tool that replied to the publication itself; its result will come where it belongs
            await asyncio.sleep(0.1)
        return None

    async def _wait(
        self,
        answered: asyncio.Future[ResultMessage],
        look: asyncio.Event,
        subject: str,
        stream: str | None,
        message: CallMessage,
    ) -> ResultMessage:
        while not answered.done():
            if look.is_set() and stream is not None:
                look.clear()
                await self._look(stream, subject, message, answered)
                continue
            waker = asyncio.ensure_future(look.wait())
            try:
                await asyncio.wait({answered, waker}, timeout=self._look_every, return_when=asyncio.FIRST_COMPLETED)
            finally:
                waker.cancel()
            look.set()
        return answered.result()

    async def _look(
        self, stream: str, subject: str, message: CallMessage, answered: asyncio.Future[ResultMessage]
    ) -> None:
        """Whether the result is in the stream already."""
        from nats.errors import Error

        try:
            js = await self._link.jetstream(timeout=_PUBLISH_SECONDS)
            kept = await js.get_last_msg(stream, subject)
        except (Error, TimeoutError, Unavailable, ValueError, KeyError):
            return  # not there yet, or the server is away: the next look will tell
        if kept.data:
            self._take(subject, kept, message, answered)

    def _take(self, subject: str, msg: Any, message: CallMessage, answered: asyncio.Future[ResultMessage]) -> None:
        """Let a message end the wait, if it is the result of this very call and the first one."""
        if answered.done() or not self._is_theirs("result", subject, msg):
            return
        try:
            result = decode_result(msg.data)
        except Poison as error:
            # It came where only an answer to this call has business, so waiting longer would not make it better.
            answered.set_exception(ToolAnswerLost(f"the tool's server sent something that is no result: {error}"))
            return
        theirs = result.execution_id or (result.call_id if result.call_id != message.id else "")
        if (theirs or self._signer is not None) and theirs != message.execution_id:
            log.info("a result of another call came on the subject of %s and was ignored", message.id)
            return
        answered.set_result(result)

    def _is_theirs(self, kind: Kind, subject: str, msg: Any) -> bool:
        """Whether whoever serves the tool has sent it. Without a key that is left to permissions in NATS."""
        if self._signer is None:
            return True
        try:
            self._signer.check(kind, subject, msg.data, msg.headers, aged=True)
        except BadSignature as error:
            if subject not in self._warned:  # a flood of forgeries must not become a flood of lines
                self._warned.append(subject)
                log.warning("a %s on %s was ignored: %s", kind, subject, error)
            return False
        return True

    def _output_handler(
        self, message: CallMessage, on_output: OnOutput | None
    ) -> dict[str, Callable[[Msg], Awaitable[None]]]:
        if on_output is None:
            return {}
        heard, subject = 0, output_subject(message.execution_id, self._prefix)

        async def hear(msg: Msg) -> None:
            nonlocal heard
            if not self._is_theirs("output", subject, msg):
                return
            try:
                piece = decode_output(msg.data)
            except Poison:
                return
            if piece.execution_id == message.execution_id and piece.seq > heard:
                heard = piece.seq
                on_output(piece.data)

        return {subject: hear}

    def _seconds(self, call: Invocation) -> float | None:
        limits = [self._definition.attempt_timeout or self._definition.timeout]
        if call.deadline is not None:
            limits.append(max(0.0, call.deadline - self._clock()))
        left = [limit for limit in limits if limit is not None]
        return min(left) if left else None


@asynccontextmanager
async def _subscribed(client: Any, handlers: Mapping[str, Callable[[Msg], Awaitable[None]]]) -> AsyncGenerator[None]:
    from nats.errors import Error

    subscriptions: list[Any] = []
    try:
        for subject, handler in handlers.items():
            subscriptions.append(await client.subscribe(subject, cb=handler))
        yield
    finally:
        for subscription in subscriptions:
            with suppress(Error):  # the connection is gone, and the subscription with it
                await subscription.unsubscribe()
