"""Commands: what is asked for is checked before anything is accepted."""

from __future__ import annotations

from typing import Any

import pytest

from foliot.errors import InvalidInput
from foliot.work.tasks.base import Command
from foliot.work.tasks.commands import BEGIN, from_template, normalise


@pytest.mark.parametrize(
    "attachments",
    [tuple({"type": "t", "n": n} for n in range(21)), ({"type": "t", "d": "x" * 70_000},), ({"type": object()},)],
)
def test_the_attachments_of_a_task_are_bounded_as_those_of_a_message(attachments: tuple[dict[str, Any], ...]) -> None:
    with pytest.raises(InvalidInput, match="attachments: "):
        normalise(Command("agent", "clerk", message="hi", attachments=attachments))
    normalise(Command("agent", "clerk", message="hi", attachments=tuple({"n": n} for n in range(20))))


@pytest.mark.parametrize("labels", [{"a": None}, {"a": 1}, {"a": "b\0"}, {"a\0": "b"}, {1: "b"}])
def test_labels_are_texts(labels: dict[Any, Any]) -> None:
    with pytest.raises(InvalidInput, match=r"label .*: labels are texts"):
        normalise(Command("agent", "clerk", message="hi", labels=labels))


@pytest.mark.parametrize(
    ("template", "given", "message"),
    [({}, {}, BEGIN), ({"topic": "x"}, {}, ""), ({}, {"topic": "x"}, "")],
)
def test_a_template_that_is_used_without_words_begins(
    template: dict[str, str], given: dict[str, str], message: str
) -> None:
    document = {"metadata": {"name": "brief"}, "spec": {"agent": "a", "mode": "template", "input": template}}

    command = from_template(document, Command("agent", "a", input=given))

    assert command.message == message
    assert from_template(document, Command("agent", "a", message="Go.", input=given)).message == "Go."
