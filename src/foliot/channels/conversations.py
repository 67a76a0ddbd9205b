"""From a message on a platform to a session: who speaks, to which agent, and whether it is a command.

    sender       has linked an account, or is listed by a declarer who may name that user, as may whoever set the key of
                 the channel; anybody else is shown a code to link one with, in private, and nothing more follows
    agent        in private that of the user, in a group that of the group, else that of the channel; or the one chosen
                 with /agent, among those that the channel declares
    session      the one that is active for agent, user and place; the same user has one over all platforms in private,
                 and one for each group and each thread of a channel
    command      /new and the like are done here, once for each message, and `approve CODE` and `deny CODE` decide an
                 approval; any other text is chat, and the answer to what the agent asks

The order of what is said is that of the inbox of the session. Answers are deliveries of its turns; those of commands
are stored as deliveries too. A message is taken once for its channel (`TakenMessages`), whatever session it goes to:
one that comes twice is neither said nor done nor answered again. A command stores what it acts on before it acts, so
one that has to be repeated after a crash acts on the same turn or session.
"""

from __future__ import annotations

import asyncio
import hashlib
import logging
from collections.abc import Awaitable, Callable, Mapping
from contextlib import suppress
from functools import partial
from typing import Any, Final, NamedTuple
from urllib.parse import quote

import msgspec

from foliot.channels.approvals import ApprovalDesk
from foliot.channels.base import ChannelMember, DeclaredChannel, Incoming, Received
from foliot.channels.keys import key_by
from foliot.engine.approval.notices import read_order
from foliot.engine.base import Clock
from foliot.errors import Conflict, FoliotError, NotFound, Unavailable
from foliot.kernel.identity import Identity, acting
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
from foliot.sessions.keys import chat_context, user_key
from foliot.sessions.service import SessionService
from foliot.store.access.tokens import SqlTokens
from foliot.store.base import Database, DeclaredBy, ResourceStore
from foliot.store.channel_links import ChannelLinks, StoredLink
from foliot.store.channels import ChannelReaders
from foliot.store.sessions.base import InboxFull, Place, Session, SessionArchived
from foliot.store.taken import MessageKey, OtherWords, Taken, TakenMessages

log = logging.getLogger(__name__)

LONGEST_TEXT: Final = 256 * 1024
# What an identity provider says of somebody is not known while they write: after so long they link their account anew.
UNKNOWN_LINK_LASTS: Final = 7 * 86_400.0
# So many seconds a command waits for the turn that it stops: a bot reads nothing else meanwhile.
LONGEST_STOP: Final = 5.0
HELP: Final = """\
/new begins another conversation
/abort stops the answer that is being written
/compact makes room in a long conversation
/model shows the model, /model NAME changes it for this conversation, where the channel lists models
/agent shows who answers, /agent NAME changes it
/whoami shows who you are here
/help shows this list
Anything else is said to the agent."""
CODE: Final = """\
I do not know you yet. If you have an account here, enter this within ten minutes, as yourself:
foliot channels link {code}
From then on what is written here by you is done in your name. Give the code to no one, and enter none that somebody \
else gave you."""
_SHOWN: Final = 30
# Somebody may begin another conversation while a message is said, again and again.
_TRIES: Final = 5


class _KnownSender(NamedTuple):
    """A sender who may speak: as which user, and with which identity. `link` if they have linked their account."""

    member: ChannelMember
    identity: Identity
    link: StoredLink | None = None


class _Speaker(NamedTuple):
    """The speaker of a message, where and to whom: what a command acts on."""

    channel: DeclaredChannel
    incoming: Incoming
    member: ChannelMember
    agent: str
    place: Place
    identity: Identity
    link: StoredLink | None = None

    @property
    def context(self) -> str:
        """The part of the key of its session that says where it was said."""
        return chat_context(self.channel.name, self.incoming.group, self.incoming.thread)

    @property
    def chat(self) -> str:
        """The chat, as a choice of an agent is remembered by it; each member of a group chooses for himself."""
        return f"{self.context}:{self.incoming.sender}"


