"""Defaults that follow what they are worked out from: the fields of a stored document that nobody has said.

A document is stored with every default filled in, and some defaults depend on other fields (`Model.complete`): a tool
of `effect: read` is of the class `read`, one of `effect: once` of the class `write`. Whoever changes a part of it, or
sends back what they read, has not said the rest. What nobody has said is therefore taken out before a change is worked
in, and worked out anew with it: a patch, a PUT and an edit give what creating the same would have given.

Who has said what is in the owners of the fields (see `field_owners.py`); there is no list of such defaults. A field
counts as a default if nobody owns it, and if it comes back as it is when it is left out. What was stored before owners
were kept belongs to somebody unknown, and stays as it is.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final

from foliot.resources.field_owners import Claim, Document, Field, Owners, leaves, same, without_fields
from foliot.resources.validate import validated

SECRET: Final = "Secret"  # has none, and its values are not there to be checked again


def defaults_of(document: Document, owners: Owners) -> frozenset[Field]:
    """Returns the fields of a stored document that nobody has said, and that come about by themselves."""
    if document["kind"] == SECRET:
        return frozenset()
    owned = frozenset(field for fields in owners.values() for field in fields)
    stored = leaves(document)
    free = frozenset(field for field in stored if field[0] == "spec" and field not in owned)
    while free:
        anew = _completed(without_fields(document, free))
        if anew is None:
            return frozenset()
        found = leaves(anew)
        lost = {field for field in free if field not in found or not same(found[field], stored[field])}
        # A value that others lean on may be among the lost: with it back, they are looked at again.
        if not lost:
            return free if {field for field in found if field[0] == "spec"} <= stored.keys() else frozenset()
        free -= lost
    return free


@dataclass(frozen=True, slots=True)
class Sent:
    """A whole document as somebody sent it: in normal form, and what of it they say."""

    document: Document
    given: Document

    @property
    def fields(self) -> frozenset[Field]:
        return frozenset(leaves(self.given))

    def claim(self, manager: str) -> Claim:
        return Claim(manager, self.fields, said=None if self.document["kind"] == SECRET else self.fields)

    def after_reading(self, live: Document, owners: Owners) -> Sent:
        """The same, sent by somebody who had read `live`: defaults that come back as they were read are not said."""
        sent, stored = leaves(self.given), leaves(live)
        unsaid = {field for field in defaults_of(live, owners) if field in sent and same(sent[field], stored[field])}
        given = without_fields(self.given, unsaid)
        anew = _completed(given) if unsaid else None
        return self if anew is None else Sent({**self.document, "spec": anew.get("spec") or {}}, given)


def patched(live: Document, owners: Owners, merge: Callable[[Document], Document]) -> Document:
    """Returns what a patch makes of a stored document, with the defaults left out: they follow from the rest."""
    declared = {name: value for name, value in live.items() if name != "status"}
    return merge(without_fields(declared, defaults_of(live, owners)))


def _completed(document: dict[str, Any]) -> Document | None:
    declared = {name: value for name, value in document.items() if name != "status"}
    resource, _ = validated(declared)
    return None if resource is None else resource.model_dump(by_alias=True)
