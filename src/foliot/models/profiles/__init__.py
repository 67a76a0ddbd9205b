"""Profiles of models: what one model of one provider refuses, needs and can do, as data.

Each provider has a file beside this one, `<provider>.toml`:

    inherits = "openai"              # optional: the file of another provider, read first

    [default]                        # holds for every model of the provider
    efforts = ["low", "high"]

    [[models]]                       # each section whose pattern is found in the model's name, one over the other
    match = '(^|/)o[134]'
    refuses = ["temperature"]

    [provider]                       # where and how it is asked, read by registry.py, pricing.py and cells.py
    wire = "openai-chat"             # the format; then title, address and what it depends on, aliases, needs_key,
    keys = ["ACME_API_KEY"]          # needs_address, seller, and what it sells: a model for embeddings
    embeddings = "acme-embed"        # (false: none), one for `rerank` and `transcription` (true: any; false or nothing:
    chat = true                      # none), one to check with, whether images are read, whether it chats at all

    [options]                        # the options of an endpoint, under its own

    [[prices]]                       # `pricing` of an endpoint, where neither it nor the price tables know the model
    match = 'rerank'
    input = 0.05
    output = 0
    source = "acme.example/prices"   # where it was read

    [[limits]]                       # `rate_limit` of an endpoint that declares none: what all accounts of the provider
    match = '-free$'                 # have in common. Limits that depend on the account do not belong here
    requests = 20
    per = 60                         # seconds

A field of a later section replaces that of an earlier one as a whole. An endpoint adds to it by `options.profile`, with
the same fields. A provider without a file has the profile of a model that takes everything.
"""

from __future__ import annotations

import re
import tomllib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, fields, replace
from functools import cache, lru_cache
from importlib.resources import files
from typing import Any, Final, Literal, TypeAlias, cast, get_args

from foliot.errors import InvalidInput

EFFORTS: Final = ("none", "minimal", "low", "medium", "high", "xhigh", "max")
"""Every effort that a provider knows, from none to the most."""
Reasons: TypeAlias = Literal["never", "asked", "default", "always"]
Thinking: TypeAlias = Literal["effort", "adaptive", "budget", "level"]
Answers: TypeAlias = Literal["strict", "native", "schema", "tool", "object", "words"]
SETTINGS: Final = frozenset(
    {
        "temperature", "top_p", "stop", "seed", "max_output_tokens", "reasoning_effort", "tool_choice",
        "parallel_tool_calls", "strict_tools",
    }
)  # fmt: skip
"""The settings that a model can refuse. Of `tool_choice` it is to force a call, `auto` and `none` stay."""


@dataclass(frozen=True, slots=True)
class ModelProfile:
    """One model of one provider.

    `refuses` are settings that it does not take, `refuses_reasoning` those that it does not take while it reasons, and
    of `excludes` it takes one at a time, the first that is given. `efforts` are those that it knows, None where any is
    passed on. `reasons` says when it does: never, when asked, unless asked not to, always. `thinking` is how it is
    asked, `budgets` are tokens by effort, and `thinking_off` is what turns it off where that is not the default.
    `answers` is how it is held to a JSON Schema: `strict` (OpenAI), `native` (Anthropic), `schema` (as it is declared),
    `tool` (a forced call), `object` (any JSON), `words`; `answers_beside_tools` whether also in a request with tools.
    `max_output` and `context` are in tokens; `output_field` is the one name by which it takes the limit of an answer,
    where its format has several. `phase`: its answers say which of them is the last, and want it back. `unread` are
    beginnings of the media types that it does not read, such as `image/`.
    """

    refuses: frozenset[str] = frozenset()
    refuses_reasoning: frozenset[str] = frozenset()
    excludes: tuple[str, ...] = ()
    efforts: tuple[str, ...] | None = None
    reasons: Reasons = "asked"
    thinking: Thinking = "effort"
    thinking_off: str = ""
    budgets: Mapping[str, int] | None = None
    answers: Answers = "schema"
    answers_beside_tools: bool = True
    max_output: int | None = None
    context: int | None = None
    phase: bool = False
    unread: tuple[str, ...] = ()
    output_field: str = ""

    def effort(self, wanted: str | None) -> str | None:
        """The effort to ask for: the wanted one, else the next one above it, else the most there is."""
        if wanted is None or self.efforts is None or wanted in self.efforts or not self.efforts:
            return wanted if self.efforts != () else None
        above = [each for each in self.efforts if EFFORTS.index(each) > EFFORTS.index(wanted)]
        return above[0] if above else self.efforts[-1]

    def reads(self, media_type: str) -> bool:
        """Whether it reads files of this media type, as far as anybody knows."""
        return not media_type.lower().startswith(self.unread) if self.unread else True

    def is_reasoning(self, effort: str | None) -> bool:
        """Whether it reasons when it is asked for this effort, None being whatever it does by itself."""
        if self.reasons in ("never", "always"):
            return self.reasons == "always"
        return self.reasons == "default" if effort is None else effort != "none"

    def refused(self, effort: str | None) -> frozenset[str]:
        """The settings that it does not take beside this effort."""
        return self.refuses | self.refuses_reasoning if self.is_reasoning(effort) else self.refuses


