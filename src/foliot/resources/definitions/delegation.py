"""How an agent gives tasks to copies of itself and to other agents: presets, models, and how far it may go."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated, ClassVar, Final

from pydantic import Field

from foliot.resources.base import Model, problem
from foliot.resources.fields import ExactList, Name, Positive, RawText, Ref, RefList, Timeout, ToolList
from foliot.resources.problems import Problem

DEEPEST: Final = 10
MOST_RUNS: Final = 10_000
MOST_PRESETS: Final = 100


class DelegationPreset(Model):
    """A kind of helper that a task can be given to."""

    required: ClassVar = {"name": "", "description": ""}

    name: Name = Field(default="", description="What tasks call it.")
    description: str = Field(default="", description="What it is for, in a sentence; the model chooses by it.")
    model: Ref = Field(default="", description="A ModelEndpoint to ask instead of the agent's: name or namespace/name.")
    tools: ToolList | None = Field(
        default=None, description="The tools of the agent that it keeps: all when not given, none for an empty list."
    )
    timeout: Timeout | None = Field(default=None, description="How long it may work on a task, such as 30m.")
    prompt: RawText = Field(default="", description="Instructions behind the agent's own prompt.")


class AgentDelegation(Model):
    """Tasks for copies of the agent and for other agents, with the tool `delegate`."""

    presets: Annotated[list[DelegationPreset], Field(max_length=MOST_PRESETS)] = Field(
        default_factory=list[DelegationPreset],
        description="Kinds of helpers, besides `general`, `explore` and `review`; the same name replaces one of them.",
    )
    presets_from: ExactList = Field(
        default_factory=list[str],
        description="Folders with a file NAME.md for each preset, beside the manifest. They are read with it.",
    )
    models: RefList = Field(
        default_factory=list[str], description="ModelEndpoints that a task may name: name or namespace/name."
    )
    timeout: Timeout | None = Field(
        default=None, description="How long one task may take, where its preset does not say; 15m when not given."
    )
    max_depth: Annotated[Positive, Field(le=DEEPEST)] | None = Field(
        default=None, description="Levels of delegation below a run; 4 when not given, and 10 at most."
    )
    max_runs: Annotated[Positive, Field(le=MOST_RUNS)] | None = Field(
        default=None, description="Runs below a run, on all levels together; 500 when not given."
    )
    allow_cycles: bool | None = Field(
        default=None, description="Whether it may call an agent that stands above it; only the depth ends that then."
    )

    def problems(self) -> Iterator[Problem]:
        if self.presets_from:
            hint = "apply the manifest from a file, or write the presets under spec.delegation.presets"
            yield problem("presets_from", message="{field} is read where the manifest is a file", hint=hint)
        seen: set[str] = set()
        for index, preset in enumerate(self.presets):
            if preset.name in seen:
                yield problem("presets", index, "name", message=f'preset "{preset.name}" is declared twice')
            seen.add(preset.name)
