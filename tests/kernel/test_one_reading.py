"""What comes from outside is read in one way: a name twice in one object is refused by every reader."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgspec
import pytest

from foliot.engine.hooks.chain import HookFailed
from foliot.engine.hooks.http import read as read_hook_answer
from foliot.engine.runners.lines import parsed
from foliot.errors import FoliotError
from foliot.kernel.arguments import read_json
from foliot.server.http.bodies import refuse_repeated
from foliot.tools.contract import VERSION, decode_response

TWICE = b'{"user":"zoe","user":"7"}'
READERS: list[tuple[Callable[[bytes], Any], bytes]] = [
    (read_json, TWICE),
    (read_json, b'[{"a":{"b":1,"\\u0062":2}}]'),
    (refuse_repeated, TWICE),
    (parsed, b'{"type":"result","text":"a","text":"b"}'),
    (read_hook_answer, b'{"block":"no","block":"yes"}'),
    (decode_response, b'{"tool_contract_version":"%s","status":"error","status":"ok"}' % VERSION.encode()),
]


@pytest.mark.parametrize(("read", "text"), READERS)
def test_a_name_twice_in_one_object_is_refused(read: Callable[[bytes], Any], text: bytes) -> None:
    with pytest.raises((msgspec.ValidationError, HookFailed, FoliotError), match="more than once"):
        read(text)


def test_a_line_that_is_no_protocol_is_none() -> None:
    assert [parsed(each) for each in (b"hello", b"{broken", b"[1]")] == [None] * 3
    assert parsed(b'{"a":{"x":1},"b":{"x":2}}') == {"a": {"x": 1}, "b": {"x": 2}}
