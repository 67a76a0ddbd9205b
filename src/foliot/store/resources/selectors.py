"""Label and field selectors, as people know them from kubectl: `app=web,tier!=test,env in (a, b),!legacy`.

Reading one gives `Requirement`s; `matches` holds a document against a whole `Filter`. As in kubectl, `!=` and `notin`
also accept what does not have the key at all.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, cast

from foliot.errors import InvalidInput
from foliot.store.base import Document, Filter, Requirement

_KEY = r"[A-Za-z0-9](?:[A-Za-z0-9._/-]*[A-Za-z0-9])?"
_CLAUSE = re.compile(
    rf"\s*(?:!\s*(?P<absent>{_KEY})"
    rf"|(?P<key>{_KEY})(?:\s*(?P<op>==|!=|=)(?P<value>[^,()=!]*)|\s+(?P<set>in|notin)\s*\((?P<values>[^()]*)\))?)"
    r"\s*(?P<end>,|$)"
)
_FORMS = "write clauses such as  app=web  tier!=test  env in (a, b)  env notin (c)  beta  !legacy  with commas between"


def parse_labels(text: str) -> tuple[Requirement, ...]:
    """The clauses of a label selector; none for a blank text. Raises `InvalidInput`, which shows the bad clause."""
    return _parse(text, "label selector")


def parse_fields(text: str, kinds: Sequence[str] | None = None) -> tuple[Requirement, ...]:
    """The clauses of a field selector, whose keys are paths such as `status.phase`. Raises `InvalidInput`.

    With `kinds`, those it selects from (all when empty), paths become those of the stored spelling, and a field that
    none of them has is refused too.
    """
    requirements = _parse(text, "field selector")
    for requirement in requirements:
        if requirement.key.split(".")[0] not in ("apiVersion", "kind", "metadata", "spec", "status"):
            raise InvalidInput(
                f"the field selector names {requirement.key!r}, which no resource has",
                hint="a path starts with metadata, spec or status, such as status.phase=Ready",
            )
    if kinds is None or not requirements:
        return requirements
    from foliot.resources.paths import stored_path  # the models of kinds: only a field selector needs them

    return tuple(replace(each, key=stored_path(each.key, kinds)) for each in requirements)


def _parse(text: str, what: str) -> tuple[Requirement, ...]:
    requirements: list[Requirement] = []
    position = 0
    ended = not text.strip()
    while not ended:
        found = _CLAUSE.match(text, position)
        if found is None:
            raise InvalidInput(f"the {what} {text!r} cannot be read at {text[position:].strip()!r}", hint=_FORMS)
        requirements.append(_requirement(found, text, what))
        position = found.end()
        ended = not found["end"]
    return tuple(requirements)


def _requirement(found: re.Match[str], text: str, what: str) -> Requirement:
    if found["absent"]:
        return Requirement(found["absent"], "absent")
    key = found["key"]
    if found["op"]:
        return Requirement(key, "!=" if found["op"] == "!=" else "=", (found["value"].strip(),))
    if found["set"]:
        values = tuple(value.strip() for value in found["values"].split(","))
        if values == ("",):
            raise InvalidInput(f"the {what} {text!r} gives no value for {key!r}", hint=_FORMS)
        return Requirement(key, "in" if found["set"] == "in" else "notin", values)
    return Requirement(key, "exists")


def matches(document: Document, filter: Filter) -> bool:
    """Whether the filter lets this document through. Secrets must be masked before, or fields would tell values."""
    if filter.kind is not None and document["kind"] != filter.kind:
        return False
    metadata = document["metadata"]
    if filter.namespace is not None and metadata["namespace"] != filter.namespace:
        return False
    if filter.labels and not matches_labels(metadata.get("labels") or {}, filter.labels):
        return False
    return all(holds(field_text(document, each.key), each) for each in filter.fields)


def matches_labels(labels: Mapping[str, str], requirements: Sequence[Requirement]) -> bool:
    """Whether the labels fulfil every clause."""
    return all(holds(labels.get(each.key), each) for each in requirements)


def field_text(document: Document, path: str) -> str | None:
    """The value at a dotted path as a text (`true`, `3`, `Ready`), or None when there is none or it is not a scalar."""
    value: Any = document
    for step in path.split("."):
        if isinstance(value, dict):
            value = cast("dict[str, Any]", value).get(step)
        elif isinstance(value, list) and step.isdecimal() and int(step) < len(cast("list[Any]", value)):
            value = cast("list[Any]", value)[int(step)]
        else:
            return None
    if value is None or isinstance(value, dict | list):
        return None
    return str(value).lower() if isinstance(value, bool) else str(value)


def holds(value: str | None, requirement: Requirement) -> bool:
    """Whether a value, None where there is none, fulfils a clause."""
    match requirement.op:
        case "=" | "in":
            return value is not None and value in requirement.values
        case "!=" | "notin":
            return value not in requirement.values
        case "exists":
            return value is not None
        case "absent":
            return value is None
