"""What every transport must do. Subclass it and give a `place` fixture."""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import Sequence
from typing import Protocol

from hypothesis import strategies as st

from foliot.bus.base import Delivery, Ticket, Transport

SOON = 60.0  # more than any of them takes, less than a test may
QUIET = 0.25  # long enough for something that comes although it should not


def ticket(number: int | str, **changes) -> Ticket:
    fields = {"id": f"run-{number}:1", "run_id": f"run-{number}", "namespace": "default", "agent": "clerk"}
    return Ticket(**{**fields, **changes})


class Place(Protocol):
    """Where transports meet. `names`: deliveries carry tickets; otherwise they only ring. `exact`: they come for
    tickets only, and not for other commits too. `flood`: many tickets, by its measure."""

    names: bool
    exact: bool
    flood: int

    async def open(self) -> Transport:
        """A transport as another process would have it, where there can be one; closed with the place."""
        ...

    async def tell(self, transport: Transport, tickets: Sequence[Ticket]) -> None:
        """What who makes runs due does: commit, then publish."""
        ...


async def gather(transport: Transport, *, want: int, names: bool) -> list[Delivery]:
    """As many deliveries as wanted, or for rings at least one."""
    got: list[Delivery] = []
    deadline = time.monotonic() + SOON
    while len(got) < (want if names else 1):
        assert time.monotonic() < deadline, f"only {len(got)} of {want} came"
        for each in await transport.receive(want=want, timeout=1.0):
            if names and each.ticket is None:
                await each.done()  # a reconnect: look by yourself
            else:
                got.append(each)
    return got


async def calm(transport: Transport) -> None:
    """Take what is owed from before, until nothing comes."""
    while got := await transport.receive(want=100, timeout=QUIET):
        for each in got:
            await each.done()


class TransportConformance:
    async def test_who_waits_is_woken_by_a_ticket(self, place: Place) -> None:
        sender, receiver = await place.open(), await place.open()
        await calm(receiver)
        waiting = asyncio.create_task(receiver.receive(want=10, timeout=SOON))
        await asyncio.sleep(0)

        await place.tell(sender, [ticket(1)])

        (got,) = await waiting
        assert got.ticket == (ticket(1) if place.names else None)
        await got.done()

    async def test_nothing_comes_when_nothing_was_published(self, place: Place) -> None:
        receiver = await place.open()
        await calm(receiver)
        assert list(await receiver.receive(want=5, timeout=QUIET)) == []

    async def test_a_ticket_that_came_before_anyone_listened_is_not_lost(self, place: Place) -> None:
        sender = await place.open()
        await place.tell(sender, [ticket(1), ticket(2)])
        receiver = await place.open()
        got = await gather(receiver, want=2, names=place.names)
        assert not place.names or {each.ticket for each in got} == {ticket(1), ticket(2)}

    async def test_each_ticket_goes_to_one_of_the_receivers(self, place: Place) -> None:
        sender = await place.open()
        receivers = [await place.open() for _ in range(3)]
        if not place.names:
            return await self.all_are_rung(place, sender, receivers)
        got: Counter[str] = Counter()

        async def work(receiver: Transport) -> None:
            while sum(got.values()) < 60:
                for each in await receiver.receive(want=4, timeout=0.2):
                    if each.ticket is not None:
                        got[each.ticket.id] += 1
                    await each.done()

        await place.tell(sender, [ticket(number) for number in range(60)])
        await asyncio.wait_for(asyncio.gather(*map(work, receivers)), SOON)
        assert got == {ticket(number).id: 1 for number in range(60)}
        return None

    async def all_are_rung(self, place: Place, sender: Transport, receivers: Sequence[Transport]) -> None:
        for receiver in receivers:
            await calm(receiver)
        await place.tell(sender, [ticket(number) for number in range(60)])
        for receiver in receivers:
            await gather(receiver, want=1, names=False)

    async def test_a_ticket_that_is_published_twice_does_no_harm(self, place: Place) -> None:
        transport = await place.open()
        await place.tell(transport, [ticket(1), ticket(1)])
        await place.tell(transport, [ticket(1), ticket(2)])
        got = await gather(transport, want=2, names=place.names)
        assert not place.names or [each.ticket for each in got] == [ticket(1), ticket(2)]
        for each in got:
            await each.done()
            await each.done()

    async def test_a_ticket_for_later_does_not_come_early(self, place: Place) -> None:
        transport = await place.open()
        await calm(transport)
        due_at = time.time() + QUIET
        await place.tell(transport, [ticket(1, due_at=due_at)])
        got = list(await transport.receive(want=1, timeout=QUIET / 2))
        if place.names or place.exact:
            assert got == [] or time.time() >= due_at - 0.01  # where telling alone took so long, it may be there
        else:
            got = []
        (late, *_) = got or await gather(transport, want=1, names=place.names)
        assert late.ticket is None or time.time() >= due_at - 0.01

    async def test_what_is_to_come_again_does_so_and_not_before_its_time(self, place: Place) -> None:
        transport = await place.open()
        await calm(transport)
        await place.tell(transport, [ticket(1)])
        (first,) = await gather(transport, want=1, names=place.names)
        if not place.exact:
            await calm(transport)
        asked = time.monotonic()
        await first.again(delay=QUIET)
        await first.done()  # too late: it was given back

        (second,) = await gather(transport, want=1, names=place.names)
        assert second.ticket == first.ticket
        assert time.monotonic() - asked >= QUIET * 0.9
        await second.done()
        assert [each for each in await transport.receive(want=1, timeout=QUIET) if each.ticket is not None] == []

    async def test_a_flood_is_taken_without_waiting_and_announced(self, place: Place) -> None:
        sender, receiver = await place.open(), await place.open()
        await calm(receiver)
        await place.tell(sender, [ticket(number) for number in range(place.flood)])
        if not place.names:
            return await rings_end(receiver)
        left, named, rings = place.flood, set[str](), 0
        async with asyncio.timeout(2 * SOON):
            while left > 0:
                for each in await receiver.receive(want=500, timeout=1.0):
                    if each.ticket is None:
                        rings += 1
                    else:
                        assert each.ticket.id not in named
                        named.add(each.ticket.id)
                    await each.done()
                    left -= 1
        assert len(named) + rings == place.flood
        return None

    async def test_odd_names_do_no_harm(self, place: Place) -> None:
        transport = await place.open()
        await calm(transport)
        odd = [ticket(n, id=f"é\r\nX: {n}", namespace="Ä.>", agent="a b*") for n in range(2)]
        await place.tell(transport, odd)
        got = await gather(transport, want=2, names=place.names)
        assert not place.names or [each.ticket for each in got] == odd

    async def test_who_stops_waiting_takes_nothing_with_it(self, place: Place) -> None:
        transport = await place.open()
        await calm(transport)
        for _ in range(5):
            waiting = asyncio.create_task(transport.receive(want=1, timeout=SOON))
            await asyncio.sleep(0.01)
            waiting.cancel()
            await asyncio.wait([waiting])
        await place.tell(transport, [ticket(1)])
        (got,) = await gather(transport, want=1, names=place.names)
        assert got.ticket == (ticket(1) if place.names else None)

    async def test_a_closed_transport_gives_nothing_and_raises_nothing(self, place: Place) -> None:
        transport = await place.open()
        waiting = asyncio.create_task(gather_until_closed(transport))
        await asyncio.sleep(0.05)
        await transport.close()
        await transport.close()
        await asyncio.wait_for(waiting, SOON)
        await transport.publish([ticket(1)])
        assert list(await transport.receive(want=1, timeout=0.05)) == []


