"""What the YAML parser says, in words a person can act on.

The parser gives no codes, only texts, so its texts are the keys here; libyaml and the pure Python parser phrase some of
them differently. A text that is not in the table is passed on as it is: true, if less helpful.
"""

from __future__ import annotations

from typing import Final

_TABS: Final = ("a tab is used for indentation; YAML allows only spaces", "replace the tab with spaces")
_UNCLOSED_LIST: Final = ("the list opened with [ is not closed, or a comma is missing", "add the ] or the comma")
_UNCLOSED_MAP: Final = ("the mapping opened with { is not closed, or a comma is missing", "add the } or the comma")
_QUOTE: Final = ("a quoted text is not closed", "add the closing quote")
_INDENT: Final = (
    "this line does not fit the indentation above it",
    "fields of one mapping start in the same column; items of a list start with '- '",
)
_NO_VALUE: Final = ("a value is missing here", None)
_TAG: Final = ("tags are not allowed in a manifest", "remove the word that starts with '!', or quote the text")
_ANCHOR: Final = (
    "a name of an anchor or alias is missing or has other characters than letters, digits, '-' and '_'",
    "quote a text that starts with '*' or '&'",
)
_COLON: Final = (
    "a ':' is not expected here",
    "quote the text if it contains ': ', or check the indentation of this line",
)

_WORDS: Final[dict[str, tuple[str, str | None]]] = {
    "found a tab character that violates indentation": _TABS,
    "found a tab character where an indentation space is expected": _TABS,
    "found a tab character where an intendation space is expected": _TABS,
    "mapping values are not allowed in this context": _COLON,
    "mapping values are not allowed here": _COLON,
    "did not find expected ',' or ']'": _UNCLOSED_LIST,
    "did not find expected ',' or '}'": _UNCLOSED_MAP,
    "did not find expected key": _INDENT,
    "did not find expected '-' indicator": (
        "an item of the list is missing its '- ', or this line is indented wrongly",
        "items of one list start with '- ' in the same column",
    ),
    "block sequence entries are not allowed in this context": (
        "a list cannot start here",
        "begin the list on its own line under the field, or quote a text that starts with '- '",
    ),
    "could not find expected ':'": ("a ':' is missing behind the key", "write 'key: value', with a space"),
    "did not find expected node content": _NO_VALUE,
    "found unknown escape character": (
        "this escape is not known in double-quoted text",
        "double the backslash, or use single quotes, where backslashes mean themselves",
    ),
    "found invalid Unicode character escape code": ("this escape does not name a character", None),
    "found unexpected document indicator": _QUOTE,
    "found unexpected document separator": _QUOTE,
    "found unknown directive name": ("this directive is not known", "a line may not start with '%'"),
    "found incompatible YAML document": ("this YAML version is not supported", "remove the %YAML line"),
    "found duplicate %YAML directive": ("the %YAML line is given twice", None),
    "found undefined tag handle": _TAG,
    "did not find expected <document start>": (
        "text behind the end of a document",
        "separate documents by a line with '---'",
    ),
    "did not find expected alphabetic or numeric character": _ANCHOR,
}
_RESERVED: Final = {
    "\t": _TABS,
    "@": ("a text cannot start with '@' without quotes", "quote it"),
    "`": ("a text cannot start with '`' without quotes", "quote it"),
    "%": ("a text cannot start with '%' without quotes", "quote it"),
}
# The pure Python parser ends these with what it found instead.
_BEGINNINGS: Final = (
    ("expected <block end>", _INDENT),
    ("expected ',' or ']'", _UNCLOSED_LIST),
    ("expected ',' or '}'", _UNCLOSED_MAP),
    ("expected the node content", _NO_VALUE),
    ("found undefined tag handle", _TAG),
    ("expected alphabetic or numeric character", _ANCHOR),
)
_CANNOT_START: Final = "that cannot start any token"


def explain(problem: str | None, context: str | None, character: str) -> tuple[str, str | None]:
    """Message and hint for what the parser said about `character`, the one it stopped at ("" at the end)."""
    said = problem or "cannot be parsed"
    if said == "found unexpected end of stream" and context and "quoted scalar" in context:
        return _QUOTE
    if _CANNOT_START in said:
        return _RESERVED.get(character, (f"a value cannot start with {character!r} here", "quote it"))
    if said in _WORDS:
        return _WORDS[said]
    for beginning, words in _BEGINNINGS:
        if said.startswith(beginning):
            return words
    return f"not valid YAML: {said}" + (f" ({context})" if context else ""), None


def unclosed(bracket: str) -> tuple[str, str | None]:
    """Message and hint for a `[` or `{` that is still open where its document ends."""
    return _UNCLOSED_LIST if bracket == "[" else _UNCLOSED_MAP
