"""The delivery of answers: what is due in the outbox is claimed, sent by its channel, and settled.

Any process may deliver. A claim that is not settled comes back when its time is over, so whatever dies in between costs
a second try under the same key, and never an answer. A delivery that fails is put off, longer each time, and given up
in the end; the run whose answer it is knows nothing of that.

A receiver that is slow holds up its own channel only: a channel, a namespace and a process each deliver a bounded
number of answers at once, and none waits for those that are on their way.
"""

from __future__ import annotations

import asyncio
import base64
import logging
from collections.abc import Awaitable, Callable, Mapping
from typing import Final, TypeAlias

from msgspec import Struct

from foliot.channels.base import Channel, DeclaredChannel, DeliveryFailed, Notification
from foliot.common.cancellation import stop_tasks
from foliot.engine.base import Clock
from foliot.engine.driver.runs import Runs
from foliot.errors import FoliotError, NotFound
from foliot.kernel.backoff import backoff
from foliot.kernel.messages import Media
from foliot.kernel.routing import Address
from foliot.kernel.run.events import RunCancelled, RunDeadLettered, RunFailed, RunSucceeded
from foliot.kernel.run.state import State
from foliot.store.channels import Delivery, Outbox
from foliot.store.sessions.database import INTERRUPTED

log = logging.getLogger(__name__)

# For so long a claim holds; a channel that needs longer for one delivery loses it to the next who looks.
LEASE: Final = 120.0
# How often it is looked for claims of processes that are gone.
LOOK_FOR_DEAD: Final = 10.0
MOST_TRIES: Final = 12
FIRST_PAUSE: Final = 1.0
LONGEST_PAUSE: Final = 600.0
# How many deliveries are on their way at once: of a channel, of a namespace, and in all.
OF_A_CHANNEL: Final = 4
OF_A_NAMESPACE: Final = 16
AT_ONCE: Final = 64
EMPTY: Final = "(empty response)"

FindChannel: TypeAlias = Callable[[str, str], Awaitable[Channel]]
"""`(namespace, name)` to the channel. Raises `NotFound` for one that is not declared any more."""

Reaches: TypeAlias = Callable[[DeclaredChannel, Address], Awaitable[bool]]
"""Whether a channel may deliver to an address."""


class Answer(Struct, frozen=True):
    """The answer of a turn as people get it."""

    text: str
    media: tuple[Media, ...] = ()


# What went wrong, for people outside: providers, tools and rules are named to those who may read the run.
_OUTSIDE: Final[Mapping[str, str]] = {
    "model_failed": "the model could not answer",
    "budget_exceeded": "a limit was reached",
    "denied": "a step was not allowed",
    "unknown_effect": "it is not known whether a step has taken effect",
}


def _told_outside(failed: RunFailed | RunDeadLettered, run_id: str) -> str:
    code = failed.code if isinstance(failed, RunFailed) else ""
    if code == "refused":
        return failed.message or failed.reason  # the model's own words
    return f"{_OUTSIDE.get(code, 'something went wrong')}; whoever runs this agent finds out more by run {run_id}"


def answer_of(state: State) -> Answer:
    """Returns what people are sent when a turn has ended: its answer, what was written of it, and that it failed."""
    written = state.transcript[-1] if state.transcript and state.transcript[-1].role == "assistant" else None
    media = tuple(part for part in written.parts if isinstance(part, Media)) if written is not None else ()
    match state.ended:
        case RunSucceeded(output=output):
            return Answer(output if output.strip() or media else EMPTY, media)
        case RunFailed() | RunDeadLettered() as failed:
            message = _told_outside(failed, state.run_id)
            partial = written.text.strip() if written is not None and not written.calls else ""
            return Answer(f"{partial}\n\n[Agent error: {message}]" if partial else f"Agent error: {message}", media)
        case RunCancelled(reason=reason):
            partial = written.text.strip() if written is not None and not written.calls else ""
            if reason == INTERRUPTED:
                return Answer(partial)
            return Answer(f"{partial}\n\n[stopped]" if partial else "[stopped]")
        case None:
            raise DeliveryFailed("the turn has not ended")


