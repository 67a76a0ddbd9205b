"""Which worker may take which run: what the one offers and the other needs."""

from __future__ import annotations

from functools import lru_cache

import msgspec
from msgspec import Struct


class Needs(Struct, frozen=True, omit_defaults=True):
    """What a worker must have to take a run, as the queue stores it. Blank means: does not matter."""

    region: str = ""
    gpu: bool = False
    model: str = ""
    labels: dict[str, str] = {}


class Offer(Struct, frozen=True):
    """What a worker has. `identity` names the process and stands in every lease; `name` is what people call it.

    Without `models` it serves all of them.
    """

    name: str
    identity: str
    region: str = ""
    gpu: bool = False
    models: tuple[str, ...] = ()
    labels: dict[str, str] = {}
    capacity: int = 1


def fits(offer: Offer, requirements: str) -> bool:
    """Whether this worker has what is required. Regions and models are compared without regard to case.

    Requirements that cannot be read fit nobody: running them anywhere could break a promise about where work is done.
    """
    needs = _read(requirements)
    if needs is None:
        return False
    if needs.region and needs.region.casefold() != offer.region.casefold():
        return False
    if needs.gpu and not offer.gpu:
        return False
    if needs.model and offer.models and needs.model.casefold() not in {model.casefold() for model in offer.models}:
        return False
    return needs.labels.items() <= offer.labels.items()


@lru_cache(maxsize=1024)
def _read(requirements: str) -> Needs | None:
    try:
        return msgspec.json.decode(requirements, type=Needs)
    except msgspec.DecodeError:
        return None
