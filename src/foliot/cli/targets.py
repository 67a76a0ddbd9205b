"""The targets named by the arguments of `get`, `describe`, `delete`, `edit` and `wait`.

agents            all agents                     agent writer editor     two by name
agents,tools      all of two kinds               agent/writer tool/web   by kind and name
all               everything
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from foliot.errors import UsageError
from foliot.resources.kinds import KINDS, Kind, find_kind


@dataclass(frozen=True, slots=True)
class Targets:
    """Either `kinds` (all resources of these; None is every kind), or `named`: exact kinds and names."""

    kinds: tuple[Kind, ...] | None = ()
    named: tuple[tuple[Kind, str], ...] = ()


def parse_targets(words: Sequence[str], *, verb: str) -> Targets:
    """Raises `UsageError` for a kind that does not exist or words that do not go together."""
    if not words:
        raise UsageError(
            f"`foliot {verb}` needs to know what: a kind, or a kind and a name.",
            hint=f"For example `foliot {verb} agents` or `foliot {verb} agent/writer`.\nKinds: {kind_words()}",
        )
    if any("/" in word for word in words):
        return Targets(named=tuple(_slashed(word, verb) for word in words))
    first, *names = words
    if first.lower() == "all":
        if names:
            raise UsageError("`all` cannot be combined with names.", hint=f"Try `foliot {verb} KIND {names[0]}`.")
        return Targets(kinds=None)
    kinds = tuple(dict.fromkeys(find_kind(word) for word in first.split(",") if word))
    if not kinds:
        raise UsageError(f"{first!r} names no kind.", hint=f"Kinds: {kind_words()}")
    if names:
        return Targets(named=tuple((kind, name) for kind in kinds for name in dict.fromkeys(names)))
    return Targets(kinds=kinds)


def parse_one(words: Sequence[str], *, verb: str) -> tuple[Kind, str]:
    """Exactly one resource: `agent writer` or `agent/writer`."""
    targets = parse_targets(words, verb=verb)
    if len(targets.named) != 1:
        raise UsageError(
            f"`foliot {verb}` works on one resource at a time, by kind and name.",
            hint=f"For example `foliot {verb} agent/writer`.",
        )
    return targets.named[0]


def _slashed(word: str, verb: str) -> tuple[Kind, str]:
    kind, slash, name = word.partition("/")
    if not slash or not kind or not name or "/" in name:
        raise UsageError(
            f"{word!r} does not name a resource as KIND/NAME.",
            hint=f"Write `foliot {verb} agent/writer tool/web`, or `foliot {verb} agent writer`.",
        )
    return find_kind(kind), name


def kind_words() -> str:
    """All kinds as one writes them, for a hint."""
    return ", ".join(kind.plural for kind in KINDS.values())
