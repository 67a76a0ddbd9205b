"""Deliveries: written with the end of a turn, claimed by one at a time, in order, and never lost."""

from __future__ import annotations

import subprocess
import sys

import pytest

from foliot.common.process import identity
from foliot.errors import NotFound
from foliot.kernel.inbox import Arrival
from foliot.kernel.messages import Message, Text
from foliot.kernel.routing import Address, MessageDetails, Routing, stored_details
from foliot.store.base import Database
from foliot.store.channels import ChannelReaders, Outbox, deliver_answer
from foliot.store.sessions.base import NewInput
from foliot.store.sessions.database import _consume, add_input  # pyright: ignore[reportPrivateUsage]
from foliot.store.transaction import Tx

_IDENTITY = "import foliot.common.process as p; print(p.identity())"
ANN = Address("bot", "42")
BOB = Address("bot", "43")


@pytest.fixture
def outbox(opened_store: Database) -> Outbox:
    return Outbox(opened_store)


def answered(run_id: str, *routings: Routing, deliver: bool = True) -> Tx[None]:
    """Inputs with these routings, answered by a run that ends."""
    for seq, routing in enumerate(routings, 1):
        details = stored_details(MessageDetails(routing, deliver))
        new = NewInput(f"i{seq}", "followup", Message("user", (Text("hi"),)), "d", details=details)
        yield from add_input("session", 1, seq, new, Arrival(), 1.0, "")
        yield from _consume("session", 1, seq, run_id)
    yield from deliver_answer(run_id, "default", 5.0)


async def test_an_answer_goes_where_the_message_came_from(opened_store: Database, outbox: Outbox) -> None:
    await opened_store.write(answered, "r1", Routing(to="42", channel="bot", thread_id="t"))
    (delivery,) = await outbox.of_run("r1")
    assert delivery.address == Address("bot", "42", thread_id="t")
    assert delivery.state == "pending"


async def test_each_reply_member_overrides_its_partner_alone(opened_store: Database, outbox: Outbox) -> None:
    await opened_store.write(answered, "r1", Routing(to="42", reply_to="99", channel="bot", account_id="a"))
    (delivery,) = await outbox.of_run("r1")
    assert delivery.address == Address("bot", "99", "a")


async def test_two_inputs_from_one_place_are_one_delivery_and_from_two_places_two(
    opened_store: Database, outbox: Outbox
) -> None:
    ann, bob = Routing(to="42", channel="bot"), Routing(to="43", channel="bot")
    await opened_store.write(answered, "r1", ann, ann, bob)
    assert {each.address for each in await outbox.of_run("r1")} == {ANN, BOB}


@pytest.mark.parametrize("routing", [Routing(), Routing(to="42"), Routing(to="42", channel="direct")])
async def test_what_names_no_channel_stays_in_the_conversation(
    opened_store: Database, outbox: Outbox, routing: Routing
) -> None:
    await opened_store.write(answered, "r1", routing)
    assert await outbox.of_run("r1") == []


async def test_nothing_is_delivered_that_was_not_asked_for(opened_store: Database, outbox: Outbox) -> None:
    await opened_store.write(answered, "r1", Routing(to="42", channel="bot"), deliver=False)
    assert await outbox.of_run("r1") == []


async def test_a_draft_becomes_the_answer_and_keeps_its_receipt(opened_store: Database, outbox: Outbox) -> None:
    await outbox.draft("r1", "default", ANN, "message 7", now=1.0)
    assert await outbox.claim(now=100.0, lease=60.0) == []
    await opened_store.write(answered, "r1", Routing(to="42", channel="bot"))
    (claimed,) = await outbox.claim(now=100.0, lease=60.0)
    assert (claimed.state, claimed.receipt) == ("pending", "message 7")


async def test_what_was_sent_is_not_made_pending_by_a_late_draft(opened_store: Database, outbox: Outbox) -> None:
    await opened_store.write(answered, "r1", Routing(to="42", channel="bot"))
    (claimed,) = await outbox.claim(now=100.0, lease=60.0)
    await outbox.settle(claimed, "sent", now=100.0)
    await outbox.draft("r1", "default", ANN, "late", now=101.0)
    assert await outbox.claim(now=999.0, lease=60.0) == []


