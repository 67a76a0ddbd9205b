"""Hooks as people write them: a name, an order, a time limit, and functions for the points of a run.

    @foliot.hook("before_tool", order=10, timeout=2.0, on_failure="block")
    def no_drops(act):
        if act.tool == "sql" and "drop" in act.arguments["query"].lower():
            return act.block("this database is not for dropping tables")

A hook may change or refuse an act before it is done, and see it afterwards. What it changes is judged again by all that
governs the run: hooks are no boundary of security, and none of them allows what a policy refuses.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final, Literal, TypeAlias, cast, get_args, overload

import msgspec

from foliot.common.durations import seconds as seconds_of
from foliot.errors import UsageError
from foliot.kernel.messages import Message, Usage
from foliot.kernel.run.events import HookPoint

OnFailure: TypeAlias = Literal["ignore", "block", "abort"]
Scope: TypeAlias = Literal["all", "named"]
POINTS: Final[tuple[HookPoint, ...]] = get_args(HookPoint)
ON_FAILURE: Final[tuple[OnFailure, ...]] = get_args(OnFailure)
# What may be changed where. What is not here is only looked at.
MAY_CHANGE: Final[Mapping[HookPoint, frozenset[str]]] = {
    "before_run": frozenset({"system", "tools", "model"}),
    "before_model": frozenset({"system", "tools", "model"}),
    "before_tool": frozenset({"arguments"}),
    "before_message": frozenset({"text"}),
    "after_tool": frozenset({"text"}),
    "after_message": frozenset({"text"}),
}
MAY_BLOCK: Final[frozenset[HookPoint]] = frozenset(
    {"before_run", "before_message", "before_model", "before_tool", "before_compaction", "after_tool", "after_message"}
)
ORDER: Final = 100
TIMEOUT: Final = 5.0
# A run does not go on while its hooks think: whoever needs longer does it beside the run.
LONGEST: Final = 300.0
_NAME: Final = re.compile(r"[A-Za-z0-9]([A-Za-z0-9._-]{0,126}[A-Za-z0-9])?")


@dataclass(frozen=True, slots=True)
class HookBlock:
    """The act is refused. `message` goes to the model (for a call), or to whoever began the run."""

    message: str = ""


@dataclass(frozen=True, slots=True)
class HookChange:
    """Changes of the act; what is None stays as it is."""

    system: str | None = None
    tools: Iterable[str] | None = None
    model: str | None = None
    arguments: Mapping[str, Any] | None = None
    text: str | None = None

    @property
    def fields(self) -> dict[str, Any]:
        names = ("system", "tools", "model", "arguments", "text")
        return {name: value for name in names if (value := getattr(self, name)) is not None}


HookAnswer: TypeAlias = HookChange | HookBlock | None


@dataclass(frozen=True, kw_only=True)
class HookAct:
    """One act of a run, as the hooks before have left it. Changing this object changes nothing: return what to change.

    `tools` are the names that the model is offered. `text` is what a person said, the answer that goes out, or the
    result of a tool. `error` is what went wrong, blank when nothing did. `session` is blank for a run outside of one.
    """

    point: HookPoint
    run_id: str
    namespace: str
    agent: str
    user: str = ""
    task: str = ""
    session: str = ""
    parent: str = ""
    step: int = 0
    system: str = ""
    tools: tuple[str, ...] = ()
    model: str = ""
    call_id: str = ""
    tool: str = ""
    arguments: dict[str, Any] = field(default_factory=dict[str, Any])
    text: str = ""
    error: str = ""
    stop: str = ""
    seconds: float | None = None
    usage: Usage | None = None
    said: tuple[Message, ...] = field(default=(), repr=False)

    @property
    def messages(self) -> tuple[Message, ...]:
        """A copy of the conversation that the model is asked with, at `before_model` and `before_compaction`."""
        return _messages.decode(msgspec.json.encode(self.said))

    @overload
    def change(self, *, system: str = ..., tools: Iterable[str] = ..., model: str = ...) -> HookChange: ...
    @overload
    def change(self, *, arguments: Mapping[str, Any]) -> HookChange: ...
    @overload
    def change(self, *, text: str) -> HookChange: ...
    def change(self, **fields: Any) -> HookChange:
        """Returns the answer by which the act is done with these values."""
        return HookChange(**fields)

    def block(self, message: str = "") -> HookBlock:
        """Returns the answer by which the act is not done."""
        return HookBlock(message)


_messages = msgspec.json.Decoder(tuple[Message, ...])


class Hook:
    """A hook as a class: give it a name, and a method for each point, with `async def` or without.

    `order` is ascending, equal ones go by name. `timeout` is in seconds. `on_failure` says what follows when it raises,
    returns what means nothing, or is late: `ignore` skips it, `block` refuses the act, `abort` ends the run. `scope`
    "named" keeps it from runs whose agent does not name it.
    """

    name: str = ""
    order: int = ORDER
    timeout: float = TIMEOUT
    on_failure: OnFailure = "ignore"
    scope: Scope = "all"

    @property
    def points(self) -> frozenset[HookPoint]:
        """The points at which it is asked: those that it has a method for."""
        return frozenset(point for point in POINTS if callable(getattr(self, point, None)))

    def at(self, point: HookPoint) -> Callable[[HookAct], Any]:
        """Returns what is called at a point."""
        return getattr(self, point)

    async def close(self) -> None:
        """Let go of what it holds, once no run uses it any more."""


class FunctionHook(Hook):
    """One function, asked at the points that it was given."""

    def __init__(self, function: Callable[[HookAct], Any], points: Iterable[HookPoint], name: str = "") -> None:
        self.function = function
        self.name = name or cast("str", getattr(function, "__name__", "")).replace("_", "-").strip("-")
        self._points = frozenset(points)

    @property
    def points(self) -> frozenset[HookPoint]:
        return self._points

    def at(self, point: HookPoint) -> Callable[[HookAct], Any]:
        return self.function

    def __call__(self, act: HookAct) -> Any:
        return self.function(act)


def hook(
    *points: HookPoint,
    name: str = "",
    order: int = ORDER,
    timeout: float | str = TIMEOUT,
    on_failure: OnFailure = "ignore",
    scope: Scope = "all",
) -> Callable[[Callable[[HookAct], Any]], FunctionHook]:
    """Make a function a hook that is asked at these points. It is named as the function is, with dashes.

    Raises `UsageError` for points that there are not, and for values that mean nothing.
    """

    def made(function: Callable[[HookAct], Any]) -> FunctionHook:
        found = FunctionHook(function, points, name)
        found.order, found.on_failure, found.scope = order, on_failure, scope
        found.timeout = _seconds(timeout, found.name)
        return check(found)

    return made


def _seconds(timeout: float | str, name: str) -> float:
    if not isinstance(timeout, str):
        return timeout
    try:
        return seconds_of(timeout)
    except ValueError as error:
        raise UsageError(f"the timeout of hook {name!r}: {error}") from None


def check(item: Any) -> Any:
    """Returns a hook that can be used as it is. Raises `UsageError` with what is wrong with it."""
    if not isinstance(item, Hook):
        raise UsageError(f"{item!r:.80} is no hook", hint="decorate a function with @hook(…), or derive from Hook")
    name: Any = item.name
    if not isinstance(name, str) or not _NAME.fullmatch(name):
        raise UsageError(f"a hook cannot be named {name!r:.80}", hint="use letters, digits, dots and dashes")
    unknown = sorted(set(map(str, item.points)) - set(POINTS))
    if unknown or not item.points:
        what = f"has no point {', '.join(unknown)}" if unknown else "is asked nowhere"
        raise UsageError(f"hook {name!r} {what}", hint=f"the points are: {', '.join(POINTS)}")
    order: Any = item.order
    if not isinstance(order, int):
        raise UsageError(f"the order of hook {name!r} is not a whole number: {order!r:.40}")
    timeout: Any = item.timeout
    if not isinstance(timeout, int | float) or not 0 < timeout <= LONGEST:
        raise UsageError(f"the timeout of hook {name!r} is not between 0 and {LONGEST:g} seconds: {timeout!r:.40}")
    if item.on_failure not in ON_FAILURE:
        raise UsageError(f"hook {name!r} has no on_failure {item.on_failure!r:.40}", hint="ignore, block or abort")
    if item.scope not in get_args(Scope):
        raise UsageError(f"hook {name!r} has no scope {item.scope!r:.40}", hint="all or named")
    return item


def distinct(hooks: Iterable[Any], where: str) -> tuple[Hook, ...]:
    """Returns these hooks, each checked. Raises `UsageError` for two that are named the same."""
    found: dict[str, Hook] = {}
    for item in hooks:
        checked: Hook = check(item)
        if found.setdefault(checked.name, checked) is not checked:
            raise UsageError(f"two hooks of {where} are named {checked.name!r}", hint="give one of them another name")
    return tuple(found.values())
