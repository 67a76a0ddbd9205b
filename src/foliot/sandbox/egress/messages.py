"""Strict readers of what comes out of a fence: heads of HTTP/1.1 requests, chunked bodies, the first message of TLS.

No input and output here. There is one reading of a message or none: what two programs could understand in two ways
(two lengths, a length and chunks, folded lines, bare line feeds, two hosts) is refused: nothing can be smuggled past.
"""

from __future__ import annotations

import re
from typing import Final, NamedTuple

from foliot.common.hosts import normal_host

# Servers that read methods in any case would do what a rule denies: there is one way to write one.
_METHOD: Final = re.compile(rb"[A-Z][A-Z0-9_-]{0,31}")
_TOKEN: Final = re.compile(rb"[!#$%&'*+.^_`|~0-9A-Za-z-]+")
_TARGET: Final = re.compile(rb"[!-~]+")
# Printable, blanks and tabs between; no control characters. Bytes above ASCII are passed on as they are.
_VALUE: Final = re.compile(rb"[\t\x20-\x7e\x80-\xff]*")
_DIGITS: Final = re.compile(rb"[0-9]{1,15}")
_CHUNK_SIZE: Final = re.compile(rb"[0-9A-Fa-f]{1,8}")
_AUTHORITY: Final = re.compile(r"(\[[0-9A-Fa-f:.]+\]|[^:\[\]@/?#\\\s]+)(?::([0-9]{1,5}))?")
# Only for the next machine on the way, which is this one.
_HOP: Final = frozenset(
    {b"connection", b"proxy-connection", b"proxy-authorization", b"proxy-authenticate", b"keep-alive", b"upgrade"}
    | {b"te", b"trailer", b"transfer-encoding", b"http2-settings"}
)
# Where a message ends and whom it is for: what reads as one of these to some servers is one, or nothing.
_FRAMING: Final = frozenset({b"content-length", b"transfer-encoding"})
_ONCE: Final = frozenset({b"host", b"content-length", b"transfer-encoding", b"authorization", b"expect"})
MOST_HEADERS: Final = 128


class Malformed(Exception):
    """A message that has no single reading. The text says why, without repeating it."""


class Head(NamedTuple):
    """The head of a request. `length` is that of its body, None when it comes in chunks."""

    method: str
    target: str
    version: bytes
    headers: tuple[tuple[bytes, bytes], ...]
    host: str | None
    length: int | None

    @property
    def forwarded(self) -> list[tuple[bytes, bytes]]:
        """The headers that go on to the host, without those between this connection's two ends."""
        named = {
            header_name(name.strip())
            for key, value in self.headers
            if header_name(key) in (b"connection", b"proxy-connection")
            for name in value.split(b",")
        }
        # Of these a client may not rid itself by naming them.
        dropped = _HOP | (named - _ONCE)
        return [(key, value) for key, value in self.headers if header_name(key) not in {*dropped, b"host"}]


def header_name(key: bytes) -> bytes:
    """The name of a header in the one form that it is compared in. Gateways as CGI and WSGI read `_` as `-`."""
    return key.lower().replace(b"_", b"-")


def read_head(data: bytes) -> Head:
    """Read a head, up to and with its empty line. Raises `Malformed`."""
    if not data.endswith(b"\r\n\r\n"):
        raise Malformed("the head has no end")
    lines = data[:-4].split(b"\r\n")
    parts = lines[0].split(b" ")
    if len(parts) != 3:
        raise Malformed("the request line does not have three parts")
    method, target, version = parts
    if not _METHOD.fullmatch(method):
        raise Malformed("the method is not written in upper case")
    if not _TARGET.fullmatch(target):
        raise Malformed("the request line has characters that do not belong there")
    if version not in (b"HTTP/1.1", b"HTTP/1.0"):
        raise Malformed("it is not HTTP/1.1")
    if len(lines) - 1 > MOST_HEADERS:
        raise Malformed("there are too many headers")
    headers = tuple(_header(line) for line in lines[1:])
    found: dict[bytes, bytes] = {}
    for key, value in headers:
        name = header_name(key)
        if name in _FRAMING and b"_" in key:
            raise Malformed(f"the header {name.decode()} is written with underscores")
        if name in _ONCE:
            if name in found:
                raise Malformed(f"the header {name.decode()} is there twice")
            found[name] = value
    return Head(
        method.decode(),
        target.decode(),
        version,
        headers,
        found[b"host"].decode("latin-1") if b"host" in found else None,
        _length(found, version),
    )


def _header(line: bytes) -> tuple[bytes, bytes]:
    key, colon, value = line.partition(b":")
    if not colon or not _TOKEN.fullmatch(key):  # also a folded line, and a blank before the colon
        raise Malformed("a header has no proper name")
    value = value.strip(b" \t")
    if not _VALUE.fullmatch(value):
        raise Malformed("a header has control characters")
    return key, value


def _length(found: dict[bytes, bytes], version: bytes) -> int | None:
    length, coding = found.get(b"content-length"), found.get(b"transfer-encoding")
    if coding is not None:
        if length is not None:
            raise Malformed("there are a length and a transfer coding")
        if coding.lower() != b"chunked" or version != b"HTTP/1.1":
            raise Malformed("the transfer coding is not chunked")
        return None
    if length is None:
        return 0
    if not _DIGITS.fullmatch(length):
        raise Malformed("the length is not a number")
    return int(length)


