"""Channels in the store: what is to be delivered, and who reads a channel that only one process may read.

A delivery is a row for a run and a target, written in the transaction that ends the turn. Whoever claims it has it for
a while; a claim has a number, and what a late holder says under an old number is not believed. So it is delivered at
least once, under one key, and the deliveries to one target keep their order.
"""

from __future__ import annotations

from typing import Any, Final, Literal, TypeAlias

import msgspec
from msgspec import Struct

from foliot.common.process import is_gone
from foliot.errors import NotFound
from foliot.kernel.routing import Address, answer_address, read_details
from foliot.store.base import Database
from foliot.store.channel_links import forget_links
from foliot.store.portions import forget_old
from foliot.store.transaction import Row, Tx, one, rows, run

DeliveryState: TypeAlias = Literal["draft", "pending", "sent", "failed"]
_END: Final = 2**62
_LONGEST_ERROR: Final = 500
_addresses = msgspec.json.Decoder(Address)


class Delivery(Struct, frozen=True):
    """A delivery as stored. `text` is blank for the answer of a run, which is in its journal.

    `receipt` is what its channel has delivered of it so far, in words of the channel.
    """

    key: int
    run_id: str
    target: str
    namespace: str
    channel: str
    address: Address
    text: str
    state: DeliveryState
    attempts: int
    due_at: float
    receipt: str
    error: str
    created_at: float
    ended_at: float | None

    @property
    def dedupe_key(self) -> str:
        """The key under which it is delivered, the same at every try."""
        return f"{self.run_id}:{self.target}"


class ChannelDelivery(Struct, frozen=True):
    """A delivery as people are shown it: where it goes and how it stands, without its text."""

    key: int
    channel: str
    run_id: str
    to: str
    group: str
    thread: str
    state: DeliveryState
    attempts: int
    error: str
    created_at: float
    due_at: float
    ended_at: float | None


def shown(delivery: Delivery) -> ChannelDelivery:
    """Returns a delivery without its text. `run_id` is blank for one that is no answer of a run."""
    address = delivery.address
    return ChannelDelivery(
        delivery.key,
        delivery.channel,
        "" if delivery.text else delivery.run_id,
        address.to,
        address.group_id,
        address.thread_id,
        delivery.state,
        delivery.attempts,
        delivery.error,
        delivery.created_at,
        delivery.due_at,
        delivery.ended_at,
    )


