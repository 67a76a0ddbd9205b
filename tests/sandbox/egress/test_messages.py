"""A request has one reading or none; the name that TLS asks for is found however its first message is cut up."""

from __future__ import annotations

import contextlib
import ssl

import h11
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from foliot.sandbox.egress.messages import (
    Chunks,
    Malformed,
    read_absolute,
    read_authority,
    read_head,
    read_hello,
)


def head(*lines: bytes, first: bytes = b"POST http://a.test/ HTTP/1.1") -> bytes:
    return b"\r\n".join([first, *lines, b"", b""])


@pytest.mark.parametrize(
    "data",
    [
        head(b"Host: a.test", b"Host: b.test"),
        head(b"Host: a.test", b"host: a.test"),
        head(b"Content-Length: 3", b"Content-Length: 3"),
        head(b"Content-Length: 3", b"Content-Length: 4"),
        head(b"Content-Length: 3, 3"),
        head(b"Content-Length: +3"),
        head(b"Content-Length: -1"),
        head(b"Content-Length: 0x3"),
        head(b"Content-Length: 3_0"),
        head(b"Content-Length: 1" + b"0" * 30),
        head(b"Content-Length:"),
        head(b"Content-Length: 3", b"Transfer-Encoding: chunked"),
        head(b"Transfer-Encoding: chunked", b"Transfer-Encoding: chunked"),
        head(b"Transfer-Encoding: identity"),
        head(b"Transfer-Encoding: gzip, chunked"),
        head(b"Transfer-Encoding: chunked, identity"),
        head(b"Transfer-Encoding: xchunked"),
        head(b"Transfer-Encoding: chunked", first=b"POST http://a.test/ HTTP/1.0"),
        head(b"Transfer-Encoding : chunked"),
        head(b" Transfer-Encoding: chunked"),
        head(b"X: a", b" folded"),
        head(b"X: a", b"\tfolded"),
        head(b"X: a\nTransfer-Encoding: chunked"),
        head(b"X: a\rTransfer-Encoding: chunked"),
        head(b"X: a\0b"),
        head(b"X: \x7f"),
        head(b"no colon"),
        head(b"Content_Length: 3"),
        head(b"Transfer_Encoding: chunked"),
        head(b"Content-Length: 3", b"content_length: 4"),
        head(b"Host: a.test", b"hOST: b.test"),
        head(b"Authorization: a", b"authorization: b"),
        head(first=b"post http://a.test/ HTTP/1.1"),
        head(first=b"Post http://a.test/ HTTP/1.1"),
        head(first=b"trace http://a.test/ HTTP/1.1"),
        head(first=b"PO.ST http://a.test/ HTTP/1.1"),
        head(b": no name"),
        head(b"Transfer\xadEncoding: chunked"),
        head(first=b"GET  http://a.test/ HTTP/1.1"),
        head(first=b"GET http://a.test/ HTTP/1.1 "),
        head(first=b"GET http://a.test/\tx HTTP/1.1"),
        head(first=b"GET http://a.test/"),
        head(first=b"GET http://a.test/ HTTP/2.0"),
        head(first=b"PRI * HTTP/2.0"),
        head(first=b"GET http://a.test/\xff HTTP/1.1"),
        head(first=b"G(T http://a.test/ HTTP/1.1"),
        head(*[b"X: 1"] * 200),
        b"GET http://a.test/ HTTP/1.1\n\n",
    ],
)
def test_a_head_with_two_readings_is_refused(data: bytes) -> None:
    with pytest.raises(Malformed):
        read_head(data)


def test_a_plain_head_is_read_and_what_is_for_the_next_machine_stays_here() -> None:
    read = read_head(
        head(
            b"Host: a.test",
            b"Connection: keep-alive, X-Mine, Authorization",
            b"X-Mine: 1",
            b"Proxy-Authorization: Basic eA==",
            b"TE: trailers",
            b"Upgrade: websocket",
            b"Authorization: Bearer x",
            b"Content-Length:  12 ",
        )
    )
    assert (read.method, read.host, read.length) == ("POST", "a.test", 12)
    assert read.forwarded == [(b"Authorization", b"Bearer x"), (b"Content-Length", b"12")]


