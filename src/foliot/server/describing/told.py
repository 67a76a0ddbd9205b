"""What is told of one operation beside what its signature says."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final, Literal, TypeAlias

import msgspec

from foliot.server.describing.events import stream
from foliot.server.describing.failures import NAMES
from foliot.server.describing.schema import TEXT, Schema, ref

Codes: TypeAlias = tuple[str, ...]

JSON: Final = "application/json"
EVENTS: Final = "text/event-stream"
TEXTS: Final = {
    "200": "Done.",
    "201": "Created.",
    "202": "Accepted.",
    "204": "Deleted.",
    "303": "Go on there.",
    "304": "Not changed.",
}
_EMPTY: Final = ("204", "304")
ETAG: Final = {"ETag": {"schema": TEXT, "required": True, "description": "The version of the resource."}}


@dataclass(frozen=True, slots=True)
class Told:
    """`id` is the operationId, and never changes. `answer` is the schema of success, `events` those of a stream.

    `body` is what it takes; `fails` are statuses beside those that every route of its sort can give.
    """

    id: str
    answer: Schema | None = None
    codes: Codes = ("200",)
    body: Body | None = None
    fails: tuple[int, ...] = ()
    events: Mapping[str, Schema] | None = None
    tagged: bool = False
    others: Mapping[str, Schema] = field(default_factory=dict[str, Schema])
    media: str = JSON

    def responses(self) -> dict[str, Any]:
        """Of success, by status."""
        made = {code: {"description": TEXTS[code], **self._content(code)} for code in self.codes}
        for code, schema in self.others.items():
            text = TEXTS.get(code) or NAMES[int(code)][1]
            made[code] = {"description": text, "content": {JSON: {"schema": schema}}}
        return made

    def _content(self, code: str) -> dict[str, Any]:
        made: dict[str, Any] = {"headers": dict(ETAG)} if self.tagged and code != "204" else {}
        if code in _EMPTY:
            return made
        content: dict[str, Any] = {}
        if self.answer is not None:
            content[self.media] = {"schema": self.answer}
        if self.events is not None:
            content[EVENTS] = {"schema": stream(self.events)}
        return {**made, "content": content}


@dataclass(frozen=True, slots=True)
class Body:
    """The content type is not looked at: a body that is JSON is told as JSON, and a manifest also as YAML."""

    schema: Schema
    kind: Literal["json", "manifest"] = "json"
    required: bool = True

    def described(self) -> dict[str, Any]:
        content: dict[str, Any] = {JSON: {"schema": self.schema}}
        if self.kind == "manifest":
            content["application/yaml"] = {"schema": self.schema}
        return {"required": self.required, "content": content}


def form(shape: type[msgspec.Struct]) -> Body:
    """A body of JSON in a shape that is defined where it is read; it may be left out when nothing in it must be."""
    own = msgspec.json.schema(shape).get("$defs", {}).get(shape.__name__, {})
    return Body(ref(shape.__name__), required=bool(own.get("required")))
