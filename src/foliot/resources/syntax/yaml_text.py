"""Documents to YAML for people: block style, `|` for texts of several lines, no quotes where none are needed.

Written by hand because a person edits the result (`foliot edit`), and because what is read back must be the same under
YAML 1.1 and 1.2 alike: words that either takes for a number, a boolean, a date or null are quoted. It imports nothing
heavy, so that `foliot get -o yaml` starts fast.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

from foliot.common.text import UNSAFE, WIDE_GAP

_ORDER: Final = ("apiVersion", "kind", "metadata", "spec", "status")
_METADATA_ORDER: Final = ("name", "namespace", "labels", "annotations")

# What is text to every reader without quotes: a word or sentence that begins with a letter, or a duration.
_PLAIN: Final = re.compile(r"[A-Za-z_/][^\x00-\x1f\xa0]*")
_DURATION: Final = re.compile(r"(?:[0-9]+(?:\.[0-9]+)?(?:ms|us|s|m|h|d))+", re.ASCII)
_MARKED: Final = re.compile(r": | #|:$| $")
_RESERVED: Final = frozenset({"y", "n", "yes", "no", "on", "off", "true", "false", "null"})

# Shown as an escape: what YAML cannot hold raw is part of what a person cannot see.
_ESCAPED: Final = re.compile(rf"\xa0|{UNSAFE.pattern}|{WIDE_GAP.pattern}")
# A longer key has to be announced with `? `: readers look only 1,024 characters ahead for its colon.
_LONGEST_KEY: Final = 1_000


def dump_yaml(document: Mapping[str, Any]) -> str:
    """`document` as one YAML document without `---`, ending in a line break."""
    ordered = _ordered(document, _ORDER)
    metadata = ordered.get("metadata")
    if isinstance(metadata, Mapping):
        ordered["metadata"] = _ordered(metadata, _METADATA_ORDER)  # pyright: ignore[reportUnknownArgumentType]
    return "\n".join(_lines(ordered)) + "\n"


def dump_yaml_all(documents: Sequence[Mapping[str, Any]]) -> str:
    """Several documents, separated by `---`."""
    return "---\n".join(dump_yaml(document) for document in documents)


def _ordered(mapping: Mapping[str, Any], first: Sequence[str]) -> dict[str, Any]:
    return {key: mapping[key] for key in (*(key for key in first if key in mapping), *mapping)}


def _lines(value: Any) -> Iterator[str]:
    """The lines of a value that stands alone, not indented."""
    if isinstance(value, Mapping) and value:
        for key, item in value.items():  # pyright: ignore[reportUnknownVariableType]
            yield from _field(str(key), item)  # pyright: ignore[reportUnknownArgumentType]
    elif isinstance(value, (list, tuple)) and value:
        for item in value:  # pyright: ignore[reportUnknownVariableType]
            first, *rest = _lines(item)
            yield f"- {first}"
            yield from map(_indented, rest)
    elif isinstance(value, str) and _fits_block(value):
        yield from _block(value)
    else:
        yield _scalar(value)


def _field(key: str, value: Any) -> Iterator[str]:
    shown = _scalar(key)
    nested = isinstance(value, (Mapping, list, tuple)) and bool(value)  # pyright: ignore[reportUnknownArgumentType]
    first, *rest = _lines(value)
    if len(shown) > _LONGEST_KEY:
        yield f"? {shown}"
        yield f": {first}"
        yield from map(_indented, rest)
    elif nested:
        yield f"{shown}:"
        yield _indented(first)
        yield from map(_indented, rest)
    else:
        yield f"{shown}: {first}"
        yield from rest if not rest else map(_indented, rest)


def _indented(line: str) -> str:
    return f"  {line}" if line else ""


def _fits_block(text: str) -> bool:
    """Whether a literal block shows `text` exactly. Its first line must settle the indentation by itself."""
    return "\n" in text and text[0] not in " \t\n" and _ESCAPED.search(text) is None


def _block(text: str) -> Iterator[str]:
    if not text.endswith("\n"):
        yield "|-"
    elif text.endswith("\n\n"):
        yield "|+"
    else:
        yield "|"
    yield from text.removesuffix("\n").split("\n")


def _scalar(value: Any) -> str:
    if isinstance(value, str):
        return value if _is_plain(value) else _quoted(value)
    if value is None or isinstance(value, bool):
        return {None: "null", True: "true", False: "false"}[value]
    if isinstance(value, float):
        shown = repr(value)
        # YAML 1.1 wants a point in every float: 1e+16 would be text.
        return shown.replace("e", ".0e") if "e" in shown and "." not in shown else shown
    if isinstance(value, int):
        return str(value)
    return "{}" if isinstance(value, Mapping) else "[]"


def _is_plain(text: str) -> bool:
    if _DURATION.fullmatch(text):
        return True
    if _ESCAPED.search(text) is not None:
        return False
    return _PLAIN.fullmatch(text) is not None and _MARKED.search(text) is None and text.lower() not in _RESERVED


def _quoted(text: str) -> str:
    """Quotes a text with double quotes. JSON's escapes are YAML's too; what YAML cannot show raw is escaped on top."""
    return _ESCAPED.sub(_escaped, json.dumps(text, ensure_ascii=False))


def _escaped(found: re.Match[str]) -> str:
    codes = map(ord, found.group())
    return "".join(f"\\u{code:04x}" if code <= 0xFFFF else f"\\U{code:08x}" for code in codes)
