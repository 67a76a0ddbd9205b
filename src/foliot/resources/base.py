"""The base of all kinds: the envelope, the metadata, and how a model accepts, completes, checks and emits its fields.

accept     snake_case and camelCase of every field; null and blank text mean "not given"; anything unknown is refused
complete   defaults that depend on other fields are filled in (`complete`)
check      rules between fields report all that is wrong at once (`problems`)
emit       one spelling, empty values left out, so that normalising twice changes nothing
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import cache
from typing import Annotated, Any, ClassVar, Final, Generic, Self, TypeAlias, TypeVar, cast, get_args, get_origin

from pydantic import (
    AliasChoices,
    AliasGenerator,
    BaseModel,
    ConfigDict,
    Field,
    GetJsonSchemaHandler,
    SerializerFunctionWrapHandler,
    field_validator,
    model_serializer,
    model_validator,
)
from pydantic.json_schema import JsonSchemaValue
from pydantic_core import CoreSchema, PydanticCustomError

from foliot.resources.fields import MARK_ANY_CASE, Annotations, Labels, LooseWord, Name, Whole, refusal
from foliot.resources.names import camel, snake, spellings
from foliot.resources.problems import Problem
from foliot.resources.wording import API_VERSION, API_VERSION_ALIASES, WRITTEN_AS

DEFAULT_NAMESPACE: Final = "default"
MARK_MODEL: Final = "x-model"
MARK_SHARED: Final = "x-shared"

EVEN_EMPTY: Final = "even empty"
"""In the annotation of a field: its empty object declares something."""

_EMPTY: Final[tuple[Any, ...]] = (None, "", [], {})


def accepted_keys(model: type[BaseModel], name: str) -> tuple[str, ...]:
    """Every key under which the field `name` may be given."""
    alias = model.model_fields[name].validation_alias
    if isinstance(alias, AliasChoices):
        return tuple(choice for choice in alias.choices if isinstance(choice, str))
    return (name,)


def emitted_key(model: type[BaseModel], name: str) -> str:
    """The one key under which the field `name` is emitted."""
    return model.model_fields[name].serialization_alias or name


def _accepted(name: str) -> AliasChoices:
    return AliasChoices(*spellings(name))


Rule: TypeAlias = "Callable[[type[Model]], dict[str, Any]]"


def given(*names: str) -> Rule:
    """The JSON Schema rule that these fields are all given, and not empty."""
    return lambda model: {"allOf": [_with(model, name, {MARK_SHARED: "given"}) for name in names]}


def present(name: str) -> Rule:
    """The rule that a field is given, if only with an empty list or object."""
    return lambda model: _with(model, name, {"not": {MARK_SHARED: "blank"}})


def fits(name: str, pattern: str) -> Rule:
    """The rule that the text of a field fits a pattern."""
    return lambda model: _with(model, name, {"type": "string", "pattern": pattern})


def says(name: str, *words: str) -> Rule:
    """The rule that a field has one of these values; words count in any case."""
    return lambda model: _with(model, name, {"enum": list(words), MARK_ANY_CASE: True})


def is_true(name: str) -> Rule:
    """The rule that a field is true."""
    return lambda model: _with(model, name, {"const": True})


def within(name: str, rule: Rule) -> Rule:
    """The rule that the object in a field keeps to `rule`."""

    def made(model: type[Model]) -> dict[str, Any]:
        inner = next(_models_in(model.model_fields[name].annotation))
        return _with(model, name, {"type": "object", **rule(inner)})

    return made


def implies(one: Rule, other: Rule) -> Rule:
    """The rule that where `one` holds, `other` does."""
    return lambda model: {"anyOf": [{"not": one(model)}, other(model)]}


def no(rule: Rule) -> Rule:
    """The rule that `rule` does not hold."""
    return lambda model: {"not": rule(model)}


def either(*rules: Rule) -> Rule:
    """The rule that one of these holds."""
    return lambda model: {"anyOf": [rule(model) for rule in rules]}


def both(*rules: Rule) -> Rule:
    """The rule that all of these hold."""
    return lambda model: {"allOf": [rule(model) for rule in rules]}


def _with(model: type[Model], name: str, schema: dict[str, Any]) -> dict[str, Any]:
    return {"anyOf": [{"required": [key], "properties": {key: schema}} for key in accepted_keys(model, name)]}


def _models_in(annotation: Any) -> Iterator[type[Model]]:
    if isinstance(annotation, type) and issubclass(annotation, Model):
        yield annotation
    for argument in get_args(annotation):
        yield from _models_in(argument)


class Model(BaseModel):
    """Base of every declared object.

    `required` names the fields that must not be empty, with what is said behind "… is required". `removed` maps fields
    of the past to what to use instead. `rules` say in JSON Schema what `problems` says in words, for editors;
    `excused` when a required field is filled in by `complete`.
    """

    model_config = ConfigDict(
        extra="forbid",
        strict=True,
        str_strip_whitespace=True,
        hide_input_in_errors=True,
        # With its first use: most models are only ever a part of others, and never need a validator of their own.
        defer_build=True,
        alias_generator=AliasGenerator(validation_alias=_accepted, serialization_alias=snake),
    )

    required: ClassVar[Mapping[str, str]] = {}
    removed: ClassVar[Mapping[str, str]] = {}
    rules: ClassVar[tuple[Rule, ...]] = ()
    excused: ClassVar[Mapping[str, Rule]] = {}
    _keys: ClassVar[frozenset[str]] = frozenset()

    @classmethod
    def __pydantic_init_subclass__(cls, **kwargs: Any) -> None:
        super().__pydantic_init_subclass__(**kwargs)
        cls._keys = frozenset(key for name in cls.model_fields for key in accepted_keys(cls, name))

    def complete(self) -> None:
        """Fill in the defaults that depend on other fields. Called once, before `problems`."""

    def problems(self) -> Iterable[Problem]:
        """Yields the problems between fields; paths are relative to this object, in the emitted spelling."""
        return ()

    @model_validator(mode="before")
    @classmethod
    def _drop_blanks(cls, data: Any) -> Any:
        """`tools:` with nothing behind it, or `mode: ""`, is the same as not writing it."""
        if not isinstance(data, dict):
            return data
        given = cast("dict[Any, Any]", data)
        # Written out, because this runs for every mapping of every manifest.
        blank = [
            key
            for key, value in given.items()
            if (value is None or (value.__class__ is str and (not value or value.isspace()))) and key in cls._keys
        ]
        return {key: value for key, value in given.items() if key not in blank} if blank else given

    @model_validator(mode="after")
    def _check(self) -> Self:
        _complete(self)
        problems = [*(self._missing() if self.required else ()), *self.problems()]
        if problems:
            raise PydanticCustomError("rules", "{summary}", {"summary": _summary(problems), "problems": problems})
        return self

    def _missing(self) -> Iterator[Problem]:
        for name, remark in self.required.items():
            if getattr(self, name) in _EMPTY:
                yield Problem((emitted_key(type(self), name),), f"{{field}} is required{remark}")

    @model_serializer(mode="wrap")
    def _emit(self, handler: SerializerFunctionWrapHandler) -> dict[str, Any]:
        kept = kept_empty(type(self))
        return {
            key: value
            for key, value in handler(self).items()
            if value not in _EMPTY or (key in kept and value in ([], {}))
        }

    @classmethod
    def __get_pydantic_json_schema__(cls, core_schema: CoreSchema, handler: GetJsonSchemaHandler) -> JsonSchemaValue:
        schema = handler.resolve_ref_schema(handler(core_schema))
        _accept_spellings(cls, schema)
        return schema


@cache
def kept_empty(model: type[Model]) -> frozenset[str]:
    """The keys whose empty list or object says something else than none at all, and is emitted.

    Of a list that may also be None the type says so: `[]` is not "not given". Of an object `EVEN_EMPTY` does.
    """
    return frozenset(
        emitted_key(model, name)
        for name, field in model.model_fields.items()
        if EVEN_EMPTY in field.metadata or _is_list_or_none(field.annotation)
    )


def _is_list_or_none(annotation: Any) -> bool:
    choices = [_bare(each) for each in get_args(annotation)]
    return type(None) in choices and any((get_origin(each) or each) is list for each in choices)


def _bare(annotation: Any) -> Any:
    return _bare(get_args(annotation)[0]) if get_origin(annotation) is Annotated else annotation


class Status(Model):
    """The observed state of an object. It is written by Foliot, not by people, so fields it does not know are kept."""

    model_config = ConfigDict(
        extra="allow",
        alias_generator=AliasGenerator(validation_alias=_accepted, serialization_alias=camel),
    )

    phase: str = Field(default="", description="Where the object is in its life.")
    last_error: str = Field(default="", description="What went wrong last, if anything.")
    observed_generation: Whole | None = Field(
        default=None, description="The generation of the spec this status speaks of."
    )
    conditions: list[dict[str, Any]] = Field(default_factory=list[dict[str, Any]], description="Facts by type.")


class Metadata(Model):
    """The name and the labels of a resource."""

    required: ClassVar = {"name": ""}

    name: Name = Field(default="", description="Unique among the resources of its kind in its namespace.")
    namespace: Name = Field(default=DEFAULT_NAMESPACE, description="The tenant it belongs to.")
    labels: Labels = Field(default_factory=dict[str, str], description="Short facts to select by.")
    annotations: Annotations = Field(default_factory=dict[str, str], description="Facts for people and tools.")
    uid: str = Field(default="", description="Given by the store, never used twice.")
    resource_version: LooseWord = Field(
        default="",
        serialization_alias="resourceVersion",
        description="The revision of its last change; given by the store.",
    )
    generation: Whole | None = Field(
        default=None, description="Grows with each change of the spec; given by the store."
    )
    created_at: str = Field(
        default="", serialization_alias="createdAt", description="When it was made; given by the store."
    )
    updated_at: str = Field(
        default="", serialization_alias="updatedAt", description="When it last changed; given by the store."
    )
    declared_by: dict[str, Any] = Field(
        default_factory=dict[str, Any],
        serialization_alias="declaredBy",
        description="Who wrote its spec last, and whether as operator of the installation; given by the store.",
    )
    managed_fields: list[dict[str, Any]] = Field(
        default_factory=list[dict[str, Any]],
        serialization_alias="managedFields",
        description="Who owns which field, when it was asked for; given by the store.",
    )
    written_as: dict[str, Any] = Field(
        default_factory=dict[str, Any],
        serialization_alias=WRITTEN_AS,
        description="How its author wrote it, in an older version of this format; kept by the store, never shown.",
    )


def _complete(model: Model) -> None:
    """Fill in dependent defaults, which do not count as given (see `Resource.given`)."""
    if type(model).complete is Model.complete:
        return
    parts = [model, *(part for part in model.__dict__.values() if isinstance(part, Model))]
    given = [set(part.model_fields_set) for part in parts]
    model.complete()
    for part, fields in zip(parts, given, strict=True):
        part.model_fields_set.intersection_update(fields)


SpecT = TypeVar("SpecT", bound=Model)
StatusT = TypeVar("StatusT", bound=Status)


class Resource(Model, Generic[SpecT, StatusT]):
    """The envelope of every kind. The name of the subclass is the kind."""

    api_version: str = Field(
        default=API_VERSION,
        serialization_alias="apiVersion",
        description="The format of this document.",
        json_schema_extra={"enum": [API_VERSION, *sorted(API_VERSION_ALIASES)]},
    )
    kind: str = Field(default="", description="What this document declares.")
    metadata: Metadata = Field(description="What names and marks this resource.")
    spec: SpecT = Field(description="The specification")
    status: StatusT | None = Field(default=None, description="What was observed; written by Foliot.")

    @field_validator("api_version")
    @classmethod
    def _known_version(cls, value: str) -> str:
        if (problem := check_api_version(value)) is not None:
            raise refusal(problem.message, expected=problem.expected)
        return API_VERSION

    @field_validator("kind")
    @classmethod
    def _own_kind(cls, value: str) -> str:
        if value.lower() != cls.__name__.lower():
            raise refusal(f'unsupported kind "{value[:80]}" for {cls.__name__}', expected=cls.__name__)
        return cls.__name__

    def complete(self) -> None:
        self.kind = type(self).__name__

    def given(self) -> dict[str, Any]:
        """Return the resource as its author wrote it: normal form, no defaults. Normalised, it is whole again."""
        given = self.model_dump(by_alias=True, exclude_unset=True, exclude={"status"})
        named = {"name": self.metadata.name, "namespace": self.metadata.namespace}
        head = {"apiVersion": self.api_version, "kind": self.kind}
        spec = _with_empty_lists(self.spec, given.get("spec", {}))
        return {**head, "metadata": {**named, **given.get("metadata", {})}, "spec": spec}


def _with_empty_lists(model: Model, given: dict[str, Any]) -> dict[str, Any]:
    """A dump with the lists that were written down empty: who writes `tools: []` says that there are none."""
    for name in model.model_fields_set:
        value = getattr(model, name)
        key = emitted_key(type(model), name)
        if isinstance(value, list) and not value:
            given[key] = []
        elif isinstance(value, Model) and (inner := _with_empty_lists(value, given.get(key, {}))):
            given[key] = inner
    return given


def check_api_version(value: object) -> Problem | None:
    """Returns the problem with an apiVersion; None when documents of this version can be read."""
    text = value.strip() if isinstance(value, str) else None
    if text is not None and (text == API_VERSION or text in API_VERSION_ALIASES):
        return None
    said = f' "{text[:80]}"' if text is not None else ""
    return Problem(("apiVersion",), f"unsupported apiVersion{said}", expected=API_VERSION)


def problem(*path: str | int, message: str, expected: str | None = None, hint: str | None = None) -> Problem:
    """A rule that does not hold; `{field}` in the message becomes the full path of the field."""
    return Problem(path, message, hint, expected)


def _summary(problems: Iterable[Problem]) -> str:
    return "; ".join(problem.message.replace("{field}", problem.field, 1) for problem in problems)


def _tidy(field: dict[str, Any]) -> dict[str, Any]:
    """A field's schema without what says nothing: titles made from names, empty defaults, "or null"."""
    kept = {key: value for key, value in field.items() if key != "title"}
    if kept.get("default") in _EMPTY:
        kept.pop("default", None)
    choices = [choice for choice in kept.get("anyOf", ()) if choice != {"type": "null"}]
    if len(choices) == 1:
        del kept["anyOf"]
        kept = {**choices[0], **kept}
    return kept


