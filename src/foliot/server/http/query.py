"""The query of a request, read once: guard, idempotency keys, handlers and streams all see the same parameters.

A query that two readers could understand in two ways is refused before anybody looks at it (400, `malformed`):

    ?namespace=a&namespace=b    a parameter is given once
    ?n%61mespace=a, ?+limit=1   names are written plainly: letters, digits, `_`, `-`, `.`; nothing in them is encoded
    ?limit=1;namespace=a        parameters are separated by `&` alone; a `;` in a value is written %3B
    ?namespace=%ff, %zz, é      values are percent-encoded UTF-8, without control characters and line separators
    ?namespace=%20a             a namespace has no blanks around it

An empty namespace is none. Names that end in `[]` are lists, as SDKs for other APIs write them; they may be repeated,
and no route of ours has one. `read_query` puts what it has read into the scope, and replaces the query string by its
canonical form: sorted by name, each value encoded in one way. So whoever parses that string finds the same.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping
from typing import Final
from urllib.parse import quote, unquote_to_bytes

from starlette.types import Scope

from foliot.common.suggestions import did_you_mean, suggestion
from foliot.server.errors import BadParameter, Malformed

NAMESPACE: Final = "namespace"
# Where the parameters of a request are in its scope.
_QUERY: Final = "foliot.query"
_NOTHING: Final[Mapping[str, str]] = {}
# Most queries are of this form, and nothing in them has to be decoded.
_PLAIN: Final = re.compile(rb"[A-Za-z_][A-Za-z0-9_]*=[A-Za-z0-9._~-]+(?:&[A-Za-z_][A-Za-z0-9_]*=[A-Za-z0-9._~-]+)*")
_NAME: Final = re.compile(rb"[A-Za-z_][A-Za-z0-9_.-]*(?:\[\]|%5[Bb]%5[Dd])?")
_NOT_WRITTEN: Final = re.compile(rb"[^!-~]")
_NO_CODE: Final = re.compile(rb"%(?![0-9A-Fa-f]{2})")
# Nothing that is asked for has them; whoever shows a value would be led astray.
CONTROL: Final = re.compile("[\x00-\x1f\x7f-\x9f\u2028\u2029]")


def query_of(scope: Scope) -> Mapping[str, str]:
    """Return the parameters of a request; reads them if nobody has. Raises `Malformed`."""
    found: Mapping[str, str] | None = scope.get(_QUERY)
    return read_query(scope) if found is None else found


def read_query(scope: Scope) -> Mapping[str, str]:
    """Read the query of a request, and leave its canonical form in the scope. Raises `Malformed`."""
    raw: bytes = scope.get("query_string", b"")
    if not raw:
        scope[_QUERY] = _NOTHING
        return _NOTHING
    if _PLAIN.fullmatch(raw):
        found = _plain(raw)
        if len(found) == 1 or list(found) == sorted(found):  # canonical as it came
            scope[_QUERY] = found
            return found
    else:
        found = _decoded(raw)
    _keep(scope, found)
    return found


def check_names(scope: Scope, known: Collection[str], *, others: bool) -> None:
    """Raise `BadParameter` for a parameter that a route does not have; with `others` those are dropped instead.

    A name that differs from a known one only in its case, its blanks or its signs is refused either way: whoever wrote
    it meant the known one.
    """
    found = query_of(scope)
    unknown = [name for name in found if name not in known]
    if not unknown:
        return
    for name in unknown:
        alike = next((each for each in known if _folded(each) == _folded(name)), None)
        if alike is not None or not others:
            raise BadParameter(f"{name[:100]}: there is no such parameter here", hint=_hint(name, alike, known))
    _keep(scope, {name: value for name, value in found.items() if name in known})


def _keep(scope: Scope, found: Mapping[str, str]) -> None:
    scope[_QUERY] = found
    scope["query_string"] = "&".join(
        f"{quote(name, safe='')}={quote(value, safe='')}" for name, value in sorted(found.items())
    ).encode()


def _plain(raw: bytes) -> dict[str, str]:
    found: dict[str, str] = {}
    for part in raw.decode("ascii").split("&"):
        name, _, value = part.partition("=")
        if name in found:
            raise _twice(name)
        found[name] = value
    return found


def _decoded(raw: bytes) -> dict[str, str]:
    if _NOT_WRITTEN.search(raw):
        raise Malformed("the query has characters in it that are not encoded", hint="percent-encode them, as UTF-8")
    if b";" in raw:
        raise Malformed("the query has a `;` in it", hint="separate parameters by &; in a value write %3B")
    if _NO_CODE.search(raw):
        raise Malformed("the query has a % that no two hexadecimal digits follow", hint="write %25 for a %")
    found: dict[str, str] = {}
    for part in raw.split(b"&"):
        if not part:
            continue
        written, _, encoded = part.partition(b"=")
        if not _NAME.fullmatch(written):
            raise Malformed(
                f"the query has a parameter with an odd name: {written[:100].decode('ascii')!r}",
                hint="write names as the documentation has them, and encode nothing in them",
            )
        name, value = _text(written), _text(encoded.replace(b"+", b" "))
        if name.endswith("[]"):
            value = f"{found[name]},{value}" if name in found else value
        elif name in found:
            raise _twice(name)
        found[name] = value
    if (namespace := found.get(NAMESPACE)) is not None:
        if namespace != namespace.strip():
            raise Malformed("the namespace has blanks around it", hint="write it without them")
        if not namespace:
            del found[NAMESPACE]
    return found


def _text(encoded: bytes) -> str:
    try:
        text = unquote_to_bytes(encoded).decode()
    except UnicodeDecodeError:
        raise Malformed("the query is not UTF-8") from None
    if CONTROL.search(text):
        raise Malformed("the query has control characters in it")
    return text


def _twice(name: str) -> Malformed:
    return Malformed(f"{name[:100]} is given twice", hint="give each parameter once")


def _folded(name: str) -> str:
    return re.sub(r"[^a-z0-9]", "", name.lower())


def _hint(name: str, alike: str | None, names: Collection[str]) -> str:
    if alike is not None:
        return did_you_mean(alike)
    every = f"the parameters are {', '.join(sorted(names))}" if names else "this takes no parameters"
    return suggestion(name, names) or every