LINES = st.sampled_from(
    [
        b"Host: a.test",
        b"Host:b.test",
        b"Content-Length: 3",
        b"content-length:3",
        b"Content-Length: 3,3",
        b"Content-Length: +3",
        b"Transfer-Encoding: chunked",
        b"Transfer-Encoding: CHUNKED",
        b"Transfer-Encoding: x",
        b"Transfer-Encoding:\x0bchunked",
        b"X: y",
        b"X : y",
        b" X: y",
        b"X:\ty\t",
        b"",
        b"X",
        b"X: \xff",
        b"X: a\nHost: c.test",
        b"Connection: close",
    ]
)


@given(st.lists(LINES, max_size=5), st.sampled_from([b"\r\n", b"\n", b"\r\n\r\n", b"\r\r\n"]))
@settings(max_examples=200)
def test_another_reader_understands_every_head_that_is_accepted_in_the_same_way(lines: list[bytes], end: bytes) -> None:
    data = b"POST /x HTTP/1.1\r\n" + b"".join(line + b"\r\n" for line in lines) + end
    data = data[: data.find(b"\r\n\r\n") + 4] if b"\r\n\r\n" in data else data
    try:
        read = read_head(data)
    except Malformed:
        return
    other = h11.Connection(h11.SERVER)
    other.receive_data(data)
    if read.host is None:
        return  # which the broker refuses a little later
    event = other.next_event()
    assert isinstance(event, h11.Request)
    assert (event.method, event.target) == (read.method.encode(), read.target.encode())
    assert [(bytes(name).lower(), bytes(value)) for name, value in event.headers] == [
        (name.lower(), value) if name.lower() != b"transfer-encoding" else (name.lower(), value.lower())
        for name, value in read.headers
    ]
    if read.length == 0:
        assert isinstance(other.next_event(), h11.EndOfMessage)
    else:
        assert other.next_event() is h11.NEED_DATA


@pytest.mark.parametrize(
    "target",
    [
        "/path",
        "https://a.test/",
        "ftp://a.test/",
        "http:///x",
        "http://u:p@a.test/",
        "http://a.test@b.test/",
        "a.test:80",
        "http://a.test:0/",
        "http://a.test:99999/",
        "http://a.test:80:80/",
        "http://a.test\\@b.test/",
        "http://a.test/#x",
        "http://2130706433/",
        "http://0x7f.1/",
        "http://[::1%25lo]/",
        "http://[::1/",
        "http://a.test:/",
        "*",
    ],
)
def test_an_address_with_two_readings_is_refused(target: str) -> None:
    with pytest.raises(Malformed):
        read_absolute(target)


def test_addresses_are_taken_apart() -> None:
    assert read_absolute("HTTP://A.Test.:8080?q=1") == ("a.test", 8080, "/?q=1")
    assert read_absolute("http://[::1]/x") == ("::1", 80, "/x")
    assert read_authority("A.test:443", None) == ("a.test", 443)
    with pytest.raises(Malformed):
        read_authority("a.test", None)


@given(st.lists(st.binary(min_size=1, max_size=300), max_size=5), st.data())
def test_a_chunked_body_is_the_same_however_it_is_cut_up(pieces: list[bytes], data: st.DataObject) -> None:
    body = b"".join(b"%X\r\n%b\r\n" % (len(piece), piece) for piece in pieces) + b"0\r\n\r\n"
    whole = body + b"GET /smuggled HTTP/1.1\r\n\r\n"
    cuts = sorted(data.draw(st.lists(st.integers(0, len(whole)), max_size=8)))
    reader, found = Chunks(), b""
    for begin, end in zip([0, *cuts], [*cuts, len(whole)], strict=True):
        found += b"".join(reader.feed(whole[begin:end]))
    assert reader.done
    assert found == b"".join(pieces)


