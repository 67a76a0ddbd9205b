"""Bytes to text: UTF-8 only, and every other encoding refused with the place where it shows."""

from __future__ import annotations

import re

from foliot.resources.syntax.places import LIMITS, FileLimits, Flaw, UnreadableText

# What YAML calls printable, turned around. JSON allows a few more, but nobody writes them on purpose.
_FORBIDDEN = re.compile(r"[^\t\n\r\x20-\x7e\x85\xa0-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")
_LINE_BREAK = re.compile(r"\r\n|[\n\r\x85\u2028\u2029]")
_WIDE_MARKS = (
    (b"\x00\x00\xfe\xff", "UTF-32"),
    (b"\xff\xfe\x00\x00", "UTF-32"),
    (b"\xff\xfe", "UTF-16"),
    (b"\xfe\xff", "UTF-16"),
)
_SAVE_AS_UTF8 = "save the file as UTF-8"


def decode(data: bytes, limits: FileLimits = LIMITS) -> str:
    """The text of a manifest without its byte order mark. Raises `UnreadableText`."""
    if len(data) > limits.bytes:
        raise UnreadableText(
            Flaw(
                1,
                1,
                f"the file has more than the {limits.bytes:,} bytes that a manifest may have",
                "split it, or keep large content outside the manifest",
            )
        )
    if (encoding := _wide_encoding(data[:64])) is not None:
        raise UnreadableText(Flaw(1, 1, f"the file is {encoding}, but manifests are UTF-8", _SAVE_AS_UTF8))
    try:
        text = data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise UnreadableText(_not_utf8(data, error.start)) from None
    return text


def check_characters(text: str, limits: FileLimits = LIMITS) -> None:
    """Refuse control characters and lone surrogates, and a text that is too long. Raises `UnreadableText`."""
    if len(text) > limits.bytes:
        raise UnreadableText(Flaw(1, 1, f"the text has {len(text):,} characters; a manifest may have {limits.bytes:,}"))
    found = _FORBIDDEN.search(text)
    if found is None:
        return
    line, column = locate_index(text, found.start())
    code = ord(found.group())
    if code == 0:
        raise UnreadableText(Flaw(line, column, "this is a binary file, not text (it holds a NUL byte)"))
    raise UnreadableText(
        Flaw(
            line,
            column,
            f"the control character U+{code:04X} is not allowed in a manifest",
            f'remove it, or write it as an escape in double quotes: "\\u{code:04x}"'
            if 0 < code < 0xD800
            else "remove it",
        )
    )


def locate_index(text: str, index: int) -> tuple[int, int]:
    """Line and column, from 1, of the character at `index`, with line breaks as the YAML parser counts them."""
    line, start = 1, 0
    for match in _LINE_BREAK.finditer(text, 0, index):
        line, start = line + 1, match.end()
    return line, index - start + 1


def _wide_encoding(head: bytes) -> str | None:
    """UTF-16 or UTF-32, by its mark, or because every other byte is NUL."""
    for mark, encoding in _WIDE_MARKS:
        if head.startswith(mark):
            return encoding
    if 0 not in head or len(head) < 4:
        return None
    even, odd = head[::2], head[1::2]
    return "UTF-16" if (not any(even)) != (not any(odd)) else None


def _not_utf8(data: bytes, offset: int) -> Flaw:
    line, column = locate_index(data[:offset].decode("utf-8-sig", "replace"), len(data[:offset].decode("utf-8-sig")))
    if b"\0" in data:
        return Flaw(line, column, "this is a binary file, not text")
    return Flaw(
        line,
        column,
        f"the file is not UTF-8: byte 0x{data[offset]:02X} at offset {offset} does not belong there",
        f"{_SAVE_AS_UTF8}; now it may be Latin-1 or Windows-1252",
    )
