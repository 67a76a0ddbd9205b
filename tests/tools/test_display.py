"""One line about a call: the words of the specification, and whatever a model writes in their place."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from foliot.tools.display import input_summary, result_summary


@pytest.mark.parametrize(
    ("tool", "arguments", "shown"),
    [
        ("bash", {"command": "ls -l"}, "ls -l"),
        ("bash", {"command": "x" * 81}, "x" * 80 + "..."),
        ("bash", {"command": "x" * 80}, "x" * 80),
        ("bash", {"command": "a\n  b"}, "a b"),
        ("read", {"path": "src/a.py", "offset": 3}, "src/a.py"),
        ("write", {"path": "a", "content": "secret"}, "a"),
        ("skills", {"action": "load", "name": "pdf"}, "load pdf"),
        ("skills", {"action": "install", "source": "/tmp/x"}, "install /tmp/x"),
        ("memory", {"action": "search", "query": "q"}, "search"),
        ("agent", {"tasks": [{"task": "a"}, {"task": "b"}]}, "2 task(s)"),
        ("http_get", {"url": "https://example"}, ""),
        ("bash", {"command": 5}, ""),
        ("bash", '{"command": "pwd"}', "pwd"),
        ("bash", '{"command": ', ""),
        ("bash", "[1]", ""),
        ("read", {"path": "a\x1b[31m"}, "a\\u001b[31m"),
    ],
)
def test_what_goes_into_a_call_is_shown_in_a_line(tool: str, arguments: Any, shown: str) -> None:
    assert input_summary(tool, arguments) == shown


@pytest.mark.parametrize(
    ("text", "failed", "shown"),
    [
        ("fine\n", False, "fine"),
        ("one\ntwo", False, "one"),
        ("x" * 80, False, "x" * 80),
        ("x" * 81, False, "81 chars"),
        ("line\n" * 40, False, "40 lines"),
        ("no such file\nat line 3", True, "no such file"),
        ("e" * 121, True, "e" * 117 + "..."),
        ("e" * 120, True, "e" * 120),
        ("", False, ""),
        ("", True, ""),
    ],
)
def test_what_comes_out_of_a_call_is_shown_in_a_line(text: str, failed: bool, shown: str) -> None:
    assert result_summary(text, failed=failed) == shown


@given(st.sampled_from(["bash", "skills", "agent", "read"]), st.text() | st.binary(), st.text(), st.booleans())
def test_whatever_a_model_writes_a_summary_is_one_short_line(
    tool: str, arguments: str | bytes, text: str, failed: bool
) -> None:
    for line in (input_summary(tool, arguments), result_summary(text, failed=failed)):
        assert len(line.splitlines()) <= 1
