"""TaskHook: work that is done when files of a folder change, or a source reports a change."""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import Annotated, ClassVar, Literal, TypeAlias

from pydantic import AfterValidator, Field

from foliot.resources.base import Model, Resource, Status, either, given, no, problem
from foliot.resources.definitions.shapes import SessionTarget
from foliot.resources.fields import ANY_CASE, Name, Ref, StringMap, Whole, distinct, refusal
from foliot.resources.paths import HOOK_NAMES, names_in
from foliot.resources.problems import Problem

HookEvent: TypeAlias = Annotated[Literal["fs.create", "fs.write", "fs.delete", "source.change"], ANY_CASE]


def _folder(value: str) -> str:
    if not os.path.isabs(value) or "\x00" in value:
        raise refusal(f'invalid {{field}} "{value[:80]}": not an absolute path', expected="a folder such as /srv/inbox")
    return os.path.normpath(value)


class TaskHookSpec(Model):
    """The folder or source of a hook, and the work that follows from a change."""

    rules: ClassVar = (
        either(given("task_ref"), given("session")),
        no(given("task_ref", "session")),
        either(given("path"), given("source")),
        no(given("path", "source")),
    )

    task_ref: Ref = Field(default="", description="The Task with mode `template`: name or namespace/name.")
    session: SessionTarget | None = Field(default=None, description="Instead of a task: the session it is said to.")
    path: Annotated[str, AfterValidator(_folder)] = Field(
        default="", description="The folder that is watched, with all below it, on the machine of the server."
    )
    source: Name = Field(default="", description="Instead of a folder: a source whose changes are reported over HTTP.")
    events: Annotated[list[HookEvent], AfterValidator(distinct)] = Field(
        default_factory=list[HookEvent],
        description="fs.create, fs.write and fs.delete of a folder; all of them when not given.",
    )
    input: StringMap = Field(
        default_factory=dict[str, str],
        description="Input of the task besides the template's. {{ event }}, {{ path }} and the like are filled in.",
    )
    suspend: bool = Field(default=False, description="Let nothing follow from changes for now.")

    def complete(self) -> None:
        if not self.events:
            self.events = ["source.change"] if self.source else ["fs.create", "fs.write", "fs.delete"]

    def problems(self) -> Iterator[Problem]:
        if not self.task_ref and self.session is None:
            yield problem("task_ref", message="{field} is required", hint="or name a session with spec.session")
        if self.task_ref and self.session is not None:
            yield problem("session", message="{field} and spec.task_ref exclude each other", hint="keep one of the two")
        if not self.path and not self.source:
            yield problem("path", message="{field} is required", hint="or name a source with spec.source")
        if self.path and self.source:
            yield problem("source", message="{field} and spec.path exclude each other", hint="keep one of the two")
        for number, event in enumerate(self.events):
            if (event == "source.change") != bool(self.source) and (self.source or self.path):
                what = "a source" if self.source else "a folder"
                yield problem("events", number, message=f"{{field}}: {what} has no event {event}")
        texts = {("input", key): text for key, text in self.input.items()}
        if self.session is not None:
            texts["session", "message"] = self.session.message
        for place, text in texts.items():
            for name in names_in(text):
                if name not in HOOK_NAMES:
                    message = f"{{field}} holds {{{{ {name[:40]} }}}}, which nothing fills"
                    yield problem(*place, message=message, expected=", ".join(HOOK_NAMES))


class TaskHookStatus(Status):
    """The observed state of the hook."""

    last_event_time: str = Field(default="", description="When something last followed from a change.")
    last_event: str = Field(default="", description="The id of that event.")
    last_triggered_task: str = Field(default="", description="The last task it made.")
    failed_count: Whole | None = Field(default=None, description="Changes that nothing could follow from.")
    last_failure: str = Field(default="", description="The last of them, and why.")


class TaskHook(Resource[TaskHookSpec, TaskHookStatus]):
    """Work that is done when files or sources change."""
