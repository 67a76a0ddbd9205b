"""Who speaks on a channel: a user who has linked their account, or one whom somebody with the right has named."""

from __future__ import annotations

import asyncio
import base64
import re
import time
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import httpx2 as httpx
import pytest

from foliot import Runtime
from foliot.channels.base import Incoming, Received, read_channel
from foliot.channels.conversations import UNKNOWN_LINK_LASTS, Conversations
from foliot.errors import Conflict, NotFound
from foliot.server.app import create_app
from foliot.server.auth.authentication import TokenAuth
from foliot.store.access.tokens import SqlTokens
from foliot.store.base import DeclaredBy, Key
from foliot.store.channel_links import GOOD_FOR, MOST_CODES, ChannelLink, ChannelLinks
from tests.channels.kit import KEY, declare, declare_bot, kept, opened
from tests.channels.telegram_server import TelegramServer
from tests.sessions.kit import quiet

CODE = re.compile(r"foliot channels link ([A-Z2-9]{4}-[A-Z2-9]{4}-[A-Z2-9]{4})$", re.MULTILINE)
MALLORY = DeclaredBy("mallory")
ROLES = {
    "mallory": ("admin",),
    "ima": ("admin", "impersonator"),
    "alice": ("operator",),
    "rob": ("reader",),
}


class Moment:
    """A clock that a test moves."""

    def __init__(self) -> None:
        self.now = time.time()

    def __call__(self) -> float:
        return self.now


class Site:
    """A runtime with the tokens of its people, and a channel that takes what somebody writes."""

    def __init__(self, runtime: Runtime, clock: Moment, http: httpx.AsyncClient, keys: dict[str, str]) -> None:
        self.runtime = runtime
        self.clock = clock
        self.tokens = SqlTokens(runtime.inside.database)
        self.links = ChannelLinks(runtime.inside.database)
        self._http = http
        self._keys = keys
        self._conversations = Conversations(
            runtime.inside.sessions, runtime.inside.database, runtime.inside.resources, clock=clock
        )
        self._messages = 0

    async def ask(self, who: str, method: str, path: str, **more: Any) -> httpx.Response:
        headers = {"Authorization": f"Bearer {self._keys[who]}"}
        return await self._http.request(method, path, headers=headers, **more)

    async def channel(self, by: DeclaredBy, **more: Any) -> None:
        spec = {"type": "webhook", "agent": "helper", "endpoint": "http://127.0.0.1:9/x", "auth": {"secretRef": "k"}}
        await declare(self.runtime, "Channel", "desk", {**spec, **more}, by)

    async def write(self, sender: str, text: str = "Hello", **more: Any) -> Received:
        document = await self.runtime.inside.resources.get(Key("Channel", "default", "desk"))
        self._messages += 1
        message = Incoming(f"m{self._messages}", sender, text, more.get("group") or sender, **more)
        return await self._conversations.receive(read_channel(document), message)

    async def code(self, sender: str = "zoe") -> str:
        received = await self.write(sender)
        assert received.private, received
        found = CODE.search(received.reply)
        assert found is not None, received.reply
        return found[1]

    async def enter(self, who: str, code: str) -> httpx.Response:
        return await self.ask(who, "POST", "/v1/channel-links", json={"code": code})

    async def identity(self, session: str) -> tuple[str, str, tuple[str, ...]]:
        """The user, who acts in their name and who ordered it, in the first run of a session."""
        await quiet(self.runtime, session)
        run_id = (await self.runtime.inside.sessions.get(session, identity=None)).head
        _, state = await self.runtime.inside.runs.load(run_id)
        assert state.created is not None
        who = state.created.identity
        return who.user, who.by, who.ordered_by


@pytest.fixture
async def site(store_url: str, tmp_path: Path) -> AsyncIterator[Site]:
    clock = Moment()
    async with opened(store_url, tmp_path, {"helper": [{"say": "Done."}] * 20}, clock) as runtime:
        tokens = SqlTokens(runtime.inside.database)
        keys = {
            name: (await tokens.create(name, namespaces=("default",), roles=roles, now=clock()))[1]
            for name, roles in ROLES.items()
        }
        await declare(runtime, "Secret", "k", {"data": {"value": base64.b64encode(KEY.encode()).decode()}})
        app = create_app(
            runtime, settings=runtime.inside.settings, auth=TokenAuth(runtime.inside.database, local=False)
        )
        async with httpx.AsyncClient(transport=httpx.ASGITransport(app=app), base_url="http://foliot.test") as http:
            yield Site(runtime, clock, http, keys)


# --- who is named ----------------------------------------------------------------------------------------------------


