"""ToolPermission: what an agent must be allowed before it may call a tool."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated, ClassVar, Literal

from pydantic import Field

from foliot.resources.base import Model, Resource, Status, given, implies, problem, says
from foliot.resources.fields import ANY_CASE, ExactList, Positive, RawText, Timeout, ToolName, WordList
from foliot.resources.problems import Problem


class OperationRule(Model):
    """The verdict on one class of operations; the strictest rule that applies decides."""

    operation_class: Annotated[Literal["read", "write", "delete", "admin", "*"], ANY_CASE] = Field(
        default="*", description="The class, or * for those without a rule of their own."
    )
    verdict: Annotated[Literal["allow", "deny", "approval_required"], ANY_CASE] = Field(
        default="allow", description="Allow, refuse, or ask a person first."
    )


class Condition(Model):
    """The verdict on calls for which an expression holds."""

    required: ClassVar = {"when": ""}

    when: RawText = Field(
        default="", description="A CEL expression over args, tool, agent and caller: args.amount > 500.0"
    )
    verdict: Annotated[Literal["allow", "deny", "approval_required"], ANY_CASE] = Field(
        default="approval_required", description="Allow, refuse, or ask a person first."
    )
    reason: str = Field(default="", description="What the model and the approver are told.")


class ToolPermissionSpec(Model):
    """The callers that may use a tool, and under which rules."""

    rules: ClassVar = (implies(says("apply_mode", "scoped"), given("target_agents")),)

    tool_ref: ToolName = Field(
        default="", description="The Tool, or agent:NAME; the name of this resource when not given."
    )
    action: Annotated[str, ANY_CASE] = Field(default="invoke", description="What is permitted.")
    required_permissions: WordList = Field(
        default_factory=list[str], description="Permissions that the agent's roles must hold."
    )
    match_mode: Annotated[Literal["all", "any"], ANY_CASE] = Field(
        default="all", description="Whether all of them are needed, or any one."
    )
    apply_mode: Annotated[Literal["global", "scoped"], ANY_CASE] = Field(
        default="global", description="For every agent of the namespace, or for target_agents only."
    )
    target_agents: WordList = Field(default_factory=list[str], description="The agents it applies to, when scoped.")
    operation_rules: list[OperationRule] = Field(
        default_factory=list[OperationRule], description="What happens by class of operation."
    )
    conditions: list[Condition] = Field(
        default_factory=list[Condition],
        description="What happens by arguments; the strictest that holds decides. With an `allow`, others are refused.",
    )
    approvers: ExactList = Field(
        default_factory=list[str], description="Who may approve; everyone who may, when empty."
    )
    approval_ttl: Timeout | None = Field(default=None, description="How long a question stands; 72h when not given.")
    required_approvals: Positive | None = Field(
        default=None, description="How many different people must approve; one when not given."
    )
    four_eyes: bool | None = Field(
        default=None, description="Whether the person the run acts for, and who acts in their name, may not approve."
    )

    def problems(self) -> Iterator[Problem]:
        if self.apply_mode == "scoped" and not self.target_agents:
            yield problem("target_agents", message="{field} is required when spec.apply_mode=scoped")
        if self.approvers and (self.required_approvals or 1) > len(set(self.approvers)):
            yield problem("required_approvals", message="{field} is more than there are in spec.approvers")


class ToolPermission(Resource[ToolPermissionSpec, Status]):
    """A permission that an agent needs before it may call a tool."""

    def complete(self) -> None:
        super().complete()
        if not self.spec.tool_ref:
            self.spec.tool_ref = self.metadata.name