def read_authority(text: str, default_port: int | None) -> tuple[str, int]:
    """The host, in its normal form, and the port of `host:port`. Raises `Malformed`."""
    match = _AUTHORITY.fullmatch(text)
    host = normal_host(match[1]) if match else None
    if match is None or host is None:
        raise Malformed("the host cannot be read")
    port = int(match[2]) if match[2] else default_port
    if port is None or not 0 < port < 65536:
        raise Malformed("the port cannot be read")
    return host, port


def read_absolute(target: str) -> tuple[str, int, str]:
    """The host, the port and the path of `http://host:port/path`. Raises `Malformed`."""
    scheme, separator, rest = target.partition("://")
    if not separator or scheme.lower() != "http":
        raise Malformed("expected an http:// address; https goes through CONNECT")
    end = next((at for at, character in enumerate(rest) if character in "/?#"), len(rest))
    host, port = read_authority(rest[:end], 80)
    return host, port, read_path(rest[end:] if rest[end : end + 1] == "/" else f"/{rest[end:]}")


def read_path(target: str) -> str:
    """A path with its query, as it goes on to the host. Raises `Malformed`."""
    if not target.startswith("/") or "#" in target or "\\" in target:
        raise Malformed("the path cannot be read")
    return target


class Chunks:
    """Reads a chunked body and gives its data. Extensions and trailers are refused: nobody needs them here."""

    def __init__(self) -> None:
        self._left = 0
        self._state = "size"
        self._line = b""
        self.done = False

    def feed(self, data: bytes) -> list[bytes]:
        """The pieces of data in what came. What comes behind the end is dropped. Raises `Malformed`."""
        pieces: list[bytes] = []
        while data and not self.done:
            if self._state == "data":
                piece, data = data[: self._left], data[self._left :]
                self._left -= len(piece)
                pieces.append(piece)
                if not self._left:
                    self._state = "behind"
                continue
            # One byte more than the longest line tells a line that is too long.
            cut = data.find(b"\n") + 1 or len(data)
            self._line, data = self._line + data[:cut], data[cut:]
            if len(self._line) > 10:
                raise Malformed("a chunk has no proper size")
            if not self._line.endswith(b"\n"):
                continue
            if not self._line.endswith(b"\r\n"):
                raise Malformed("a line of a chunk ends without a carriage return")
            self._take(self._line[:-2])
            self._line = b""
        return pieces

    def _take(self, line: bytes) -> None:
        if self._state == "size":
            if not _CHUNK_SIZE.fullmatch(line):
                raise Malformed("a chunk has no proper size")
            self._left = int(line, 16)
            self._state = "data" if self._left else "end"
        elif line:
            raise Malformed("a chunk is longer than its size" if self._state == "behind" else "there are trailers")
        elif self._state == "end":
            self.done = True
        else:
            self._state = "size"


class Hello(NamedTuple):
    """The first message of TLS: the name it asks for, None when it asks for none; `hidden` with an encrypted one."""

    name: str | None
    hidden: bool


LONGEST_HELLO: Final = 16 * 1024 + 64


def read_hello(data: bytes) -> Hello | None:
    """Read the ClientHello that `data` begins with; None when more is needed. Raises `Malformed`."""
    message = b""
    at = 0
    while True:
        if data[at : at + 1] not in (b"", b"\x16"):
            raise Malformed("it is not TLS")
        if len(data) < at + 5:
            break
        size = int.from_bytes(data[at + 3 : at + 5], "big")
        if data[at + 1] != 3 or not 0 < size <= 16384:
            raise Malformed("it is not TLS")
        message += data[at + 5 : at + 5 + size]
        if message[:1] not in (b"", b"\x01"):
            raise Malformed("it is not TLS")
        if len(message) >= 4 and len(message) >= 4 + int.from_bytes(message[1:4], "big"):
            return _hello(message[4 : 4 + int.from_bytes(message[1:4], "big")])
        at += 5 + size
        if at > len(data):
            break
    if len(data) > LONGEST_HELLO:
        raise Malformed("its first message is too long")
    return None


class _Cursor:
    def __init__(self, data: bytes) -> None:
        self._data = data
        self._at = 0

    def take(self, size: int) -> bytes:
        piece = self._data[self._at : self._at + size]
        if len(piece) != size:
            raise Malformed("its first message is cut short")
        self._at += size
        return piece

    def block(self, width: int) -> bytes:
        return self.take(int.from_bytes(self.take(width), "big"))

    @property
    def more(self) -> bool:
        return self._at < len(self._data)


def _hello(body: bytes) -> Hello:
    cursor = _Cursor(body)
    cursor.take(34)  # version and random
    cursor.block(1)
    cursor.block(2)
    cursor.block(1)
    name, hidden = None, False
    seen: set[int] = set()
    extensions = _Cursor(cursor.block(2) if cursor.more else b"")
    while extensions.more:
        kind = int.from_bytes(extensions.take(2), "big")
        inside = extensions.block(2)
        if kind in seen:
            raise Malformed("an extension of TLS is there twice")
        seen.add(kind)
        if kind == 0:
            names = _Cursor(_Cursor(inside).block(2))
            if names.take(1) != b"\0":
                raise Malformed("the name that TLS asks for cannot be read")
            text = names.block(2)
            name = normal_host(text.decode("latin-1"))
            if name is None or names.more:
                raise Malformed("the name that TLS asks for cannot be read")
        elif kind == 0xFE0D:
            hidden = True
    return Hello(name, hidden)
