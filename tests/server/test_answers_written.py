"""How answers are written to a connection: in one piece where they can be, and nothing that is more than an answer."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import pytest
import uvicorn
from uvicorn.server import ServerState

from foliot.server.http.connections import BoundedConnection
from foliot.server.list_reads import WHEN_GONE

Send = Callable[[dict[str, Any]], Awaitable[None]]
GET = b"GET / HTTP/1.1\r\nHost: here\r\n\r\n"


class Wire(asyncio.Transport):
    """A transport that keeps what is written to it."""

    def __init__(self) -> None:
        super().__init__()
        self.written: list[bytes] = []
        self.closed = asyncio.Event()
        self.wrote = asyncio.Event()

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        return {"peername": ("127.0.0.1", 5000), "sockname": ("127.0.0.1", 80)}.get(name, default)

    def write(self, data: Any) -> None:
        self.written.append(bytes(data))
        self.wrote.set()

    def is_closing(self) -> bool:
        return self.closed.is_set()

    def close(self) -> None:
        self.closed.set()

    abort = close

    def pause_reading(self) -> None: ...

    def resume_reading(self) -> None: ...

    @property
    def all(self) -> bytes:
        return b"".join(self.written)


class Connection:
    """A connection to an application that answers with `answer`."""

    def __init__(self, answer: Callable[[Send], Awaitable[None]], *, rests: int = 30) -> None:
        async def app(scope: Any, receive: Any, send: Send) -> None:
            await answer(send)

        config = uvicorn.Config(app, ws="none", access_log=False, log_config=None, timeout_keep_alive=rests)
        config.load()
        self.state = ServerState()
        self.wire = Wire()
        self.protocol = BoundedConnection(config=config, server_state=self.state, app_state={})
        self.protocol.connection_made(self.wire)

    async def ask(self, request: bytes = GET) -> None:
        self.protocol.data_received(request)
        await asyncio.gather(*self.state.tasks)


def whole(
    body: bytes, *headers: tuple[bytes, bytes], length: int | None = None, more: bytes | None = None
) -> Callable[[Send], Awaitable[None]]:
    """Answers with a length; with `more` in two parts."""
    size = len(body + (more or b"")) if length is None else length

    async def answer(send: Send) -> None:
        given = [(b"content-length", str(size).encode()), *headers]
        await send({"type": "http.response.start", "status": 200, "headers": given})
        await send({"type": "http.response.body", "body": body, "more_body": more is not None})
        if more is not None:
            await send({"type": "http.response.body", "body": more})

    return answer


async def test_an_answer_whose_length_is_known_is_one_write_and_the_connection_stays() -> None:
    connection = Connection(whole(b"hello", (b"etag", b'"7"')))
    await connection.ask()
    await connection.ask()
    first, second = connection.wire.written
    assert first.startswith(b"HTTP/1.1 200 OK\r\n")
    assert b'etag: "7"\r\n' in first
    assert first.endswith(b'content-length: 5\r\netag: "7"\r\n\r\nhello')
    assert second.endswith(b"\r\n\r\nhello")
    assert not connection.wire.is_closing()


async def test_a_large_body_is_not_copied_behind_its_head() -> None:
    body = b"x" * 200_000
    connection = Connection(whole(body))
    await connection.ask()
    assert connection.wire.written[1:] == [body]


async def test_a_body_that_comes_in_parts_is_written_as_it_comes() -> None:
    connection = Connection(whole(b"hel", more=b"lo"))
    await connection.ask()
    assert connection.wire.all.endswith(b"\r\n\r\nhello")
    assert not connection.wire.is_closing()


@pytest.mark.parametrize("length", [4, 6], ids=["too long", "too short"])
async def test_a_body_of_another_length_than_was_said_ends_the_connection(length: int) -> None:
    connection = Connection(whole(b"hello", length=length))
    await connection.ask()
    assert connection.wire.is_closing()


@pytest.mark.parametrize(
    "header", [(b"etag", b"1\r\nset-cookie: stolen=1"), (b"x\r\nset-cookie", b"stolen=1"), (b"etag", b"\x00")]
)
async def test_no_header_becomes_two(header: tuple[bytes, bytes]) -> None:
    connection = Connection(whole(b"hello", header))
    await connection.ask()
    assert connection.wire.all.startswith(b"HTTP/1.1 500 ")
    assert b"stolen" not in connection.wire.all
    assert connection.wire.is_closing()


async def test_the_head_of_a_stream_does_not_wait_for_its_first_part() -> None:
    go_on = asyncio.Event()

    async def answer(send: Send) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": [(b"content-type", b"text/event-stream")]})
        await go_on.wait()
        await send({"type": "http.response.body", "body": b"data: 1\n\n", "more_body": True})
        await send({"type": "http.response.body", "body": b""})

    connection = Connection(answer)
    asking = asyncio.create_task(connection.ask())
    await asyncio.wait_for(connection.wire.wrote.wait(), 10)
    assert connection.wire.all.endswith(b"transfer-encoding: chunked\r\n\r\n")
    go_on.set()
    await asking
    assert connection.wire.all.endswith(b"9\r\ndata: 1\n\n\r\n0\r\n\r\n")


@pytest.mark.parametrize("request_", [GET.replace(b"1.1", b"1.0"), GET[:-2] + b"Connection: close\r\n\r\n"])
async def test_who_wants_one_answer_gets_one_and_the_connection_is_closed(request_: bytes) -> None:
    connection = Connection(whole(b"hello"))
    await connection.ask(request_)
    assert b"connection: close\r\n" in connection.wire.all
    assert connection.wire.all.endswith(b"\r\n\r\nhello")
    assert connection.wire.is_closing()


async def test_head_has_no_body() -> None:
    connection = Connection(whole(b"hello"))
    await connection.ask(GET.replace(b"GET", b"HEAD"))
    assert connection.wire.all.endswith(b"content-length: 5\r\n\r\n")


async def test_requests_ahead_of_their_answers_are_answered_in_order() -> None:
    numbers = iter(b"123")

    async def answer(send: Send) -> None:
        await whole(bytes([next(numbers)]))(send)

    connection = Connection(answer)
    connection.protocol.data_received(GET * 3)
    while connection.state.tasks:
        # Not `gather`: from Python 3.12 on it gives those that are done no turn to leave the set.
        await asyncio.wait(set(connection.state.tasks))
    assert [piece[-1:] for piece in connection.wire.written] == [b"1", b"2", b"3"]


async def test_a_connection_is_closed_when_nobody_asks_any_more() -> None:
    connection = Connection(whole(b"hello"), rests=0)
    await connection.ask()
    await asyncio.wait_for(connection.wire.closed.wait(), 10)


@pytest.mark.parametrize("blank", [b"\r\n", b"\n", b"\r", b"\r\n" * 50])
async def test_blank_lines_behind_an_answer_do_not_hold_a_connection(blank: bytes) -> None:
    connection = Connection(whole(b"hello"), rests=0)
    await connection.ask()
    connection.protocol.data_received(blank)
    await asyncio.wait_for(connection.wire.closed.wait(), 10)


async def test_every_connection_without_a_request_has_a_timer_whatever_bytes_came() -> None:
    """Each byte of two requests comes alone, with blank lines around them."""
    connection = Connection(whole(b"hello"))
    protocol: Any = connection.protocol
    for byte in b"\r\n" + GET + b"\r\n\n" + GET + b"\r\n":
        protocol.data_received(bytes([byte]))
        await asyncio.gather(*connection.state.tasks)
        rests = protocol._resting_since is not None and protocol.timeout_keep_alive_task is not None
        assert rests or protocol._deadline is not None, connection.wire.all
        assert not (rests and protocol._heading), "a rest that is over would cut off a request that has begun"
    assert connection.wire.all.count(b"HTTP/1.1 200 OK") == 2


async def test_the_rest_of_an_earlier_answer_does_not_cut_off_a_request_that_began_before_its_end() -> None:
    go_on = asyncio.Event()

    async def answer(send: Send) -> None:
        await go_on.wait()
        await whole(b"hello")(send)

    connection = Connection(answer)
    connection.protocol.data_received(GET + GET[:5])
    go_on.set()
    await asyncio.gather(*connection.state.tasks)
    go_on.clear()
    protocol: Any = connection.protocol
    protocol.data_received(GET[5:])
    assert protocol._resting_since is None
    go_on.set()
    await asyncio.gather(*connection.state.tasks)
    assert connection.wire.all.count(b"HTTP/1.1 200 OK") == 2


async def test_a_connection_is_not_closed_in_the_middle_of_an_answer_however_long_it_takes() -> None:
    go_on = asyncio.Event()

    async def answer(send: Send) -> None:
        await go_on.wait()
        await whole(b"hello")(send)

    connection = Connection(answer)
    go_on.set()
    await connection.ask()
    go_on.clear()
    asking = asyncio.create_task(connection.ask())
    await asyncio.sleep(0)
    connection.protocol.timeout_keep_alive_handler()  # the time of the first rest is over
    assert not connection.wire.is_closing()
    go_on.set()
    await asking
    assert connection.protocol.timeout_keep_alive_task is not None, "it rests again, and has a timer"
    connection.protocol.timeout_keep_alive_handler()
    assert not connection.wire.is_closing(), "that rest has only begun"


@pytest.mark.parametrize("behind", [b"", GET, GET[:9]], ids=["alone", "one behind it", "half a one behind it"])
async def test_whoever_works_on_an_answer_hears_that_the_client_has_gone(behind: bytes) -> None:
    heard = asyncio.Event()

    async def app(scope: Any, receive: Any, send: Send) -> None:
        scope[WHEN_GONE](heard.set)
        await heard.wait()

    connection = Connection(whole(b""))
    protocol: Any = connection.protocol
    protocol.app = app
    protocol.data_received(GET + behind)
    await asyncio.sleep(0)
    protocol.connection_lost(None)
    await asyncio.wait_for(asyncio.gather(*connection.state.tasks), 10)
    assert heard.is_set()


async def test_nobody_hears_of_a_client_that_goes_after_its_answer() -> None:
    gone: list[str] = []

    async def app(scope: Any, receive: Any, send: Send) -> None:
        scope[WHEN_GONE](lambda: gone.append("told"))
        await whole(b"hello")(send)

    connection = Connection(whole(b""))
    protocol: Any = connection.protocol
    protocol.app = app
    await connection.ask()
    protocol.connection_lost(None)
    assert gone == []


CHUNKED = b"POST / HTTP/1.1\r\nHost: here\r\nTransfer-Encoding: chunked\r\n\r\nno size\r\n"


@pytest.mark.parametrize(
    ("behind", "answered"),
    [(b"GARBAGE\r\n\r\n", 1), (GET + b"GARBAGE\r\n\r\n", 2), (GET * 20, 17), (GET + CHUNKED, 2)],
    ids=["rubbish", "behind two", "too many ahead", "a body that is none"],
)
async def test_a_request_is_answered_before_what_came_behind_it_is_refused(behind: bytes, answered: int) -> None:
    """A refusal in the place of its answer would say that nothing was done, and whoever asked would ask again."""
    connection = Connection(whole(b"hello"))
    connection.protocol.data_received(GET + behind)
    async with asyncio.timeout(10):
        await connection.wire.closed.wait()
    said = connection.wire.all
    assert said.count(b"HTTP/1.1 200 OK") == answered
    assert said.count(b"HTTP/1.1 400 ") == 1
    assert said.rindex(b"HTTP/1.1 200 OK") < said.index(b"HTTP/1.1 400 ")


async def test_a_request_whose_own_body_is_none_is_refused_at_once() -> None:
    begun = asyncio.Event()

    async def never(send: Send) -> None:
        await begun.wait()

    connection = Connection(never)
    connection.protocol.data_received(CHUNKED)
    assert connection.wire.all.startswith(b"HTTP/1.1 400 ")
    assert connection.wire.is_closing()
    begun.set()
    await asyncio.gather(*connection.state.tasks)
