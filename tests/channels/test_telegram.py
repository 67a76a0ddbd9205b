"""A bot against the wire format of Telegram: what people write reaches their session once, and answers reach them."""

from __future__ import annotations

import asyncio
import base64
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from foliot import Runtime, ScriptedModel
from foliot.channels.base import DeclaredChannel, DeliveryFailed, Notification
from foliot.channels.keeper import ChannelKeeper
from foliot.channels.telegram import BUSY, UNREADABLE, TelegramChannel, _Draft
from foliot.kernel.messages import Media
from foliot.kernel.routing import Address
from foliot.store.base import Key
from foliot.store.channels import ChannelReaders
from tests.channels.kit import declare, declare_bot, kept, opened
from tests.channels.telegram_server import TOKEN, Refusal, TelegramServer

DONE = [{"say": "Done."}] * 30


@pytest.fixture
async def telegram() -> AsyncIterator[TelegramServer]:
    async with TelegramServer() as server:
        yield server


@pytest.fixture
async def runtime(store_url: str, tmp_path: Path) -> AsyncIterator[Runtime]:
    async with opened(store_url, tmp_path, {"helper": DONE, "writer": [{"say": "Written."}] * 9}) as runtime:
        yield runtime


async def sessions(runtime: Runtime) -> list[str]:
    page = await runtime.inside.sessions.list("default", identity=None, archived=True)
    return [session.place.channel for session in page.items]


async def test_a_message_is_answered_where_it_came_from(runtime: Runtime, telegram: TelegramServer) -> None:
    await declare_bot(runtime, telegram.url)
    telegram.write("Hello")
    async with kept(runtime):
        assert await telegram.seen(1) == ["Done."]
    assert await sessions(runtime) == ["helper:user:ann:private"]


async def test_a_changed_token_is_that_of_the_next_request(runtime: Runtime, telegram: TelegramServer) -> None:
    await declare_bot(runtime, telegram.url)
    keeper = ChannelKeeper(runtime.inside, poll_seconds=0)
    bot = await keeper.find("default", "bot")
    assert isinstance(bot, TelegramChannel)
    assert await bot.poll_once()
    telegram.token = "123456:another-token-of-the-bot"
    with pytest.raises(DeliveryFailed, match="Unauthorized"):
        await bot.poll_once()
    changed = base64.b64encode(f"{telegram.token}\n".encode()).decode()
    await declare(runtime, "Secret", "bot", {"data": {"value": changed}})
    assert await bot.poll_once()
    assert await keeper.find("default", "bot") is bot

    async def progress(receipt: str) -> bool:
        return True

    await bot.deliver(Notification("k", Address("bot", "42"), "With the new token.", (), "r", "", progress))
    assert telegram.shown == ["With the new token."]
    await keeper.close()


async def test_a_bot_whose_secret_comes_later_begins_with_it(runtime: Runtime, telegram: TelegramServer) -> None:
    await declare_bot(runtime, telegram.url, auth={"secretRef": "later"})
    telegram.write("Hello")
    async with kept(runtime):
        async with asyncio.timeout(60):
            while await phase(runtime) != "Error":
                await runtime.inside.next_change()()
        secret = base64.b64encode(TOKEN.encode()).decode()
        await declare(runtime, "Secret", "later", {"data": {"value": secret}})
        assert await telegram.seen(1) == ["Done."]
        async with asyncio.timeout(60):
            while await phase(runtime) != "Ready":
                await runtime.inside.next_change()()


async def phase(runtime: Runtime) -> str:
    document = await runtime.inside.resources.get(Key("Channel", "default", "bot"))
    return (document.get("status") or {}).get("phase", "")