class Outbox:
    """The deliveries of an installation."""

    def __init__(self, database: Database) -> None:
        self._db = database

    async def notice(self, key: str, namespace: str, address: Address, text: str, *, now: float) -> bool:
        """Stores a text for delivery; False when one with this key is stored for the address."""
        return await self._db.write(store_notice, key, namespace, address, text, now)

    async def draft(self, run_id: str, namespace: str, address: Address, receipt: str, *, now: float) -> None:
        """Remembers what people see of an answer that is being written, until it is delivered."""
        await self._db.write(_draft, run_id, namespace, address, receipt, now)

    async def due(self, *, now: float) -> list[tuple[str, str]]:
        """Lists the channels that something is due for, by namespace and name; the longest due first."""
        return [(row["namespace"], row["channel"]) for row in await self._db.read("outbox_due", now=now)]

    async def claim(
        self,
        *,
        now: float,
        lease: float,
        limit: int = 20,
        holder: str = "",
        of: tuple[str, str] = ("", ""),
    ) -> list[Delivery]:
        """Takes deliveries that are due, for `lease` seconds; of each target the oldest.

        `of` is a channel, by namespace and name; all channels by default.
        """
        return [_delivery(row) for row in await self._db.write(_claim, now, lease, limit, holder, of)]

    async def take_back(self, *, now: float) -> None:
        """Makes due what a process had taken that is known to be gone."""
        for row in await self._db.read("outbox_holders"):
            if is_gone(row["holder"]):
                await self._db.write(run, "outbox_abandoned", holder=row["holder"], now=now)

    async def progress(self, delivery: Delivery, receipt: str) -> bool:
        """Remembers how much of a delivery is done. False when somebody else has it by now."""
        return bool(
            await self._db.write(run, "outbox_receipt", key=delivery.key, attempts=delivery.attempts, receipt=receipt)
        )

    async def settle(self, delivery: Delivery, state: DeliveryState, *, now: float, error: str = "") -> bool:
        """Ends a delivery, as `sent` or `failed`. False when somebody else has it by now."""
        return bool(
            await self._db.write(
                run,
                "outbox_settle",
                key=delivery.key,
                attempts=delivery.attempts,
                state=state,
                error=error[:_LONGEST_ERROR],
                at=now,
            )
        )

    async def again(self, delivery: Delivery, due_at: float, error: str) -> bool:
        """Puts a delivery off until `due_at`. False when somebody else has it by now."""
        return bool(
            await self._db.write(
                run,
                "outbox_again",
                key=delivery.key,
                attempts=delivery.attempts,
                due_at=due_at,
                error=error[:_LONGEST_ERROR],
            )
        )

    async def retry(self, namespace: str, key: int, *, now: float, channel: str = "") -> None:
        """Makes a delivery that was given up due again. Raises `NotFound`."""
        if not await self._db.write(run, "outbox_retry", key=key, namespace=namespace, channel=channel, at=now):
            whose = f"of channel {channel!r} " if channel else ""
            raise NotFound(
                f"there is no delivery {key} {whose}that failed in {namespace!r}",
                hint="`foliot channels deliveries NAME` lists those that were given up",
            )

    async def last(self, namespace: str, channel: str) -> Delivery | None:
        """Returns the delivery of a channel that ended last; None when none has."""
        found = await self._db.read("outbox_last", namespace=namespace, channel=channel)
        return _delivery(found[0]) if found else None

    async def addresses(self, run_id: str) -> list[Address]:
        """Lists where the answer of a run goes, by the inputs that it answers so far."""
        found = await self._db.read("inbox_details_of_run", run_id=run_id)
        details = (read_details(msgspec.json.decode(row["details"])) for row in found)
        return list(dict.fromkeys(each for each in map(answer_address, details) if each is not None))

    async def of_run(self, run_id: str) -> list[Delivery]:
        """Lists the deliveries of a run."""
        return [_delivery(row) for row in await self._db.read("outbox_of_run", run_id=run_id)]

    async def list(
        self, namespace: str, *, channel: str = "", state: str = "", before: int | None = None, limit: int = 50
    ) -> list[Delivery]:
        """Lists deliveries, the newest first."""
        given = {"namespace": namespace, "state": state, "before": _END if before is None else before, "count": limit}
        if channel:
            found = await self._db.read("outbox_list_of_channel", channel=channel, **given)
        else:
            found = await self._db.read("outbox_list", **given)
        return [_delivery(row) for row in found]

    async def counts(self, namespace: str) -> dict[tuple[str, str], int]:
        """Counts deliveries by channel and state."""
        found = await self._db.read("outbox_counts", namespace=namespace)
        return {(row["channel"], row["state"]): row["number"] for row in found}

    async def waits(self, namespace: str, address: Address) -> bool:
        """Whether something for this address of a namespace is not delivered yet."""
        return bool(await self._db.read("outbox_waits", target=address.target_in(namespace)))

    async def next_due(self) -> float | None:
        """Returns when the next delivery is due; None when none waits."""
        return (await self._db.read("outbox_next"))[0]["due_at"]

    async def prune(self, *, before: float) -> int:
        """Forgets deliveries that are over, and were made before this time."""
        return await forget_old(self._db, "outbox_prune", before=before)


def deliver_answer(run_id: str, namespace: str, now: float) -> Tx[None]:
    """Stores a delivery for each target that an input which the run answered names; part of the end of a turn."""
    for address in (yield from _answered(run_id, namespace)):
        yield from run("outbox_answer", run_id=run_id, at=now, **_place(namespace, address))


def deliver_notice(run_id: str, key: str, namespace: str, text: str, now: float) -> Tx[None]:
    """Stores a text for whoever waits for the answer of a run, under a key of its own: each is told once."""
    for address in (yield from _answered(run_id, namespace)):
        yield from store_notice(key, namespace, address, text, now)


def _answered(run_id: str, namespace: str) -> Tx[list[Address]]:
    """Returns the targets of the answer of a run, each once: those that the inputs name which it answers."""
    addresses: dict[str, Address] = {}
    for row in (yield from rows("inbox_details_of_run", run_id=run_id)):
        address = answer_address(read_details(msgspec.json.decode(row["details"])))
        if address is not None:
            addresses[address.target_in(namespace)] = address
    return [address for _, address in sorted(addresses.items())]


