"""Tasks that are asked for in the same form: what was checked once is not checked again.

Whoever has much work done sends the same manifest again and again, with another name and another input. The form is
all the rest of it. Whether a form is good depends on nothing but itself, so the normal form and the command that came
of it hold for ever; the name and the input are looked at each time. A body that is unusual in any way is left to the
reader of manifests, which says what is wrong with it: nothing is ever refused here.
"""

from __future__ import annotations

from collections import OrderedDict
from typing import Any, Final, NamedTuple, TypeAlias, cast

import msgspec

from foliot.engine.driver.ids import is_made
from foliot.errors import InvalidInput
from foliot.kernel.run.codec import settled
from foliot.resources.references import TAKEN_NAMES, is_name
from foliot.store.base import Document
from foliot.work.tasks.base import Command
from foliot.work.tasks.commands import BEGIN, ContentForm, content_form, normalise

MOST_FORMS: Final = 256
# Larger bodies are mostly input, and reading that is what takes the time.
LARGEST: Final = 8 * 1024

Form: TypeAlias = tuple[str | None, bytes]


class FormFields(NamedTuple):
    """The parts of a body that are not its form: the name of the task and its input; and the form."""

    form: Form
    name: str
    input: dict[str, str]


class AskedTask(NamedTuple):
    """A task that is asked for: its document in normal form, and the command that it is.

    With `content`, the digest of what it asks for, the command is in normal form too.
    """

    document: Document
    command: Command
    content: str | None = None


class KnownForm(NamedTuple):
    """A form that was used before: the task that was asked for, and its content but for the input."""

    asked: AskedTask
    content: ContentForm


class TaskForms:
    """The forms that were used last."""

    def __init__(self) -> None:
        self._known: OrderedDict[Form, KnownForm] = OrderedDict()

    def read(self, fields: FormFields) -> AskedTask | None:
        """Returns the task that a body of a known form asks for; None when its form is not known."""
        known = self._known.get(fields.form)
        if known is None:
            return None
        self._known.move_to_end(fields.form)
        document, name, input = known.asked.document, fields.name, fields.input
        document = {
            **document,
            "metadata": {**document["metadata"], "name": name},
            "spec": {**document["spec"], "input": input},
        }
        message = "" if any(input.values()) else BEGIN
        command = msgspec.structs.replace(known.asked.command, name=name, input=dict(input), message=message)
        # Of most tasks the message is blank, as in the content that is known.
        return AskedTask(document, command, None if message else known.content.digest(input))

    def learn(self, fields: FormFields, asked: AskedTask) -> None:
        """Remembers what the reader made of a body: a Task of mode `run`, in the words of this version."""
        metadata, spec = asked.document["metadata"], asked.document["spec"]
        if (metadata["name"], spec.get("input")) != (fields.name, fields.input):
            return
        try:
            command = settled(normalise(asked.command))
        except InvalidInput:
            return  # accepting it says what is wrong
        content = content_form(msgspec.structs.replace(command, message=""))
        if content is None:
            return
        self._known[fields.form] = KnownForm(AskedTask(asked.document, command), content)
        if len(self._known) > MOST_FORMS:
            self._known.popitem(last=False)


def fields_of(body: bytes, namespace: str | None) -> FormFields | None:
    """Returns the fields of a body that is one plain manifest in JSON; None for any other."""
    from foliot.resources.syntax.json_nodes import sound_value  # with the first body: few programs need it

    if len(body) > LARGEST or not body.startswith(b"{"):
        return None
    value = sound_value(body)
    if not isinstance(value, dict):
        return None
    given = cast("dict[str, Any]", value)
    if type(given.get("metadata")) is not dict or type(given.get("spec")) is not dict:
        return None
    metadata: dict[str, Any] = given["metadata"]
    spec: dict[str, Any] = given["spec"]
    name, words = metadata.get("name"), spec.get("input")
    if type(name) is not str or not is_name(name) or is_made(name) or name in TAKEN_NAMES:
        return None
    if type(words) is not dict or not words:
        return None
    input = cast("dict[str, Any]", words)
    for key, text in input.items():
        if type(text) is not str or not key or key != key.strip():
            return None
    rest = {**given, "metadata": {**metadata, "name": ""}, "spec": {**spec, "input": None}}
    return FormFields((namespace, msgspec.json.encode(rest)), name, input)