class Conversations:
    """Receives what channels take in, for the sessions of one process."""

    def __init__(
        self,
        sessions: SessionService,
        database: Database,
        resources: ResourceStore,
        *,
        clock: Clock,
        approvals: ApprovalDesk | None = None,
    ) -> None:
        self._approvals = approvals
        self._resources = resources
        self._sessions = sessions
        self._readers = ChannelReaders(database)
        self._tokens = SqlTokens(database)
        self._clock = clock
        self._taken = TakenMessages(database)
        self._links = ChannelLinks(database)
        self._commands: dict[str, Callable[[_Speaker, str, str], Awaitable[str]]] = {
            "start": self._help,
            "help": self._help,
            "new": self._new,
            "compact": self._compact,
            "abort": self._abort,
            "model": self._model,
            "agent": self._agent,
            "whoami": self._whoami,
            "config": self._config,
        }

    async def receive(self, channel: DeclaredChannel, incoming: Incoming) -> Received:
        """Says a message to its session, or does the command that it is; durable on return.

        Raises `OtherWords` when its id belongs to other words, `InboxFull` when the session takes nothing more for now,
        and what a store that is away does. What else is wrong with the message or the agent is replied.
        """
        if (refused := await self._refused(channel, incoming)) is not None:
            return Received(refused=refused)
        # After the message was proved with the key: who set it meanwhile counts, never who had set it before.
        channel = await self._with_key(channel)
        known_sender = await self._known_sender(channel, incoming.sender)
        if known_sender is None:
            return await self._show_code(channel, incoming)
        address, key = _address(channel, incoming), _key(channel, incoming)
        if (known := await self._taken.get(key)) is not None and known.outcome:
            return _received_before(known, address)
        speaker = await self._speaker(channel, incoming, known_sender)
        word, rest = _command_of(incoming.text)
        command = self._commands.get(word)
        if (order := read_order(incoming.text)) is not None:
            word, rest = order
            command = partial(self._decide, word)
        try:
            if command is None:
                return await self._say(speaker, address, key)
            begun = await self._taken.begin(key, await self._target(word, speaker), now=self._clock())
            if begun.outcome:
                return _received_before(begun, address)
            reply = await command(speaker, rest, begun.target)
        except (OtherWords, InboxFull):
            raise
        except FoliotError as error:
            if error.retryable:
                raise
            reply = error.message
        return await self.tell(channel, incoming, reply)

    async def knows(self, channel: DeclaredChannel, sender: str) -> bool:
        """Whether a sender may speak on a channel."""
        return await self._known_sender(await self._with_key(channel), sender) is not None

    async def reaches(self, channel: DeclaredChannel, address: Address) -> bool:
        """Whether something may be delivered there: to a listed user or group, or to who has linked their account."""
        if channel.may_reach(address):
            return True
        place = (await self._with_key(channel)).place
        return not address.group_id and await self._links.of(place, address.to) is not None

    async def tell(self, channel: DeclaredChannel, incoming: Incoming, text: str) -> Received:
        """Ends a message with words of the channel itself, which its sender gets. Raises `OtherWords`."""
        address = _address(channel, incoming)
        notice = bounded_key(f"channel:{channel.uid}:", incoming.id)
        told = await self._taken.reply(
            _key(channel, incoming), notice, channel.namespace, address, text, now=self._clock()
        )
        return Received(reply=text, again=not told, address=address)

    async def _refused(self, channel: DeclaredChannel, incoming: Incoming) -> str | None:
        """Why nothing follows from a message; None when something does."""
        if channel.suspend:
            return "the channel is suspended"
        if incoming.group:
            group = channel.groups.get(incoming.group)
            if group is None:
                return f"group {incoming.group[:80]!r} is not listed in spec.groups"
            if group.respond == "disabled":
                return f"group {incoming.group[:80]!r} is disabled"
            if group.respond == "mention" and not incoming.addressed:
                return "not addressed"
        return await self._tokens.withdrawn(channel.declarer) or None

    async def _with_key(self, channel: DeclaredChannel) -> DeclaredChannel:
        """The channel with who set the value of its key, as it is now."""
        return msgspec.structs.replace(channel, key_by=await key_by(self._resources, channel))

    async def _known_sender(self, channel: DeclaredChannel, sender: str) -> _KnownSender | None:
        """Returns who a sender is here; None when no one has said so who may.

        A link is the word of the user. What is listed is that of whoever declared the channel, who needs the right to
        name another user now, and not only when it was declared. Whoever has set its key can be any sender, and so
        needs the rights of the declarer too.
        """
        member, now, space = channel.users.get(sender), self._clock(), channel.namespace
        setter = channel.key_by or DeclaredBy()
        link = await self._links.of(channel.place, sender)
        if link is not None and await self._may_vouch(setter, space):
            user = link.shown.user
            held = link.owner or await self._tokens.holds(user, "operator", space, now=now)
            if held is None:  # only an identity provider knows them, and only while they log in
                held = now - link.shown.linked_at < UNKNOWN_LINK_LASTS
            if held:
                linked = ChannelMember(sender, user, member.agent if member is not None else "")
                spoke = Identity(user, via=channel.via).also_ordered_by(channel.declarer, *channel.vouching)
                return _KnownSender(linked, spoke, link)
        if member is None:
            return None
        for each in (DeclaredBy(channel.declarer, channel.by_operator), setter):
            if not await self._tokens.may_name(each, member.user, space, now=now):
                return None
        spoke = acting(member.user, channel.declarer, channel.via).also_ordered_by(*channel.vouching)
        return _KnownSender(member, spoke)

    async def _may_vouch(self, setter: DeclaredBy, namespace: str) -> bool:
        """Whether who set the key of a channel could declare it: what an identity provider says is not known here."""
        return (
            setter.operator or await self._tokens.holds(setter.user, "admin", namespace, now=self._clock()) is not False
        )

    async def _show_code(self, channel: DeclaredChannel, incoming: Incoming) -> Received:
        """Shows an unknown sender a code to link an account with; in private, and not too often."""
        refused = Received(refused=f"sender {incoming.sender[:80]!r} has linked no account, and is not listed")
        if incoming.group or not channel.link:
            return refused
        code = await self._links.offer(channel.place, incoming.sender, now=self._clock())
        if not code:
            return refused
        where = "" if channel.namespace == "default" else f" -n {channel.namespace}"
        return Received(reply=CODE.format(code=f"{code}{where}"), address=_address(channel, incoming), private=True)

    async def _speaker(self, channel: DeclaredChannel, incoming: Incoming, known: _KnownSender) -> _Speaker:
        member, identity = known.member, known.identity
        declared = channel.groups[incoming.group].agent if incoming.group else member.agent
        agent = declared or channel.agent
        place = Place(channel.namespace, agent, member.user, "")
        speaker = _Speaker(channel, incoming, member, agent, place, identity, known.link)
        chosen = await self._readers.choice(channel.uid, speaker.chat)
        if chosen in channel.agents:  # what is no longer declared is no longer a choice
            agent = chosen
        place = Place(channel.namespace, agent, member.user, user_key(agent, member.user, speaker.context))
        return speaker._replace(agent=agent, place=place)

    async def _say(self, speaker: _Speaker, address: Address, key: MessageKey) -> Received:
        channel, incoming = speaker.channel, speaker.incoming
        if len(incoming.text) > LONGEST_TEXT:
            return await self.tell(channel, incoming, "That message is too long.")
        if wrong := attachments_problem(incoming.attachments):
            return await self.tell(channel, incoming, wrong)
        if not incoming.text.strip() and not incoming.media:
            return Received(refused="nothing that an agent could read")
        for _ in range(_TRIES - 1):
            with suppress(SessionArchived):  # between the two steps: another one is active by now
                return await self._say_once(speaker, address, key)
        return await self._say_once(speaker, address, key)

    async def _say_once(self, speaker: _Speaker, address: Address, key: MessageKey) -> Received:
        channel, incoming = speaker.channel, speaker.incoming
        session = await self._sessions.resolve(speaker.place, identity=speaker.identity)
        said_texts = (incoming.text, *(_attached(each) for each in incoming.attachments))
        texts = tuple(Text(text) for text in said_texts if text.strip())
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
            place="/".join(quote(part, safe="") for part in (channel.name, incoming.chat, incoming.thread)),
            details=stored_details(details),
            once=key,
        )
        return Received(said.session or session.id, said.outcome, again=said.again, address=address)

    # --- commands ------------------------------------------------------------------------------------------------

    async def _target(self, word: str, speaker: _Speaker) -> str:
        """Returns what a command acts on: a session, and for /abort also its turn; blank for none."""
        if word == "model" and speaker.channel.models:
            return (await self._sessions.resolve(speaker.place, identity=speaker.identity)).id
        if word not in ("abort", "compact"):
            return ""
        session = await self._sessions.active(speaker.place, identity=speaker.identity)
        if session is None or (word == "abort" and not session.turn):
            return ""
        return f"{session.id} {session.turn}" if word == "abort" else session.id

    async def _help(self, speaker: _Speaker, rest: str, target: str) -> str:
        return f"You are talking to {speaker.agent}.\n{HELP}"

    async def _whoami(self, speaker: _Speaker, rest: str, target: str) -> str:
        session = await self._sessions.active(speaker.place, identity=speaker.identity)
        return (
            f"You are {speaker.member.user} ({speaker.incoming.sender} on {speaker.channel.name}), talking to "
            f"{speaker.agent}. " + (f"Your conversation is {session.id}." if session else "There is no conversation.")
        )

    async def _config(self, speaker: _Speaker, rest: str, target: str) -> str:
        """Refuses a secret. It is a command, so that what follows it reaches no model and no history."""
        return "Secrets are not taken from a chat, and this one was not kept: they are declared by the operator."

    async def _decide(self, verb: str, speaker: _Speaker, code: str, target: str) -> str:
        if self._approvals is None:
            return "Approvals are not decided here."
        channel, incoming = speaker.channel, speaker.incoming
        return await self._approvals.decide(channel, speaker.link, _address(channel, incoming), verb, code)

    async def _new(self, speaker: _Speaker, rest: str, target: str) -> str:
        """Begins another session. Its id comes from the message, so the same message twice begins one."""
        name = f"{speaker.channel.uid}:{speaker.incoming.id}:new"
        id = hashlib.sha256(name.encode()).hexdigest()[:32]
        try:
            await self._sessions.get(id, identity=speaker.identity)
        except NotFound:
            with suppress(Conflict):  # begun just now, by this very message
                await self._sessions.rotate(speaker.place, identity=speaker.identity, id=id)
        return "This is a new conversation."

    async def _abort(self, speaker: _Speaker, rest: str, target: str) -> str:
        if not target:
            return "Nothing was at work."
        session, _, turn = target.partition(" ")
        try:
            async with asyncio.timeout(LONGEST_STOP):
                stopped = await self._sessions.stop(session, identity=speaker.identity, turn=turn)
        except (TimeoutError, Unavailable):  # what everybody else says must not wait for it
            return "It has not stopped yet, and will."
        return "Stopped." if stopped else "Nothing was at work."

    async def _compact(self, speaker: _Speaker, rest: str, target: str) -> str:
        if not target:
            return "There is no conversation."
        await self._sessions.compact(target, identity=speaker.identity)
        return "The conversation is being compacted."

    async def _model(self, speaker: _Speaker, rest: str, target: str) -> str:
        names = list(speaker.channel.models)
        if not names:
            return "The model cannot be chosen here: this channel lists none."
        if rest in names:
            await self._sessions.change(target, identity=speaker.identity, model=rest)
            return f"This conversation asks {rest} from the next answer on."
        session = await self._sessions.get(target, identity=speaker.identity)
        fitting = [name for name in names if rest.lower() in name.lower()]
        return "\n".join((_current(session), *_listed(fitting, rest)))

    async def _agent(self, speaker: _Speaker, rest: str, target: str) -> str:
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


def _attached(reference: Mapping[str, Any]) -> str:
    """A line for the agent about something that was sent along: its content is elsewhere, if anywhere."""
    return f"[attachment: {msgspec.json.encode(reference).decode()}]"


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


def _key(channel: DeclaredChannel, incoming: Incoming) -> MessageKey:
    attachments = () if attachments_problem(incoming.attachments) else incoming.attachments
    said = (incoming.sender, incoming.chat, incoming.group, incoming.thread, incoming.text, incoming.media, attachments)
    return MessageKey(channel.uid, incoming.id, hashlib.sha256(msgspec.json.encode(said)).hexdigest())


def _received_before(known: Taken, address: Address) -> Received:
    if known.reply:
        return Received(reply=known.reply, again=True, address=address)
    return Received(known.target, known.outcome, again=True, address=address)