async def test_a_claim_that_is_not_settled_comes_back_under_the_same_key(outbox: Outbox) -> None:
    await outbox.notice("n1", "default", ANN, "hello", now=1.0)
    (first,) = await outbox.claim(now=2.0, lease=60.0)
    assert await outbox.claim(now=3.0, lease=60.0) == []
    (second,) = await outbox.claim(now=63.0, lease=60.0)
    assert second.dedupe_key == first.dedupe_key
    assert not await outbox.settle(first, "sent", now=64.0), "a late holder was believed"
    assert await outbox.settle(second, "sent", now=64.0)


async def test_what_a_dead_process_had_taken_is_due_at_once(outbox: Outbox) -> None:
    done = subprocess.run([sys.executable, "-c", _IDENTITY], capture_output=True, text=True, check=True)
    await outbox.notice("n1", "default", ANN, "hello", now=1.0)
    await outbox.notice("n2", "default", BOB, "hello", now=1.0)
    await outbox.claim(now=2.0, lease=600.0, limit=1, holder=done.stdout.strip())
    await outbox.claim(now=2.0, lease=600.0, limit=1, holder=identity())
    await outbox.take_back(now=3.0)
    assert [each.run_id for each in await outbox.claim(now=3.0, lease=60.0)] == ["n1"]


async def test_deliveries_to_one_target_keep_their_order(outbox: Outbox) -> None:
    for name in ("n1", "n2"):
        await outbox.notice(name, "default", ANN, name, now=1.0)
    await outbox.notice("n3", "default", BOB, "n3", now=1.0)
    first = await outbox.claim(now=2.0, lease=60.0)
    assert [each.run_id for each in first] == ["n1", "n3"]
    await outbox.settle(first[1], "sent", now=3.0)
    await outbox.again(first[0], 500.0, "busy")
    assert await outbox.claim(now=100.0, lease=60.0) == [], "a later one passed the first"
    (again,) = await outbox.claim(now=501.0, lease=60.0)
    await outbox.settle(again, "sent", now=502.0)
    assert [each.run_id for each in await outbox.claim(now=503.0, lease=60.0)] == ["n2"]


async def test_a_notice_is_stored_once_for_its_key(outbox: Outbox) -> None:
    assert await outbox.notice("n1", "default", ANN, "hello", now=1.0)
    assert not await outbox.notice("n1", "default", ANN, "hello again", now=2.0)
    (only,) = await outbox.list("default")
    assert only.text == "hello"


async def test_what_failed_can_be_asked_for_again_only_in_its_namespace(outbox: Outbox) -> None:
    await outbox.notice("n1", "default", ANN, "hello", now=1.0)
    (claimed,) = await outbox.claim(now=2.0, lease=60.0)
    await outbox.settle(claimed, "failed", now=3.0, error="gone")
    with pytest.raises(NotFound):
        await outbox.retry("other", claimed.key, now=4.0)
    await outbox.retry("default", claimed.key, now=4.0)
    assert len(await outbox.claim(now=5.0, lease=60.0)) == 1


async def test_what_waits_is_never_pruned(outbox: Outbox) -> None:
    await outbox.notice("n1", "default", ANN, "hello", now=1.0)
    assert await outbox.prune(before=1e9) == 0
    assert await outbox.next_due() == 1.0


async def test_one_process_reads_a_channel_until_its_lease_ends(opened_store: Database) -> None:
    readers = ChannelReaders(opened_store)
    assert await readers.claim("tg", "a", now=1.0, lease=30.0) == ""
    assert await readers.claim("tg", "b", now=2.0, lease=30.0) is None
    assert await readers.move("tg", "a", "17")
    assert await readers.claim("tg", "b", now=40.0, lease=30.0) == "17"
    assert not await readers.move("tg", "a", "18"), "a reader that lost the channel moved it"
