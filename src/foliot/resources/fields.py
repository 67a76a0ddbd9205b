"""The types of fields: names, references, durations, texts and maps, each with its one rule.

A rule refuses with `refusal`, whose message may hold `{field}` for the full path. Values that may be secret (references
to secrets, addresses with a password in them) are never repeated in a message.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Annotated, Any, Final, TypeAlias
from urllib.parse import urlsplit

from pydantic import (
    AfterValidator,
    BeforeValidator,
    Field,
    GetCoreSchemaHandler,
    GetJsonSchemaHandler,
    StringConstraints,
    WithJsonSchema,
)
from pydantic.json_schema import JsonSchemaValue
from pydantic_core import CoreSchema, PydanticCustomError, core_schema

from foliot.common import durations
from foliot.common.suggestions import did_you_mean
from foliot.kernel.graph.plan import MOST_ATTEMPTS
from foliot.resources.problems import Path, Problem
from foliot.resources.references import NAME_MAX, NAME_RULE, is_name
from foliot.resources.validators import UnusableSchema, validator_of

# Of a schema of the preferred form: also in any case and with space around it; also one that stands for a list of one.
MARK_ANY_CASE: Final = "x-any-case"
MARK_ONE_OR_MANY: Final = "x-one-or-many"
# What more must hold, where it says nothing to a reader.
MARK_EXACT: Final = "x-exact"
ANY_JSON_SCHEMA: Final = {"$ref": "https://json-schema.org/draft/2020-12/schema"}

_ASKED_VERSION: Final = re.compile(r"[\^~=]?\d+(\.\d+){0,2}(-[0-9A-Za-z.-]+)?")
_SECRET_KEY: Final = re.compile(r"[A-Za-z0-9._-]+")
_LABEL_NAME: Final = re.compile(r"[A-Za-z0-9](?:[A-Za-z0-9._-]{0,61}[A-Za-z0-9])?")
_DNS: Final = re.compile(r"[a-z0-9](?:[a-z0-9.-]{0,251}[a-z0-9])?")
_LABEL_RULE: Final = "up to 63 letters, digits, '-', '_' or '.', beginning and ending with a letter or digit"
_ANNOTATIONS_MAX: Final = 256 * 1024


def refusal(
    message: str, *, expected: str | None = None, hint: str | None = None, path: Path = ()
) -> PydanticCustomError:
    """Builds the error that the rule of one field raises. `path` leads from the field to the part that is wrong."""
    problem = Problem(path, message, hint, expected)
    summary = message.replace("{field} ", "", 1).replace("{field}: ", "", 1)
    return PydanticCustomError("rules", "{summary}", {"summary": summary, "problems": [problem]})


def check_name(value: str) -> str:
    if not is_name(value):
        raise refusal(f'invalid {{field}} "{_short(value)}": expected {NAME_RULE}', expected=NAME_RULE)
    return value


def check_ref(value: str) -> str:
    """`name` or `namespace/name`."""
    for half in value.split("/", 1):
        if not is_name(half):
            raise refusal(
                f'invalid {{field}} "{_short(value)}": expected name or namespace/name',
                expected="name or namespace/name",
                hint="to ask provider:model, declare a ModelEndpoint and name that" if ":" in value else None,
            )
    return value


def check_tool_request(value: str) -> str:
    """`name`, `name@version` with 1, 1.2, ^1.2, ~1.2 or 1.2.3, or `agent:name` for an agent of the same namespace."""
    name, at, version = value.removeprefix("agent:").partition("@")
    wrong_version = at and (value.startswith("agent:") or not _ASKED_VERSION.fullmatch(version))
    if not is_name(name) or wrong_version:
        raise refusal(
            f'invalid {{field}} "{_short(value)}": expected a name, or a name and a version such as search@^1.2',
            expected="name, name@version or agent:name",
        )
    return value


def check_tool_name(value: str) -> str:
    """`name`, or `agent:name` for an agent that others call as a tool."""
    if not is_name(value.removeprefix("agent:")):
        raise refusal(
            f'invalid {{field}} "{_short(value)}": expected {NAME_RULE}', expected=f"{NAME_RULE}; or agent:name"
        )
    return value


def check_secret_ref(value: str) -> str:
    """`[namespace/]name[:key]`. A value pasted here by mistake may be the secret itself, so it is never repeated."""
    where, colon, key = value.partition(":")
    halves = where.split("/", 1)
    good = all(map(is_name, halves))
    if not good or (colon and not _SECRET_KEY.fullmatch(key)):
        raise refusal(
            "{field} does not name a Secret: expected [namespace/]name[:key]",
            expected="[namespace/]name[:key]",
            hint="put the value into a Secret and name that here",
        )
    return value


def check_duration(value: Any) -> Any:
    if isinstance(value, (int, float)) and not isinstance(value, bool):
        if value == 0:
            return "0s"
        expected, hint = "a duration such as 30s or 1h30m", did_you_mean(f"{value}s")
        raise refusal(f'invalid {{field}} "{value}": a duration needs a unit', expected=expected, hint=hint)
    if not isinstance(value, str):
        return value
    try:
        text = durations.canonical(value)
        if durations.seconds(text) > durations.LONGEST_SECONDS:
            raise ValueError(f"longer than {durations.LONGEST_SECONDS / 86_400:.0f}d")
        return text
    except ValueError as error:
        raise refusal(
            f'invalid {{field}} "{_short(value)}": {error}', expected="a duration such as 30s or 1h30m"
        ) from None


def check_positive(value: str) -> str:
    if value == "0s":
        raise refusal("{field} must be longer than 0s", expected="a duration above 0s")
    return value


def lowered(value: Any) -> Any:
    return value.strip().lower() if isinstance(value, str) else value


@dataclass(frozen=True, slots=True)
class Forgiving:
    """A validator that takes more than the preferred form; `mark` says what, for the schema that accepts the same.

    See schema.py: editors and `foliot explain` are shown the preferred form first.
    """

    func: Callable[[Any], Any]
    mark: str

    def __get_pydantic_core_schema__(self, source: Any, handler: GetCoreSchemaHandler) -> CoreSchema:
        return core_schema.no_info_before_validator_function(self.func, schema=handler(source))

    def __get_pydantic_json_schema__(self, core: CoreSchema, handler: GetJsonSchemaHandler) -> JsonSchemaValue:
        return {**handler(core), self.mark: True}


def one_of_words(*words: str, said: str = "invalid") -> Forgiving:
    """One of a few words in any case, refused in words of its own."""
    expected = " or ".join(words)

    def check(value: Any) -> Any:
        word = lowered(value)
        if isinstance(word, str) and word not in words:
            raise refusal(f'{said} {{field}} "{_short(word)}": expected {expected}', expected=expected)
        return word

    return Forgiving(check, MARK_ANY_CASE)


def check_url(*schemes: str) -> Callable[[str], str]:
    """An absolute address with one of `schemes`. It may hold a password, so it is never repeated."""
    expected = " or ".join(f"{scheme}://…" for scheme in schemes)

    def check(value: str) -> str:
        try:
            parts = urlsplit(value)
            good = parts.scheme.lower() in schemes and bool(parts.hostname) and (parts.port is None or parts.port > 0)
        except ValueError:
            good = False
        if not good or any(character.isspace() for character in value):
            raise refusal(f"{{field}} must be a URL: expected {expected}", expected=expected)
        return value

    return check


def as_text(value: Any) -> Any:
    """YAML reads `port: 8080` as a number; where only text makes sense, the number's text is meant.

    In a file that is the text as it was written (`loose_texts.py`); what reaches this function as a number came as one.
    """
    if isinstance(value, bool):
        return "true" if value else "false"
    return str(value) if isinstance(value, (int, float)) else value


def as_whole(value: Any) -> Any:
    """Converts a float with a whole value to int: for JSON, `3.0` and `3` are one number."""
    return int(value) if isinstance(value, float) and value.is_integer() else value


def one_is_a_list(value: Any) -> Any:
    """`roles: reader` says the same as `roles: [reader]`."""
    return [value] if isinstance(value, str) else value


def without_blanks(values: Iterable[str]) -> list[str]:
    return [value for value in values if value]


def distinct(values: Iterable[str]) -> list[str]:
    return list(dict.fromkeys(value for value in values if value))


def distinct_any_case(values: Iterable[str]) -> list[str]:
    """Duplicates that differ only in case are removed, the first spelling stays; empty ones are removed."""
    first: dict[str, str] = {}
    for value in values:
        if value:
            first.setdefault(value.lower(), value)
    return list(first.values())


def distinct_lowered(values: Iterable[str]) -> list[str]:
    return distinct(value.lower() for value in values)


def check_labels(labels: dict[str, str]) -> dict[str, str]:
    for key, value in labels.items():
        _check_label_key(key)
        if value and not _LABEL_NAME.fullmatch(value):
            raise refusal(
                f'invalid value of label "{_short(key)}": expected {_LABEL_RULE}', expected=_LABEL_RULE, path=(key,)
            )
    return labels


def check_annotations(annotations: dict[str, str]) -> dict[str, str]:
    for key in annotations:
        _check_label_key(key)
    if sum(len(key) + len(value) for key, value in annotations.items()) > _ANNOTATIONS_MAX:
        raise refusal("{field} is too large", expected="at most 256 KiB in all")
    return annotations


def _check_label_key(key: str) -> None:
    prefix, slash, name = key.rpartition("/")
    if not _LABEL_NAME.fullmatch(name) or (slash and not _DNS.fullmatch(prefix)):
        rule = f"[domain/]name, the name {_LABEL_RULE}"
        raise refusal(f'invalid key "{_short(key)}": expected {rule}', expected=rule, path=(key,))


def check_json_schema(schema: dict[str, Any]) -> dict[str, Any]:
    """A JSON Schema that values can be checked with, and that refers to nothing outside itself."""
    if not schema:
        return schema
    try:
        validator_of(schema)
    except UnusableSchema as error:
        raise refusal(
            f"{{field}} is not a valid JSON Schema: {error.message}", hint=error.hint, path=error.path
        ) from None
    return schema


def _short(value: str) -> str:
    return value if len(value) <= 80 else value[:77] + "..."


_NUMBER: Final = r"([0-9]+(\.[0-9]*)?|\.[0-9]+)"
_UNIT: Final = "(ns|us|µs|μs|ms|s|m|h|d)"
_DURATION_SCHEMA: Final = {
    "type": "string",
    "pattern": rf"^\s*\+?({_NUMBER}{_UNIT})+\s*$|^\s*\+?0\s*$",
    "examples": ["30s", "1h30m", "250ms"],
    MARK_EXACT: {"type": ["string", "number"], "minimum": 0, "maximum": 0},  # 0 needs no unit
}

_WORD: Final = "[A-Za-z0-9]([A-Za-z0-9._-]*[A-Za-z0-9])?"
NAME_PATTERN: Final = f"^\\s*{_WORD}\\s*$"
_NAME_SCHEMA: Final = {"type": "string", "pattern": NAME_PATTERN, "maxLength": NAME_MAX}
_REF_SCHEMA: Final = {"type": "string", "pattern": f"^\\s*({_WORD}/)?{_WORD}\\s*$"}
TOOL_NAME_SCHEMA: Final = {"type": "string", "pattern": f"^\\s*(agent:)?{_WORD}\\s*$"}
_TOOL_SCHEMA: Final = {
    "type": "string",
    "pattern": f"^\\s*(agent:{_WORD}|{_WORD}(@[\\^~=]?[0-9][0-9A-Za-z.-]*)?)\\s*$",
}
_SECRET_SCHEMA: Final = {"type": "string", "pattern": f"^\\s*({_WORD}/)?{_WORD}(:[A-Za-z0-9._-]+)?\\s*$"}
_URL_SCHEMA: Final = {"type": "string", "format": "uri", "pattern": "^\\s*[Hh][Tt][Tt][Pp][Ss]?://"}
_LOOSE_SCHEMA: Final = {"type": ["string", "number", "boolean"]}

_LABEL: Final = "[A-Za-z0-9]([A-Za-z0-9._-]{0,61}[A-Za-z0-9])?"
_LABEL_KEY_SCHEMA: Final = {"pattern": f"^([a-z0-9]([a-z0-9.-]{{0,251}}[a-z0-9])?/)?{_LABEL}$"}
_LABELS_SCHEMA: Final = {
    "type": "object",
    "propertyNames": _LABEL_KEY_SCHEMA,
    "additionalProperties": {"type": ["string", "number", "boolean"], "pattern": f"^({_LABEL})?$", "minimum": 0},
}
_ANNOTATIONS_SCHEMA: Final = {
    "type": "object",
    "propertyNames": _LABEL_KEY_SCHEMA,
    "additionalProperties": _LOOSE_SCHEMA,
}

ANY_CASE: Final = Forgiving(lowered, MARK_ANY_CASE)
"""A word in any case, with space around it."""
ONE_OR_MANY: Final = Forgiving(one_is_a_list, MARK_ONE_OR_MANY)
"""A list, or the one text that it would hold."""

RawText: TypeAlias = Annotated[str, StringConstraints(strip_whitespace=False)]
"""Text that is kept to the last space: prompts, values of secrets and inputs."""
LooseText: TypeAlias = Annotated[RawText, BeforeValidator(as_text), WithJsonSchema(_LOOSE_SCHEMA)]
"""Text that may be given as a number or a boolean, and is kept as it was written."""
Name: TypeAlias = Annotated[str, AfterValidator(check_name), WithJsonSchema(_NAME_SCHEMA)]
Ref: TypeAlias = Annotated[str, AfterValidator(check_ref), WithJsonSchema(_REF_SCHEMA)]
SecretRef: TypeAlias = Annotated[str, AfterValidator(check_secret_ref), WithJsonSchema(_SECRET_SCHEMA)]
LooseWord: TypeAlias = Annotated[str, BeforeValidator(as_text), WithJsonSchema(_LOOSE_SCHEMA)]
Duration: TypeAlias = Annotated[str, BeforeValidator(check_duration), WithJsonSchema(_DURATION_SCHEMA)]
Timeout: TypeAlias = Annotated[Duration, AfterValidator(check_positive)]
Url: TypeAlias = Annotated[str, AfterValidator(check_url("http", "https")), WithJsonSchema(_URL_SCHEMA)]
StringMap: TypeAlias = dict[str, LooseText]
Labels: TypeAlias = Annotated[StringMap, AfterValidator(check_labels), WithJsonSchema(_LABELS_SCHEMA)]
Annotations: TypeAlias = Annotated[StringMap, AfterValidator(check_annotations), WithJsonSchema(_ANNOTATIONS_SCHEMA)]
TextList: TypeAlias = Annotated[list[LooseText], ONE_OR_MANY]
WordList: TypeAlias = Annotated[list[str], ONE_OR_MANY, AfterValidator(distinct_any_case)]
"""Duplicates are removed in any case, empty ones too; the first spelling stays."""
ExactList: TypeAlias = Annotated[list[str], ONE_OR_MANY, AfterValidator(distinct)]
NameList: TypeAlias = Annotated[list[Name], ONE_OR_MANY, AfterValidator(distinct)]
ToolName: TypeAlias = Annotated[str, AfterValidator(check_tool_name), WithJsonSchema(TOOL_NAME_SCHEMA)]
ToolRequest: TypeAlias = Annotated[str, AfterValidator(check_tool_request), WithJsonSchema(_TOOL_SCHEMA)]
ToolList: TypeAlias = Annotated[list[ToolRequest], ONE_OR_MANY, AfterValidator(distinct)]
RefList: TypeAlias = Annotated[list[Ref], ONE_OR_MANY, AfterValidator(distinct_any_case)]
# What every store and every language can count to.
MOST: Final = 2**53 - 1
Whole: TypeAlias = Annotated[int, BeforeValidator(as_whole)]
# Bounds stand before the validator: behind it, the schema would not show them.
Count: TypeAlias = Annotated[int, Field(ge=0, le=MOST), BeforeValidator(as_whole)]
Positive: TypeAlias = Annotated[int, Field(ge=1, le=MOST), BeforeValidator(as_whole)]
Attempts: TypeAlias = Annotated[int, Field(ge=0, le=MOST_ATTEMPTS), BeforeValidator(as_whole)]
JsonSchema: TypeAlias = Annotated[
    dict[str, Any], AfterValidator(check_json_schema), WithJsonSchema({"type": "object", MARK_EXACT: ANY_JSON_SCHEMA})
]
