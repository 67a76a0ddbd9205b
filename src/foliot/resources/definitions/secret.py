"""Secret: values that are stored encrypted and never shown again."""

from __future__ import annotations

import base64
import binascii
import re
from collections.abc import Iterator
from ipaddress import ip_network
from typing import Annotated, Final, TypeAlias

from pydantic import AfterValidator, Field, WithJsonSchema

from foliot.resources.base import Model, Resource, Status, problem
from foliot.resources.fields import ONE_OR_MANY, RawText, StringMap, distinct_lowered, refusal
from foliot.resources.problems import Problem
from foliot.settings.settings import HOST

MASK: Final = "***"
"""What a reading of a secret shows in place of a value; written back, it means: keep what is stored."""

# How secrets of Standard Webhooks begin; what follows is the key, which may not be so short that it can be tried out.
_SIGNING: Final = b"whsec_"
_SHORTEST_KEY: Final = 16
_KEY: Final = re.compile(r"[A-Za-z0-9._-]{1,253}")


def _hosts(values: list[str]) -> list[str]:
    """Normalises hosts: lower case, each once.

    Ports are ignored: who listens on a host can listen on all of its ports.
    """
    hosts = distinct_lowered(value.strip().rstrip(".") for value in values)
    for index, host in enumerate(hosts):
        try:
            ip_network(host)
        except ValueError:
            if not HOST.fullmatch(host):
                expected = "hosts such as api.example, *.example, 10.0.0.1 or 10.0.0.0/8"
                raise refusal("{field} holds something that is no host", expected=expected, path=(index,)) from None
    return hosts


Hosts: TypeAlias = Annotated[list[str], ONE_OR_MANY, AfterValidator(_hosts)]
_SIGN: Final = r"[A-Za-z0-9+/]\s*"
_KEYS_SCHEMA: Final = {"pattern": "^[A-Za-z0-9._-]{1,253}$"}
_BASE64: Final = rf"^\s*({_SIGN}){{2}}(({_SIGN}){{2}}({_SIGN}){{2}})*(({_SIGN}){{2}}|({_SIGN})=\s*|=\s*=\s*)$"
_DATA_SCHEMA: Final = {
    "type": "object",
    "propertyNames": _KEYS_SCHEMA,
    "additionalProperties": {"anyOf": [{"type": "string", "pattern": _BASE64}, {"const": MASK}]},
}
_TEXTS_SCHEMA: Final = {
    "type": "object",
    "propertyNames": _KEYS_SCHEMA,
    "additionalProperties": {"type": ["string", "number", "boolean"], "minLength": 1},
}


class SecretSpec(Model):
    """Values by key. No message about them ever repeats one."""

    data: Annotated[dict[str, RawText], WithJsonSchema(_DATA_SCHEMA)] = Field(
        default_factory=dict[str, str],
        repr=False,
        description="Values in base64 (standard alphabet, padded). `***` keeps the stored value.",
    )
    string_data: Annotated[StringMap, WithJsonSchema(_TEXTS_SCHEMA)] = Field(
        default_factory=dict[str, str],
        repr=False,
        serialization_alias="stringData",
        description="Values as plain text; moved into data when applied, where they win over the same key.",
    )

    hosts: Hosts = Field(
        default_factory=list[str],
        description="Where the values may be sent: api.example, *.example, 10.0.0.0/8. Without it, only the operator "
        "declares what sends them to an address that is not the provider's own. With it, webhooks of others than the "
        "operator are signed with them only if `webhook` is listed too.",
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
        for field, values, text in (("stringData", self.string_data, False), ("data", self.data, True)):
            for key, value in values.items():
                if _is_hollow(base64.b64decode(value) if text and _decodes(value) else value.encode()):
                    yield problem(
                        field,
                        key,
                        message="{field}: with this signing secret anybody could sign",
                        expected=f"whsec_ and the base64 of at least {_SHORTEST_KEY} bytes",
                    )


def _encode(value: str) -> str:
    return base64.b64encode(value.encode()).decode("ascii")


def _is_hollow(value: bytes) -> bool:
    """Whether this is a secret of Standard Webhooks that holds no key worth the name."""
    text = value.strip()
    if not text.startswith(_SIGNING):
        return False
    try:
        return len(base64.b64decode(text.removeprefix(_SIGNING), validate=True)) < _SHORTEST_KEY
    except (binascii.Error, ValueError):
        return len(text) - len(_SIGNING) < _SHORTEST_KEY


def _decodes(value: str) -> bool:
    try:
        return bool(base64.b64decode("".join(value.split()), validate=True))
    except (binascii.Error, ValueError):
        return False


class Secret(Resource[SecretSpec, Status]):
    """Values that are stored encrypted and never shown again."""
