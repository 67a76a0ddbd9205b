"""From a message on a platform to a session: who speaks, to which agent, and whether it is a command.

    sender       listed in the channel, or nothing follows: an empty list means no one
    agent        in private that of the user, in a group that of the group, else that of the channel; or the one chosen
                 with /agent, among those that the channel declares
    session      the one that is active for agent, user and place; the same user has one over all platforms in private
    command      /new and the like are done here, once for each message; any other text is chat

The order of what is said is that of the inbox of the session. Answers are deliveries of its turns; those of commands
are stored as deliveries too, under the key of the message, so a message that comes twice is answered once.
"""

from __future__ import annotations

import hashlib
import logging
from collections.abc import Awaitable, Callable
from typing import Final, NamedTuple

from foliot.channels.base import ChannelMember, DeclaredChannel, Incoming, Received
from foliot.engine.base import Clock
from foliot.errors import Conflict, FoliotError, NotFound
from foliot.kernel.identity import Identity
from foliot.kernel.messages import Message, Text
from foliot.kernel.routing import (
    Address,
    MessageDetails,
    Provenance,
    Routing,
    attachments_problem,
    bounded_key,
    stored_details,
)
from foliot.sessions.keys import user_key
from foliot.sessions.service import SessionService
from foliot.store.access.tokens import SqlTokens
from foliot.store.base import Database, Filter, ResourceStore
from foliot.store.channels import ChannelReaders, Outbox
from foliot.store.sessions.base import Place, Session

log = logging.getLogger(__name__)

PRIVATE: Final = "private"
LONGEST_TEXT: Final = 256 * 1024
HELP: Final = """\
/new begins another conversation
/abort stops the answer that is being written
/compact makes room in a long conversation
/model shows the model, /model NAME changes it for this conversation
/agent shows who answers, /agent NAME changes it
/whoami shows who you are here
/help shows this list
Anything else is said to the agent."""
_SHOWN: Final = 30


class _Speaker(NamedTuple):
    """The speaker of a message, where and to whom: what a command acts on."""

    channel: DeclaredChannel
    incoming: Incoming
    member: ChannelMember
    agent: str
    place: Place
    identity: Identity

    @property
    def chat(self) -> str:
        """The chat, as a choice of an agent is remembered by it; each member of a group chooses for himself."""
        return f"{self.incoming.group or PRIVATE}/{self.incoming.thread}/{self.incoming.sender}"