async def declared_over_http(site: Site, who: str, user: str) -> httpx.Response:
    spec = {
        "type": "webhook",
        "agent": "helper",
        "endpoint": "https://hooks.example/x",
        "auth": {"secretRef": f"own-{who}-{user}"},
        "users": [{"id": "zoe", "user": user}],
    }
    secret = {
        "metadata": {"name": f"own-{who}-{user}"},
        "spec": {"stringData": {"value": KEY}, "hosts": ["hooks.example"]},
    }
    await site.ask(who, "POST", "/v1/secrets", json=secret)
    body = {"metadata": {"name": f"of-{who}-{user}"}, "spec": spec}
    return await site.ask(who, "POST", "/v1/channels", json=body)


async def test_an_admin_declares_no_channel_that_speaks_as_somebody_else(site: Site) -> None:
    refused = await declared_over_http(site, "mallory", "alice")
    assert (refused.status_code, "impersonator" in refused.text, "alice" in refused.text) == (403, True, True)
    assert (await declared_over_http(site, "mallory", "mallory")).status_code == 201
    assert (await declared_over_http(site, "ima", "alice")).status_code == 201


async def test_a_mapping_counts_for_nothing_without_the_right_at_the_moment_of_use(site: Site) -> None:
    await site.channel(MALLORY, users=[{"id": "zoe", "user": "alice"}])
    assert (await site.write("zoe")).private
    assert (await site.runtime.inside.sessions.list("default", identity=None)).items == []

    await site.channel(DeclaredBy("ima"), users=[{"id": "zoe", "user": "alice"}], mode="queue")
    said = await site.write("zoe")
    assert await site.identity(said.session) == ("alice", "ima", ())

    await site.tokens.revoke("ima", now=site.clock())
    assert not (await site.write("zoe")).session


async def test_the_right_is_lost_with_the_role(site: Site) -> None:
    """A token does no more than the account that made it, and an account no more than its roles of now."""
    await site.channel(DeclaredBy("ima"), users=[{"id": "zoe", "user": "alice"}])
    assert (await site.write("zoe")).session
    await site.tokens.revoke("ima", now=site.clock())
    await site.tokens.create("ima", namespaces=("default",), roles=("admin",), now=site.clock())
    assert not (await site.write("zoe")).session


async def test_whoever_declares_a_channel_speaks_there_as_themselves(site: Site) -> None:
    await site.channel(MALLORY, users=[{"id": "m", "user": "mallory"}])
    assert await site.identity((await site.write("m")).session) == ("mallory", "", ())


# --- links -----------------------------------------------------------------------------------------------------------


async def test_a_user_who_enters_the_code_speaks_as_themselves(site: Site) -> None:
    await site.channel(MALLORY)
    linked = await site.enter("alice", (await site.code()).lower())
    assert (linked.status_code, linked.json()["user"], linked.json()["sender"]) == (200, "alice", "zoe"), linked.text
    said = await site.write("zoe")
    assert await site.identity(said.session) == ("alice", "", ("mallory",))
    records = [
        each.body for each in await site.runtime.audit.list(limit=9) if each.body["resource"]["kind"] == "ChannelLink"
    ]
    assert [(each["outcome"], each["caller"]["user"]) for each in records] == [("channel_linked", "alice")]


async def test_a_link_of_somebody_whom_only_an_identity_provider_knows_ends(site: Site) -> None:
    """Whether they have left is not known here, so they say now and then that they are still there."""
    await site.channel(MALLORY)
    links = site._conversations._links
    await links.enter(await site.code(), namespace="default", user="oidc:ann", owner=False, now=site.clock())
    assert (await site.write("zoe")).session
    site.clock.now += UNKNOWN_LINK_LASTS
    assert not (await site.write("zoe")).session


async def test_a_code_is_good_once_and_not_for_long_and_only_the_newest(site: Site) -> None:
    await site.channel(MALLORY)
    first, second = await site.code(), await site.code()
    assert (await site.enter("alice", first)).status_code == 404
    answers = await asyncio.gather(*(site.enter(who, second) for who in ("alice", "mallory", "ima")))
    assert sorted(each.status_code for each in answers) == [200, 404, 404]
    late = await site.code("yan")
    site.clock.now += GOOD_FOR
    assert (await site.enter("alice", late)).status_code == 404


async def test_no_code_is_stored_in_clear(site: Site, tmp_path: Path, store_url: str) -> None:
    await site.channel(MALLORY)
    code = await site.code()
    found = await site.runtime.inside.database.read("outbox_list", namespace="default", state="", before=2**62, count=9)
    assert found == []
    if store_url.startswith("sqlite"):
        for file in tmp_path.glob("foliot.db*"):
            assert code.encode() not in file.read_bytes()
            assert code.replace("-", "").encode() not in file.read_bytes()


