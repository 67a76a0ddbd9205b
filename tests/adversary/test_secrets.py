"""A secret in every encoding that tools and services are known to use, in every place that is stored or shown."""

from __future__ import annotations

import base64
import os
import random
import textwrap
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from foliot import Agent, Runtime, ScriptedModel, tool
from foliot.common.threads import LARGE
from foliot.kernel.messages import Media, ToolResult
from foliot.tools.base import Caller, Invocation
from foliot.tools.pipeline.parts import PipelineParts
from foliot.tools.pipeline.pipeline import Pipeline
from foliot.tools.secrets import masking
from foliot.tools.secrets.masking import MASK, Masker

SEED = random.SystemRandom().getrandbits(32) if os.environ.get("FOLIOT_CHAOS") else 20261116


def around(encode: Callable[[bytes], str], before: int) -> Callable[[str], str]:
    """Encoded as a part of something longer, which begins that many bytes before."""
    return lambda secret: encode(b"x" * before + secret.encode() + b"tail of it")


def b64(raw: bytes) -> str:
    return base64.b64encode(raw).decode()


ENCODINGS: dict[str, Callable[[str], str]] = {
    "plain": str,
    "hex": lambda s: s.encode().hex(),
    "hex with colons": lambda s: s.encode().hex(":").upper(),
    "hex with dashes": lambda s: s.encode().hex("-"),
    "hex with spaces": lambda s: s.encode().hex(" "),
    "hex as bytes": lambda s: ", ".join(f"0x{byte:02X}" for byte in s.encode()),
    "backslash x": lambda s: "".join(f"\\x{byte:02x}" for byte in s.encode()),
    "backslash u": lambda s: "".join(f"\\u{ord(letter):04x}" for letter in s),
    "backslash u in part": lambda s: s[:3] + f"\\u{ord(s[3]):04X}" + s[4:],
    "percent": lambda s: quote(s, safe=""),
    "percent of every byte": lambda s: "".join(f"%{byte:02x}" for byte in s.encode()),
    "decimal entities": lambda s: "".join(f"&#{ord(letter)};" for letter in s),
    "hex entities in part": lambda s: s[:2] + f"&#x{ord(s[2]):x};" + s[3:],
    "base64": lambda s: b64(s.encode()),
    "base64 without padding": lambda s: b64(s.encode()).rstrip("="),
    "base64 for URLs": lambda s: base64.urlsafe_b64encode(s.encode()).decode(),
    "base64 wrapped at 10": lambda s: "\n".join(textwrap.wrap(b64(s.encode()), 10)),
    "base64 wrapped with CRLF": lambda s: "\r\n".join(textwrap.wrap(b64(s.encode()), 7)),
    "base64 wrapped in JSON": lambda s: "\\n".join(textwrap.wrap(b64(s.encode()), 9)),
    "base32": lambda s: base64.b32encode(s.encode()).decode(),
    "base32 in small letters": lambda s: base64.b32encode(s.encode()).decode().lower().rstrip("="),
    "a data URL": lambda s: f"data:text/plain;base64,{b64(b'key=' + s.encode())}",
    **{f"base64 from byte {n}": around(b64, n) for n in range(3)},
    **{f"base32 from byte {n}": around(lambda raw: base64.b32encode(raw).decode(), n) for n in range(5)},
}


# What stands around the value in these is not a part of it, and stays.
PADDED = {"a data URL", "base64", "base64 for URLs", "base32", "hex as bytes", "backslash x"}


def secrets() -> list[str]:
    chance = random.Random(SEED)
    alphabet = "abcdefghijkXYZ0123456789_-+/=&%<\"'é"
    return ["sesame-open-9f2c", *("".join(chance.choices(alphabet, k=chance.randint(12, 40))) for _ in range(6))]


@pytest.mark.parametrize("name", ENCODINGS)
def test_no_encoding_of_a_value_survives(name: str) -> None:
    for secret in secrets():
        masker = Masker()
        masker.add(secret)
        written = ENCODINGS[name](secret)
        masked = masker.mask(f"before, {written} after")
        core = written[4:-4] if name.startswith(("base64 from", "base32 from")) else written
        assert MASK in masked, (SEED, secret, written)
        assert core not in masked, (SEED, secret, masked)
        assert masked.startswith("before, "), masked
        assert masked.endswith(" after"), masked
        if core == written and name not in PADDED:
            assert masked == f"before, {MASK} after", (SEED, secret, masked)


@pytest.mark.parametrize("name", ["percent of every byte", "backslash u", "decimal entities"])
def test_escapes_around_an_escaped_value_do_not_bring_it_back(name: str) -> None:
    for secret in secrets():
        masker = Masker()
        masker.add(secret)
        written = ENCODINGS[name](f" {secret} ")
        masked = masker.mask(f"before{written}after")
        assert MASK in masked
        assert ENCODINGS[name](secret[:4]) not in masked, (SEED, secret, masked)
        assert ENCODINGS[name](secret[-4:]) not in masked, (SEED, secret, masked)