async def rings_end(transport: Transport) -> None:
    """However many tickets there were, rings come to an end soon."""
    rings = 0
    while got := await transport.receive(want=10, timeout=QUIET):
        rings += len(got)
    assert 0 < rings < 1000


async def gather_until_closed(transport: Transport) -> None:
    while await transport.receive(want=5, timeout=SOON):
        pass


# What happens to one ticket, as (operation, number): the model is a set of those that are owed.
histories = st.lists(
    st.one_of(
        st.tuples(st.just("publish"), st.integers(0, 7)),
        st.tuples(st.sampled_from(["done", "again", "keep"]), st.integers(1, 4)),
    ),
    max_size=20,
)


async def check_history(transport: Transport, history: Sequence[tuple[str, int]], *, prefix: str) -> None:
    """Whatever is done in whatever order: what was published and not done comes, and nothing else does.

    `keep` takes deliveries and says nothing; they are given back at the end.
    """
    owed: set[str] = set()
    kept: list[Delivery] = []
    counter = 0
    for operation, number in history:
        if operation == "publish":
            batch = [ticket(f"{prefix}-{counter + each}") for each in range(number)]
            counter += number
            owed |= {each.id for each in batch}
            await transport.publish(batch)
            continue
        at_hand = len(owed) - len(kept)
        got = await transport.receive(want=number, timeout=5.0 if at_hand else 0.01)
        assert bool(got) == bool(at_hand)
        assert len(got) <= number
        for each in got:
            assert each.ticket is not None
            assert each.ticket.id in owed, "it was never published, or is done"
            match operation:
                case "done":
                    await each.done()
                    owed.discard(each.ticket.id)
                case "again":
                    await each.again(delay=0)
                case _:
                    kept.append(each)
    for each in kept:
        await each.again(delay=0)
    while owed:
        got = await transport.receive(want=8, timeout=5.0)
        assert got, f"lost: {owed}"
        for each in got:
            assert each.ticket is not None
            owed.remove(each.ticket.id)
            await each.done()
