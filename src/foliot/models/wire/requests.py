"""A request brought down to what its model takes, and nothing left out of it silently.

Which model refuses what stands in the profiles; each setting that is left out or changed for it gets a note, which goes
into the answer's record and once into the log.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final, TypeAlias, cast

from msgspec.structs import replace

from foliot.kernel.messages import ModelRequest, ModelSettings, ToolSpec
from foliot.models.profiles import ModelProfile
from foliot.models.wire.schemas import in_words
from foliot.models.wire.tool_names import ordered_tools, schema_of

Profiles: TypeAlias = Callable[[str], ModelProfile]
Notes: TypeAlias = list[str]
_PLAIN: Final = ModelSettings()
CHOICES: Final = frozenset({"auto", "none", "required"})
"""The choices of a tool that name none."""
FREE: Final = frozenset({"auto", "none"})
"""The choices of a tool that force nothing."""


def fitted(request: ModelRequest, profile: ModelProfile, notes: Notes) -> ModelRequest:
    """The request with the settings that its model takes; what became of the others is added to `notes`."""
    settings = request.settings
    if settings == _PLAIN:
        return request
    model = request.model
    changes: dict[str, Any] = {}
    wanted = settings.reasoning_effort
    effort = profile.effort(wanted)
    if effort != wanted:
        changes["reasoning_effort"] = effort
        told = "is not sent: it does not reason on request" if effort is None else f"is sent as {effort}"
        notes.append(f"reasoning_effort {wanted} {told} ({model})")
    reasoning = profile.refused(effort) - profile.refuses
    for name in sorted(profile.refused(effort)):
        if name not in changes and _is_given(settings, name):
            changes[name] = getattr(_PLAIN, name)
            when = " while it reasons" if name in reasoning else ""
            notes.append(f"{name} is not sent: {model} refuses it{when}")
    given = [name for name in profile.excludes if name not in changes and _is_given(settings, name)]
    for name in given[1:]:
        changes[name] = getattr(_PLAIN, name)
        notes.append(f"{name} is not sent: {model} takes it or {given[0]}, not both")
    most = profile.max_output
    if most is not None and (settings.max_output_tokens or 0) > most:
        changes["max_output_tokens"] = most
        notes.append(f"max_output_tokens is sent as {most}: {model} writes no more")
    return replace(request, settings=replace(settings, **changes)) if changes else request


def _is_given(settings: ModelSettings, name: str) -> bool:
    value = getattr(settings, name)
    return value not in FREE if name == "tool_choice" else value != getattr(_PLAIN, name)


def asked_in_words(request: ModelRequest, schema: Mapping[str, Any]) -> ModelRequest:
    """The request with the schema of its answer as an instruction, and no longer as a schema."""
    system = f"{request.system}\n\n{in_words(schema)}" if request.system else in_words(schema)
    return replace(request, system=system, output_schema=None)


def tools_to_send(
    request: ModelRequest,
    key: str,
    translate: Callable[[dict[str, Any]], dict[str, Any] | None],
    notes: Notes,
) -> list[tuple[ToolSpec, dict[str, Any]]]:
    """Each tool with its schema under `key`; and with the promise to hold the model to it, where wanted and possible.

    `translate` says a schema in the strict dialect, or returns None where that cannot say all of it.
    """
    made: list[tuple[ToolSpec, dict[str, Any]]] = []
    free: list[str] = []
    for tool in ordered_tools(request.tools):
        schema = schema_of(tool)
        held = translate(schema) if request.settings.strict_tools else None
        if held is None and request.settings.strict_tools:
            free.append(tool.name)
        made.append((tool, {key: schema} if held is None else {key: held, "strict": True}))
    if free:
        notes.append(f"strict_tools is not sent for {', '.join(free)}: strict mode cannot say all that it allows")
    return made


def merged(under: Mapping[str, Any], over: Mapping[str, Any]) -> dict[str, Any]:
    """Two requests as one: mappings are merged at every depth, lists joined; of other values the later one counts."""
    result = dict(under)
    for key, value in over.items():
        there = result.get(key)
        if isinstance(there, Mapping) and isinstance(value, Mapping):
            result[key] = merged(cast("Mapping[str, Any]", there), cast("Mapping[str, Any]", value))
        elif isinstance(there, (list, tuple)) and isinstance(value, (list, tuple)):
            result[key] = [*cast("list[Any]", there), *cast("list[Any]", value)]
        else:
            result[key] = value
    return result
