"""One operation in the description of the API: what its handler's signature does not say."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from importlib import import_module
from typing import Any, Final, Literal, TypeAlias

import msgspec

from foliot.server.openapi.events import stream
from foliot.server.openapi.failures import NAMES
from foliot.server.openapi.schema import TEXT, Schema, ref

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
class Operation:
    """`id` is the operationId, and never changes. `answer` is the schema of success, `events` those of a stream.

    `body` is what it takes; `fails` are statuses beside those that every route of its sort can give. `deprecated` is an
    older path to the same handler, which stays for older clients.
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
    deprecated: bool = False

    def responses(self) -> dict[str, Any]:
        """Returns the responses of success, by status."""
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
    """The content type is not looked at: a body that is JSON is told as JSON, and a manifest also as YAML.

    `form` is where the class of a JSON body is defined, which then says whether it is `required`.
    """

    schema: Schema
    kind: Literal["json", "manifest"] = "json"
    required: bool = True
    form: str = ""

    def described(self) -> dict[str, Any]:
        content: dict[str, Any] = {JSON: {"schema": self.schema}}
        if self.kind == "manifest":
            content["application/yaml"] = {"schema": self.schema}
        return {"required": self._is_required() if self.form else self.required, "content": content}

    def shape(self) -> type[msgspec.Struct] | None:
        """Return the class of a body that has one."""
        if not self.form:
            return None
        module, _, name = self.form.partition(":")
        return getattr(import_module(f"foliot.{module}"), name)

    def _is_required(self) -> bool:
        """Whether there is something in the form that must be given."""
        shape = self.shape()
        assert shape is not None, "asked only of forms"
        own = msgspec.json.schema(shape).get("$defs", {}).get(shape.__name__, {})
        return bool(own.get("required"))


def form(place: str) -> Body:
    """Return a body of JSON in a form that is defined where it is read, such as `work.base:Command`."""
    return Body(ref(place.rpartition(":")[2]), form=place)
