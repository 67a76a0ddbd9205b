"""The stream and the consumer that all workers share: made when they are missing, used as they are when they are not.

The stream is a work queue: a message is there until one worker says that it is done. One durable consumer serves
every worker, so each message goes to one of them, whoever has room.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from foliot.errors import InvalidInput

if TYPE_CHECKING:
    from nats.js.api import ConsumerConfig, StreamConfig

log = logging.getLogger(__name__)

_OVERLAP: Final = 10065
_CONSUMER_UNIQUE: Final = (10099, 10100)
_WEEK: Final = 7 * 24 * 3600.0


class StreamUnusable(InvalidInput):
    """The existing stream or consumer of this name cannot carry tickets."""


@dataclass(frozen=True, slots=True)
class StreamPlan:
    """The stream and consumer to create when they are missing. Times are in seconds.

    `ack_wait` is how long a worker may be silent about a message before another one gets it; `duplicate_window` how
    long a ticket that is published again is recognised.
    """

    stream: str = "FOLIOT_AGENT_MESSAGES"
    prefix: str = "foliot.agentmsg"
    consumer: str = "foliot-workers"
    ack_wait: float = 30.0
    duplicate_window: float = 120.0
    max_age: float = _WEEK
    max_ack_pending: int = 10_000
    replicas: int = 1

    @property
    def subjects(self) -> str:
        return f"{self.prefix}.>"


async def ensure(js: Any, plan: StreamPlan) -> bool:
    """Make stream and consumer unless they are there; whether the stream had to be made. `js` is a JetStreamContext,
    whose calls are only partly typed.

    Logs what differs from the plan and works all the same. Raises `StreamUnusable` for what does not, and the
    client's errors when the server does not answer.
    """
    made = await _ensure_stream(js, plan)
    await _ensure_consumer(js, plan)
    return made


async def inspect(js: Any, plan: StreamPlan) -> tuple[list[str], list[str]] | None:
    """Compares the stream with the plan: fatal and other differences; None when there is no stream. Creates nothing."""
    from nats.js.errors import NotFoundError

    try:
        info = await js.stream_info(plan.stream)
    except NotFoundError:
        return None
    return _stream_differences(info.config, plan)


async def _ensure_stream(js: Any, plan: StreamPlan) -> bool:
    from nats.js.api import RetentionPolicy, StorageType, StreamConfig
    from nats.js.errors import BadRequestError, NotFoundError

    try:
        info = await js.stream_info(plan.stream)
    except NotFoundError:
        wanted = StreamConfig(
            name=plan.stream,
            subjects=[plan.subjects],
            retention=RetentionPolicy.WORK_QUEUE,
            storage=StorageType.FILE,
            max_age=plan.max_age,
            duplicate_window=plan.duplicate_window,
            num_replicas=plan.replicas,
        )
        try:
            await js.add_stream(wanted)
        except BadRequestError as error:
            if error.err_code == _OVERLAP:
                raise StreamUnusable(
                    f"another JetStream stream takes messages of {plan.subjects!r} already, so {plan.stream!r} "
                    "cannot be made",
                    hint="give this system another prefix, or delete the other stream",
                ) from None
            raise
        return True
    _judge("stream", plan.stream, *_stream_differences(info.config, plan))
    return False


def _stream_differences(found: StreamConfig, plan: StreamPlan) -> tuple[list[str], list[str]]:
    """Returns the differences that make the stream unusable, and those that do not."""
    from nats.js.api import RetentionPolicy, StorageType

    fatal: list[str] = []
    if not any(covers(subject, plan.subjects) for subject in found.subjects or []):
        fatal.append(f"it does not take {plan.subjects!r}")
    if found.sealed:
        fatal.append("it is sealed")
    other: list[str] = []
    if found.retention != RetentionPolicy.WORK_QUEUE:
        other.append(f"retention is {_text(found.retention)}, so messages stay after they are done")
    if found.storage != StorageType.FILE:
        other.append(f"storage is {_text(found.storage)}, so messages are lost with the server")
    if (found.duplicate_window or 0) < plan.duplicate_window:
        other.append(f"tickets published twice are recognised for {found.duplicate_window or 0:g} s only")
    return fatal, other


async def _ensure_consumer(js: Any, plan: StreamPlan) -> None:
    from nats.js.api import AckPolicy, ConsumerConfig, DeliverPolicy
    from nats.js.errors import BadRequestError, NotFoundError

    try:
        info = await js.consumer_info(plan.stream, plan.consumer)
    except NotFoundError:
        wanted = ConsumerConfig(
            name=plan.consumer,
            durable_name=plan.consumer,
            deliver_policy=DeliverPolicy.ALL,
            ack_policy=AckPolicy.EXPLICIT,
            ack_wait=plan.ack_wait,
            max_deliver=-1,
            max_ack_pending=plan.max_ack_pending,
            filter_subject=plan.subjects,
        )
        try:
            await js.add_consumer(plan.stream, wanted)
        except BadRequestError as error:
            if error.err_code in _CONSUMER_UNIQUE:
                raise StreamUnusable(
                    f"the stream {plan.stream!r} has another consumer, and a work queue can have one only",
                    hint=f"delete it, or name it as the consumer of this system instead of {plan.consumer!r}",
                ) from None
            raise
        return
    _judge("consumer", plan.consumer, *_consumer_differences(info.config, plan))


def _consumer_differences(found: ConsumerConfig | None, plan: StreamPlan) -> tuple[list[str], list[str]]:
    from nats.js.api import AckPolicy

    fatal: list[str] = []
    other: list[str] = []
    if found is None:
        return fatal, other
    if found.deliver_subject:
        fatal.append("messages are pushed to a subject, and workers pull")
    if found.ack_policy != AckPolicy.EXPLICIT:
        fatal.append("messages are not acknowledged one by one")
    if found.filter_subject and not covers(found.filter_subject, plan.subjects):
        fatal.append(f"it is for {found.filter_subject!r} only")
    if found.ack_wait != plan.ack_wait:
        other.append(f"a silent worker's messages go to others after {found.ack_wait or 0:g} s")
    if (found.max_deliver or -1) > 0:
        other.append(f"messages are given up after {found.max_deliver} deliveries")
    return fatal, other


def _judge(what: str, name: str, fatal: list[str], other: list[str]) -> None:
    if fatal:
        raise StreamUnusable(
            f"the JetStream {what} {name!r} cannot carry tickets: {'; '.join(fatal)}",
            hint=f"delete the {what}, it is made anew; or choose another name",
        )
    if other:
        log.warning("the JetStream %s %r is used although it differs: %s", what, name, "; ".join(other))


def covers(pattern: str, wanted: str) -> bool:
    """Whether every subject of `wanted`, which ends with `>`, belongs to `pattern`."""
    ours = wanted.split(".")
    for place, token in enumerate(pattern.split(".")):
        if token == ">":
            return place < len(ours)
        if place >= len(ours) or (token not in ("*", ours[place])) or ours[place] == ">":
            return False
    return False


def _text(value: Any) -> str:
    return str(getattr(value, "value", value))
