"""Which worker may take which run: what the one offers and the other needs."""

from __future__ import annotations

from functools import lru_cache
from typing import Final

import msgspec
from msgspec import Struct

# Processes come and go: one that is forgotten here tries once more.
MOST_NOT_BY: Final = 100
# Where a worker is that does not say so.
REGION: Final = "default"


class Needs(Struct, frozen=True, omit_defaults=True):
    """The requirements on a worker to take a run, as the queue stores them. Blank means: does not matter.

    `not_by` are processes that gave the run back because they could not read it: a newer version wrote it. `lacks` is
    what processes that gave it back have not, such as a module of one of its tools: they try again after a while.
    `isolation` is what must be enforced around its programs: `process`, `container`, `gvisor` or `wasm`, and behind a
    plus sign what they must bound, as in `process+memory`.
    """

    region: str = ""
    gpu: bool = False
    model: str = ""
    labels: dict[str, str] = {}
    not_by: tuple[str, ...] = ()
    lacks: dict[str, str] = {}
    isolation: tuple[str, ...] = ()


class Offer(Struct, frozen=True):
    """The capabilities of a worker. `identity` names the process and stands in every lease; `name` is for people.

    Without `models` it serves all of them. `isolation` is what it can really enforce, in the words of `Needs`; None
    until somebody has looked, which counts as nothing.
    """

    name: str
    identity: str
    region: str = ""
    gpu: bool = False
    models: tuple[str, ...] = ()
    labels: dict[str, str] = {}
    capacity: int = 1
    isolation: tuple[str, ...] | None = None


def fits(offer: Offer, requirements: str) -> bool:
    """Whether this worker has what is required. Regions and models are compared without regard to case.

    Requirements that cannot be read fit nobody: running them anywhere could break a promise about where work is done.
    """
    needs = needs_of(requirements)
    if needs is None:
        return False
    if needs.region and needs.region.casefold() != offer.region.casefold():
        return False
    if offer.identity in needs.not_by:
        return False
    if needs.gpu and not offer.gpu:
        return False
    if needs.model and offer.models and needs.model.casefold() not in {model.casefold() for model in offer.models}:
        return False
    return needs.labels.items() <= offer.labels.items() and not unenforced(offer, needs)


def starts_programs(requirements: str) -> bool:
    """Whether a run with these requirements may start programs on the machine of its worker, in a fence."""
    needs = needs_of(requirements)
    return needs is None or bool(needs.isolation)


def unenforced(offer: Offer, needs: Needs) -> list[str]:
    """Returns what a run demands around its programs and this worker cannot enforce."""
    return [each for each in needs.isolation if each not in (offer.isolation or ())]


def unread_by(requirements: str, identity: str) -> str:
    """The same requirements, but not for this process."""
    needs = needs_of(requirements)
    if needs is None or identity in needs.not_by:
        return requirements
    not_by = (*needs.not_by, identity)[-MOST_NOT_BY:]
    return msgspec.json.encode(msgspec.structs.replace(needs, not_by=not_by)).decode()


def without(requirements: str, identity: str, lacks: str) -> str:
    """The same requirements, with what this process has not."""
    needs = needs_of(requirements)
    if needs is None or needs.lacks.get(identity) == lacks:
        return requirements
    others = {each: what for each, what in needs.lacks.items() if each != identity}
    kept = dict([*others.items(), (identity, lacks)][-MOST_NOT_BY:])
    return msgspec.json.encode(msgspec.structs.replace(needs, lacks=kept)).decode()


def lacked_by(offer: Offer, requirements: str) -> str:
    """Returns what this worker lacked when it took the run and gave it back; "" when it never did."""
    needs = needs_of(requirements)
    return "" if needs is None else needs.lacks.get(offer.identity, "")


@lru_cache(maxsize=1024)
def needs_of(requirements: str) -> Needs | None:
    """The stored requirements; None when they cannot be read."""
    try:
        return msgspec.json.decode(requirements, type=Needs)
    except msgspec.DecodeError:
        return None
