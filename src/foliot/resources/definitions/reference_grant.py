"""ReferenceGrant: which other namespaces may name what of this one.

    spec:
      from: [{namespace: team-b, kind: Agent}]              # who may refer; every kind when none is named
      to: [{kind: ModelEndpoint, name: paid}]               # to what of this namespace; all of that kind without a name

It stands in the namespace that gives, and is declared by an admin of it. Each of `from` may name each of `to`. What is
not granted is refused, when a reference is declared and whenever it is followed; deleting the grant ends it at once.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated, Any, ClassVar, Final, TypeAlias

from pydantic import AfterValidator, AliasChoices, BeforeValidator, Field, WithJsonSchema

from foliot.resources.base import Model, Resource, Status, problem
from foliot.resources.fields import MARK_ANY_CASE, NAME_PATTERN, Name, check_name, refusal
from foliot.resources.problems import Problem
from foliot.resources.references import EVERY_NAMESPACE, ORIGINS, TARGETS


def _one_of(kinds: tuple[str, ...], verb: str) -> BeforeValidator:
    """A kind in any case, in its own spelling."""
    spelling = {kind.lower(): kind for kind in kinds}

    def check(value: Any) -> Any:
        if not isinstance(value, str):
            return value
        found = spelling.get(value.strip().lower())
        if found is None:
            message = f'unsupported {{field}} "{value[:80]}": no resource of that kind {verb} another namespace'
            raise refusal(message, expected=", ".join(kinds))
        return found

    return BeforeValidator(check)


def _namespace(value: str) -> str:
    return value if value == EVERY_NAMESPACE else check_name(value)


Given: TypeAlias = Annotated[
    str, _one_of(TARGETS, "is named from"), WithJsonSchema({"enum": [*TARGETS], MARK_ANY_CASE: True})
]
Giving: TypeAlias = Annotated[
    str, _one_of(ORIGINS, "names anything of"), WithJsonSchema({"enum": [*ORIGINS], MARK_ANY_CASE: True})
]


_NAMESPACE_SCHEMA: Final = {
    "anyOf": [{"type": "string", "pattern": NAME_PATTERN}, {"type": "string", "pattern": r"^\s*\*\s*$"}]
}


class GrantedTo(Model):
    """The resources that may refer."""

    required: ClassVar = {"namespace": ""}

    namespace: Annotated[str, AfterValidator(_namespace), WithJsonSchema(_NAMESPACE_SCHEMA)] = Field(
        default="", description="Resources of this namespace; `*` means every namespace."
    )
    kind: Giving | None = Field(default=None, description="Only those of this kind, such as Agent.")


class Granted(Model):
    """The resources that may be referred to."""

    required: ClassVar = {"kind": ""}

    kind: Given | None = Field(default=None, description="Resources of this kind, in the namespace of the grant.")
    name: Name = Field(default="", description="Only the one of this name.")


class ReferenceGrantSpec(Model):
    """The resources that may refer, and the resources they may refer to."""

    given_to: list[GrantedTo] = Field(
        min_length=1,
        validation_alias=AliasChoices("from"),
        serialization_alias="from",
        description="Who may refer: each of them to each of `to`.",
    )
    given: list[Granted] = Field(
        min_length=1,
        validation_alias=AliasChoices("to"),
        serialization_alias="to",
        description="What they may name.",
    )


class ReferenceGrant(Resource[ReferenceGrantSpec, Status]):
    """Leave for other namespaces to name what is in this one."""

    def problems(self) -> Iterator[Problem]:
        for index, each in enumerate(self.spec.given_to):
            if each.namespace == self.metadata.namespace:
                yield problem(
                    "spec", "from", index, "namespace", message="{field} is the grant's own namespace, which needs none"
                )
