"""A secret in every encoding that tools and services are known to use, in every place that is stored or shown."""

from __future__ import annotations

import base64
import os
import random
import textwrap
import time
from collections.abc import Callable
from pathlib import Path
from urllib.parse import quote

import pytest

from foliot import Agent, Runtime, ScriptedModel, tool
from foliot.kernel.messages import Media, ToolResult
from foliot.tools.masking import MASK, Masker

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
        assert masked.startswith("before"), masked


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
        masker = runtime._assembly._parts.masker
        assert isinstance(masker, Masker)
        masker.add(secret)
        done = await runtime.run(agent, "go", check=False)
        await runtime.audit.flush()
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


def test_the_cost_grows_with_the_text_and_not_faster() -> None:
    """By steps of the same work, not by a clock on the wall: twice the text costs about twice the time at most."""
    masker = Masker()
    masker.add(*(f"secret-number-{number:04d}-{number * 7919:08d}" for number in range(50)))

    def cost(text: str) -> float:
        began = time.process_time()
        masker.mask(text)
        return time.process_time() - began

    for piece in ("%41", "\\u0041", "&#65;", "de:ad ", "QUJD\n", "aaaa", "\\\\\\\\"):
        cost(piece * 1000)
        small = min(cost(piece * 10_000) for _ in range(3))
        large = min(cost(piece * 80_000) for _ in range(2))
        assert large < max(small, 0.005) * 40, (piece, small, large)
