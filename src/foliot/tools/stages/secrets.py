"""Are the secrets that the tool requires there?"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import TypeAlias

from foliot.tools.base import Invocation, ToolDefinition, ToolSecretMissing
from foliot.tools.rules import Rules
from foliot.tools.verdict import Verdict

HasSecret: TypeAlias = Callable[[str, str], Awaitable[bool]]


class Secrets:
    """Asks for the presence of a secret by namespace and reference; its value is never looked at here."""

    layer = "secrets"

    def __init__(self, definition: ToolDefinition, has_secret: HasSecret | None) -> None:
        self._name = definition.name
        self._needs = tuple(need.removeprefix("secret:") for need in definition.requires if need.startswith("secret:"))
        self._has_secret = has_secret

    async def __call__(self, call: Invocation, rules: Rules, asks: Sequence[Verdict]) -> None:
        for need in self._needs:
            if self._has_secret is None or not await self._has_secret(call.caller.namespace, need):
                raise ToolSecretMissing(
                    f"the tool {self._name!r} needs the secret {need!r}, which is not there",
                    hint="create it with `foliot create secret`",
                    layer=self.layer,
                )
