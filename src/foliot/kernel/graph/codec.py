"""Facts about tasks as bytes, and back, for ever: JSON that names its own type, by the rules of kernel/run/codec.py."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final, get_args

from foliot.kernel.graph.events import TaskEvent, TaskFact
from foliot.kernel.run.codec import Codec, type_of

FACT_TYPES: Final[tuple[type[TaskFact], ...]] = get_args(TaskEvent)
# Shapes that are no longer written, each with the step to the next newer one. Only ever added to.
RETIRED: Final[Mapping[type[TaskFact], Callable[[Any], Any]]] = {}
_codec: Final[Codec[TaskFact]] = Codec(FACT_TYPES, RETIRED)


def encode_fact(fact: TaskEvent) -> bytes:
    """Encodes a fact as JSON; decoding and encoding it again gives the same bytes. Raises `Unencodable`."""
    return _codec.encode(fact)


def decode_fact(data: bytes) -> TaskEvent:
    """Decodes a fact that this or any earlier version encoded. Raises `UnknownEvent`: do not act on such a task."""
    return _codec.decode(data)  # pyright: ignore[reportReturnType] - the codec was built from the members of TaskEvent


def fact_type(fact: TaskEvent) -> str:
    """The name of the fact's type without its version, for example `message.sent`."""
    return type_of(fact)