class Deliveries:
    """Delivers what is due; `begin` waits for nothing, `sweep` for all that is on its way.

    `ended` counts deliveries that were tried. `crowded`: there was no room for something that was due.
    """

    def __init__(
        self,
        outbox: Outbox,
        runs: Runs,
        find: FindChannel,
        reaches: Reaches,
        *,
        clock: Clock,
        holder: str = "",
        lease: float = LEASE,
    ) -> None:
        self._outbox = outbox
        self._runs = runs
        self._find = find
        self._reaches = reaches
        self._clock = clock
        self._lease = lease
        self._holder = holder
        self._looked = float("-inf")
        self._on_the_way: dict[asyncio.Task[None], tuple[str, str]] = {}
        self.ended = 0
        self.crowded = False

    async def begin(self) -> int:
        """Begins to deliver what is due and has room; how many. Raises what a store that is away does."""
        if self._clock() - self._looked >= LOOK_FOR_DEAD:
            self._looked = self._clock()
            await self._outbox.take_back(now=self._looked)
        self.crowded = False
        due = await self._outbox.next_due()
        if due is None or due > self._clock():
            return 0  # most looks find nothing, and write nothing
        begun = 0
        for channel in await self._outbox.due(now=self._clock()):
            if (room := self._room(channel)) <= 0:
                self.crowded = True
                continue
            claimed = await self._outbox.claim(
                now=self._clock(), lease=self._lease, limit=room, holder=self._holder, of=channel
            )
            for each in claimed:
                task = asyncio.create_task(self._deliver(each))
                self._on_the_way[task] = channel
                task.add_done_callback(self._arrived)
                begun += 1
        return begun

    def _room(self, channel: tuple[str, str]) -> int:
        """How many more deliveries of a channel may be on their way."""
        going = self._on_the_way.values()
        of_namespace = sum(namespace == channel[0] for namespace, _ in going)
        of_channel = sum(each == channel for each in going)
        return min(AT_ONCE - len(going), OF_A_NAMESPACE - of_namespace, OF_A_CHANNEL - of_channel)

    def _arrived(self, task: asyncio.Task[None]) -> None:
        del self._on_the_way[task]
        self.ended += 1
        if not task.cancelled() and (error := task.exception()) is not None:
            # The store is away: the claim comes back when its time is over.
            log.warning("a delivery could not be settled: %s", error)

    async def sweep(self) -> int:
        """Delivers what is due now, and waits for all that is on its way; how many were begun."""
        count = 0
        while (begun := await self.begin()) or self._on_the_way:
            count += begun
            if self._on_the_way:
                await asyncio.wait(list(self._on_the_way))
        return count

    async def close(self) -> None:
        """Delivers no more; what was on its way comes back when its claim is over."""
        await stop_tasks(*self._on_the_way)

    async def _deliver(self, delivery: Delivery) -> None:
        try:
            # Before the claim ends, so that nobody sends beside somebody who is still at it.
            async with asyncio.timeout(self._lease * 0.8):
                await self._send(delivery)
        except (FoliotError, TimeoutError) as error:
            await self._failed(delivery, error)
        except Exception as error:  # a fault of a channel must not stop the others
            log.exception("delivery %s to channel %s failed", delivery.key, delivery.channel)
            await self._failed(delivery, DeliveryFailed(f"{type(error).__name__} in the channel"))
        else:
            await self._outbox.settle(delivery, "sent", now=self._clock())

    async def _send(self, delivery: Delivery) -> None:
        channel = await self._find(delivery.namespace, delivery.channel)
        if channel.declared.suspend:
            raise DeliveryFailed("the channel is suspended", after=LONGEST_PAUSE, waits=True)
        if not await self._reaches(channel.declared, delivery.address):
            unknown = f"the channel does not list {delivery.address.to[:80]!r}, who has linked no account"
            raise DeliveryFailed(unknown, final=True)
        answer = Answer(delivery.text) if delivery.text else await self._answer(delivery.run_id)

        if not answer.text.strip() and not answer.media:
            return  # an interrupted turn: the answer to what interrupted it follows

        async def progress(receipt: str) -> bool:
            return await self._outbox.progress(delivery, receipt)

        await channel.deliver(
            Notification(
                delivery.dedupe_key,
                delivery.address,
                answer.text,
                answer.media,
                "" if delivery.text else delivery.run_id,  # a notice has a key there
                delivery.receipt,
                progress,
            )
        )

    async def _answer(self, run_id: str) -> Answer:
        try:
            _, state = await self._runs.load(run_id)
        except NotFound:
            raise DeliveryFailed("the run whose answer it is was deleted", final=True) from None
        answer = answer_of(state)
        return Answer(answer.text, tuple([await self._whole(media, run_id) for media in answer.media]))

    async def _whole(self, media: Media, run_id: str) -> Media:
        """The media with its content, where that is stored apart."""
        if not media.blob:
            return media
        try:
            content = await self._runs.journal.get_blob(media.blob, run_id=run_id)
        except NotFound:
            return Media(media.media_type, name=media.name)  # nothing of it is sent
        return Media(media.media_type, data=base64.b64encode(content).decode(), name=media.name)

    async def _failed(self, delivery: Delivery, error: FoliotError | TimeoutError) -> None:
        message = error.message if isinstance(error, FoliotError) else "the channel took too long"
        final = isinstance(error, NotFound) or (isinstance(error, DeliveryFailed) and error.final)
        waits = isinstance(error, DeliveryFailed) and error.waits
        if final or (delivery.attempts >= MOST_TRIES and not waits):
            log.warning("delivery %s to channel %s is given up: %s", delivery.key, delivery.channel, message)
            await self._outbox.settle(delivery, "failed", now=self._clock(), error=message)
            return
        asked = error.after if isinstance(error, DeliveryFailed) else 0.0
        pause = max(asked, backoff(delivery.attempts, FIRST_PAUSE, LONGEST_PAUSE))
        await self._outbox.again(delivery, self._clock() + pause, message)
