"""Merge patches (RFC 7396) in the spelling of what they are merged onto.

A stored resource has one spelling of each field; a patch may use any that a manifest may. Without this, `modelRef`
beside the stored `model_ref` would be a field given twice, and `modelRef: null` would take nothing away.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, cast

from foliot.resources.base import Model, accepted_keys, emitted_key
from foliot.resources.problems import Path, Problem
from foliot.resources.validate import model_at, suggest


def respelled(model: type[Model], patch: Mapping[str, Any]) -> tuple[dict[str, Any], list[Problem]]:
    """The patch with every field in the spelling that is stored, and what is wrong with it.

    Two spellings of one field are a problem, and so is taking away what the kind does not have: merging would drop
    both without a word. Unknown fields with a value are left to the check of the whole.
    """
    problems: list[Problem] = []
    return _respelled(model, patch, (), problems), problems


def _respelled(root: type[Model], patch: Mapping[str, Any], path: Path, problems: list[Problem]) -> dict[str, Any]:
    owner = model_at(root, path)
    if owner is None:
        return {key: _inner(root, value, (*path, key), problems) for key, value in patch.items()}
    emitted = {key: emitted_key(owner, name) for name in owner.model_fields for key in accepted_keys(owner, name)}
    made: dict[str, Any] = {}
    given: dict[str, str] = {}
    for key, value in patch.items():
        name = emitted.get(key, key)
        if name in given:
            message = f"given twice: as {given[name]} and as {key}"
            problems.append(Problem((*path, key), message, "keep one of the two", at="key"))
            continue
        if value is None and key not in emitted and owner.model_config.get("extra") != "allow":
            hint = suggest(root, (*path, key))
            said = f"did you mean {hint}?" if hint else None
            problems.append(Problem((*path, key), f'unknown field "{key[:80]}"', said, at="key"))
            continue
        given[name] = key
        made[name] = _inner(root, value, (*path, name), problems)
    return made


def _inner(root: type[Model], value: Any, path: Path, problems: list[Problem]) -> Any:
    """A list replaces what is there, so it is checked as a part of the whole and not looked into here."""
    if not isinstance(value, Mapping):
        return value
    return _respelled(root, cast("Mapping[str, Any]", value), path, problems)