@pytest.mark.parametrize("name", ["plain", "hex with colons", "base64 wrapped at 10", "base32", "backslash u"])
async def test_nothing_of_it_is_in_the_store_or_the_answer(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    secret = "sesame-open-9f2c"
    written = ENCODINGS[name](secret)

    @tool(effect="read")
    def fetch(fail: bool = False) -> str:
        """Fetch something, with a credential."""
        if fail:
            raise ValueError(f"the service said {written}")
        return f"the header was {written}"

    script = [{"call": [{"fetch": {}}, {"fetch": {"fail": True}}]}, {"say": "It says {last_result}"}]
    agent = Agent("desk", model=ScriptedModel(script), tools=[fetch])
    async with Runtime(tmp_path / "foliot.db") as runtime:
        masker = runtime.inside._assembly._parts.masker
        assert isinstance(masker, Masker)
        masker.add(secret)
        done = await runtime.run(agent, "go", check=False)
        await runtime.inside.audit.flush()
    assert MASK in done.output
    stored = b"".join(path.read_bytes() for path in tmp_path.iterdir() if path.is_file())
    for each in {written, written.replace("\n", "\\n"), written.replace("\\", "\\\\"), secret}:
        assert each not in done.output
        assert each.encode() not in stored


def test_media_that_hold_a_value_are_left_out() -> None:
    masker = Masker()
    masker.add("sesame-open-9f2c")
    held = Media("image/png", data=b64(b"\x89PNG....tEXtsesame-open-9f2c...."))
    clean = Media("image/png", data=b64(b"\x89PNG.... nothing in it ....."))
    left, kept = masker.mask_result(ToolResult("c1", "draw", (held, clean))).content
    assert kept == clean
    assert MASK in getattr(left, "text", "")


def test_ordinary_text_is_left_as_it_is() -> None:
    masker = Masker()
    masker.add("sesame-open-9f2c", "hunter2hunter2")
    for text in ("100%25 of \\u00e9t\\u00e9 &amp; more", "de:ad:be:ef 0x12, 0x34", "SGVsbG8gd29ybGQ=\nSGVsbG8=", ""):
        assert masker.mask(text) == text


HARMLESS = {
    "prose": "The quick brown fox jumps over the lazy dog.\n",
    "JSON": '{"id": 1, "name": "a\\nb \\u00e9"}, ',
    "URLs": "https://x.example/a%20b?c=%2F&amp;d ",
    "bytes": "0xde, 0xad, be:ef ",
}


@pytest.mark.parametrize("text", HARMLESS.values(), ids=HARMLESS)
def test_where_characters_stand_is_worked_out_only_for_texts_that_hold_a_value(
    monkeypatch: pytest.MonkeyPatch, text: str
) -> None:
    """It costs a hundred times what the search does, so the search comes first."""
    worked_out: list[int] = []
    real = masking._Places

    class Counted(real):
        def __init__(self, text: str, *rest: Any) -> None:
            worked_out.append(len(text))
            super().__init__(text, *rest)

    monkeypatch.setattr(masking, "_Places", Counted)
    masker = Masker()
    masker.add(*(f"secret-number-{number:04d}-{number * 7919:08d}" for number in range(50)))
    assert masker.mask(text * 500) == text * 500
    assert not worked_out
    hidden = ENCODINGS["hex with colons"]("secret-number-0007-00055433")
    assert MASK in masker.mask(text * 500 + hidden)
    assert len(worked_out) == 1


def test_words_that_begin_alike_are_not_tried_one_by_one() -> None:
    """Whatever their number, a unit of a text leads to the places and lengths of words, not to each word."""
    words = masking._Words(f"secret-number-{number:08d}" for number in range(500))
    assert max(len(places) for places in words._units.values()) <= 8


@settings(max_examples=300, deadline=None)
@given(st.text(st.sampled_from("ab0xXnrt\\\n> \r\t:.,_-\x85\xa0\u2028éİ%\ud800")))
def test_a_view_is_the_text_without_what_is_dropped(text: str) -> None:
    """Views are made in two quick steps. Where their characters stand is read from the patterns, so both must agree."""
    encoded = masking._WRAPPING.sub("", text).encode("utf-8", "surrogatepass")
    assert masking._unwrapped(text) == encoded
    separated = masking._SEPARATORS.sub("", text).encode("utf-8", "surrogatepass")
    assert masking._unseparated(text) == separated.lower()


@settings(max_examples=300, deadline=None)
@given(st.lists(st.text("abé", min_size=1, max_size=20), min_size=1, max_size=6), st.text("abé ", max_size=80))
def test_words_are_found_as_a_search_for_each_would_find_them(words: list[str], text: str) -> None:
    """Against the plainest search there is: at each place the longest word, from the left."""
    expected, at = list[tuple[int, int]](), 0
    long = [word for word in words if len(word) >= 4]
    while at < len(text):
        found = max((len(word) for word in long if text.startswith(word, at)), default=0)
        if found:
            expected.append((at, at + found))
        at += found or 1
    assert masking._Words(long).find(text) == expected


async def test_a_large_result_is_searched_beside_the_event_loop() -> None:
    threads: list[int] = []

    class Watched(Masker):
        def mask(self, text: str) -> str:
            threads.append(threading.get_ident())
            return super().mask(text)

    masker = Watched()
    masker.add("sesame-open-9f2c")

    @tool(effect="read")
    def fetch(times: int) -> str:
        """Fetch something long."""
        return "sesame-open-9f2c " + "word " * times

    pipeline = Pipeline([fetch], PipelineParts(masker=masker))
    for times, beside in ((10, False), (LARGE, True)):
        threads.clear()
        call = Invocation("r1", f"c{times}", "fetch", {"times": times}, f"k{times}", Caller("default", "desk"))
        result = await pipeline.call(call)
        assert result.text.startswith(MASK)
        assert threads
        assert (threading.get_ident() not in threads) == beside
