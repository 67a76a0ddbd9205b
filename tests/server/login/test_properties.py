"""Whatever a browser, another site or an identity provider sends: no surprise."""

from __future__ import annotations

from typing import Any
from urllib.parse import urljoin, urlsplit

import pytest
from hypothesis import given
from hypothesis import strategies as st

from foliot.errors import Denied
from foliot.server.auth.identity import granted_each
from foliot.server.auth.oidc import _LOCAL_PATH, PREFIX, Reading, rules_of
from foliot.server.auth.sessions import SESSION, Cookies, CrossSite, check_origin, check_token, csrf_token

JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=10),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=10), inner, max_size=3),
    max_leaves=8,
)
READING = Reading("name", "realm.roles", rules_of(["devs=author@team-a", "ops=admin@*"]))


def scope(*headers: tuple[bytes, bytes]) -> dict[str, Any]:
    return {"type": "http", "method": "POST", "scheme": "http", "headers": [*headers]}


@given(st.text(max_size=30).map(lambda rest: "/" + rest) | st.from_regex(_LOCAL_PATH, fullmatch=True))
def test_a_place_to_go_on_is_on_this_server_whatever_a_browser_makes_of_it(place: str) -> None:
    if _LOCAL_PATH.fullmatch(place):
        # Browsers drop tabs and line ends, and take a backslash for a slash.
        read = place.replace("\\", "/").replace("\t", "").replace("\n", "").replace("\r", "")
        assert urlsplit(urljoin("https://own.example/v1/", read)).netloc == "own.example"


@given(st.lists(st.binary(max_size=60)), st.text(alphabet="abc-_", min_size=1, max_size=43))
def test_a_cookie_is_read_once_or_not_at_all(noise: list[bytes], value: str) -> None:
    own = b"foliot_session=" + value.encode()
    headers = [(b"cookie", each) for each in noise] + [(b"cookie", b"a=b; " + own + b"; c=d")]

    found = Cookies(None).read(scope(*headers), SESSION)

    assert found == value or (found is None and any(b"foliot_session" in each for each in noise))
    assert Cookies("https://own.example").read(scope(*headers), SESSION) is None


@given(st.binary(max_size=50))
def test_no_other_text_is_the_token_of_a_session(given_token: bytes) -> None:
    right = csrf_token("session").encode()
    try:
        check_token(scope((b"x-csrf-token", given_token)), "session")
    except CrossSite:
        assert given_token != right
    else:
        assert given_token == right


@given(st.binary(min_size=1, max_size=40), st.sampled_from([b"", b"same-origin", b"none", b"cross-site", b"same-site"]))
def test_only_the_own_place_is_the_own_origin(origin: bytes, site: bytes) -> None:
    headers = [(b"host", b"own.example"), (b"origin", origin)] + ([(b"sec-fetch-site", site)] if site else [])
    try:
        check_origin(scope(*headers), None)
    except CrossSite:
        return
    assert site in (b"", b"same-origin", b"none")
    assert origin.lower().partition(b"://")[2].partition(b"/")[0] == b"own.example"


@given(st.dictionaries(st.sampled_from(["name", "realm", "realm.roles", "email"]), JSON))
def test_whatever_a_provider_says_gives_a_name_of_its_own_and_known_roles_or_nothing(claims: dict[str, Any]) -> None:
    try:
        name, grants = READING.name_of(claims), READING.grants_of(claims)
    except Denied:
        return
    assert name.startswith(PREFIX)
    assert name.isprintable()
    assert granted_each(grants)


@given(st.lists(st.sampled_from(["devs", "ops", "others"])))
def test_roles_follow_from_groups_and_from_nothing_else(groups: list[str]) -> None:
    claims = {"realm": {"roles": groups}}
    expected = {"team-a": ("author",)} if "devs" in groups else {}
    expected |= {"*": ("admin",)} if "ops" in groups else {}
    if not expected:
        with pytest.raises(Denied):
            READING.grants_of(claims)
        return
    assert READING.grants_of(claims) == expected
