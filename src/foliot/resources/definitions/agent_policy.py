"""AgentPolicy: limits on models, tools and tokens for the work it applies to."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated, Literal, TypeAlias

from pydantic import Field, WithJsonSchema

from foliot.resources.base import Model, Resource, Status, problem
from foliot.resources.definitions.sandbox import SandboxCeiling
from foliot.resources.fields import MARK_ONE_OR_MANY, Count, WordList, one_of_words
from foliot.resources.problems import Problem

# A policy is about a tool in all its versions.
ToolPatterns: TypeAlias = Annotated[
    WordList,
    WithJsonSchema({"type": "array", "items": {"type": "string", "pattern": "^[^@]*$"}, MARK_ONE_OR_MANY: True}),
]


class AgentPolicySpec(Model):
    """The limits of a policy, and where they apply. Every policy that applies must agree."""

    max_tokens_per_run: Count = Field(
        default=0, description="Tokens in and out of one task with all its runs and what they delegate; 0: no limit."
    )
    allowed_models: WordList = Field(default_factory=list[str], description="The only models allowed; all when empty.")
    blocked_tools: ToolPatterns = Field(
        default_factory=list[str], description="Tools that are refused; * stands for anything."
    )
    allowed_tools: ToolPatterns = Field(
        default_factory=list[str], description="The only tools allowed, with * for anything; all when empty."
    )
    allowed_categories: WordList = Field(
        default_factory=list[str], description="The only categories of tools allowed, beside allowed_tools."
    )
    read_only: bool | None = Field(default=None, description="Refuse every tool that may change something.")
    ask: Annotated[Literal["off", "on-miss", "always"], one_of_words("off", "on-miss", "always")] | None = Field(
        default=None, description="Ask a person: off, on-miss (for a tool that is not on the lists) or always."
    )
    sandbox: SandboxCeiling | None = Field(
        default=None, description="The most that tools may have around them: isolation, network, files, limits."
    )
    apply_mode: Annotated[Literal["scoped", "global"], one_of_words("scoped", "global", said="unsupported")] = Field(
        default="scoped", description="For the targets only, or for all work of the namespace."
    )
    target_systems: WordList = Field(
        default_factory=list[str], description="AgentSystems it applies to, and all that is done under them."
    )
    target_tasks: WordList = Field(
        default_factory=list[str],
        description="Tasks it applies to, by their name or that of the Task they are made after.",
    )

    def problems(self) -> Iterator[Problem]:
        for field in ("blocked_tools", "allowed_tools"):
            for at, name in enumerate(getattr(self, field)):
                if "@" in name:
                    hint = "a policy is about a tool in all its versions: leave out @ and what follows"
                    yield problem(field, at, message="{field} names a version", hint=hint)


class AgentPolicy(Resource[AgentPolicySpec, Status]):
    """Limits on models, tools and tokens."""
