"""Finding the task that a person means."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

import click

from foliot.cli.connect import namespace
from foliot.client.work import Work
from foliot.errors import NotFound, UsageError
from foliot.work.base import TaskInfo

F = TypeVar("F", bound=Callable[..., Any])


def task_argument(*, required: bool = True) -> Callable[[F], F]:
    """TASK, given to the command as `name`: a name, or as much of its beginning or end as is unique."""
    return click.argument("name", metavar="TASK" if required else "[TASK]", required=required)


async def find_task(work: Work, word: str | None) -> TaskInfo:
    """The task of this name, `namespace/name`, or the only one that begins or ends so; the newest when none is named.

    Raises `NotFound`, `InvalidInput` with the candidates, `UsageError` for an empty name.
    """
    if word is None:
        newest, _ = await work.tasks(namespace=namespace(), limit=1)
        if not newest:
            raise NotFound(
                f"There are no tasks in namespace {namespace()} yet.", hint="`foliot task run --help` says how."
            )
        return newest[0]
    word = word.removeprefix("task/")
    space, _, name = word.rpartition("/")
    if not name.strip():
        raise UsageError("An empty text does not name a task.", hint="`foliot task list` shows them.")
    return await work.find_task(space or namespace(), name)
