"""A task as one document of the API: what was asked for in the words of a manifest, and how it stands.

Whoever reads a task can post what its spec says under another name, and have the same done again.
"""

from __future__ import annotations

from typing import Any

import msgspec

from foliot.server.tasks.messages import joins_of, told
from foliot.store.base import Document
from foliot.work.tasks.base import Command
from foliot.work.views.document import document_of
from foliot.work.views.story import TaskStory


def task_document(story: TaskStory) -> Document:
    """Everything about a task."""
    document = document_of(story)
    document["spec"] = spec_of(story.command)
    document["status"] |= {"messages": told(story), "join_states": joins_of(story), "asked": _asked(story.command)}
    return document


def spec_of(command: Command) -> dict[str, Any]:
    """Returns the spec of a Task for this command."""
    retry = command.retry
    spec: dict[str, Any] = {
        command.target_kind: command.target,
        "mode": "run",
        "priority": command.priority,
        "retry": {"max_attempts": retry.max_attempts, "backoff": _duration(retry.backoff)},
        "message_retry": {
            "max_attempts": retry.max_attempts,
            "backoff": _duration(retry.backoff),
            "max_backoff": _duration(retry.max_backoff),
            "jitter": retry.jitter,
        },
    }
    if retry.non_retryable:
        spec["message_retry"]["non_retryable"] = [*retry.non_retryable]
    for name in ("input", "lane", "max_turns"):
        if value := getattr(command, name):
            spec[name] = value
    if command.timeout is not None:
        spec["timeout"] = _duration(command.timeout)
    if needs := msgspec.to_builtins(command.requirements):
        spec["requirements"] = needs
    return spec


def _asked(command: Command) -> dict[str, str]:
    """Returns the members of a request that a Task manifest cannot carry, or does not repeat."""
    given = {name: getattr(command, name) for name in ("message", "idempotency_key", "session", "user", "by")}
    return {name: value for name, value in given.items() if value}


def _duration(seconds: float) -> str:
    milliseconds = round(seconds * 1000)
    return f"{milliseconds // 1000}s" if milliseconds % 1000 == 0 else f"{milliseconds}ms"