def _accept_spellings(model: type[Model], schema: dict[str, Any]) -> None:
    """Let a JSON Schema accept what the model accepts.

    The emitted spelling is a property, which editors complete; the others are patterns, which they only allow. Two
    spellings of one field at once are refused, as the model does.
    """
    given: dict[str, Any] = schema.pop("properties", {})
    schema.pop("required", None)
    properties: dict[str, Any] = {}
    patterns: dict[str, Any] = {}
    exclusive: dict[str, Any] = {}
    needed: list[dict[str, Any]] = []
    for name in model.model_fields:
        keys, emitted = accepted_keys(model, name), emitted_key(model, name)
        others = [key for key in keys if key != emitted]
        field = _tidy(given[keys[0]])
        properties[emitted] = field
        if others:
            patterns[f"^({'|'.join(others)})$"] = field
            exclusive[emitted] = {"properties": dict.fromkeys(others, False)}
        if name in model.required or model.model_fields[name].is_required():
            needed.append({"anyOf": [{"required": [key]} for key in keys]} if others else {"required": [emitted]})
    schema["properties"] = properties
    if patterns:
        schema["patternProperties"] = patterns
        schema["dependentSchemas"] = exclusive
    if needed:
        schema["allOf"] = needed
    # For the schema that accepts all that the model does; see schema.py.
    schema[MARK_MODEL] = {
        "spellings": [list(accepted_keys(model, name)) for name in model.model_fields],
        "filled": [list(accepted_keys(model, name)) for name in model.required],
        "excused": [
            {"keys": list(accepted_keys(model, name)), "rule": rule(model)} for name, rule in model.excused.items()
        ],
        "rules": [rule(model) for rule in model.rules],
    }
