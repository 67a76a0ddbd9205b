from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from foliot.resources.syntax.places import FileLimits, Flaw, UnreadableText
from foliot.resources.syntax.source_text import check_characters, decode, locate_index


def flaw_of(data: bytes) -> Flaw:
    with pytest.raises(UnreadableText) as caught:
        decode(data)
    return caught.value.flaw


def test_a_byte_order_mark_is_dropped():
    assert decode("\ufeffa: é\n".encode()) == "a: é\n"


@pytest.mark.parametrize("encoding", ["utf-16", "utf-16-le", "utf-16-be", "utf-32"])
def test_other_unicode_encodings_are_named(encoding: str):
    flaw = flaw_of("apiVersion: foliot.dev/v1\n".encode(encoding))

    assert encoding[:6].upper() in flaw.message
    assert flaw.hint == "save the file as UTF-8"


def test_a_byte_that_is_not_utf_8_is_shown_with_its_place():
    flaw = flaw_of("a: 1\nb: é, caf".encode() + b"\xe9\n")

    assert (flaw.line, flaw.column) == (2, 10)
    assert flaw.message == "the file is not UTF-8: byte 0xE9 at offset 15 does not belong there"


def test_a_binary_file_is_called_one():
    assert flaw_of(b"\x7fELF\x02\x01\x01\x00\xff\xfe\x80").message == "this is a binary file, not text"


def test_a_file_that_is_too_large_is_not_even_decoded():
    with pytest.raises(UnreadableText) as caught:
        decode(b"\xff" * 11, FileLimits(bytes=10))

    assert caught.value.flaw.message == "the file has more than the 10 bytes that a manifest may have"


def test_text_that_is_too_long_is_refused():
    with pytest.raises(UnreadableText):
        check_characters("x" * 11, FileLimits(bytes=10))


@given(st.binary())
def test_bytes_are_read_exactly_as_utf_8_or_refused(data: bytes):
    try:
        text = decode(data)
    except UnreadableText as unreadable:
        place = unreadable.flaw.line, unreadable.flaw.column
        text = None
    else:
        place = (1, 1)

    assert min(place) >= 1
    assert text is None or text == data.decode("utf-8-sig")


def test_an_index_becomes_a_line_and_a_column():
    text = "ab\r\ncd\re\u2028f"

    assert [locate_index(text, index) for index in (0, 1, 4, 5, 7, 9)] == [
        (1, 1),
        (1, 2),
        (2, 1),
        (2, 2),
        (3, 1),
        (4, 1),
    ]
