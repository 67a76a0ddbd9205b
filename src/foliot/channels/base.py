"""The protocol of a channel, and the values that pass between a platform and the sessions behind it.

A channel turns what its platform sends into `Incoming`, hands it to `Conversations.receive`, and delivers what it is
given as `Notification`. It knows nothing of agents, sessions and commands; they know nothing of its wire format.
"""

from __future__ import annotations

import hashlib
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any, Literal, Protocol, TypeAlias

import msgspec
from msgspec import Struct

from foliot.errors import FoliotError
from foliot.kernel.messages import Media
from foliot.kernel.routing import Address
from foliot.resources.powers import declared_by_operator, secret_targets
from foliot.store.base import DeclaredBy, Document
from foliot.store.channel_links import ChannelPlace, key_setter
from foliot.tools.outbound.client import OutboundClient

Respond: TypeAlias = Literal["mention", "always", "disabled"]
Progress: TypeAlias = Callable[[str], Awaitable[bool]]
Token: TypeAlias = Callable[[], Awaitable[str]]
"""Looks the secret of a channel up, as it is now. Raises `ToolSecretMissing`, `SecretError`."""


class ChannelMember(Struct, frozen=True):
    """A person or a group that a channel knows: who that is here, and who answers."""

    id: str
    user: str = ""
    agent: str = ""
    respond: Respond = "mention"


class DeclaredChannel(Struct, frozen=True):
    """A Channel with every default filled in."""

    uid: str
    namespace: str
    name: str
    type: Literal["telegram", "webhook", "plugin"]
    agent: str
    agents: tuple[str, ...]
    endpoint: str
    secret_ref: str
    # The hosts that its secret has to be bound to; None where the operator declared it.
    secret_hosts: tuple[str, ...] | None
    users: dict[str, ChannelMember]
    groups: dict[str, ChannelMember]
    mode: str
    suspend: bool
    generation: int
    declarer: str
    by_operator: bool
    # The channel of a plug-in, by its name.
    plugin: str = ""
    # The models that people may choose.
    models: tuple[str, ...] = ()
    # Whether an unknown sender is shown a code to link an account with.
    link: bool = True
    # Who set the value that its Secret has: with it anybody is a sender. None where it was not looked up.
    key_by: DeclaredBy | None = None

    @property
    def via(self) -> str:
        """The way in of what is said here."""
        return f"channel:{self.name}"

    @property
    def place(self) -> ChannelPlace:
        """The channel as links are bound to it: to who declared it, and to who vouches for its senders.

        Of a key that was not looked up nobody is known, and no link holds.
        """
        vouched = (self.declarer, self.by_operator, self.type, self.plugin, self.endpoint, self.secret_ref)
        terms = hashlib.sha256(msgspec.json.encode(vouched)).hexdigest()
        key_by = self.key_by or DeclaredBy()
        return ChannelPlace(
            self.namespace, self.name, self.uid, terms, "" if key_by.operator else key_setter(key_by.user)
        )

    @property
    def vouching(self) -> tuple[str, ...]:
        """The names that say who writes here, without the operator: its declarer, and who set its key."""
        key_by = self.key_by or DeclaredBy()
        declarer = () if self.by_operator else (self.declarer,)
        return tuple(dict.fromkeys((*declarer, *(() if key_by.operator else (key_by.user,)))))

    def may_reach(self, address: Address) -> bool:
        """Whether something may be delivered to this address: to a listed user, or into a listed group."""
        if address.group_id:
            return address.group_id in self.groups and address.to in ("", address.group_id)
        return address.to in self.users or address.to in self.groups


def read_channel(document: Document) -> DeclaredChannel:
    """Raises `KeyError`, `ValueError` for a document that no version of Foliot would have stored so."""
    metadata, spec = document["metadata"], document["spec"]
    declarer = DeclaredBy.of(document)

    def members(field: str) -> dict[str, ChannelMember]:
        listed: list[dict[str, Any]] = spec.get(field) or []
        return {each["id"]: ChannelMember(**each) for each in listed}

    return DeclaredChannel(
        uid=metadata["uid"],
        namespace=metadata["namespace"],
        name=metadata["name"],
        type=spec["type"],
        agent=spec["agent"],
        agents=tuple(dict.fromkeys((spec["agent"], *(spec.get("agents") or ())))),
        endpoint=spec.get("endpoint", ""),
        secret_ref=spec["auth"]["secretRef"],
        secret_hosts=secret_targets(document),
        users=members("users"),
        groups=members("groups"),
        mode=spec.get("mode", "followup"),
        suspend=spec.get("suspend", False),
        generation=metadata["generation"],
        declarer=declarer.user,
        by_operator=declared_by_operator(document),
        plugin=spec.get("plugin", ""),
        models=tuple(spec.get("models") or ()),
        link=spec.get("link", True),
    )


class Incoming(Struct, frozen=True):
    """A message that came in. `id` is that of the platform, unique for the channel: the same id twice is one message.

    `chat` is where it was said, and where an answer goes; `group` is blank in private. `addressed`: the agent is
    mentioned, or replied to.
    """

    id: str
    sender: str
    text: str
    chat: str
    group: str = ""
    thread: str = ""
    message: str = ""
    media: tuple[Media, ...] = ()
    attachments: tuple[dict[str, Any], ...] = ()
    addressed: bool = True


class Received(Struct, frozen=True):
    """The outcome of an incoming message: a `reply` of the channel itself, or the `session` that it was said to.

    `refused` says why nothing follows; it is for the log, never for the sender. A `private` reply is not delivered, and
    stored nowhere: whoever took the message shows it to its sender, and to no one else.
    """

    session: str = ""
    outcome: str = ""
    reply: str = ""
    refused: str = ""
    again: bool = False
    address: Address | None = None
    private: bool = False


class Notification(Struct, frozen=True):
    """A delivery as a channel gets it. `key` is the same at every try; `receipt` is what was delivered before.

    `progress` stores another receipt, and returns whether this process still holds the delivery.
    """

    key: str
    address: Address
    text: str
    media: tuple[Media, ...]
    run_id: str
    receipt: str
    progress: Progress


class DeliveryFailed(FoliotError):
    """A delivery did not succeed. It is tried again unless it is `final`; `after` seconds if the other side says so.

    One that `waits` is never given up: nothing was tried.
    """

    code = "delivery_failed"
    http = 502

    def __init__(self, message: str, *, final: bool = False, after: float = 0.0, waits: bool = False) -> None:
        super().__init__(message, retryable=not final)
        self.final = final
        self.after = after
        self.waits = waits


class Channel(Protocol):
    """A front end. One object for each declared Channel, in each process."""

    declared: DeclaredChannel

    async def start(self) -> None:
        """Begins to take messages, where the channel fetches them itself. Returns at once."""
        ...

    async def stop(self) -> None:
        """Takes no more messages. Returns when nothing of it is at work any more."""
        ...

    async def deliver(self, notification: Notification) -> None:
        """Delivers an answer, at least once. Raises `DeliveryFailed`."""
        ...


@dataclass(frozen=True, slots=True)
class ChannelContext:
    """The services that the channel of a plug-in is made with: it returns a `Channel`, at once or as a coroutine.

    `receive` takes what was said, and is durable on return; `client` is the guarded way out; `secret` gives the secret
    that the Channel names.
    """

    declared: DeclaredChannel
    receive: Callable[[Incoming], Awaitable[Received]]
    client: OutboundClient
    secret: Token
    clock: Callable[[], float]
