"""What holds for accounts, sessions, flows and attempts on any database."""

from __future__ import annotations

import asyncio

import pytest

from foliot.errors import Conflict, Denied, InvalidInput, NotFound
from foliot.store.access.logins import (
    Lifetime,
    LoginPace,
    LoginSession,
    SqlLoginAttempts,
    SqlLoginFlows,
    SqlLoginSessions,
)
from foliot.store.access.users import SqlUsers, UserAccount
from foliot.store.base import Database

ADMIN = {"*": ["admin"]}
LIFETIME = Lifetime(idle=100.0, whole=1000.0)


async def account(users: SqlUsers, name: str = "ada", *, now: float = 0.0) -> UserAccount:
    await users.create(name, password="hash-1", grants=ADMIN, now=now)
    found = await users.find(name)
    assert found is not None
    return found


class LoginConformance:
    """Give it a `database` fixture."""

    @pytest.fixture
    def users(self, database: Database) -> SqlUsers:
        return SqlUsers(database)

    @pytest.fixture
    def sessions(self, database: Database) -> SqlLoginSessions:
        return SqlLoginSessions(database)

    async def test_an_account_is_found_by_its_name_in_any_letters(self, users: SqlUsers) -> None:
        made = await users.create(" Ada@Example.org ", password="hash", grants={"team": ["author"]}, now=5.0, by="eve")

        found = await users.find("ADA@example.ORG")

        assert found is not None
        assert (found.info, found.password) == (made, "hash")
        assert (made.name, made.grants, made.created_by) == ("ada@example.org", {"team": ("author",)}, "eve")
        assert "hash" not in repr(found)

    async def test_a_name_is_taken_once_whatever_its_letters(self, users: SqlUsers) -> None:
        await users.create("ada", password="a", grants=ADMIN, now=0.0)

        with pytest.raises(Conflict):
            await users.create("Ada", password="b", grants=ADMIN, now=0.0)
        assert [each.name for each in await users.list()] == ["ada"]

    @pytest.mark.parametrize("name", ["", " ", "a b", "-a", "a\x00", "a:b", "a/b", "é", "a" * 64, "a\n"])
    async def test_a_name_that_cannot_be_one_is_refused_and_never_found(self, users: SqlUsers, name: str) -> None:
        if name.strip() != "a":
            with pytest.raises(InvalidInput):
                await users.create(name, password="x", grants=ADMIN, now=0.0)
        assert await users.find(name) is None
        with pytest.raises(NotFound):
            await users.disable(name, now=0.0)

    async def test_the_setup_token_makes_one_account_once(self, users: SqlUsers) -> None:
        token = await users.new_setup_token(now=0.0, seconds=60.0)
        assert not await users.any()

        made = await users.set_up(token, "root", password="hash", grants=ADMIN, now=59.0)

        assert (made.name, made.created_by) == ("root", "setup")
        with pytest.raises(Conflict):
            await users.set_up(token, "second", password="hash", grants=ADMIN, now=59.0)
        with pytest.raises(Conflict):
            await users.new_setup_token(now=0.0, seconds=60.0)

    async def test_of_two_who_set_up_at_once_one_does(self, users: SqlUsers) -> None:
        token = await users.new_setup_token(now=0.0, seconds=60.0)

        ends = await asyncio.gather(
            *(users.set_up(token, f"root{n}", password="hash", grants=ADMIN, now=1.0) for n in range(4)),
            return_exceptions=True,
        )

        assert sum(isinstance(end, Conflict) for end in ends) == 3
        assert len(await users.list()) == 1

    async def test_a_setup_token_that_is_wrong_expired_or_replaced_makes_nothing(self, users: SqlUsers) -> None:
        first = await users.new_setup_token(now=0.0, seconds=60.0)
        second = await users.new_setup_token(now=0.0, seconds=60.0)

        for token, now in ((first, 1.0), ("wrong", 1.0), ("", 1.0), (second, 60.0)):
            with pytest.raises(Denied):
                await users.set_up(token, "root", password="hash", grants=ADMIN, now=now)
        assert not await users.any()

    async def test_a_session_is_found_by_its_cookie_until_it_rests_too_long(
        self, users: SqlUsers, sessions: SqlLoginSessions, database: Database
    ) -> None:
        begun, text = await sessions.begin(await account(users), lifetime=LIFETIME, now=10.0)

        assert await sessions.find(text, now=109.0) == begun
        assert await sessions.find(text, now=110.0) is None
        assert await sessions.find("other", now=11.0) is None
        assert (await users.list())[0].login_at == 10.0
        kept = await database.read("login_session_get", digest=begun.digest)
        assert text not in str([dict(row) for row in kept])

    async def test_use_makes_a_session_last_but_not_beyond_its_end(
        self, users: SqlUsers, sessions: SqlLoginSessions
    ) -> None:
        begun, text = await sessions.begin(await account(users), lifetime=LIFETIME, now=0.0)

        for now in range(90, 1000, 90):
            found = await sessions.find(text, now=now)
            assert isinstance(found, LoginSession)
            await sessions.seen(found, idle=LIFETIME.idle, now=now)

        assert await sessions.find(text, now=999.0) is not None
        assert await sessions.find(text, now=1000.0) is None
        assert await sessions.prune(now=999.0) == 0
        assert await sessions.prune(now=1000.0) == 1
        assert begun.ends_at == 1000.0

    async def test_sessions_have_the_roles_that_the_account_has_now(
        self, users: SqlUsers, sessions: SqlLoginSessions
    ) -> None:
        _, text = await sessions.begin(await account(users), lifetime=LIFETIME, now=0.0)

        await users.grant("ada", {"team": ["reader"]})

        found = await sessions.find(text, now=1.0)
        assert found is not None
        assert found.grants == {"team": ("reader",)}

    async def test_a_disabled_account_has_no_sessions_and_gets_none(
        self, users: SqlUsers, sessions: SqlLoginSessions
    ) -> None:
        ada = await account(users)
        _, text = await sessions.begin(ada, lifetime=LIFETIME, now=0.0)

        disabled = await users.disable("ADA", now=1.0)

        assert disabled.disabled_at == 1.0
        assert await sessions.find(text, now=1.0) is None
        with pytest.raises(Denied):
            await sessions.begin(ada, lifetime=LIFETIME, now=2.0)
        assert (await users.enable("ada")).disabled_at is None
        assert await sessions.find(text, now=3.0) is None, "what has ended stays so"
        await sessions.begin(ada, lifetime=LIFETIME, now=4.0)

    async def test_another_password_ends_every_session_of_the_account_and_of_no_other(
        self, users: SqlUsers, sessions: SqlLoginSessions
    ) -> None:
        ada, bob = await account(users), await account(users, "bob")
        texts = [(await sessions.begin(each, lifetime=LIFETIME, now=0.0))[1] for each in (ada, ada, bob)]

        ended = await users.set_password("ada", "hash-2", now=1.0)

        assert ended == 2
        assert [await sessions.find(text, now=1.0) is not None for text in texts] == [False, False, True]
        with pytest.raises(Denied):  # who knew the old one comes too late
            await sessions.begin(ada, lifetime=LIFETIME, now=2.0)

    async def test_of_two_changes_of_a_password_the_second_is_refused(self, users: SqlUsers) -> None:
        ada = await account(users)
        await users.set_password("ada", "hash-2", now=1.0, instead_of=ada.password)

        with pytest.raises(Conflict):
            await users.set_password("ada", "hash-3", now=1.0, instead_of=ada.password)
        await users.rehash(ada, "hash-4")

        found = await users.find("ada")
        assert found is not None
        assert found.password == "hash-2"

    async def test_a_session_without_an_account_has_roles_of_its_own_and_can_be_ended(
        self, sessions: SqlLoginSessions
    ) -> None:
        begun, text = await sessions.begin_vouched("oidc:ada", {"team": ["author"]}, lifetime=LIFETIME, now=0.0)
        assert await sessions.find(text, now=1.0) == begun

        await sessions.end(begun)

        assert await sessions.find(text, now=1.0) is None

    async def test_who_was_sent_away_is_let_back_once_in_the_same_browser_in_time(self, database: Database) -> None:
        flows = SqlLoginFlows(database)
        for state in ("a", "b", "c"):
            await flows.begin(state, "browser", "/there", now=0.0, seconds=10.0)

        assert await flows.take("a", "browser", now=9.0) == "/there"
        assert await flows.take("a", "browser", now=9.0) is None
        assert await flows.take("b", "another", now=9.0) is None
        assert await flows.take("b", "browser", now=9.0) is None, "one attempt, also for the wrong one"
        assert await flows.take("c", "browser", now=10.0) is None
        assert await flows.take("never", "", now=0.0) is None

    async def test_attempts_are_counted_for_all_at_once_and_time_forgives_them(self, database: Database) -> None:
        attempts, pace = SqlLoginAttempts(database), LoginPace(3, 10.0)

        waits = await asyncio.gather(*(attempts.charge("peer", pace, now=100.0) for _ in range(8)))

        assert sorted(waits)[:3] == [0.0, 0.0, 0.0]
        assert sorted(waits)[3:] == [10.0] * 5
        assert await attempts.charge("other", pace, now=100.0) == 0.0
        assert await attempts.charge("peer", pace, now=105.0) == 5.0
        assert await attempts.charge("peer", pace, now=110.0) == 0.0
        assert await attempts.charge("peer", pace, now=110.0) == 10.0

    async def test_a_good_attempt_does_not_count_and_old_ones_are_forgotten(self, database: Database) -> None:
        attempts, pace = SqlLoginAttempts(database), LoginPace(1, 10.0)
        assert await attempts.charge("peer", pace, now=0.0) == 0.0

        await attempts.refund("peer", pace)

        assert await attempts.charge("peer", pace, now=0.0) == 0.0
        assert await attempts.prune(now=9.0) == 0
        assert await attempts.prune(now=10.0) == 1
