"""Skill: instructions for a kind of work, which an agent reads when it needs them."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Annotated, ClassVar, Final, Literal, TypeAlias

from pydantic import AfterValidator, Field, WithJsonSchema

from foliot.resources.base import Model, Resource, Status, problem
from foliot.resources.fields import ANY_CASE, RawText, refusal
from foliot.resources.problems import Problem
from foliot.resources.skill_files import (
    LONGEST_DESCRIPTION,
    LONGEST_PATH,
    LONGEST_SKILL_NAME,
    NAME_RULE,
    PATH_RULE,
    SKILL_FILE,
    SKILL_NAME,
    SKILL_PATH,
    file_problems,
    is_time,
)

_NAME: Final = r"[a-z0-9]+(-[a-z0-9]+)*"
_PART: Final = r"[A-Za-z0-9_][A-Za-z0-9._-]*"
_DIGEST: Final = r"sha256:[0-9a-f]{64}"
_FILES_SCHEMA: Final = {
    "type": "object",
    "propertyNames": {
        "pattern": f"^{_PART}(/{_PART}){{0,8}}$",
        "maxLength": LONGEST_PATH,
        "not": {"pattern": "^[Ss][Kk][Ii][Ll][Ll]\\.[Mm][Dd]$"},
    },
    "additionalProperties": {"type": "string"},
}
_TIME: Final = (
    r"\d{4}-(0[1-9]|1[0-2])-(0[1-9]|[12]\d|3[01])T([01]\d|2[0-3]):[0-5]\d:[0-5]\d(\.\d{1,9})?(Z|[+-]\d\d:\d\d)"
)


def _skill_name(value: str) -> str:
    if value and not SKILL_NAME.fullmatch(value):
        raise refusal("{field} cannot be the name of a skill", expected=NAME_RULE)
    return value


def _files(values: dict[str, str]) -> dict[str, str]:
    for path in values:
        if not SKILL_PATH.fullmatch(path) or path.lower() == SKILL_FILE.lower():
            raise refusal(
                f"{{field}} has a path that cannot be that of a file of a skill: {path[:80]!r}", expected=PATH_RULE
            )
    return values


def _time(value: str) -> str:
    if value and not is_time(value):
        raise refusal("{field} is no time", expected="a time such as 2026-01-31T12:00:00Z")
    return value


def _digest(value: str) -> str:
    if value and not re.fullmatch(_DIGEST, value):
        raise refusal("{field} is no digest", expected="sha256: and 64 hexadecimal digits")
    return value


SkillName: TypeAlias = Annotated[
    str,
    AfterValidator(_skill_name),
    WithJsonSchema({"type": "string", "pattern": f"^\\s*({_NAME})?\\s*$", "maxLength": LONGEST_SKILL_NAME}),
]


class SkillSpec(Model):
    """The texts of a skill, and who allows them. `foliot apply` makes it of a folder with a SKILL.md."""

    required: ClassVar = {"description": ""}

    name: SkillName = Field(default="", description="What agents call it; the name of the resource when not given.")
    description: Annotated[str, Field(max_length=LONGEST_DESCRIPTION)] = Field(
        default="", description="What it is for, in a sentence or two: all that a model sees before it loads it."
    )
    status: Annotated[Literal["draft", "active", "deprecated"], ANY_CASE] = Field(
        default="active",
        description="A `deprecated` skill is not offered; a `draft` is offered as one.",
    )
    created_at: Annotated[
        str, AfterValidator(_time), WithJsonSchema({"type": "string", "pattern": f"^\\s*({_TIME})?\\s*$"})
    ] = Field(default="", description="When it was written, such as 2026-01-31T12:00:00Z.")
    disable_model_invocation: bool = Field(default=False, description="Whether it is kept from models.")
    body: RawText = Field(default="", description="The text of SKILL.md behind its front matter.")
    files: Annotated[dict[str, RawText], AfterValidator(_files), WithJsonSchema(_FILES_SCHEMA)] = Field(
        default_factory=dict[str, str], description="The other texts of its folder, by their paths in it."
    )
    allow: Annotated[
        str, AfterValidator(_digest), WithJsonSchema({"type": "string", "pattern": f"^\\s*({_DIGEST})?\\s*$"})
    ] = Field(default="", description="The digest that somebody has looked at and allows, such as sha256:….")
    origin: str = Field(
        default="",
        description="Where it came from: with an origin it is in quarantine until it is allowed, whoever declares it.",
    )
    user: str = Field(default="", description="The one user in whose runs it is offered; without it, agents name it.")

    def problems(self) -> Iterator[Problem]:
        for message in file_problems(self.files, self.body):
            yield problem("files", message=message)


class Skill(Resource[SkillSpec, Status]):
    """Instructions for a kind of work, which an agent reads when it needs them."""

    def problems(self) -> Iterator[Problem]:
        if self.metadata.name and not self.spec.name and not SKILL_NAME.fullmatch(self.metadata.name):
            yield problem(
                "metadata",
                "name",
                message="{field} cannot be the name of a skill",
                hint="give it another one, or say in spec.name what agents call it",
                expected=NAME_RULE,
            )