async def test_a_bot_without_its_secret_is_tried_again_only_when_a_secret_or_a_grant_has_changed(
    runtime: Runtime, telegram: TelegramServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    await declare_bot(runtime, telegram.url, auth={"secretRef": "later"})
    keeper, tries = ChannelKeeper(runtime.inside, poll_seconds=0), list[str]()
    looked_up = keeper._secret

    async def counted(declared: DeclaredChannel) -> str:
        tries.append(declared.name)
        return await looked_up(declared)

    monkeypatch.setattr(keeper, "_secret", counted)
    for _ in range(3):
        await keeper.tick()
    assert (len(tries), await phase(runtime)) == (1, "Error")

    await declare(runtime, "Agent", "unrelated", {"model_ref": "m", "prompt": "p"})
    await keeper.tick()
    assert len(tries) == 1

    await declare(runtime, "Secret", "another", {"data": {"value": "aGVsbG8="}})
    for _ in range(3):
        await keeper.tick()
    assert (len(tries), await phase(runtime)) == (2, "Error")

    secret = base64.b64encode(TOKEN.encode()).decode()
    await declare(runtime, "Secret", "later", {"data": {"value": secret}})
    await keeper.tick()
    assert await phase(runtime) == "Ready"
    await keeper.close()


async def test_nobody_speaks_who_is_not_listed(runtime: Runtime, telegram: TelegramServer) -> None:
    await declare_bot(runtime, telegram.url)
    telegram.write("/whoami", sender=43)
    telegram.write("Let me in", sender=43)
    telegram.write("Hello")
    async with kept(runtime):
        *codes, answer = await telegram.seen(3)
    assert (answer, len(telegram.messages)) == ("Done.", 3)
    assert all("foliot channels link" in code for code in codes)


async def test_an_empty_list_lets_nobody_in(runtime: Runtime, telegram: TelegramServer) -> None:
    await declare_bot(runtime, telegram.url, users=[], link=False)
    last = telegram.write("Hello")
    async with kept(runtime):
        await taken(runtime, telegram, last)
    assert telegram.messages == {}
    assert await sessions(runtime) == []


async def taken(runtime: Runtime, telegram: TelegramServer, number: int) -> None:
    """Waits until the bot has confirmed an update."""
    async with asyncio.timeout(60):
        while telegram.confirmed <= number:
            await runtime.inside.next_change()()


async def test_commands_are_done_here_and_in_any_case(runtime: Runtime, telegram: TelegramServer) -> None:
    await declare_bot(runtime, telegram.url, agents=["writer"])
    for text in ("/WhoAmI", "/abort", "/agent nobody", "/Agent writer", "/compact", "Hello"):
        telegram.write(text)
    async with kept(runtime):
        shown = await telegram.seen(6)
    assert shown[0].startswith("You are ann (42 on bot), talking to helper.")
    assert shown[1:] == [
        "Nothing was at work.",
        "You are talking to helper.\nThere is no 'nobody'.",
        "You are talking to writer now.",
        "There is no conversation.",
        "Written.",
    ]


async def test_new_begins_another_conversation_and_an_unknown_command_is_chat(
    runtime: Runtime, telegram: TelegramServer
) -> None:
    await declare_bot(runtime, telegram.url)
    telegram.write("/nonsense")
    async with kept(runtime):
        assert await telegram.seen(1) == ["Done."]
        telegram.write("/new")
        assert (await telegram.seen(2))[1] == "This is a new conversation."
    assert len(await sessions(runtime)) == 2


async def test_what_came_twice_is_said_once(runtime: Runtime, telegram: TelegramServer) -> None:
    """The process died after it had taken updates and before it stored how far it had come."""
    await declare_bot(runtime, telegram.url)
    telegram.write("/new")
    telegram.files["cat"] = b"\xff\xd8\xff" + b"x" * 100
    telegram.write(photo=[{"file_id": "cat", "file_unique_id": "cat", "width": 1, "height": 1}], caption="Hello")
    before = list(telegram.updates)
    async with kept(runtime) as keeper:
        await telegram.seen(2)
        channel = await keeper.find("default", "bot")
        uid = channel.declared.uid
    readers = ChannelReaders(runtime.inside.database)
    await readers.claim(uid, "a test", now=runtime.inside.clock(), lease=0.0)
    await readers.move(uid, "a test", "0")
    telegram.updates = before
    telegram.confirmed = 0
    async with kept(runtime):
        await taken(runtime, telegram, 2)
    assert telegram.shown == ["This is a new conversation.", "Done."]
    assert len(await sessions(runtime)) == 1


async def test_a_long_answer_comes_in_whole_characters(
    store_url: str, tmp_path: Path, telegram: TelegramServer
) -> None:
    answer = ("🙂" * 60 + "\n") * 60
    async with opened(store_url, tmp_path, {"helper": [{"say": answer}]}) as runtime:
        await declare_bot(runtime, telegram.url)
        telegram.write("Hello")
        async with kept(runtime):
            shown = await telegram.seen(2)
    assert "\n".join(shown) == answer.strip()


async def test_a_429_is_waited_out_as_long_as_it_says(runtime: Runtime, telegram: TelegramServer) -> None:
    await declare_bot(runtime, telegram.url)
    telegram.refusals.append(
        ("sendMessage", Refusal(429, "Too Many Requests: retry after 37", retry_after=37)),
    )
    telegram.write("/help")
    async with kept(runtime) as keeper:
        async with asyncio.timeout(60):
            while not (await keeper.outbox.list("default") or [None])[0] or telegram.refusals:
                await runtime.inside.next_change()()
        (delivery,) = await keeper.outbox.list("default")
        while not delivery.error:
            await runtime.inside.next_change()()
            (delivery,) = await keeper.outbox.list("default")
    assert delivery.state == "pending"
    assert delivery.due_at - delivery.created_at >= 37
    assert "retry after 37" in delivery.error


async def test_a_delivery_that_can_never_succeed_is_given_up_and_the_run_knows_nothing(
    runtime: Runtime, telegram: TelegramServer
) -> None:
    await declare_bot(runtime, telegram.url)
    telegram.blocked.add(42)
    telegram.write("Hello")
    async with kept(runtime) as keeper, asyncio.timeout(60):
        while not (failed := await keeper.outbox.list("default", state="failed")):
            await runtime.inside.next_change()()
    assert "blocked by the user" in failed[0].error
    assert (await runtime.inside.runs.journal.get(failed[0].run_id)).phase == "succeeded"


async def test_a_wrong_token_is_reported_and_never_shown(
    runtime: Runtime, telegram: TelegramServer, caplog: pytest.LogCaptureFixture
) -> None:
    await declare_bot(runtime, telegram.url + "/elsewhere")
    async with kept(runtime) as keeper, asyncio.timeout(60):
        channel = await keeper.find("default", "bot")
        while not ((known := await keeper.readers.get(channel.declared.uid)) and known.error):
            await runtime.inside.next_change()()
    assert "test-token" not in caplog.text + known.error


@pytest.mark.parametrize(("respond", "answered"), [("mention", 1), ("always", 2), ("disabled", 0)])
async def test_a_group_is_answered_as_it_is_declared(
    runtime: Runtime, telegram: TelegramServer, respond: str, answered: int
) -> None:
    await declare_bot(runtime, telegram.url, groups=[{"id": "-100", "respond": respond}])
    telegram.write("just talking", chat=-100)
    entity = {"type": "mention", "offset": 3, "length": 9}
    telegram.write("🙂 @desk_bot what now", chat=-100, entities=[entity])
    last = telegram.write("/help", chat=-999)
    async with kept(runtime):
        await taken(runtime, telegram, last)
        await telegram.seen(answered)
    assert len(telegram.shown) == answered


async def test_photos_come_in_with_their_caption_and_pictures_go_out(
    store_url: str, tmp_path: Path, telegram: TelegramServer
) -> None:
    model = ScriptedModel([{"say": "A cat."}])
    telegram.files["cat"] = b"\xff\xd8\xff" + b"x" * 100
    async with opened(store_url, tmp_path, {"helper": model}) as runtime:
        await declare_bot(runtime, telegram.url)
        sizes = [{"file_id": name, "file_unique_id": name, "width": 1, "height": 1} for name in ("small", "cat")]
        telegram.write(photo=sizes, caption="What is this?")
        async with kept(runtime) as keeper:
            await telegram.seen(1)
            channel = await keeper.find("default", "bot")
            (session,) = (await runtime.inside.sessions.list("default", identity=None)).items
            _, state = await runtime.inside.runs.load(session.head)
            said = state.transcript[0]
    assert said.text == "What is this?"
    (media,) = [part for part in said.parts if isinstance(part, Media)]
    assert media.media_type == "image/jpeg"
    assert channel.declared.name == "bot"


async def test_pictures_and_files_of_an_answer_go_out_under_harmless_names(
    runtime: Runtime, telegram: TelegramServer
) -> None:
    await declare_bot(runtime, telegram.url)
    stored: list[str] = []

    async def progress(receipt: str) -> bool:
        stored.append(receipt)
        return True

    media = (
        Media("image/png", data=base64.b64encode(b"\x89PNG").decode(), name="cat.png"),
        Media("text/plain", data=base64.b64encode(b"hello").decode(), name='../../evil"\r\nX: y.txt'),
    )
    async with kept(runtime) as keeper:
        channel = await keeper.find("default", "bot")
        await channel.deliver(Notification("k", Address("bot", "42"), "Here.", media, "r", "", progress))
        await channel.deliver(Notification("k", Address("bot", "42"), "Here.", media, "r", stored[1], progress))
    shown = [text.replace("\r", "").replace("\n", "") for text in telegram.shown]
    assert shown[:2] == ["Here.", "[photo cat.png 4]"]
    assert len(shown) == 4, "what was sent before was sent again"
    assert all(".." not in text and '"' not in text for text in shown)


async def test_a_file_that_is_too_large_is_not_fetched(runtime: Runtime, telegram: TelegramServer) -> None:
    await declare_bot(runtime, telegram.url)
    telegram.write(
        "", document={"file_id": "x", "file_unique_id": "x", "file_size": 21 * 1024 * 1024, "file_name": "../../etc/x"}
    )
    async with kept(runtime):
        await telegram.seen(1)
    assert telegram.said("getFile") == []


async def test_drafts_grow_at_most_once_a_second_and_become_the_answer(
    store_url: str, tmp_path: Path, telegram: TelegramServer
) -> None:
    words = " ".join(f"word{number}" for number in range(40))
    async with opened(store_url, tmp_path, {"helper": [{"say": words, "chunk": 8}]}) as runtime:
        await declare_bot(runtime, telegram.url)
        telegram.write("Hello")
        async with kept(runtime):
            assert await telegram.seen(1) == [words]
    assert len(telegram.said("sendMessage")) == 1, "the draft was not made the answer"
    assert len(telegram.said("editMessageText")) <= 2


async def test_a_draft_that_is_sent_while_its_delivery_is_taken_becomes_the_answer(
    runtime: Runtime, telegram: TelegramServer
) -> None:
    await declare_bot(runtime, telegram.url)
    keeper = ChannelKeeper(runtime.inside, poll_seconds=0)
    bot = await keeper.find("default", "bot")
    assert isinstance(bot, TelegramChannel)
    noted: list[str] = []

    async def progress(receipt: str) -> bool:
        noted.append(receipt)
        return True

    draft = bot._drafted["r"] = _Draft()
    delivering = asyncio.ensure_future(
        bot.deliver(Notification("k", Address("bot", "42"), "All of it.", (), "r", "", progress))
    )
    await asyncio.sleep(0)
    draft.number = await bot._api.send("42", "All ▌")
    assert telegram.shown == ["All ▌"]
    draft.ended.set()
    await delivering
    assert telegram.shown == ["All of it."]
    assert f'"draft":{draft.number}' in noted[0], "another process would make it the answer too"
    await keeper.close()


async def test_a_message_that_meets_a_full_inbox_is_answered_and_the_next_one_is_taken(
    store_url: str, tmp_path: Path, telegram: TelegramServer
) -> None:
    slow = {"say": "Once upon a time", "chunk": 2, "pace": 60}
    async with opened(store_url, tmp_path, {"helper": [slow, *DONE]}) as runtime:
        await declare_bot(runtime, telegram.url)
        async with kept(runtime) as keeper:
            await taken(runtime, telegram, telegram.write("work"))
            (session,) = (await runtime.inside.sessions.list("default", identity=None)).items
            await runtime.inside.sessions.change(
                session.id, identity=None, options={"inbox": {"cap": 1, "drop": "new"}}
            )
            telegram.write("first")
            telegram.write("do not send the letter")
            await taken(runtime, telegram, telegram.write("/whoami"))
            told = [each.text for each in await keeper.outbox.list("default") if each.text]
            await runtime.inside.sessions.stop(session.id, identity=None, drop=True)
    assert BUSY in told
    assert any(text.startswith("You are ann") for text in told)


async def test_a_message_that_breaks_the_bot_is_answered_and_holds_up_nothing(
    runtime: Runtime, telegram: TelegramServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = TelegramChannel._incoming  # pyright: ignore[reportPrivateUsage]

    async def breaks(channel: Any, number: int, message: Any, sender: Any) -> Any:
        if message.text == "boom":
            raise RuntimeError("a fault")
        return await real(channel, number, message, sender)

    monkeypatch.setattr(TelegramChannel, "_incoming", breaks)
    await declare_bot(runtime, telegram.url)
    telegram.write("boom")
    telegram.write("Hello")
    async with kept(runtime):
        assert sorted(await telegram.seen(2)) == sorted([UNREADABLE, "Done."])
