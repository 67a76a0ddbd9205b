"""Whatever bytes come: no mistake of the server, nobody is let in, and it goes on."""

from __future__ import annotations

import re
import socket
from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import event, given, settings
from hypothesis import strategies as st

# Each is whole, so that what is wrong with it is what was done to it.
WHOLE = (
    b"GET /v1/agents?limit=3 HTTP/1.1\r\nHost: localhost\r\nAccept: */*\r\nX-Request-ID: a\r\n\r\n",
    b"POST /v1/apply HTTP/1.1\r\nHost: localhost\r\nContent-Length: 15\r\n\r\nkind: Agent\n---\n",
    b"POST /v1/apply HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nkind:\r\n0\r\nX-T: a\r\n\r\n",
    b"HEAD /v1/secrets/%41 HTTP/1.0\r\nHost: localhost\r\nConnection: keep-alive\r\n\r\n",
)
NASTY = st.sampled_from(
    [b"\x00", b"\r", b"\n", b"\r\n\r\n", b" ", b"\t", b":", b"%", b"%2e", b"\xff", b"/", b";", b"0", b"-", b"\x80" * 9]
)
PIECE = st.one_of(NASTY, st.binary(max_size=12), st.sampled_from(WHOLE))


@pytest.fixture(scope="module", autouse=True)
def serves_afterwards(shared: Any) -> Iterator[None]:
    yield
    shared.still_serves()


@st.composite
def altered(draw: st.DrawFn) -> bytes:
    """A request, or two, in which some things were put in, taken out or said again."""
    data = b"".join(draw(st.lists(st.sampled_from(WHOLE), min_size=1, max_size=2)))
    for _ in range(draw(st.integers(0, 4))):
        at = draw(st.integers(0, len(data)))
        length = draw(st.integers(0, 8))
        data = data[:at] + draw(PIECE) + data[at + length :]
    return data


@settings(max_examples=120, deadline=None)
@given(altered())
def test_any_bytes_are_answered_or_hung_up_on(shared: Any, data: bytes) -> None:
    with shared.call() as caller:
        caller.send(data)
        caller.socket.shutdown(socket.SHUT_WR)  # nothing more comes: nobody waits for it
        heard = b""
        try:
            while piece := caller.socket.recv(65536):
                heard += piece
        except ConnectionError:
            pass
    statuses = [int(each) for each in re.findall(rb"HTTP/1\.1 (\d{3}) ", heard)]

    event(f"{len(statuses)} answers")
    assert all(400 <= status < 500 for status in statuses), heard
