from __future__ import annotations

import asyncio

import pytest

from foliot.errors import InvalidInput
from foliot.server.auth.passwords import AT_ONCE, WAITING, Passwords, check_password
from foliot.server.errors import TooMany
from tests.server.login.conftest import CHEAP, PASSWORD


async def test_a_hash_is_argon2id_at_the_costs_that_are_asked_and_never_twice_the_same() -> None:
    first, second = [await Passwords().hash(PASSWORD) for _ in range(2)]

    assert first.startswith("$argon2id$v=19$m=65536,t=3,p=2$")
    assert first != second
    assert await Passwords().matches(first, PASSWORD)


async def test_only_the_right_password_matches(passwords: Passwords) -> None:
    kept = await passwords.hash(PASSWORD)

    assert await passwords.matches(kept, PASSWORD)
    for wrong in ("", PASSWORD + " ", PASSWORD.upper(), PASSWORD[:-1], "a" * 2000, PASSWORD + "\x00"):
        assert not await passwords.matches(kept, wrong)
    assert not await passwords.matches("no hash at all", PASSWORD)


async def test_a_password_is_the_same_however_a_keyboard_made_its_letters(passwords: Passwords) -> None:
    kept = await passwords.hash("Schöne Ångström ﬁne")

    assert await passwords.matches(kept, "Scho\u0308ne A\u030angstro\u0308m fine")


async def test_whoever_is_not_known_is_compared_at_the_same_costs_and_never_matches(passwords: Passwords) -> None:
    compared: list[str] = []
    engine = passwords._engine()

    class Watching:
        def verify(self, kept: str, password: str) -> bool:
            compared.append(kept.rpartition("$")[0].rpartition("$")[0])
            return engine.verify(kept, password)

    kept = await passwords.hash(PASSWORD)
    passwords._hasher = Watching()  # pyright: ignore[reportAttributeAccessIssue]

    assert not await passwords.matches(kept, "wrong")
    assert not await passwords.matches(None, "wrong")
    assert not await passwords.matches(None, "")
    assert compared == [kept.rpartition("$")[0].rpartition("$")[0]] * 3


async def test_a_hash_at_other_costs_is_outdated(passwords: Passwords) -> None:
    assert not passwords.outdated(await passwords.hash(PASSWORD))
    assert passwords.outdated(await Passwords(**{**CHEAP, "rounds": 2}).hash(PASSWORD))


async def test_a_crowd_waits_in_a_line_that_has_an_end(passwords: Passwords) -> None:
    kept = await passwords.hash(PASSWORD)
    for _ in range(AT_ONCE):
        await passwords._places.acquire()
    waiting = [asyncio.create_task(passwords.matches(kept, PASSWORD)) for _ in range(WAITING)]
    await asyncio.sleep(0)

    with pytest.raises(TooMany):
        await passwords.matches(kept, PASSWORD)
    for _ in range(AT_ONCE):
        passwords._places.release()

    assert all(await asyncio.gather(*waiting))


@pytest.mark.parametrize("text", ["short", "a" * 11, "a" * 30, "abababababababab", "I am Ada-Lovelace!", "x y" * 400])
def test_a_password_that_is_easy_to_guess_or_endless_is_refused(text: str) -> None:
    with pytest.raises(InvalidInput):
        check_password(text, "ada-lovelace")


@pytest.mark.parametrize("text", ["my name is ada ok", "ada-12345-likes-clocks", "it_is_Ada_who_enters"])
def test_a_short_name_is_found_where_it_is_a_word(text: str) -> None:
    with pytest.raises(InvalidInput):
        check_password(text, "ada")
    check_password("a-ramadan-of-clocks", "ada")


def test_a_few_words_in_a_row_do() -> None:
    check_password(PASSWORD, "ada")
    check_password("日本語のとても長いパスワード", "ada")
