"""Channel: a way for people to talk to an agent, and for its answers to reach them."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated, ClassVar, Final, Literal

from pydantic import Field

from foliot.resources.base import Model, Resource, Status, both, given, implies, problem, says, within
from foliot.resources.definitions.shapes import SecretAuth
from foliot.resources.fields import ANY_CASE, LooseWord, Name, NameList, Url, Whole
from foliot.resources.problems import Problem

TELEGRAM: Final = "https://api.telegram.org"


class ChannelUser(Model):
    """A person who may speak here."""

    required: ClassVar = {"id": "", "user": ""}

    id: LooseWord = Field(default="", description="Who it is on the other side: a Telegram user id, a sender's name.")
    user: str = Field(default="", description="Who that is here: sessions belong to, and runs act for, this user.")
    agent: Name = Field(default="", description="The Agent that answers in private; the channel's when not given.")


class ChannelGroup(Model):
    """A group whose allowed members may speak here."""

    required: ClassVar = {"id": ""}

    id: LooseWord = Field(default="", description="The id of the group on the other side, e.g. -1001234567890.")
    agent: Name = Field(default="", description="The Agent that answers in it; that of the channel when not given.")
    respond: Annotated[Literal["mention", "always", "disabled"], ANY_CASE] = Field(
        default="mention", description="Answer when it is mentioned or replied to, to everything, or not at all."
    )


class ChannelSpec(Model):
    """Which agent, who may speak to it, and where."""

    required: ClassVar = {"type": "telegram, webhook or plugin", "agent": ""}
    rules: ClassVar = (
        within("auth", given("secret_ref")),
        implies(says("type", "webhook"), both(given("endpoint"))),
        implies(says("type", "plugin"), both(given("plugin"))),
    )

    type: Annotated[Literal["telegram", "webhook", "plugin"], ANY_CASE] | None = Field(
        default=None,
        description="`telegram`: a bot. `webhook`: signed requests in both directions. `plugin`: that of a plug-in.",
    )
    plugin: Name = Field(default="", description="`plugin`: the channel of an enabled plug-in, by its name.")
    agent: Name = Field(default="", description="The Agent that answers.")
    agents: NameList = Field(
        default_factory=list[str], description="More Agents, which people may switch to with /agent."
    )
    models: NameList = Field(
        default_factory=list[str],
        description="ModelEndpoints that people may choose with /model. None, when it is empty.",
    )
    suspend: bool = Field(default=False, description="Take and deliver nothing for now.")
    endpoint: Url = Field(
        default="",
        description="`webhook`: where answers are posted to. `telegram`: the Bot API, https://api.telegram.org by "
        "default.",
    )
    auth: SecretAuth = Field(
        default_factory=SecretAuth,
        description="`telegram`: the token of the bot. `webhook`: the key that requests and answers are signed with, "
        "as Standard Webhooks writes it (whsec_…).",
    )
    users: list[ChannelUser] = Field(
        default_factory=list[ChannelUser],
        description="Who may speak besides those who have linked their account. Naming another user than oneself needs "
        "the role impersonator.",
    )
    groups: list[ChannelGroup] = Field(
        default_factory=list[ChannelGroup], description="Groups in which these users may speak. None, when it is empty."
    )
    link: bool = Field(
        default=True,
        description="Show an unknown sender a code in private; the user who enters it with `foliot channels link` "
        "speaks here as themselves.",
    )
    mode: Annotated[Literal["followup", "collect", "steer", "steer-backlog", "interrupt", "queue"], ANY_CASE] = Field(
        default="followup", description="What a message does while the agent works on another."
    )

    def complete(self) -> None:
        if self.type == "telegram":
            self.endpoint = self.endpoint or TELEGRAM

    def problems(self) -> Iterator[Problem]:
        if not self.auth.secret_ref:
            yield problem("auth", "secret_ref", message="{field} is required")
        if self.type == "webhook" and not self.endpoint:
            yield problem("endpoint", message="{field} is required when spec.type is webhook")
        if self.type == "plugin" and not self.plugin:
            yield problem("plugin", message="{field} is required when spec.type is plugin")
        for field, listed in (("users", self.users), ("groups", self.groups)):
            seen: set[str] = set()
            for number, each in enumerate(listed):
                if each.id and each.id in seen:
                    yield problem(field, number, "id", message=f'{{field}} "{each.id[:80]}" is given twice')
                seen.add(each.id)


class ChannelStatus(Status):
    """The observed state of the channel."""

    endpoint_path: str = Field(default="", description="The path that messages are posted to.")
    failed_count: Whole | None = Field(default=None, description="Deliveries that were given up.")


class Channel(Resource[ChannelSpec, ChannelStatus]):
    """A way for people to talk to an agent."""
