"""From a call's arguments to the request that an `http` tool makes.

    endpoint: https://api.example/users/{id}     {name} stands for an argument, escaped; never in the host. One name of
                                                 the path; {+name} may hold slashes, which are sent as %2F
    http:
      method: PATCH                              POST when not said
      headers: {Accept-Language: "{lang}"}       a header or query value whose argument is missing is left out
      query: {verbose: "true"}
      body: json                                 or form, or none: what is left of the arguments goes into the query

Arguments that no template uses make the body. A model writes arguments, so they can fill a place in the path but never
change where it leads: no other host, no slash, no `..`, no second header, no second value for what the query says.
An escaped slash is one too: most servers undo escapes before they look where a path leads, and some do it twice.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final, cast
from unicodedata import normalize
from urllib.parse import parse_qsl, quote, unquote, urlencode

import msgspec

from foliot.tools.base import ToolArgumentsInvalid, ToolDefinition, ToolPolicyInvalid

_PLACE: Final = re.compile(r"\{\+?([A-Za-z_][A-Za-z0-9_.-]*)\}")
_UNDONE: Final = 3  # how often escapes in an argument are undone to see what it could be taken for
_ADDRESS: Final = re.compile(r"(?P<origin>https?://[^/?#]*)(?P<path>[^?#]*)(\?(?P<query>[^#]*))?(#.*)?", re.IGNORECASE)
_BODILESS: Final = frozenset({"GET", "HEAD", "DELETE"})

_encode = msgspec.json.Encoder(enc_hook=str).encode


@dataclass(frozen=True, slots=True)
class HttpRequest:
    method: str
    url: str
    headers: Mapping[str, str]
    body: bytes | None


class RequestTemplate:
    """The request of one tool, but for its arguments."""

    def __init__(self, definition: ToolDefinition) -> None:
        options = cast("Mapping[str, Any]", definition.options.get("http") or {})
        self._tool = definition.name
        self._address = _ADDRESS.fullmatch(definition.endpoint.strip())
        self._method = str(options.get("method") or "POST").upper()
        self._headers: Mapping[str, str] = options.get("headers") or {}
        self._query: Mapping[str, str] = options.get("query") or {}
        self._body = options.get("body") or ("none" if self._method in _BODILESS else "json")
        templates = (definition.endpoint, *self._headers.values(), *self._query.values())
        self._used = frozenset(name for template in templates for name in _PLACE.findall(template))
        written = self._address["query"] if self._address else None
        self._said = {*self._query, *(name for name, _ in parse_qsl(written or "", keep_blank_values=True))}

    def fill(self, arguments: Mapping[str, Any]) -> HttpRequest:
        """Raises `ToolArgumentsInvalid` for arguments that do not fit, `ToolPolicyInvalid` for an unusable endpoint."""
        url, headers = self._url(arguments), self._filled_headers(arguments)
        query = [pair for name, template in self._query.items() for pair in _pairs(name, template, arguments)]
        rest = {name: value for name, value in arguments.items() if name not in self._used}
        body: bytes | None = None
        if self._body == "json":
            body = _encode(rest)
            headers = {"Content-Type": "application/json", **headers}
        elif self._body == "form":
            body = urlencode([pair for item in rest.items() for pair in _spread(*item)]).encode()
            headers = {"Content-Type": "application/x-www-form-urlencoded", **headers}
        else:
            if twice := sorted(self._said & rest.keys()):
                raise ToolArgumentsInvalid(f"tool {self._tool!r} itself says {', '.join(twice)}", field=twice[0])
            query += [pair for item in rest.items() for pair in _spread(*item)]
        if query:
            url += ("&" if "?" in url else "?") + urlencode(query, quote_via=quote)
        return HttpRequest(self._method, url, headers, body)

    def _url(self, arguments: Mapping[str, Any]) -> str:
        found = self._address
        if found is None:
            raise ToolPolicyInvalid(f"tool {self._tool!r} has no endpoint that can be called", tool=self._tool)
        if "{" in found["origin"]:
            raise ToolPolicyInvalid(f"the host of tool {self._tool!r} cannot come from arguments", tool=self._tool)
        path = "/".join(self._segment(segment, arguments) for segment in found["path"].split("/"))
        query = "" if found["query"] is None else "?" + self._escaped(found["query"], arguments)
        return found["origin"] + path + query

    def _segment(self, template: str, arguments: Mapping[str, Any]) -> str:
        """One name of the path. Raises `ToolArgumentsInvalid` when what fills it is more, or none."""
        segment = self._escaped(template, arguments)
        if segment == template:
            return segment
        for place in _PLACE.finditer(template):
            slashes = place[0].startswith("{+")
            given = _text(arguments[place[1]])
            if _leads_elsewhere(given if place[0] == template else f"x{given}", slashes=slashes):
                may = "" if slashes else f"; `{{+{place[1]}}}` in the endpoint lets it hold slashes"
                raise ToolArgumentsInvalid(
                    f"{place[1]} would change where a call of tool {self._tool!r} leads",
                    hint=f"give one name{may}",
                    field=place[1],
                )
        if _leads_elsewhere(unquote(segment), slashes=True):
            names = ", ".join(_PLACE.findall(template))
            raise ToolArgumentsInvalid(f"{names} would change the path of tool {self._tool!r}", field=names)
        return segment

    def _escaped(self, template: str, arguments: Mapping[str, Any]) -> str:
        def value(match: re.Match[str]) -> str:
            given = arguments.get(match[1])
            if given is None or isinstance(given, list | dict):
                raise ToolArgumentsInvalid(
                    f"tool {self._tool!r} needs {match[1]} as a single value for its address", field=match[1]
                )
            return quote(_text(given), safe="")

        return _PLACE.sub(value, template)

    def _filled_headers(self, arguments: Mapping[str, Any]) -> dict[str, str]:
        headers: dict[str, str] = {}
        for name, template in self._headers.items():
            value = _fill(template, arguments)
            if value is None:
                continue
            if not value.isprintable():
                raise ToolArgumentsInvalid(f"an argument cannot be sent in the header {name}", field=name)
            headers[name] = value
        return headers


def _leads_elsewhere(text: str, *, slashes: bool) -> bool:
    """Whether a server may take it for something else than one name (with `slashes`, several) of a path."""
    for _ in range(_UNDONE):
        for seen in (text,) if text.isascii() else (text, _as_ascii(text)):
            names = seen.replace("\\", "/").split("/")
            if len(names) > 1 and (not slashes or "\\" in seen):
                return True
            if any(name.partition(";")[0].strip() in ("", ".", "..") for name in names) or not seen.isprintable():
                return True
        bare = unquote(text, errors="replace")
        if bare.count("\ufffd") > text.count("\ufffd"):  # bytes that are no UTF-8: old servers read %c0%af as a slash
            return True
        text = bare
    return False


def _as_ascii(text: str) -> str:
    """A text as servers read it that make plain letters of wide and small ones: a wide slash is a slash there."""
    return "".join(sign for sign in normalize("NFKC", text) if sign.isascii()) or "x"


def _fill(template: str, arguments: Mapping[str, Any]) -> str | None:
    """The template with its arguments; None when one is missing."""
    if any(arguments.get(name) is None for name in _PLACE.findall(template)):
        return None
    return _PLACE.sub(lambda match: _text(arguments[match[1]]), template)


def _pairs(name: str, template: str, arguments: Mapping[str, Any]) -> list[tuple[str, str]]:
    alone = _PLACE.fullmatch(template)
    if alone is not None:
        return _spread(name, arguments.get(alone[1]))
    value = _fill(template, arguments)
    return [] if value is None else [(name, value)]


def _spread(name: str, value: Any) -> list[tuple[str, str]]:
    """A list is its name several times; what is missing is not there at all."""
    if value is None:
        return []
    values = cast("list[Any]", value) if isinstance(value, list) else [value]
    return [(name, _text(item)) for item in values if item is not None]


def _text(value: Any) -> str:
    return value if isinstance(value, str) else _encode(value).decode()