def profile_of(provider: str, model: str, extra: Mapping[str, Any] | None = None) -> ModelProfile:
    """The profile of a model; `extra` are fields that an endpoint declares.

    Raises `InvalidInput` for a field that there is not, or that cannot hold such a value.
    """
    found = _bundled(provider, model)
    return found if not extra else _with(found, extra, "options.profile")


@lru_cache(maxsize=512)
def _bundled(provider: str, model: str) -> ModelProfile:
    profile = ModelProfile()
    for pattern, given in _sections(provider):
        if pattern is None or pattern.search(model):
            profile = _with(profile, given, f"profile {provider}.toml")
    return profile


@cache
def _sections(provider: str) -> tuple[tuple[re.Pattern[str] | None, Mapping[str, Any]], ...]:
    """The rules in the file of a provider, in order; a pattern of None is for every model."""
    document = profile_document(provider)
    inherited = _sections(document["inherits"]) if "inherits" in document else ()
    own: list[tuple[re.Pattern[str] | None, Mapping[str, Any]]] = [(None, document.get("default", {}))]
    for section in cast("Iterable[dict[str, Any]]", document.get("models", ())):
        given = dict(section)
        own.append((re.compile(given.pop("match"), re.IGNORECASE), given))
    return (*inherited, *own)


@cache
def profile_document(provider: str) -> Mapping[str, Any]:
    """The whole file of a provider, for those who keep other tables in it; empty where there is none."""
    if not re.fullmatch(r"[a-z0-9-]+", provider):
        return {}
    found = files(__name__) / f"{provider}.toml"
    return tomllib.loads(found.read_text("utf-8")) if found.is_file() else {}


def provider_facts(provider: str) -> Mapping[str, Any]:
    """The table `[provider]` of a provider's file; empty where there is none."""
    return profile_document(provider.strip().lower()).get("provider", {})


@cache
def providers_with_files() -> tuple[str, ...]:
    """The names of all providers that have a file, sorted."""
    names = (each.name for each in files(__name__).iterdir())
    return tuple(sorted(name.removesuffix(".toml") for name in names if name.endswith(".toml")))


def sections_for(provider: str, table: str, model: str) -> dict[str, Any]:
    """The fields of all sections of a table whose pattern is in the model's name, later ones over earlier ones.

    `match` and `source` are not among them. A file that inherits has the sections of the other first.
    """
    document = profile_document(provider)
    found = sections_for(document["inherits"], table, model) if "inherits" in document else {}
    for section in cast("Iterable[dict[str, Any]]", document.get(table, ())):
        if re.search(section["match"], model, re.IGNORECASE):
            found |= {name: value for name, value in section.items() if name not in ("match", "source")}
    return found


@cache
def providers_with(feature: str) -> tuple[str, ...]:
    """The names of all providers whose file says that they sell or serve this."""
    return tuple(name for name in providers_with_files() if provider_facts(name).get(feature))


_FIELDS: Final = frozenset(field.name for field in fields(ModelProfile))
_CHOICES: Final[Mapping[str, tuple[str, ...]]] = {
    "reasons": get_args(Reasons),
    "thinking": get_args(Thinking),
    "answers": get_args(Answers),
}


def _with(profile: ModelProfile, given: Mapping[str, Any], where: str) -> ModelProfile:
    return replace(profile, **{name: _value(name, value, where) for name, value in given.items()})


def _value(name: str, value: Any, where: str) -> Any:
    if name not in _FIELDS:
        raise InvalidInput(f"{where}: there is no {name!r}", hint=f"known: {', '.join(sorted(_FIELDS))}")
    if name in _CHOICES:
        if value not in _CHOICES[name]:
            raise InvalidInput(f"{where}: {name} must be one of {', '.join(_CHOICES[name])}")
        return value
    if name in ("refuses", "refuses_reasoning", "excludes", "efforts"):
        return _words(name, value, where)
    if name == "unread":
        return _media_types(value, where)
    if name == "budgets":
        return {_words(name, [effort], where)[0]: int(tokens) for effort, tokens in value.items()}
    wanted = (
        bool if name in ("phase", "answers_beside_tools") else str if name in ("thinking_off", "output_field") else int
    )
    if type(value) is not wanted:
        raise InvalidInput(f"{where}: {name} must be {_KINDS[wanted]}")
    return value


def _media_types(value: Any, where: str) -> tuple[str, ...]:
    listed = cast("list[Any]", value) if isinstance(value, (list, tuple)) else [value]
    if not all(isinstance(each, str) and "/" in each for each in listed):
        raise InvalidInput(f"{where}: unread must hold media types, or beginnings of them, such as image/")
    return tuple(str(each).lower() for each in listed)


_KINDS: Final = {bool: "true or false", str: "text", int: "a whole number"}


def _words(name: str, value: Any, where: str) -> Any:
    known = SETTINGS if name in ("refuses", "refuses_reasoning", "excludes") else frozenset(EFFORTS)
    listed = cast("list[Any]", value) if isinstance(value, (list, tuple)) else [value]
    if strange := [str(word) for word in listed if word not in known]:
        raise InvalidInput(
            f"{where}: {name} cannot hold {', '.join(strange)}", hint=f"known: {', '.join(sorted(known))}"
        )
    if name.startswith("refuses"):
        return frozenset(listed)
    return tuple(listed) if name == "excludes" else tuple(sorted(listed, key=EFFORTS.index))
