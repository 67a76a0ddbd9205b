"""The head of a request: what is too much, ambiguous or a trick is refused before anything else looks at it.

A server that reads a request otherwise than the proxy in front of it can be made to answer one that the proxy never
saw. So whatever has two readings has none here.
"""

from __future__ import annotations

import os
import re
from dataclasses import dataclass
from typing import Final, NamedTuple
from urllib.parse import unquote_to_bytes

from starlette.types import Scope

from foliot.server.errors import HeadersTooLarge, Malformed, TooLarge

# Whoever watches over this server is answered, also when nobody else is.
HEALTH: Final = ("/livez", "/readyz", "/healthz")
_LOOKED_AT: Final = frozenset(
    (b"host", b"content-length", b"transfer-encoding", b"x-request-id", b"traceparent", b"origin")
)
_GOOD_ID: Final = re.compile(rb"[A-Za-z0-9._:-]{1,64}")
# A name or address, and a port. Longer or stranger ones are for whoever looks for a mistake.
_GOOD_HOST: Final = re.compile(rb"(?:[A-Za-z0-9_.-]{1,253}|\[[0-9A-Fa-f:.]{2,45}\])(?::[0-9]{1,5})?")
_NO_CODE: Final = re.compile(rb"%(?![0-9A-Fa-f]{2})")
_DISGUISED: Final = re.compile(rb"%(?:2[fF]|5[cC])|\\")
# Below these, names with slashes in them are asked for.
_SLASHES_WELCOME: Final = (b"/v1/models/", b"/v1/tool-callbacks/")
_CONTROL: Final = re.compile(r"[\x00-\x1f\x7f]")


@dataclass(frozen=True, slots=True)
class HeadLimits:
    """Sizes in bytes: of the body that is announced, of all headers, of the address."""

    body: int = 4 * 1024 * 1024
    headers: int = 32 * 1024
    header_count: int = 100
    path: int = 4096


class Head(NamedTuple):
    """What the headers say that concerns every request; empty for what is not given."""

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
    return os.urandom(8).hex()


def read_head(scope: Scope, limits: HeadLimits) -> Head:
    """What every request says. Raises `Malformed`, `HeadersTooLarge`, `TooLarge`."""
    headers: list[tuple[bytes, bytes]] = scope["headers"]
    size = hosts = framed = 0
    own_id = trace = origin = ""
    for name, value in headers:
        size += len(name) + len(value)
        if name not in _LOOKED_AT:
            continue
        if name == b"host":
            hosts += 1
            if not _GOOD_HOST.fullmatch(value):
                raise Malformed("the Host header is not the name of a host")
        elif name == b"x-request-id":
            own_id = value.decode() if _GOOD_ID.fullmatch(value) else ""
        elif name == b"traceparent":
            trace = value.decode("latin-1")
        elif name == b"origin":
            origin = value.decode("latin-1")
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
    return Head(own_id, trace, origin)


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
    if b"%" in query:
        _as_text(query, "the query")


def _check_encoding(raw: bytes) -> None:
    if _NO_CODE.search(raw):
        raise Malformed("the path has a % that no two hexadecimal digits follow", hint="write %25 for a %")
    if _CONTROL.search(_as_text(raw, "the path")):
        raise Malformed("the path has control characters in it")
    if _DISGUISED.search(raw) and (b"\\" in raw or not raw.startswith(_SLASHES_WELCOME)):
        raise Malformed("the path has a slash or backslash in disguise", hint="no name has one")


def _as_text(raw: bytes, what: str) -> str:
    try:
        return unquote_to_bytes(raw).decode()
    except UnicodeDecodeError:
        raise Malformed(f"{what} is not UTF-8") from None


def too_large(limits: HeadLimits) -> TooLarge:
    """The error for a body that is too large."""
    return TooLarge("the body is too large", hint=f"at most {limits.body} bytes")
