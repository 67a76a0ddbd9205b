"""The head of a request: what is too much, ambiguous or a trick is refused before anything else looks at it.

A server that reads a request otherwise than the proxy in front of it can be made to answer one that the proxy never
saw. So whatever has two readings has none here.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Final, NamedTuple
from urllib.parse import unquote_to_bytes

from starlette.types import Scope

from foliot.common.chance import eight_bytes
from foliot.server.errors import HeadersTooLarge, Malformed, TooLarge
from foliot.server.http.query import CONTROL, read_query

# Whoever watches over this server is answered, also when nobody else is.
HEALTH: Final = ("/livez", "/readyz", "/healthz")
# Whoever reads one of these reads one value. A second one would be seen by some readers and not by others.
_ONCE: Final = frozenset(
    (
        b"authorization",
        b"content-encoding",
        b"content-type",
        b"cookie",
        b"idempotency-key",
        b"if-match",
        b"if-none-match",
        b"last-event-id",
        b"mcp-protocol-version",
        b"mcp-session-id",
        b"origin",
        b"sec-fetch-site",
        b"x-csrf-token",
        b"x-foliot-on-disconnect",
        b"x-foliot-session",
        b"x-request-id",
    )
)
_LOOKED_AT: Final = _ONCE | {b"host", b"content-length", b"transfer-encoding", b"traceparent"}
_GOOD_ID: Final = re.compile(rb"[A-Za-z0-9._:-]{1,64}")
# A name or address, and a port. Longer or stranger ones are for whoever looks for a mistake.
_GOOD_HOST: Final = re.compile(rb"(?:[A-Za-z0-9_.-]{1,253}|\[[0-9A-Fa-f:.]{2,45}\])(?::[0-9]{1,5})?")
_NO_CODE: Final = re.compile(rb"%(?![0-9A-Fa-f]{2})")
_DISGUISED: Final = re.compile(rb"%(?:2[fF]|5[cC])|\\")
# Below these, names with slashes in them are asked for.
_SLASHES_WELCOME: Final = re.compile(rb"/v1/(?:models|tool-callbacks|runs/[^/%]+/results)/")


@dataclass(frozen=True, slots=True)
class HeadLimits:
    """Sizes in bytes: of the body that is announced, of all headers, of the address."""

    body: int = 4 * 1024 * 1024
    headers: int = 32 * 1024
    header_count: int = 100
    path: int = 4096


class RequestHead(NamedTuple):
    """The headers that concern every request; empty for those not given."""

    id: str = ""
    trace: str = ""
    origin: str = ""


def request_id(scope: Scope) -> str:
    """The caller's own id when it has a harmless form, otherwise a new one."""
    for name, value in scope["headers"]:
        if name == b"x-request-id" and _GOOD_ID.fullmatch(value):
            return value.decode()
    return new_id()


def new_id() -> str:
    return eight_bytes().hex()


def read_head(scope: Scope, limits: HeadLimits) -> RequestHead:
    """Reads and checks the headers of a request. Raises `Malformed`, `HeadersTooLarge`, `TooLarge`."""
    headers: list[tuple[bytes, bytes]] = scope["headers"]
    size = hosts = framed = traces = 0
    own_id = trace = origin = ""
    once: set[bytes] = set()
    for name, value in headers:
        size += len(name) + len(value)
        if name not in _LOOKED_AT:
            continue
        if name in _ONCE:
            if name in once:
                raise Malformed(f"the header {name.decode()} is given twice", hint="send it once")
            once.add(name)
            if name == b"x-request-id":
                own_id = value.decode() if _GOOD_ID.fullmatch(value) else ""
            elif name == b"origin":
                origin = value.decode("latin-1")
        elif name == b"host":
            hosts += 1
            if not _GOOD_HOST.fullmatch(value):
                raise Malformed("the Host header is not the name of a host")
        elif name == b"traceparent":
            traces += 1
            trace = value.decode("latin-1") if traces == 1 else ""  # of several none counts, as its standard says
        else:
            framed += 1
            _check_frame(scope, name, value, limits)
    if len(headers) > limits.header_count or size > limits.headers:
        raise HeadersTooLarge("the headers are too large", hint=f"at most {limits.headers} bytes in all")
    if hosts != 1 and (hosts or scope.get("http_version") == "1.1"):
        raise Malformed("a request has one Host header")
    if framed > 1:
        raise Malformed("how long the body is was said twice")
    _check_address(scope, limits)
    return RequestHead(own_id, trace, origin)


def _check_frame(scope: Scope, name: bytes, value: bytes, limits: HeadLimits) -> None:
    if name == b"transfer-encoding":
        if value.lower() != b"chunked" or scope.get("http_version") == "1.0":
            raise Malformed("this transfer encoding is not known here", hint="chunked, in HTTP/1.1")
    elif not value.isdigit():
        raise Malformed("the Content-Length is not a number")
    elif len(value) > 19 or int(value) > limits.body:
        raise too_large(limits)


def _check_address(scope: Scope, limits: HeadLimits) -> None:
    raw: bytes = scope.get("raw_path") or b""
    query: bytes = scope["query_string"]
    if len(raw) + len(query) > limits.path:
        raise TooLarge("the address is too long", hint=f"at most {limits.path} bytes")
    if b"%" in raw or b"\\" in raw:
        _check_encoding(raw)
    path: str = scope["path"]
    if "/." in path and not {".", ".."}.isdisjoint(path.split("/")):
        raise Malformed("the path has steps such as .. in it", hint="write it without them")
    read_query(scope)


def _check_encoding(raw: bytes) -> None:
    if _NO_CODE.search(raw):
        raise Malformed("the path has a % that no two hexadecimal digits follow", hint="write %25 for a %")
    if CONTROL.search(_as_text(raw)):
        raise Malformed("the path has control characters in it")
    if _DISGUISED.search(raw) and (b"\\" in raw or not _SLASHES_WELCOME.match(raw)):
        raise Malformed("the path has a slash or backslash in disguise", hint="no name has one")


def _as_text(raw: bytes) -> str:
    try:
        return unquote_to_bytes(raw).decode()
    except UnicodeDecodeError:
        raise Malformed("the path is not UTF-8") from None


def too_large(limits: HeadLimits) -> TooLarge:
    """The error for a body that is too large."""
    return TooLarge("the body is too large", hint=f"at most {limits.body} bytes")
