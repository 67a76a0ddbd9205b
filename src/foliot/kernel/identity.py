"""The identity of a caller: recorded with the work, and passed on to everything that follows from it.

Made where somebody comes in (a server by the credential, a command line by the operating system, a trigger by its
declarer) and written into the first event of every run. Delegates, graphs, retries and resumes keep it: nothing that a
model, a message or a label says has a part in it.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from msgspec import Struct
from msgspec.structs import replace


class Identity(Struct, frozen=True, omit_defaults=True, gc=False):
    """The identity on whose behalf something is done.

    `user` is the name that budgets, conditions and records go by. `by` is who acted when that is somebody else, with
    the right to act for others. `via` is the way in: "python", "cli", "http", "openai", "mcp", "nats", "task",
    "schedule:NAME", "webhook:NAME", "hook:NAME" or "channel:NAME". `ordered_by` are the others whose order it is: who
    declared the template of a task, and the trigger that made it, and who put other texts into it when it was tried
    again.
    """

    user: str = ""
    by: str = ""
    via: str = ""
    ordered_by: tuple[str, ...] = ()

    @property
    def actor(self) -> str:
        """The name that a record gives as the actor: `by`, else `user`."""
        return self.by or self.user

    @property
    def people(self) -> tuple[str, ...]:
        """Everybody whose order it is."""
        return tuple(name for name in (self.user, self.by, *self.ordered_by) if name)

    def also_ordered_by(self, *names: str) -> Identity:
        """The same, with others whose order it is besides."""
        new = tuple(dict.fromkeys(name for name in names if name and name not in self.people))
        return replace(self, ordered_by=(*self.ordered_by, *new)) if new else self

    def __str__(self) -> str:
        """Formats the identity: `ann`, `ann (by bob)`, or `ann (ordered by cy)`."""
        others = [f"by {self.by}"] if self.by else []
        others += [f"ordered by {' and '.join(self.ordered_by)}"] if self.ordered_by else []
        return f"{self.user} ({', '.join(others)})".strip() if others else self.user


class Person(Struct, frozen=True, gc=False):
    """A person by all their names: an account, and the tokens that it made.

    Records keep the name of the credential; who counts as one is the person. `others` are in small letters.
    """

    name: str
    others: frozenset[str] = frozenset()

    def goes_by(self, name: str) -> bool:
        """Whether that is this person. Spelling makes nobody another one; `ann/ci` is a token that ann made."""
        other = name.strip().casefold()
        return any(other == own or other.startswith(f"{own}/") for own in (self.name.strip().casefold(), *self.others))

    def is_among(self, names: Iterable[str]) -> bool:
        """Whether one of these is this person: where four eyes are asked for, nobody decides about their own order."""
        return any(map(self.goes_by, names))


# The default in events, which is left out of what is stored: one object, because the encoder looks for this very one.
NOBODY = Identity()


LONGEST_NAME: Final = 253


def is_name(text: str) -> bool:
    """Whether somebody may be called so: printable characters, with no end of a line and nothing that turns it round.

    Records and terminals show names as they are, and two people must not look like one.
    """
    return bool(text) and len(text) <= LONGEST_NAME and text.isprintable() and text == text.strip()


def acting(user: str, actor: str, via: str) -> Identity:
    """The identity of `actor` who acts for `user`; for themselves when `user` is blank or their own name."""
    if not user or user == actor:
        return Identity(actor, via=via)
    return Identity(user, actor, via)