class Conversations:
    """Receives what channels take in, for the sessions of one process."""

    def __init__(self, sessions: SessionService, resources: ResourceStore, database: Database, *, clock: Clock) -> None:
        self._sessions = sessions
        self._resources = resources
        self._outbox = Outbox(database)
        self._readers = ChannelReaders(database)
        self._tokens = SqlTokens(database)
        self._clock = clock
        self._commands: dict[str, Callable[[_Speaker, str], Awaitable[str]]] = {
            "start": self._help,
            "help": self._help,
            "new": self._new,
            "compact": self._compact,
            "abort": self._abort,
            "model": self._model,
            "agent": self._agent,
            "whoami": self._whoami,
        }

    async def receive(self, channel: DeclaredChannel, incoming: Incoming) -> Received:
        """Says a message to its session, or does the command that it is; durable on return.

        Raises `Conflict` when its id belongs to other words, and what a store that is away does. What is wrong with the
        message or the agent is replied.
        """
        if (refused := await self._refused(channel, incoming)) is not None:
            return Received(refused=refused)
        speaker = await self._speaker(channel, incoming)
        address = _address(channel, incoming)
        word, rest = _command_of(incoming.text)
        command = self._commands.get(word)
        try:
            if command is None:
                return await self._say(speaker, address)
            reply = await command(speaker, rest)
        except FoliotError as error:
            if error.retryable or (command is None and isinstance(error, Conflict)):
                raise
            reply = error.message
        key = bounded_key(f"channel:{channel.uid}:", incoming.id)
        stored = await self._outbox.notice(key, channel.namespace, address, reply, now=self._clock())
        return Received(reply=reply, again=not stored, address=address)

    async def _refused(self, channel: DeclaredChannel, incoming: Incoming) -> str | None:
        """Why nothing follows from a message; None when something does."""
        if channel.suspend:
            return "the channel is suspended"
        if incoming.sender not in channel.users:
            return f"sender {incoming.sender[:80]!r} is not listed in spec.users"
        if incoming.group:
            group = channel.groups.get(incoming.group)
            if group is None:
                return f"group {incoming.group[:80]!r} is not listed in spec.groups"
            if group.respond == "disabled":
                return f"group {incoming.group[:80]!r} is disabled"
            if group.respond == "mention" and not incoming.addressed:
                return "not addressed"
        return await self._tokens.withdrawn(channel.declarer) or None

    async def _speaker(self, channel: DeclaredChannel, incoming: Incoming) -> _Speaker:
        member = channel.users[incoming.sender]
        declared = channel.groups[incoming.group].agent if incoming.group else member.agent
        agent = declared or channel.agent
        context = incoming.group or PRIVATE
        if incoming.thread:
            context = f"{context}/{incoming.thread}"
        place = Place(channel.namespace, agent, member.user, "")
        identity = Identity(member.user, via=channel.via).also_ordered_by(channel.declarer)
        speaker = _Speaker(channel, incoming, member, agent, place, identity)
        chosen = await self._readers.choice(channel.uid, speaker.chat)
        if chosen in channel.agents:  # what is no longer declared is no longer a choice
            agent = chosen
        place = Place(channel.namespace, agent, member.user, user_key(agent, member.user, context))
        return speaker._replace(agent=agent, place=place)

    async def _say(self, speaker: _Speaker, address: Address) -> Received:
        channel, incoming = speaker.channel, speaker.incoming
        if len(incoming.text) > LONGEST_TEXT:
            return await self._told(speaker, address, "That message is too long.")
        if wrong := attachments_problem(incoming.attachments):
            return await self._told(speaker, address, wrong)
        if not incoming.text.strip() and not incoming.media:
            return Received(refused="nothing that an agent could read")
        session = await self._sessions.resolve(speaker.place, identity=speaker.identity)
        texts = (Text(incoming.text),) if incoming.text.strip() else ()
        details = MessageDetails(
            Routing(
                to=address.to,
                channel=channel.name,
                thread_id=incoming.thread,
                group_id=incoming.group,
            ),
            deliver=True,
            provenance=Provenance(channel.type, incoming.message, channel.name, correlation_id=incoming.id),
            attachments=incoming.attachments,
        )
        said = await self._sessions.say(
            session.id,
            Message("user", (*texts, *incoming.media)),
            identity=speaker.identity,
            mode=channel.mode,
            key=bounded_key(f"{channel.uid}:", incoming.id),
            place=f"{channel.name}/{incoming.chat}/{incoming.thread}",
            details=stored_details(details),
        )
        return Received(session.id, said.outcome, again=said.again, address=address)

    async def _told(self, speaker: _Speaker, address: Address, text: str) -> Received:
        key = bounded_key(f"channel:{speaker.channel.uid}:", speaker.incoming.id)
        stored = await self._outbox.notice(key, speaker.channel.namespace, address, text, now=self._clock())
        return Received(reply=text, again=not stored, address=address)

    # --- commands ------------------------------------------------------------------------------------------------

    async def _help(self, speaker: _Speaker, rest: str) -> str:
        return f"You are talking to {speaker.agent}.\n{HELP}"

    async def _whoami(self, speaker: _Speaker, rest: str) -> str:
        session = await self._sessions.active(speaker.place, identity=speaker.identity)
        return (
            f"You are {speaker.member.user} ({speaker.incoming.sender} on {speaker.channel.name}), talking to "
            f"{speaker.agent}. " + (f"Your conversation is {session.id}." if session else "There is no conversation.")
        )

    async def _new(self, speaker: _Speaker, rest: str) -> str:
        """Begins another session. Its id comes from the message, so the same message twice begins one."""
        name = f"{speaker.channel.uid}:{speaker.incoming.id}:new"
        id = hashlib.sha256(name.encode()).hexdigest()[:32]
        try:
            await self._sessions.get(id, identity=speaker.identity)
        except NotFound:
            await self._sessions.rotate(speaker.place, identity=speaker.identity, id=id)
        return "This is a new conversation."

    async def _abort(self, speaker: _Speaker, rest: str) -> str:
        session = await self._sessions.active(speaker.place, identity=speaker.identity)
        stopped = session is not None and await self._sessions.stop(session.id, identity=speaker.identity)
        return "Stopped." if stopped else "Nothing was at work."

    async def _compact(self, speaker: _Speaker, rest: str) -> str:
        session = await self._sessions.active(speaker.place, identity=speaker.identity)
        if session is None:
            return "There is no conversation."
        await self._sessions.compact(session.id, identity=speaker.identity)
        return "The conversation is being compacted."

    async def _model(self, speaker: _Speaker, rest: str) -> str:
        session = await self._sessions.resolve(speaker.place, identity=speaker.identity)
        names = await self._endpoints(speaker.channel.namespace)
        if rest in names:
            await self._sessions.change(session.id, identity=speaker.identity, model=rest)
            return f"This conversation asks {rest} from the next answer on."
        fitting = [name for name in names if rest.lower() in name.lower()]
        return "\n".join((_current(session), *_listed(fitting, rest)))

    async def _endpoints(self, namespace: str) -> list[str]:
        page = await self._resources.list(Filter("ModelEndpoint", namespace=namespace))
        return sorted(document["metadata"]["name"] for document in page.items)

    async def _agent(self, speaker: _Speaker, rest: str) -> str:
        names = list(speaker.channel.agents)
        if rest in names:
            await self._readers.choose(speaker.channel.uid, speaker.chat, rest)
            return f"You are talking to {rest} now."
        fitting = [name for name in names if rest.lower() in name.lower()]
        return "\n".join((f"You are talking to {speaker.agent}.", *_listed(fitting, rest)))


def _current(session: Session) -> str:
    return f"This conversation asks {session.model}." if session.model else "This conversation asks the agent's model."


def _listed(names: list[str], asked: str) -> tuple[str, ...]:
    if not names:
        return (f"There is no {asked!r}.",) if asked else ()
    more = (f"… and {len(names) - _SHOWN} more",) if len(names) > _SHOWN else ()
    return (*(f"- {name}" for name in names[:_SHOWN]), *more)


def _command_of(text: str) -> tuple[str, str]:
    """The word of a command in small letters, and what follows it; blank for what is none.

    `/new@bot` is how groups name the bot that is meant.
    """
    first, _, rest = text.strip().partition(" ")
    if not first.startswith("/"):
        return "", ""
    return first[1:].partition("@")[0].lower(), rest.strip()


def _address(channel: DeclaredChannel, incoming: Incoming) -> Address:
    return Address(channel.name, incoming.chat, thread_id=incoming.thread, group_id=incoming.group)
