"""Masking: known values in every spelling, guesses for errors and logs, streams and log records."""

from __future__ import annotations

import base64
import html
import json
import logging
from urllib.parse import quote, quote_plus

import pytest
from hypothesis import given
from hypothesis import strategies as st

from foliot.kernel.messages import Media, Text, ToolFailure, ToolResult
from foliot.tools.base import ToolError
from foliot.tools.secrets.masking import MASK, Masker, MaskingFilter

SECRET = 'p/ä"s s+w&rd<7>'


@pytest.fixture
def masker() -> Masker:
    made = Masker()
    made.add(SECRET)
    return made


SPELLINGS = [
    SECRET,
    json.dumps(SECRET),
    json.dumps(SECRET, ensure_ascii=False),
    json.dumps(json.dumps(SECRET)),
    html.escape(SECRET),
    quote(SECRET),
    quote(SECRET, safe=""),
    quote(SECRET, safe="").lower().replace("%c3%a4", "%c3%a4"),
    quote_plus(SECRET),
    SECRET.encode().hex(),
    SECRET.encode().hex().upper(),
    base64.b64encode(SECRET.encode()).decode(),
    base64.urlsafe_b64encode(SECRET.encode()).decode().rstrip("="),
    *(base64.b64encode(b"x" * before + SECRET.encode() + b"tail").decode() for before in range(4)),
]


