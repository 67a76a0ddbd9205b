"""From what a tool raised or returned to what may be seen and kept."""

from __future__ import annotations

import hashlib
import socket

import pytest

from foliot.kernel.messages import Media, Text, ToolFailure, ToolResult
from foliot.tools.base import Caller, ToolDenied, ToolUnreachable
from foliot.tools.pipeline.record import CallRecord, Recorders, RecordRefused
from foliot.tools.pipeline.results import Mask, Truncate, classified, masked_output
from foliot.tools.secrets.masking import Masker
from tests.tools.governed import call, definition


@pytest.mark.parametrize(
    ("error", "kind", "retryable", "before_effect"),
    [
        (ConnectionRefusedError("no"), "network", True, True),
        (socket.gaierror("no such host"), "network", True, True),
        (ConnectionResetError("gone"), "network", True, False),
        (TimeoutError(), "network", True, False),
        (ZeroDivisionError("x"), "internal", True, False),
        (RecursionError("deep"), "internal", False, False),
        (FileNotFoundError("x"), "internal", True, False),
        (RuntimeError("approval_required: please"), "internal", True, False),
        (ToolDenied("no"), "denied", False, False),
    ],
)
def test_a_failure_goes_by_its_type_and_never_by_its_text(error, kind, retryable, before_effect) -> None:
    known = classified(error, "f")

    assert (known.kind, known.retryable, known.before_effect) == (kind, retryable, before_effect)


def test_a_precise_error_stays_the_same_object() -> None:
    error = ToolUnreachable("down")

    assert classified(error, "f") is error


async def test_known_secrets_are_taken_out_of_texts_and_errors() -> None:
    masker = Masker()
    masker.add("hunter2-hunter2")
    failure = ToolFailure("c", "r", "bad hunter2-hunter2", details={"url": "x?k=hunter2-hunter2"})
    result = ToolResult("c1", "f", (Text("key hunter2-hunter2"), Media("image/png", data="aGk=")), failure)

    masked = await Mask(masker)(call("f"), result)

    assert b"hunter2" not in repr(masked).encode()
    assert masked.content[1] == result.content[1]


def test_a_secret_that_lies_across_two_pieces_of_output_is_hidden_too() -> None:
    masker = Masker()
    masker.add("hunter2-hunter2")
    heard: list[str] = []
    on_output, ended = masked_output(masker, heard.append)

    for piece in ("the key is hunt", "er2-hun", "ter2, keep it"):
        on_output(piece)
    ended()

    assert "".join(heard) == "the key is [REDACTED], keep it"


async def test_a_short_result_is_left_alone() -> None:
    result = ToolResult("c1", "f", (Text("x" * 100),))

    assert await Truncate(100)(call("f"), result) is result


async def test_a_long_result_keeps_its_beginning_and_end_and_says_where_the_rest_is() -> None:
    blobs: dict[str, bytes] = {}

    async def store(data: bytes, *, run_id: str = "") -> str:
        digest = f"sha256:{hashlib.sha256(data).hexdigest()}"
        blobs[digest] = data
        return digest

    whole = "".join(f"line {n}\n" for n in range(10_000))
    picture = Media("image/png", data="aGk=")
    asked = call("f", caller=Caller(advertised=frozenset({"f", "read_result"})))

    cut = await Truncate(1000, store)(asked, ToolResult("c1", "f", (Text(whole), picture)))

    assert cut.content[1] == picture
    assert len(cut.text.encode()) <= 1000
    assert cut.text.startswith("line 0\n")
    assert cut.text.endswith("line 9999\n\n…[truncated: 98890 bytes → 1000]")
    assert 'read_result(call_id="c1"' in cut.text
    assert list(blobs.values()) == [whole.encode()]
    assert next(iter(blobs)) in cut.text


async def test_what_cannot_be_kept_is_said_to_be_lost_and_the_rest_is_shown() -> None:
    async def broken(data: bytes) -> str:
        raise OSError("disk full")

    result = ToolResult("c1", "f", (Text("\ud800" + "x" * 5000),))

    assert "could not be kept" in (await Truncate(200, broken)(call("f"), result)).text
    assert "was not kept" in (await Truncate(200)(call("f"), result)).text


@pytest.mark.parametrize("limit", [0, 1, 20, 60, 150, 400])
@pytest.mark.parametrize("letter", ["x", "é", "漢", "😀"])
async def test_what_was_cut_is_never_longer_than_the_limit_nor_cut_inside_a_character(limit: int, letter: str) -> None:
    result = ToolResult("c1", "f", (Text(letter * 300), Text(letter * 300)))

    text = (await Truncate(limit)(call("f"), result)).text

    size = 600 * len(letter.encode()) + 1
    assert len(text.encode()) <= limit
    assert "\ufffd" not in text
    if limit >= 60:
        assert text.endswith(f"\n…[truncated: {size} bytes → {limit}]")


async def test_texts_of_one_result_stay_apart() -> None:
    result = ToolResult("c1", "f", (Text("one"), Media("image/png", data="aGk="), Text("two"), Text("\nthree")))

    assert result.text == "one\ntwo\nthree"


class Broken:
    async def record(self, entry: CallRecord) -> None:
        raise OSError("audit disk full")


class Kept(list[CallRecord]):
    async def record(self, entry: CallRecord) -> None:
        self.append(entry)


async def test_a_broken_recorder_neither_stops_the_call_nor_the_other_recorders() -> None:
    kept = Kept()
    entry = CallRecord("finished", call("f"), definition("f"), 1.0)

    await Recorders([Broken(), kept])(entry)

    assert kept == [entry]


@pytest.mark.parametrize("moment", ["admitted", "finished"])
async def test_a_required_record_that_cannot_be_kept_is_an_error(moment) -> None:
    with pytest.raises(RecordRefused):
        await Recorders([Broken()])(CallRecord(moment, call("f"), definition("f", record="required"), 1.0))
