"""Links between what people are called on a channel and their accounts here.

A channel shows a sender whom it does not know a code, and whoever enters it under their own name speaks there as
themselves from then on. A code is good once and for ten minutes, and only its digest is stored. A link holds for the
terms it was made under: another declarer, address or kind of platform could vouch for somebody else, and so could
another one who sets the value of the Secret.
"""

from __future__ import annotations

import hashlib
import secrets
from math import ceil
from typing import Final

import msgspec
from msgspec import Struct

from foliot.errors import Conflict, NotFound
from foliot.store.access.logins import LoginPace, SqlLoginAttempts
from foliot.store.base import Database
from foliot.store.journal.base import TransactionBody
from foliot.store.transaction import Row, Tx, one, run, value

# 32 letters that nobody takes for one another: sixty bits in twelve of them.
ALPHABET: Final = "ABCDEFGHJKLMNPQRSTUVWXYZ23456789"
LETTERS: Final = 12
GOOD_FOR: Final = 600.0
# Strangers write as often as they like: so many codes of a channel wait at once, and so often new ones are shown.
MOST_CODES: Final = 100
MOST_LISTED: Final = 1000
PACE_OF_SENDER: Final = LoginPace(3, 120.0)
PACE_OF_CHANNEL: Final = LoginPace(30, 10.0)
PACE_OF_ENTRY: Final = LoginPace(10, 30.0)
LONGEST_SENDER: Final = 256


class ChannelPlace(Struct, frozen=True):
    """A channel as links are bound to it: `channel` is its uid.

    `key_by` is who set the value that its Secret has: blank for the operator of the installation, who may set another
    one at any time without ending a link.
    """

    namespace: str
    name: str
    channel: str
    terms: str
    key_by: str = ""

    @property
    def whole_terms(self) -> str:
        """The terms as they are stored with a link."""
        return f"{self.terms} {self.key_by}".rstrip()

    def holds(self, terms: str) -> bool:
        """Whether a link that was made under these terms holds now."""
        said, _, key_by = terms.partition(" ")
        return said == self.terms and self.key_by in ("", key_by)


class ChannelLink(Struct, frozen=True):
    """A link as people are shown it."""

    id: str
    namespace: str
    channel: str
    sender: str
    user: str
    linked_at: float


class StoredLink(Struct, frozen=True):
    """A link as stored. `owner`: whoever linked it owns the installation, and has all roles in it."""

    shown: ChannelLink
    uid: str
    owner: bool
    terms: str


