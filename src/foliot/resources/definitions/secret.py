"""Secret: values that are stored encrypted and never shown again."""

from __future__ import annotations

import base64
import binascii
import re
from collections.abc import Iterator
from typing import Annotated, Final, TypeAlias

from pydantic import BeforeValidator, Field

from foliot.resources.base import Model, Resource, Status, problem
from foliot.resources.fields import RawText, as_text
from foliot.resources.problems import Problem

MASK: Final = "***"
"""What a reading of a secret shows in place of a value; written back, it means: keep what is stored."""

_KEY: Final = re.compile(r"[A-Za-z0-9._-]{1,253}")

Values: TypeAlias = dict[str, RawText]
TextValues: TypeAlias = dict[str, Annotated[RawText, BeforeValidator(as_text)]]


class SecretSpec(Model):
    """Values by key. No message about them ever repeats one."""

    data: Values = Field(
        default_factory=dict[str, str],
        repr=False,
        description="Values in base64 (standard alphabet, padded). `***` keeps the stored value.",
    )
    string_data: TextValues = Field(
        default_factory=dict[str, str],
        repr=False,
        serialization_alias="stringData",
        description="Values as plain text; moved into data when applied, where they win over the same key.",
    )

    def problems(self) -> Iterator[Problem]:
        """Also moves `stringData` into `data`, once both are known to be sound."""
        wrong = [*self._wrong_keys(), *self._wrong_values()]
        yield from wrong
        if not wrong:
            plain = {key: value if value == MASK else _encode(value) for key, value in self.string_data.items()}
            self.data = {key: "".join(value.split()) for key, value in self.data.items()} | plain
            self.string_data = {}

    def _wrong_keys(self) -> Iterator[Problem]:
        rule = "letters, digits, '-', '_' or '.'"
        for field, values in (("data", self.data), ("stringData", self.string_data)):
            for key in values:
                if not _KEY.fullmatch(key):
                    yield problem(field, key, message="the key of a secret value is malformed", expected=rule)

    def _wrong_values(self) -> Iterator[Problem]:
        for key, value in self.string_data.items():
            if not value:
                yield problem("stringData", key, message="{field} is empty")
        for key, value in self.data.items():
            if not value.strip():
                yield problem("data", key, message="{field} is empty")
            elif value != MASK and not _decodes(value):
                hint = "put plain text under stringData"
                yield problem("data", key, message="{field} must be valid base64", hint=hint)


def _encode(value: str) -> str:
    return base64.b64encode(value.encode()).decode("ascii")


def _decodes(value: str) -> bool:
    try:
        return bool(base64.b64decode("".join(value.split()), validate=True))
    except (binascii.Error, ValueError):
        return False


class Secret(Resource[SecretSpec, Status]):
    """Values that are stored encrypted and never shown again."""
