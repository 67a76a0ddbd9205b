"""Parameters of handlers: what is read, and what is said of what cannot be."""

from __future__ import annotations

import math
from typing import Annotated, Any, Literal

import httpx2 as httpx
import pytest
from hypothesis import given
from hypothesis import strategies as st
from starlette.requests import Request
from starlette.responses import Response

from foliot.common.times import MOMENT_FORMS
from foliot.server.app import load_routes
from foliot.server.errors import InvalidParameters
from foliot.server.http.parameters import Header, Path, Query, Signature
from foliot.server.http.routing import Route


async def echo(
    kind: Annotated[str, Path(max_length=5)],
    request: Request,
    wanted: Annotated[str, Query(pattern=r"^[a-z]+$")],
    limit: Annotated[int, Query(ge=0, le=100, change=lambda limit: min(limit, 9))] = 3,
    kind_of: Annotated[Literal["a", "b"] | None, Query(alias="kindOf")] = None,
    flag: Annotated[bool, Query()] = False,
    since: Annotated[float | None, Query(lt=1e9)] = None,
    if_match: Annotated[str | None, Header(max_length=4)] = None,
) -> Response:
    return Response()


SIGNATURE = Signature(echo, ("kind",), {Request: lambda request: request})


def read(query: str = "wanted=x", kind: str = "agent", headers: dict[str, str] | None = None) -> dict[str, Any]:
    pairs = [(name.lower().encode(), value.encode("latin-1")) for name, value in (headers or {}).items()]
    scope = {
        "type": "http",
        "method": "GET",
        "path": "/",
        "query_string": query.encode(),
        "path_params": {"kind": kind},
        "headers": pairs,
    }
    return SIGNATURE.read(Request(scope))


def faults(query: str = "wanted=x", **more: Any) -> list[str]:
    with pytest.raises(InvalidParameters) as caught:
        read(query, **more)
    return [f"{each.place}.{each.name} {each.message}" for each in caught.value.faults]


def test_what_is_not_given_has_its_default_and_the_request_is_known_by_its_type() -> None:
    values = read()

    assert isinstance(values.pop("request"), Request)
    assert values == {
        "kind": "agent",
        "wanted": "x",
        "limit": 3,
        "kind_of": None,
        "flag": False,
        "since": None,
        "if_match": None,
    }


@pytest.mark.parametrize(
    ("query", "name", "value"),
    [
        ("limit=7", "limit", 7),
        ("limit=50", "limit", 9),
        ("limit=7.0", "limit", 7),
        ("limit=%207%20", "limit", 7),
        ("kindOf=b", "kind_of", "b"),
        ("flag=TRUE", "flag", True),
        ("flag=yes", "flag", True),
        ("flag=off", "flag", False),
        ("since=1e3", "since", 1000.0),
    ],
)
def test_a_text_becomes_a_value_of_the_type_in_the_signature(query: str, name: str, value: Any) -> None:
    found = read(f"wanted=x&{query}")[name]

    assert (type(found), found) == (type(value), value)


@pytest.mark.parametrize(
    ("query", "said"),
    [
        ("", "query.wanted is required"),
        ("wanted=A", "query.wanted must match ^[a-z]+$"),
        ("wanted=", "query.wanted must match ^[a-z]+$"),
        ("wanted=x&limit=", "query.limit must be a whole number"),
        ("wanted=x&limit=1.5", "query.limit must be a whole number"),
        ("wanted=x&limit=1_0", "query.limit must be a whole number"),
        ("wanted=x&limit=-1", "query.limit must be at least 0"),
        ("wanted=x&limit=101", "query.limit must be at most 100"),
        ("wanted=x&kindOf=c", "query.kindOf must be one of a, b"),
        ("wanted=x&flag=2", "query.flag must be true or false"),
        ("wanted=x&since=soon", "query.since must be a number"),
        ("wanted=x&since=nan", "query.since must be a finite number"),
        ("wanted=x&since=1e9", "query.since must be less than 1000000000.0"),
    ],
)
def test_each_fault_is_said_with_its_place(query: str, said: str) -> None:
    assert faults(query) == [said]