class ChannelLinks:
    """The links of an installation, and the codes that wait to be entered."""

    def __init__(self, database: Database) -> None:
        self._db = database
        self._attempts = SqlLoginAttempts(database)

    async def offer(self, place: ChannelPlace, sender: str, *, now: float) -> str:
        """Returns a new code for a sender; one of before is worthless. Blank when too many were shown or wait."""
        if not sender.isprintable() or len(sender) > LONGEST_SENDER:
            return ""
        for subject, pace in ((sender, PACE_OF_SENDER), ("", PACE_OF_CHANNEL)):
            if await self._attempts.charge(f"code:{place.channel}:{_digest(subject)}", pace, now=now):
                return ""
        code = "".join(secrets.choice(ALPHABET) for _ in range(LETTERS))
        stored = await self._db.write(_offer, place, sender, _digest(code), now)
        return "-".join(code[at : at + 4] for at in range(0, LETTERS, 4)) if stored else ""

    async def enter(
        self,
        code: str,
        *,
        id: str = "",
        namespace: str,
        user: str,
        owner: bool,
        now: float,
        in_transaction: TransactionBody | None = None,
    ) -> ChannelLink:
        """Links the sender that a code was shown to with a user, once. Raises `NotFound`, `Conflict`.

        `id` is of `make_link_id`, for whoever records it. What `in_transaction` writes is stored with the link. Entries
        are counted for the user: `Conflict` for too many.
        """
        if wait := await self._attempts.charge(f"link:{_digest(user)}", PACE_OF_ENTRY, now=now):
            raise Conflict("too many codes were entered", hint=f"try again in {ceil(wait)} s", retryable=True)
        plain = "".join(code.upper().split()).replace("-", "")
        link = await self._db.write(
            _enter, id or make_link_id(), _digest(plain), namespace, user, owner, now, in_transaction
        )
        if link is None:
            raise NotFound(
                f"this code is not good in namespace {namespace!r}",
                hint="a code is good once and for ten minutes; write to the channel again for another one",
            )
        return link

    async def of(self, place: ChannelPlace, sender: str) -> StoredLink | None:
        """Returns the link of a sender, while the channel is what it was when it was linked."""
        found = await self._db.read("channel_link_of_sender", channel=place.channel, sender=sender)
        link = _link(found[0]) if found else None
        return link if link is not None and place.holds(link.terms) else None

    async def vouched_by_others(self, place: ChannelPlace, name: str) -> list[str]:
        """Lists the users with a link on a channel for which somebody else than `name` has set the key."""
        found = await self._db.read("channel_links_of_channel", channel=place.channel, count=MOST_LISTED)
        own = msgspec.structs.replace(place, key_by=key_setter(name))
        links = [each for each in map(_link, found) if each.terms.partition(" ")[0] == place.terms]
        return [each.shown.user for each in links if each.terms != own.whole_terms]

    async def list(self, namespace: str, *, user: str = "") -> list[ChannelLink]:
        """Lists the links of a namespace, of one user or of all."""
        if user:
            asked = {"namespace": namespace, "user_name": user, "count": MOST_LISTED}
            found = await self._db.read("channel_link_list_of_user", **asked)
        else:
            found = await self._db.read("channel_link_list", namespace=namespace, count=MOST_LISTED)
        return [_link(row).shown for row in found]

    async def get(self, id: str, *, namespace: str) -> ChannelLink:
        """Raises `NotFound`."""
        found = await self._db.read("channel_link_get", id=id, namespace=namespace)
        if not found:
            raise no_link(id)
        return _link(found[0]).shown

    async def delete(self, id: str, *, namespace: str, in_transaction: TransactionBody | None = None) -> None:
        """Ends a link at once. Raises `NotFound`."""
        if not await self._db.write(_delete, id, namespace, in_transaction):
            raise no_link(id)


def key_setter(name: str) -> str:
    """How a link says who set the key that it was made under; never as it says the operator."""
    return f"by:{name}"


def no_link(id: str) -> NotFound:
    """Builds the error for a link that there is not, or that is somebody else's."""
    return NotFound(f"there is no link {id[:80]!r}", hint="`foliot channels links` lists them")


def forget_links(channel: str) -> Tx[None]:
    """Forgets all of a channel that was deleted, by its uid."""
    yield from run("channel_code_forget", channel=channel)
    yield from run("channel_link_forget", channel=channel)


def _offer(place: ChannelPlace, sender: str, digest: str, now: float) -> Tx[bool]:
    yield from run("channel_code_expire", channel=place.channel, now=now)
    if int((yield from value("channel_code_count", channel=place.channel)) or 0) >= MOST_CODES:
        return False
    yield from run(
        "channel_code_put",
        digest=digest,
        namespace=place.namespace,
        name=place.name,
        channel=place.channel,
        sender=sender,
        terms=place.whole_terms,
        expires_at=now + GOOD_FOR,
    )
    return True


def make_link_id() -> str:
    """Makes an id that no link has."""
    return secrets.token_hex(6)


def _enter(
    id: str, digest: str, namespace: str, user: str, owner: bool, now: float, in_transaction: TransactionBody | None
) -> Tx[ChannelLink | None]:
    code = yield from one("channel_code_take", digest=digest, namespace=namespace)
    if code is None or now >= code["expires_at"]:
        return None
    link = ChannelLink(id, namespace, code["name"], code["sender"], user, now)
    yield from run(
        "channel_link_put",
        id=link.id,
        namespace=namespace,
        name=link.channel,
        channel=code["channel"],
        sender=link.sender,
        user_name=user,
        owner=int(owner),
        terms=code["terms"],
        at=now,
    )
    if in_transaction is not None:
        yield from in_transaction()
    return link


def _delete(id: str, namespace: str, in_transaction: TransactionBody | None) -> Tx[bool]:
    gone = yield from run("channel_link_delete", id=id, namespace=namespace)
    if gone and in_transaction is not None:
        yield from in_transaction()
    return bool(gone)


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()


def _link(row: Row) -> StoredLink:
    shown = ChannelLink(row["id"], row["namespace"], row["name"], row["sender"], row["user_name"], row["at"])
    return StoredLink(shown, row["channel"], bool(row["owner"]), row["terms"])