class TestKnownValues:
    @pytest.mark.parametrize("spelling", SPELLINGS)
    def test_a_value_is_hidden_in_every_spelling(self, masker: Masker, spelling: str) -> None:
        shown = masker.mask(f"before {spelling} behind")

        assert MASK in shown
        assert shown.startswith("before ")
        assert shown.endswith(" behind")
        assert SECRET not in shown
        assert len(shown) < len(f"before {spelling} behind") + len(MASK)

    def test_text_without_a_value_is_returned_as_it_is(self, masker: Masker) -> None:
        text = "password: x; Bearer y; sk-1234567890abc"
        assert masker.mask(text) is text or masker.mask(text) == text
        assert Masker().mask(text) is text

    def test_the_longer_of_two_values_goes_as_a_whole(self) -> None:
        masker = Masker()
        masker.add("abcd", "abcdefgh")
        assert masker.mask("abcdefgh abcdef") == f"{MASK} {MASK}ef"

    def test_a_short_value_is_hidden_only_where_it_stands_alone(self) -> None:
        masker = Masker()
        masker.add("ab")
        assert masker.mask("cab ab,ab about") == f"cab {MASK},{MASK} about"

    def test_blank_values_hide_nothing(self) -> None:
        masker = Masker()
        masker.add("", "  ")
        assert masker.mask("a b  c") == "a b  c"

    def test_beyond_the_capacity_the_value_not_used_for_longest_is_forgotten(self) -> None:
        masker = Masker(capacity=2)
        masker.add("first-value", "second-value")
        masker.add("first-value")
        masker.add("third-value")
        assert masker.mask("first-value second-value third-value") == f"{MASK} second-value {MASK}"

    @given(st.lists(st.text(min_size=4), min_size=1, max_size=5), st.text(), st.text())
    def test_no_known_value_is_left_in_any_text(self, values: list[str], before: str, behind: str) -> None:
        values = [value for value in values if value.strip() and value not in MASK]
        masker = Masker()
        masker.add(*values)
        for value in values:
            shown = masker.mask(before + value + behind)
            # What a mask and its surroundings spell by chance was not taken from the value.
            assert all(value not in piece for value in values for piece in shown.split(MASK))

    @given(st.binary(min_size=8, max_size=40), st.binary(max_size=7), st.binary(max_size=7))
    def test_no_whole_value_can_be_read_from_base64_around_it(self, raw: bytes, before: bytes, behind: bytes) -> None:
        value = raw.hex()
        masker = Masker()
        masker.add(value)
        shown = masker.mask(base64.b64encode(before + value.encode() + behind).decode())
        for piece in shown.split(MASK):
            for cut in range(4):
                part = piece[cut : cut + (len(piece) - cut) // 4 * 4]
                assert value.encode() not in base64.b64decode(part)


class TestStructures:
    def test_data_is_masked_in_keys_and_values(self, masker: Masker) -> None:
        value = {"a": [SECRET, 1, None], SECRET: (Text(SECRET), Media("image/png", data="x"))}
        assert masker.mask_value(value) == {"a": [MASK, 1, None], MASK: (Text(MASK), Media("image/png", data="x"))}

    def test_a_result_is_masked_with_its_error(self, masker: Masker) -> None:
        failure = ToolFailure("c", "r", f"token=abc {SECRET}", details={"body": SECRET})
        shown = masker.mask_result(ToolResult("1", "t", (Text(f"x {SECRET}"),), failure))
        assert shown.text == f"x {MASK}"
        assert shown.error == ToolFailure("c", "r", f"token={MASK} {MASK}", details={"body": MASK})

    def test_an_error_is_scrubbed_in_place(self, masker: Masker) -> None:
        error = ToolError(f"failed with {SECRET}", hint=f"not {SECRET}", body=SECRET)
        masker.scrub(error)
        assert SECRET not in f"{error} {error!r} {error.message} {error.hint} {error.details}"

    @given(st.data())
    def test_a_value_across_pieces_of_a_stream_is_hidden(self, data: st.DataObject) -> None:
        masker = Masker()
        masker.add("sesame-open", "open-door")
        text = "".join(data.draw(st.lists(st.sampled_from(["sesame-open", "open-door", "sesame", "-", "x"]))))
        cuts = sorted(data.draw(st.lists(st.integers(0, len(text)))))
        stream = masker.stream()
        pieces = [stream.feed(text[a:b]) for a, b in zip([0, *cuts], [*cuts, len(text)], strict=True)]
        shown = "".join(pieces) + stream.flush()
        assert "sesame-open" not in shown
        assert "open-door" not in shown
        assert all("sesame-open" not in piece for piece in pieces)

    def test_a_stream_holds_nothing_back_that_cannot_be_a_value(self, masker: Masker) -> None:
        stream = masker.stream()
        assert stream.feed("hello ") == "hello "
        assert stream.feed("world p") == "world "
        assert stream.feed("lain") == "plain"


class TestGuesses:
    @pytest.mark.parametrize(
        ("text", "shown"),
        [
            ("Bearer abc def", f"Bearer {MASK} def"),
            ("Authorization: Basic dTpw\nnext", f"Authorization: {MASK}\nnext"),
            ("authorization: xyz", f"authorization: {MASK}"),
            ("X-Api-Key: k rest", f"X-Api-Key: {MASK} rest"),
            ("api_key=k rest", f"api_key={MASK} rest"),
            ("api-key: k rest", f"api-key: {MASK} rest"),
            ("APIKEY=k", f"APIKEY={MASK}"),
            ("secret=a password: b token=c", f"secret={MASK} password: {MASK} token={MASK}"),
            ('{"password": "x y", "n": 1}', f'{{"password": "{MASK}", "n": 1}}'),
            ('{"password": "x \\" y", "n": 1}', f'{{"password": "{MASK}", "n": 1}}'),
            ("{'token': 'x y'}", f"{{'token': '{MASK}'}}"),
            (r'"{\"secret\":\"x y\"} z"', rf'"{{\"secret\":\"{MASK}\"}} z"'),
            ("{'Authorization': 'Bearer x', 'A': 'b'}", f"{{'Authorization': '{MASK}', 'A': 'b'}}"),
            ("see sk-abcdefghij1 here", f"see {MASK} here"),
            ("postgresql://u:pass@h/db", f"postgresql://u:{MASK}@h/db"),
            ("-----BEGIN RSA PRIVATE KEY-----\nMII\n-----END RSA PRIVATE KEY----- x", f"{MASK} x"),
            ("jwt eyJhbGciOiJIUzI1.eyJzdWIiOiIxMjM0.sig-x", f"jwt {MASK}"),
            ("  spaced  ", "spaced"),
        ],
    )
    def test_what_looks_like_a_credential_goes(self, text: str, shown: str) -> None:
        assert Masker().redact(text) == shown

    @pytest.mark.parametrize(
        "text", ["connection refused", "max tokens 5", "the secretary: Bob", "sk-short", "HTTP 500: bad gateway"]
    )
    def test_harmless_text_is_unchanged(self, text: str) -> None:
        assert Masker().redact(text) == text

    @given(st.text(st.sampled_from("\\\"'{}:= \nabtoken"), max_size=400))
    def test_no_text_makes_it_hang_or_break(self, text: str) -> None:
        redacted = Masker().redact("token: " + text)
        assert redacted.startswith("token:")


def test_log_records_are_scrubbed_with_their_tracebacks(masker: Masker) -> None:
    lines: list[str] = []

    class Keep(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            lines.append(self.format(record))

    handler = Keep()
    handler.addFilter(MaskingFilter(masker))
    log = logging.Logger("masking-test")
    log.addHandler(handler)
    try:
        raise ValueError(f"inside {SECRET}")
    except ValueError:
        log.exception("said %s", SECRET)
    log.info("token=%s", "abc")
    log.info("wrong format %d", SECRET)

    assert lines[0].startswith(f"said {MASK}")
    assert f"inside {MASK}" in lines[0]
    assert lines[1] == f"token={MASK}"
    assert SECRET not in "".join(lines)