async def test_strangers_get_a_bounded_number_of_codes(site: Site) -> None:
    await site.channel(MALLORY)
    shown = 0
    for _ in range(20):
        shown += (await site.write("zoe")).private
    assert shown == 3
    for number in range(3 * MOST_CODES):
        site.clock.now += 1.0
        shown += (await site.write(f"stranger-{number}")).private
    assert shown <= MOST_CODES
    for bad in ("x" * 300, "two\nlines", "\u202eturned"):
        assert not (await site.write(bad)).private


async def test_guesses_are_counted(site: Site) -> None:
    await site.channel(MALLORY)
    code = await site.code()
    answers = [(await site.enter("alice", f"{number:04}-AAAA-AAAA")).status_code for number in range(12)]
    assert answers == [404] * 10 + [409] * 2
    assert (await site.enter("alice", code)).status_code == 409
    assert (await site.enter("ima", code)).status_code == 200


async def test_a_code_of_another_namespace_and_a_reader_link_nothing(site: Site) -> None:
    await site.channel(MALLORY)
    code = await site.code()
    assert (await site.enter("rob", code)).status_code == 403
    with pytest.raises(NotFound):
        await site.links.enter(code, namespace="other", user="alice", owner=False, now=site.clock())
    assert (await site.enter("alice", code)).status_code == 200


async def test_a_link_is_its_users_and_ends_when_it_is_revoked(site: Site) -> None:
    await site.channel(MALLORY)
    link = (await site.enter("alice", await site.code())).json()
    for who, count in (("alice", 1), ("rob", 0), ("mallory", 1)):
        assert len((await site.ask(who, "GET", "/v1/channel-links")).json()["links"]) == count, who
    assert (await site.ask("rob", "POST", f"/v1/channel-links/{link['id']}/delete")).status_code == 404
    assert (await site.write("zoe")).session
    assert (await site.ask("alice", "POST", f"/v1/channel-links/{link['id']}/delete")).status_code == 204
    assert not (await site.write("zoe")).session
    outcomes = [each.body["outcome"] for each in await site.runtime.audit.list(limit=20)]
    assert [each for each in outcomes if each.startswith("channel_")] == ["channel_unlinked", "channel_linked"]
    named = [each.body["resource"] for each in await site.runtime.audit.list(limit=20)]
    assert [each["name"] for each in named if each["kind"] == "ChannelLink"] == [link["id"], link["id"]]


@pytest.mark.parametrize(
    "changed",
    [
        {"by": DeclaredBy("ima"), "mode": "queue"},
        {"endpoint": "http://127.0.0.1:9/other"},
        {"auth": {"secretRef": "another"}},
        {"type": "telegram"},
    ],
    ids=str,
)
async def test_a_link_ends_when_somebody_else_could_vouch_for_its_sender(site: Site, changed: dict[str, Any]) -> None:
    await site.channel(MALLORY)
    await site.enter("alice", await site.code())
    assert (await site.write("zoe")).session
    await site.channel(changed.get("by", MALLORY), **{name: each for name, each in changed.items() if name != "by"})
    assert not (await site.write("zoe")).session


async def test_a_link_gives_no_more_than_its_user_has_now(site: Site) -> None:
    await site.channel(MALLORY)
    await site.enter("alice", await site.code())
    await site.tokens.revoke("alice", now=site.clock())
    assert not (await site.write("zoe")).session


async def test_no_code_is_shown_in_a_group_or_where_links_are_switched_off(site: Site) -> None:
    await site.channel(MALLORY, groups=[{"id": "g", "respond": "always"}])
    assert not (await site.write("zoe", group="g")).private
    await site.channel(MALLORY, link=False)
    assert not (await site.write("zoe")).private


async def test_a_bot_shows_the_code_and_answers_whoever_has_entered_it(store_url: str, tmp_path: Path) -> None:
    async with (
        TelegramServer() as telegram,
        opened(store_url, tmp_path, {"helper": [{"say": "Done."}] * 9}) as runtime,
    ):
        await declare_bot(runtime, telegram.url, users=[])
        telegram.write("Hello", sender=43)
        async with kept(runtime):
            (shown,) = await telegram.seen(1)
            code = CODE.search(shown)
            assert code is not None, shown
            link = await runtime.channels.link(code[1])
            assert isinstance(link, ChannelLink)
            telegram.write("Hello again", sender=43)
            assert (await telegram.seen(2))[1] == "Done."
            await runtime.channels.unlink(link.id)
            assert await runtime.channels.links() == []
            with pytest.raises((NotFound, Conflict)):
                await runtime.channels.link(code[1])


async def test_a_deleted_channel_leaves_no_link(site: Site) -> None:
    await site.channel(MALLORY)
    link = (await site.enter("alice", await site.code())).json()
    async with kept(site.runtime) as keeper:
        await keeper.tick()
        await site.ask("mallory", "DELETE", "/v1/channels/desk")
        async with asyncio.timeout(60):
            while await site.links.list("default"):
                await keeper.tick()
    with pytest.raises(NotFound):
        await site.links.get(link["id"], namespace="default")