@pytest.mark.parametrize(
    "body",
    [
        b"3\nabc\n0\n\n",
        b"3;x=y\r\nabc\r\n0\r\n\r\n",
        b"3\r\nabcd\r\n0\r\n\r\n",
        b"-1\r\n",
        b"0x3\r\nabc\r\n",
        b" 3\r\nabc\r\n",
        b"\r\n",
        b"0\r\nTrailer: x\r\n\r\n",
        b"123456789\r\n",
        b"g\r\n",
        b"3\r\nabc0\r\n\r\n",
        b"0" * 100,
    ],
)
def test_a_chunked_body_with_two_readings_is_refused(body: bytes) -> None:
    with pytest.raises(Malformed):
        Chunks().feed(body)


def hello(name: str | None) -> bytes:
    """The first message of a real client."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = name is not None
    out = ssl.MemoryBIO()
    client = context.wrap_bio(ssl.MemoryBIO(), out, server_hostname=name)
    with pytest.raises(ssl.SSLWantReadError):
        client.do_handshake()
    return out.read()


@given(st.data())
def test_the_name_that_tls_asks_for_is_found_however_it_is_cut_up(data: st.DataObject) -> None:
    whole = hello("api.example")
    # The same message in records of another size.
    size = data.draw(st.integers(40, 400))
    inner = whole[5:]
    recut = b"".join(
        b"\x16\x03\x01" + len(inner[at : at + size]).to_bytes(2, "big") + inner[at : at + size]
        for at in range(0, len(inner), size)
    )
    for message in (whole, recut):
        cut = data.draw(st.integers(0, len(message) - 1))
        assert read_hello(message[:cut]) is None
        found = read_hello(message)
        assert found is not None
        assert (found.name, found.hidden) == ("api.example", False)


def test_tls_that_asks_for_no_name_says_so() -> None:
    found = read_hello(hello(None))
    assert found is not None
    assert found.name is None


def made(*extensions: tuple[int, bytes]) -> bytes:
    """A first message with these extensions."""
    inside = b"".join(kind.to_bytes(2, "big") + len(data).to_bytes(2, "big") + data for kind, data in extensions)
    body = b"\x03\x03" + b"r" * 32 + b"\0" + b"\x00\x02\x13\x01" + b"\x01\0" + len(inside).to_bytes(2, "big") + inside
    message = b"\x01" + len(body).to_bytes(3, "big") + body
    return b"\x16\x03\x01" + len(message).to_bytes(2, "big") + message


def named(*names: bytes) -> bytes:
    inside = b"".join(b"\0" + len(name).to_bytes(2, "big") + name for name in names)
    return len(inside).to_bytes(2, "big") + inside


def test_a_second_name_that_is_hidden_is_noticed_and_two_names_are_refused() -> None:
    assert read_hello(made((0, named(b"A.test")), (0xFE0D, b"sealed"))) == ("a.test", True)
    for twice in (made((0, named(b"a.test", b"b.test"))), made((0, named(b"a.test")), (0, named(b"b.test")))):
        with pytest.raises(Malformed):
            read_hello(twice)
    for bad in (b"a.test\0.b.test", b"", b"127.0.0.1.", b"\xff"):
        with pytest.raises(Malformed):
            read_hello(made((0, named(bad))))


@given(st.binary(max_size=200))
def test_what_is_not_tls_is_refused_or_waited_for_and_nothing_else(data: bytes) -> None:
    for begin in (b"", b"\x16\x03\x01\x00\x40\x01"):
        with contextlib.suppress(Malformed):
            assert read_hello(begin + data) is None or begin
    with pytest.raises(Malformed):
        read_hello(b"SSH-2.0-x\r\n" + data)
