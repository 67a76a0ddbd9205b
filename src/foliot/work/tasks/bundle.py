"""The bundle that a task is pinned to, as one stored value: its plan, and the frozen definition of every agent in it.

A thousand tasks of one system share one bundle. It is stored under its digest with the first of them; so what is
declared may change while tasks wait, and no task notices.
"""

from __future__ import annotations

from collections import OrderedDict

import msgspec
from msgspec import Struct

from foliot.kernel.errors import UnknownEvent
from foliot.kernel.graph.plan import VERSION as PLAN_VERSION
from foliot.kernel.graph.plan import Plan
from foliot.kernel.run.codec import settled
from foliot.kernel.run.spec import RunSpec, decode_spec, digest, encode_spec
from foliot.store.journal.base import Journal

LARGEST_CACHE = 256


VERSION = 1


class TaskBundle(Struct, frozen=True):
    """`plan.task` is blank: the bundle does not know which tasks use it."""

    plan: Plan
    specs: dict[str, msgspec.Raw]
    v: int = VERSION


class Pinned(Struct, frozen=True):
    """A bundle that was read: by agent, the digest of its spec, the bytes, and the spec itself."""

    digest: str
    plan: Plan
    specs: dict[str, tuple[str, bytes, RunSpec]]

    def plan_for(self, task: str) -> Plan:
        """The plan with the name of the task (`namespace/name`) in it."""
        return msgspec.structs.replace(self.plan, task=task)


_encoder = msgspec.json.Encoder(order="deterministic")
_decoder = msgspec.json.Decoder(TaskBundle)


def pack(plan: Plan, specs: dict[str, RunSpec]) -> tuple[Pinned, bytes]:
    """The bundle of a plan, and the bytes to be stored under its digest."""
    frozen = {agent: encode_spec(spec) for agent, spec in sorted(specs.items())}
    data = _encoder.encode(TaskBundle(settled(plan), {agent: msgspec.Raw(text) for agent, text in frozen.items()}))
    read = {agent: (digest(text), text, specs[agent]) for agent, text in frozen.items()}
    return Pinned(digest(data), plan, read), data


def unpack(name: str, data: bytes) -> Pinned:
    """Raises `UnknownEvent` for a bundle or a plan of a newer version."""
    try:
        bundle = _decoder.decode(data)
    except (msgspec.MsgspecError, UnicodeDecodeError) as error:
        raise UnknownEvent(f"what a task is pinned to cannot be read by this version of foliot: {error}") from error
    if bundle.v > VERSION or bundle.plan.v > PLAN_VERSION:
        newer = f"version {bundle.v} with a plan of version {bundle.plan.v}"
        raise UnknownEvent(f"a task is pinned to {newer}; this version of foliot reads {VERSION} and {PLAN_VERSION}")
    specs = {agent: bytes(raw) for agent, raw in bundle.specs.items()}
    return Pinned(name, bundle.plan, {agent: (digest(text), text, decode_spec(text)) for agent, text in specs.items()})


class Bundles:
    """Bundles by digest; the ones used last are kept, because they never change."""

    def __init__(self, journal: Journal) -> None:
        self._journal = journal
        self._kept: OrderedDict[str, Pinned] = OrderedDict()

    async def get(self, name: str) -> Pinned:
        """Raises `NotFound`."""
        pinned = self._kept.get(name)
        if pinned is None:
            pinned = unpack(name, await self._journal.get_blob(name))
            self.keep(pinned)
        return pinned

    def keep(self, pinned: Pinned) -> None:
        self._kept[pinned.digest] = pinned
        self._kept.move_to_end(pinned.digest)
        while len(self._kept) > LARGEST_CACHE:
            self._kept.popitem(last=False)
