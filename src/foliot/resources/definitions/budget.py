"""Budget: how much may be spent, by whom, in which span of time."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated, Any, ClassVar, Final, Literal, TypeAlias

from pydantic import AfterValidator, BeforeValidator, Field, WithJsonSchema

from foliot.resources.base import Model, Resource, Status, either, given, problem
from foliot.resources.definitions.shapes import Dollars
from foliot.resources.definitions.task_schedule import TimeZone
from foliot.resources.fields import (
    ANY_CASE,
    MARK_ANY_CASE,
    NAME_PATTERN,
    Forgiving,
    Labels,
    LooseWord,
    Positive,
    as_whole,
    check_name,
    one_of_words,
    refusal,
)
from foliot.resources.problems import Problem
from foliot.resources.references import NAME_MAX

EACH = "*"
Window: TypeAlias = Literal["run", "day", "week", "month", "total"]


def _payer(value: str) -> str:
    return value if value == EACH else check_name(value)


def _user(value: str) -> str:
    """Users are named by whoever knows them, so an address or a number is a name too."""
    if len(value) > 253 or not value.isprintable():
        raise refusal("{field} is not the name of a user", expected="up to 253 printable characters, or *")
    return value


def _upper(value: Any) -> Any:
    return value.strip().upper() if isinstance(value, str) else value


def _percentages(values: list[int]) -> list[int]:
    return sorted(set(values))


Percentage: TypeAlias = Annotated[int, Field(ge=1, le=99), BeforeValidator(as_whole)]


_PAYER_SCHEMA: Final = {
    "anyOf": [
        {"type": "string", "pattern": NAME_PATTERN, "maxLength": NAME_MAX},
        {"type": "string", "pattern": r"^\s*\*\s*$"},
    ]
}


class BudgetScope(Model):
    """The spenders whose spending counts. All members that are given must fit; others do not matter."""

    agent: Annotated[str, AfterValidator(_payer), WithJsonSchema(_PAYER_SCHEMA)] = Field(
        default="", description="One agent, with all it delegates; `*` gives each agent a budget of its own."
    )
    user: Annotated[LooseWord, AfterValidator(_user)] = Field(
        default="", description="One user; `*` gives each user a budget of its own."
    )
    labels: Labels = Field(default_factory=dict[str, str], description="Labels that a run must have.")


class BudgetLimit(Model):
    """How much. At least one of both."""

    rules: ClassVar = (either(given("amount"), given("tokens")),)

    amount: Dollars = Field(default="", description="Money, as a decimal number with up to six places.")
    currency: Annotated[Literal["USD"], Forgiving(_upper, MARK_ANY_CASE)] = Field(
        default="USD", description="The currency of the amount."
    )
    tokens: Positive | None = Field(default=None, description="Tokens in and out of models.")

    def problems(self) -> Iterator[Problem]:
        if not self.amount and self.tokens is None:
            yield problem("amount", message="{field} is required, or tokens")


class BudgetSpec(Model):
    """Every budget that applies to a call must have room for it before it is made."""

    scope: BudgetScope = Field(default_factory=BudgetScope, description="Whose spending counts; the namespace's.")
    window: Annotated[Window, ANY_CASE] = Field(
        default="total", description="For how long: each run with all it delegates, a day, week or month, or for ever."
    )
    time_zone: TimeZone = Field(default="UTC", description="Where days, weeks (from Monday) and months begin.")
    limit: BudgetLimit = Field(description="How much may be spent.")
    warn: Annotated[list[Percentage], AfterValidator(_percentages)] = Field(
        default_factory=list[int], description="Percentages of the limit at which a warning is recorded."
    )
    on_exceeded: Annotated[Literal["pause", "fail"], ANY_CASE] = Field(
        default="pause", description="Without room, a run waits for the next window or a higher limit, or it fails."
    )
    unpriced: Annotated[Literal["refuse", "allow"], one_of_words("refuse", "allow")] = Field(
        default="refuse", description="A model whose price is not known: no room for it, or counted in tokens alone."
    )


class Budget(Resource[BudgetSpec, Status]):
    """How much may be spent."""
