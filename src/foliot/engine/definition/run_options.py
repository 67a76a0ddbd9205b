"""Options of one run: another model or prompt, an answer of another shape, fewer tools than its agent has.

They change the spec that the run is pinned to, so a resumed run keeps them. A tool that a run has lost stays lost in
every run below it: the names are part of the spec (`EXCLUDED`), and a delegate is started without them.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final, cast

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from foliot.common.suggestions import suggestion
from foliot.engine.definition.freeze import CLIENT, DECLARED, DEFERRED, LOCK
from foliot.engine.runners.profile import RUNNER
from foliot.errors import InvalidInput
from foliot.kernel.run.spec import RunSpec
from foliot.resources.validators import UnusableSchema, validator_of
from foliot.tools import search
from foliot.tools.backends.agent import PREFIX
from foliot.tools.builtin.names import names_of
from foliot.tools.builtin.recall import NAME as RECALL
from foliot.tools.builtin.skills import SKILLS_TOOL

# The tools that a run may not have, and nobody below it; with every tool it has lost, also those it never had.
EXCLUDED: Final = "excluded_tools"
# In the place of names: the run has no tools at all.
EVERY_TOOL: Final = "*"
# A turn has these when it needs them, whatever its agent declares.
ALWAYS_KNOWN: Final = (RECALL, SKILLS_TOOL)
DELEGATING: Final = frozenset({"spawn_agent"})


class RunOptions(Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """The changes of one run. Blank fields change nothing.

    `exclude_tools` are names of tools that the run does not have, and no run that it delegates to; `*` is all of them.
    `system` stands in the place of the agent's prompt. `model` is a ModelEndpoint to ask instead of the agent's.
    `output_schema` is a JSON Schema for the answer, in the place of the agent's.
    """

    exclude_tools: tuple[str, ...] = ()
    system: str = ""
    model: str = ""
    output_schema: dict[str, Any] | None = None


UNCHANGED: Final = RunOptions()


def excluded_by(spec: RunSpec) -> tuple[str, ...]:
    """Returns the tools that a run of this spec and everything below it may not have."""
    return tuple(spec.extra.get(EXCLUDED, ()))


def without_tools(spec: RunSpec, names: Iterable[str]) -> RunSpec:
    """The spec without these tools, under any of their names, besides those it lost before.

    Raises `InvalidInput` when a contract of the agent demands one of them.
    """
    excluded = list(dict.fromkeys((*excluded_by(spec), *(name.strip() for name in names if name.strip()))))
    if not excluded:
        return spec
    lost = frozenset(each for name in excluded for each in names_of(name))
    every = EVERY_TOOL in excluded

    def stays(name: str) -> bool:
        return not every and lost.isdisjoint(names_of(name))

    if spec.contract is not None and (demanded := [name for name in spec.contract.required_tools if not stays(name)]):
        raise InvalidInput(
            f"agent {spec.agent!r} has a contract to use {', '.join(demanded)}, and would not have it",
            hint="leave it out of exclude_tools",
        )
    extra: dict[str, Any] = {**spec.extra, EXCLUDED: excluded}
    for field in (DECLARED, DEFERRED, CLIENT):
        listed: Sequence[str] = extra.pop(field, ())
        if kept := [name for name in listed if stays(name)]:
            extra[field] = kept
    unsearched = search.NAME if DEFERRED in spec.extra and DEFERRED not in extra else ""
    tools = tuple(rule for rule in spec.tools if stays(rule.name) and rule.name != unsearched)
    has = {rule.name for rule in tools}
    locked: Mapping[str, Any] = extra.get(LOCK, {})
    extra[LOCK] = {name: pin for name, pin in locked.items() if name in has}
    settings = spec.settings
    if settings.tool_choice not in ("auto", "none") and (not has or settings.tool_choice not in (*has, "required")):
        settings = replace(settings, tool_choice="auto")
    return replace(spec, tools=tools, settings=settings, extra=extra)


def check_excluded(spec: RunSpec, names: Iterable[str]) -> None:
    """Raises `InvalidInput` for a tool that a run of this spec does not have: its name is misspelt.

    An agent that calls others may name any: theirs are not known here.
    """
    listed = [name for field in (DECLARED, DEFERRED, CLIENT) for name in spec.extra.get(field, ())]
    has = list(dict.fromkeys([*(rule.name for rule in spec.tools), *listed]))
    if any(name.startswith(PREFIX) or name in DELEGATING for name in has):
        return
    known = frozenset(each for name in (*has, *ALWAYS_KNOWN) for each in names_of(name))
    for name in names:
        if name != EVERY_TOOL and known.isdisjoint(names_of(name)):
            raise InvalidInput(
                f"exclude_tools: agent {spec.agent!r} has no tool {name[:80]!r}",
                hint=suggestion(name, has, f"it has {', '.join(has[:20]) or 'no tools'}"),
                field="exclude_tools",
            )


def read_schema(given: Mapping[str, Any] | str | bytes | None) -> dict[str, Any]:
    """The JSON Schema that an answer is asked for by, as a value or as JSON. Raises `InvalidInput` for what is none."""
    if not given:
        raise InvalidInput("schema is required", hint='give a JSON Schema, such as {"type": "object", "properties": …}')
    schema: object = given
    if isinstance(given, str | bytes):
        try:
            schema = msgspec.json.decode(given)
        except (msgspec.DecodeError, UnicodeDecodeError) as error:
            raise InvalidInput(f"parsing schema: {error}") from None
    if not isinstance(schema, Mapping):
        raise InvalidInput("parsing schema: it is no JSON object")
    found = dict(cast("Mapping[str, Any]", schema))
    if "type" not in found:
        raise InvalidInput("parsing schema: it has no top-level type", hint='say what the answer is: "type": "object"')
    try:
        validator_of(found)
    except UnusableSchema as error:
        raise InvalidInput(f"parsing schema: {error.message}", hint=error.hint) from None
    return found


def check_model_may_change(spec: RunSpec, options: RunOptions) -> None:
    """Raises `InvalidInput` for options that a program in the place of a model cannot have."""
    if RUNNER in spec.extra and (options.model or EVERY_TOOL in options.exclude_tools or options.output_schema):
        raise InvalidInput(
            f"agent {spec.agent!r} is a program: it has no other model, no shape of answers, and tools of its own",
            hint="name an agent that a model stands behind",
        )
