"""ToolApproval: a person's answer to one tool call that needs it, or to all such calls for a while."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated, Any, ClassVar, Final, Literal

from pydantic import AliasChoices, AliasGenerator, ConfigDict, Field, field_validator

from foliot.resources.base import Model, Resource, Status, both, either, given, implies, is_true, no, problem
from foliot.resources.fields import ANY_CASE, ExactList, Name, Positive, RawText, Ref, Timeout, refusal
from foliot.resources.names import snake, spellings
from foliot.resources.problems import Problem

PHASES: Final = ("Pending", "Approved", "Denied", "Expired")


_STANDING: Final = is_true("standing")


class ToolApprovalSpec(Model):
    """The request for approval. It is bound to one call of one run and to the digest of its arguments.

    A standing grant answers before anybody asks: it names a tool (and an agent), not a call.
    """

    required: ClassVar = {"tool": ""}
    rules: ClassVar = (
        implies(_STANDING, both(no(given("run")), no(given("call_id")))),
        implies(no(_STANDING), both(either(given("task_ref"), given("run")), no(given("when")), no(given("max_uses")))),
        implies(both(no(_STANDING), given("run")), given("call_id", "arguments_digest")),
    )

    task_ref: Ref = Field(default="", description="The Task that waits: name or namespace/name.")
    run: str = Field(default="", description="The run that waits.")
    call_id: str = Field(default="", description="The call of that run.")
    tool: Name = Field(default="", description="The tool to be called.")
    operation_class: Annotated[str, ANY_CASE] = Field(default="", description="What it would do.")
    agent: str = Field(default="", description="The agent that asks; for a standing grant, the only one it is for.")
    input: RawText = Field(default="", description="The arguments of the call, as text.")
    arguments: dict[str, Any] = Field(
        default_factory=dict[str, Any], description="The arguments as the runtime shows them: secrets are masked."
    )
    arguments_digest: str = Field(default="", description="SHA-256 of the canonical arguments: what the answer covers.")
    reason: str = Field(default="", description="Why an approval is needed.")
    approvers: ExactList = Field(default_factory=list[str], description="Who may decide; anybody when empty.")
    required_approvals: Positive | None = Field(
        default=None, description="How many of them must approve; one if empty."
    )
    four_eyes: bool | None = Field(default=None, description="Whether `asked_by` may not decide.")
    asked_by: str = Field(default="", description="Who the run acts for, and who acts in their name.")
    ttl: Timeout = Field(default="72h", description="How long the question stands before it expires.")
    standing: bool | None = Field(default=None, description="Whether it covers every call in its scope until it ends.")
    when: RawText = Field(default="", description="A CEL condition on the calls that a standing grant covers.")
    max_uses: Positive | None = Field(default=None, description="How many calls a standing grant covers at most.")

    def complete(self) -> None:
        self.standing = self.standing or None
        self.four_eyes = self.four_eyes or None

    def problems(self) -> Iterator[Problem]:
        if self.standing:
            if self.run or self.call_id:
                yield problem("standing", message="{field} cannot be set for a call of a run")
            return
        if not self.task_ref and not self.run:
            yield problem("task_ref", message="{field} is required")
        if self.run and not (self.call_id and self.arguments_digest):
            missing = "arguments_digest" if self.call_id else "call_id"
            yield problem(missing, message="{field} is required when spec.run is set")
        for name in ("when", "max_uses"):
            if getattr(self, name):
                yield problem(name, message="{field} is only for a standing grant")


class Vote(Model):
    """One person's approval, where several are needed."""

    by: str = Field(default="", description="Who approved.")
    at: str = Field(default="", description="When.")
    reason: str = Field(default="", description="Why.")


class ToolApprovalStatus(Status):
    """The decision. Its fields are in snake_case, unlike those of other kinds."""

    model_config = ConfigDict(
        alias_generator=AliasGenerator(
            validation_alias=lambda name: AliasChoices(*spellings(name)), serialization_alias=snake
        )
    )

    phase: str = Field(
        default="", description="Where it is.", json_schema_extra={"pattern": rf"^\s*({'|'.join(PHASES)})\s*$"}
    )
    decision: Annotated[Literal["", "approved", "denied", "edited"], ANY_CASE] = Field(
        default="", description="What was decided; `edited` is approved with other arguments."
    )
    decided_by: str = Field(default="", description="Who decided.")
    decided_at: str = Field(default="", description="When it was decided.")
    expires_at: str = Field(default="", description="When the question, or the standing grant, expires.")
    reason: str = Field(default="", description="Why it was decided so.")
    edited_arguments: dict[str, Any] = Field(
        default_factory=dict[str, Any], description="The arguments that were approved instead: secrets are masked."
    )
    granted_digest: str = Field(
        default="",
        description="SHA-256 of what was granted: canonical arguments, or the scope of a standing grant.",
    )
    votes: list[Vote] = Field(default_factory=list["Vote"], description="Who approved the arguments as they stand.")
    proposed_digest: str = Field(
        default="", description="SHA-256 of edited arguments that wait for further approvals: what a vote is for."
    )
    uses: ExactList = Field(default_factory=list[str], description="The calls that a standing grant has covered.")
    attended_by: str = Field(default="", description="The process that waits for the answer, if one does.")

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
