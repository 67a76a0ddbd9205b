"""ToolApproval: a person's answer to one tool call that needs it."""

from __future__ import annotations

from typing import Annotated, ClassVar, Final, Literal

from pydantic import AliasChoices, AliasGenerator, BeforeValidator, ConfigDict, Field, field_validator

from foliot.resources.base import Model, Resource, Status
from foliot.resources.fields import Name, RawText, Ref, Timeout, lowered, refusal
from foliot.resources.spelling import snake, spellings

PHASES: Final = ("Pending", "Approved", "Denied", "Expired")


class ToolApprovalSpec(Model):
    """What is asked."""

    required: ClassVar = {"task_ref": "", "tool": ""}

    task_ref: Ref = Field(default="", description="The Task that waits: name or namespace/name.")
    tool: Name = Field(default="", description="The tool to be called.")
    operation_class: Annotated[str, BeforeValidator(lowered)] = Field(default="", description="What it would do.")
    agent: str = Field(default="", description="The agent that asks.")
    input: RawText = Field(default="", description="The arguments of the call.")
    reason: str = Field(default="", description="Why an approval is needed.")
    ttl: Timeout = Field(default="10m", description="How long the question stands before it expires.")


class ToolApprovalStatus(Status):
    """What was answered. Its fields are in snake_case, unlike those of other kinds."""

    model_config = ConfigDict(
        alias_generator=AliasGenerator(
            validation_alias=lambda name: AliasChoices(*spellings(name)), serialization_alias=snake
        )
    )

    phase: str = Field(default="", description="Where it is.", json_schema_extra={"enum": [*PHASES]})
    decision: Annotated[Literal["", "approved", "denied"], BeforeValidator(lowered)] = Field(
        default="", description="What was decided."
    )
    decided_by: str = Field(default="", description="Who decided.")
    decided_at: str = Field(default="", description="When it was decided.")
    expires_at: str = Field(default="", description="When the question expires.")
    reason: str = Field(default="", description="Why it was decided so.")

    @field_validator("phase")
    @classmethod
    def _known_phase(cls, value: str) -> str:
        if value not in PHASES:
            expected = "Pending, Approved, Denied, or Expired"
            raise refusal(f'invalid {{field}} "{value[:80]}": expected {expected}', expected=expected)
        return value


class ToolApproval(Resource[ToolApprovalSpec, ToolApprovalStatus]):
    """A person's answer to one tool call."""

    def complete(self) -> None:
        super().complete()
        self.status = self.status or ToolApprovalStatus()
        self.status.phase = self.status.phase or "Pending"
