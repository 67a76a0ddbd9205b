"""AgentRole: a named set of permissions that agents are given."""

from __future__ import annotations

from pydantic import Field

from foliot.resources.base import Model, Resource, Status
from foliot.resources.fields import WordList


class AgentRoleSpec(Model):
    """The permissions of a role."""

    description: str = Field(default="", description="What the role is for.")
    permissions: WordList = Field(
        default_factory=list[str], description="Such as tool:<tool>:invoke or capability:<capability>."
    )


class AgentRole(Resource[AgentRoleSpec, Status]):
    """A named set of permissions."""