def store_notice(key: str, namespace: str, address: Address, text: str, now: float) -> Tx[bool]:
    """Stores a text to deliver under a key of its own; False when there is one."""
    return bool((yield from run("outbox_notice", run_id=key, text=text, at=now, **_place(namespace, address))))


def _draft(run_id: str, namespace: str, address: Address, receipt: str, now: float) -> Tx[None]:
    yield from run("outbox_draft", run_id=run_id, receipt=receipt, at=now, **_place(namespace, address))


def _claim(now: float, lease: float, limit: int, holder: str, of: tuple[str, str]) -> Tx[list[Row]]:
    namespace, channel = of
    return (
        yield from rows(
            "outbox_claim",
            now=now,
            until=now + lease,
            count=limit,
            holder=holder or None,
            namespace=namespace,
            channel=channel,
        )
    )


def _place(namespace: str, address: Address) -> dict[str, str]:
    return {
        "target": address.target_in(namespace),
        "namespace": namespace,
        "channel": address.channel,
        "address": msgspec.json.encode(address).decode(),
    }


def _delivery(row: Row) -> Delivery:
    fields: dict[str, Any] = {**row, "address": _addresses.decode(row["address"])}
    return Delivery(**fields)


# --- readers -----------------------------------------------------------------------------------------------------


class ChannelReader(Struct, frozen=True):
    """The reader of a channel: its holder, until when, how far it has come, and what went wrong last."""

    channel: str
    holder: str
    lease_until: float
    place: str
    error: str


class ChannelReaders:
    """The channels of which one process at a time reads what comes in, by their uids."""

    def __init__(self, database: Database) -> None:
        self._db = database

    async def claim(self, channel: str, holder: str, *, now: float, lease: float) -> str | None:
        """Takes or keeps a channel for `lease` seconds; how far it was read, or None when somebody else has it.

        A holder whose process is known to be gone has it no more.
        """
        place = await self._db.write(_claim_reader, channel, holder, now, lease)
        if place is not None:
            return place
        known = await self.get(channel)
        if known is None or not known.holder or not is_gone(known.holder):
            return None
        await self.release(channel, known.holder)
        return await self._db.write(_claim_reader, channel, holder, now, lease)

    async def move(self, channel: str, holder: str, place: str) -> bool:
        """Remembers how far a channel was read. False when somebody else has it by now."""
        return bool(await self._db.write(run, "channel_reader_move", channel=channel, holder=holder, place=place))

    async def note(self, channel: str, holder: str, error: str) -> None:
        """Remembers what went wrong last; blank for nothing."""
        await self._db.write(run, "channel_reader_error", channel=channel, holder=holder, error=error[:_LONGEST_ERROR])

    async def release(self, channel: str, holder: str) -> None:
        """Lets others read the channel."""
        await self._db.write(run, "channel_reader_release", channel=channel, holder=holder)

    async def forget(self, channel: str) -> None:
        """Forgets a channel that was deleted."""
        await self._db.write(_forget, channel)

    async def choice(self, channel: str, chat: str) -> str:
        """Returns the agent that people chose for a chat; blank for none."""
        found = await self._db.read("channel_choice_get", channel=channel, chat=chat)
        return found[0]["agent"] if found else ""

    async def choose(self, channel: str, chat: str, agent: str) -> None:
        """Remembers the agent that people chose for a chat."""
        await self._db.write(run, "channel_choice_set", channel=channel, chat=chat, agent=agent)

    async def get(self, channel: str) -> ChannelReader | None:
        """Returns what is known of the reader of a channel."""
        found = await self._db.read("channel_reader_get", channel=channel)
        return ChannelReader(**found[0]) if found else None


def _forget(channel: str) -> Tx[None]:
    yield from run("channel_choice_forget", channel=channel)
    yield from run("channel_reader_forget", channel=channel)
    yield from run("taken_forget", source=channel)
    yield from forget_links(channel)


def _claim_reader(channel: str, holder: str, now: float, lease: float) -> Tx[str | None]:
    yield from run("channel_reader_add", channel=channel)
    row = yield from one("channel_reader_claim", channel=channel, holder=holder, now=now, until=now + lease)
    return row["place"] if row is not None else None
