"""A hook behind an address: the act is posted as JSON, and the answer says what is to be different.

    POST {"hook": "review", "point": "before_tool", "run": "…", "tool": "deploy", "arguments": {…}, …}
    200  {}                                        nothing is changed; 204 says the same
    200  {"change": {"arguments": {…}}}            what may be changed at this point
    200  {"block": "not on a Friday"}              the act is refused

It goes the guarded way of all requests of tools: addresses inside are refused unless the operator allows them, no
redirect is followed, and the secret goes to hosts that it is bound to. Anything but such an answer is a failure.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final, cast

import msgspec

from foliot.engine.hooks.base import HookAct, HookAnswer, HookBlock, HookChange
from foliot.engine.hooks.chain import LARGEST, HookFailed
from foliot.engine.hooks.declared import HttpTarget
from foliot.errors import FoliotError
from foliot.kernel.arguments import read_json
from foliot.tools.outbound.client import OutboundClient
from foliot.tools.secrets.secrets import Secrets

_FIELDS: Final = frozenset({"system", "tools", "model", "arguments", "text"})


class HttpHooks:
    """Makes functions that ask hooks over HTTP. `client` is the way out of the runtime."""

    def __init__(self, client: Callable[[], OutboundClient], secrets: Secrets) -> None:
        self._client = client
        self._secrets = secrets

    def __call__(self, target: HttpTarget) -> Callable[[HookAct], Any]:
        async def ask(act: HookAct) -> HookAnswer:
            try:
                return await self._ask(target, act)
            except FoliotError as error:
                raise HookFailed(error.message) from None

        return ask

    async def _ask(self, target: HttpTarget, act: HookAct) -> HookAnswer:
        credentials: dict[str, str] = {}
        if target.secret_ref:
            value = await self._secrets.value(
                target.secret_ref, namespace=target.namespace, hosts=target.hosts, by="Agent"
            )
            credentials["Authorization"] = f"Bearer {value}"
        headers = {"Content-Type": "application/json", "Accept": "application/json"}
        body = msgspec.json.encode(as_data(act))
        async with self._client().send(
            "POST", target.url, headers=headers, credentials=credentials, body=body, redirects=0
        ) as answer:
            if answer.status == 204:
                return None
            if answer.status != 200:
                raise HookFailed(f"it answered with status {answer.status}")
            return read(await answer.read(LARGEST * 2))


def as_data(act: HookAct) -> dict[str, Any]:
    """Returns what is posted of an act: what it has, by the names of Python."""
    names = ("namespace", "agent", "user", "task", "session", "parent", "step", "model", "system", "call_id", "tool",
             "text", "error", "stop", "seconds")  # fmt: skip
    found: dict[str, Any] = {"point": act.point, "run": act.run_id}
    found.update((name, value) for name in names if (value := getattr(act, name)) not in ("", None))
    if act.point in ("before_run", "before_model"):
        found["tools"] = list(act.tools)
    if act.tool:
        found["arguments"] = act.arguments
    if act.usage is not None:
        found["usage"] = msgspec.to_builtins(act.usage)
    if act.said:
        found["messages"] = msgspec.to_builtins(act.said)
    return found


def read(body: bytes) -> HookAnswer:
    """The answer of a server. Raises `HookFailed` for anything that it may not say."""
    try:
        said: Any = read_json(body) if body.strip() else {}
    except msgspec.ValidationError as error:
        raise HookFailed(f"its answer has two readings: {error}") from None
    except (msgspec.DecodeError, RecursionError, UnicodeDecodeError):
        raise HookFailed("its answer is not JSON") from None
    given = cast("dict[str, Any]", said) if isinstance(said, dict) else {"": said}
    if not set(given) <= {"change", "block"} or len(given) > 1:
        raise HookFailed("its answer is not {}, {change: …} or {block: …}")
    if "block" in given:
        if not isinstance(given["block"], str):
            raise HookFailed("its block is not a text")
        return HookBlock(given["block"])
    change: Any = given.get("change")
    if change is None:
        return None
    if not isinstance(change, dict) or not set(cast("dict[str, Any]", change)) <= _FIELDS:
        raise HookFailed(f"its change is not an object of {', '.join(sorted(_FIELDS))}")
    return HookChange(**cast("dict[str, Any]", change))