def test_all_faults_are_said_at_once() -> None:
    assert faults("limit=x", kind="agents", headers={"If-Match": "12345"}) == [
        "path.kind must have at most 5 characters",
        "query.limit must be a whole number",
        "header.if-match must have at most 4 characters",
        "query.wanted is required",
    ]


@given(st.text(st.characters(codec="utf-8", exclude_categories=("Cc", "Zl", "Zp")), max_size=30))
def test_no_text_makes_more_than_a_fault_of_a_parameter(text: str) -> None:
    query = httpx.QueryParams({"wanted": "x", "limit": text, "since": text, "flag": text, "kindOf": text})
    try:
        values = read(str(query))
    except InvalidParameters:
        return
    assert 0 <= values["limit"] <= 9
    assert math.isfinite(values["since"])


def test_the_first_of_several_headers_counts() -> None:
    scope = {
        "type": "http",
        "query_string": b"wanted=x",
        "path_params": {"kind": "a"},
        "headers": [(b"if-match", b"1"), (b"if-match", b"2")],
    }

    assert SIGNATURE.read(Request(scope))["if_match"] == "1"


def test_a_parameter_is_told_as_it_is_checked() -> None:
    told = {each.name: each.described() for each in SIGNATURE.parameters}

    assert [*told] == ["kind", "wanted", "limit", "kindOf", "flag", "since", "If-Match"]
    assert told["kind"] == {
        "name": "kind",
        "in": "path",
        "required": True,
        "schema": {"type": "string", "maxLength": 5},
    }
    assert told["limit"]["schema"] == {"type": "integer", "minimum": 0, "maximum": 100, "default": 3}
    assert told["kindOf"]["schema"] == {"type": "string", "enum": ["a", "b"]}
    assert told["since"]["schema"] == {"type": "number", "exclusiveMaximum": 1e9}
    assert told["If-Match"]["required"] is False


async def with_list(x: Annotated[list[str], Query()]) -> Response:
    return Response()


async def without_word(y: Annotated[str, Path()]) -> Response:
    return Response()


@pytest.mark.parametrize("handler", [with_list, without_word])
def test_a_handler_that_cannot_be_called_is_refused(handler: Any) -> None:
    route = Route("GET", "/{x}", handler)

    for _ in range(2):  # a route is analysed when it is first used, and a mistake is told each time
        with pytest.raises(TypeError, match=r"with_list\(x\)|without_word\(y\)"):
            _ = route.signature


def test_every_handler_of_the_server_can_be_called() -> None:
    for route in load_routes():
        words = {each.name for each in route.signature.parameters if each.place == "path"}
        assert words == set(route.names), (route.method, route.path)


async def test_over_http_faults_are_a_problem_with_the_place_of_each(http: httpx.AsyncClient) -> None:
    answer = await http.get("/v1/audit", params={"since": "-1", "before": "x"})

    assert (answer.status_code, answer.json()["code"]) == (400, "invalid")
    assert answer.json()["errors"] == [
        {"field": "query.since", "message": f"must be a time: {MOMENT_FORMS}"},
        {"field": "query.before", "message": "must be a whole number"},
    ]
    assert (
        answer.json()["detail"] == f"query.since: must be a time: {MOMENT_FORMS}; query.before: must be a whole number"
    )


async def test_clients_of_openai_hear_of_the_first_fault_in_their_words(http: httpx.AsyncClient) -> None:
    answer = await http.get("/v1/responses/x/input_items", params={"limit": "1000"})

    assert answer.status_code == 400
    assert answer.json()["error"] == {
        "message": "limit must be at most 100",
        "type": "invalid_request_error",
        "param": "limit",
        "code": "invalid_request",
    }
