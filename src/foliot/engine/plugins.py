"""Plug-ins at work: loaded when the operator has named them, exchanged while runs go on, and never fatal.

A plug-in that does not load, or brings what another has, is left out whole, and what is wrong with it is shown by
`foliot plugins` and `foliot doctor`; the others work. Runs that are driven keep the tools and hooks that they began
with: what is exchanged is for those that begin, or are taken up, afterwards. A plug-in that fails to load anew stays as
it was.
"""

from __future__ import annotations

import asyncio
import importlib
import logging
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, Literal, TypeAlias, cast

from msgspec import Struct

from foliot.common.plugins import OfferedPlugin, enable, installed
from foliot.common.threads import on_thread
from foliot.engine.hooks.base import Hook, check
from foliot.engine.hooks.registry import HookRegistry
from foliot.errors import Conflict, FoliotError, InvalidInput
from foliot.models.registry import ProviderRegistry, default_registry, offered_providers
from foliot.tools.base import Tool
from foliot.tools.registry import ToolRegistry

log = logging.getLogger(__name__)

State: TypeAlias = Literal["enabled", "disabled", "failed", "missing"]
# A package that takes longer to import is left out: a process that starts does not wait for a stranger.
LOAD_SECONDS: Final = 30.0


class PluginInfo(Struct, frozen=True):
    """A plug-in as it stands here. `error` says why it failed, or why an enabled one could not be loaded anew."""

    name: str
    package: str = ""
    version: str = ""
    kinds: tuple[str, ...] = ()
    state: State = "disabled"
    error: str = ""


@dataclass(slots=True)
class LoadedPlugin:
    """The content of one plug-in. `channels` are factories by the name of the channel."""

    offered: OfferedPlugin
    tools: list[Tool] = field(default_factory=list[Tool])
    hooks: list[Hook] = field(default_factory=list[Hook])
    providers: list[Any] = field(default_factory=list[Any])
    channels: dict[str, Callable[..., Any]] = field(default_factory=dict[str, Callable[..., Any]])


class Plugins:
    """The plug-ins of one runtime. They are put into the registries of tools, hooks and model providers."""

    def __init__(
        self,
        tools: ToolRegistry,
        hooks: HookRegistry,
        providers: ProviderRegistry | None = None,
        *,
        quiet: bool = False,
    ) -> None:
        """`quiet` keeps what is wrong with a plug-in out of the log."""
        self._tools = tools
        self._hooks = hooks
        self._providers = providers
        self._quiet = quiet
        self._loaded: dict[str, LoadedPlugin] = {}
        self._errors: dict[str, str] = {}
        self._enabled: tuple[str, ...] = ()
        self._exchanging = asyncio.Lock()
        self._listeners: list[Callable[[], None]] = []

    @property
    def channels(self) -> Mapping[str, Callable[..., Any]]:
        """The channels that enabled plug-ins bring: a factory for each name."""
        return {name: made for each in self._loaded.values() for name, made in each.channels.items()}

    def on_exchange(self, told: Callable[[], None]) -> None:
        """Call this whenever plug-ins were exchanged."""
        self._listeners.append(told)

    async def use(self, names: Sequence[str], *, anew: bool = False) -> list[PluginInfo]:
        """Have exactly these plug-ins enabled; with `anew` their code is read again. Returns how each stands.

        Never raises for what is wrong with a plug-in.
        """
        async with self._exchanging:
            self._enabled = tuple(dict.fromkeys(name.strip() for name in names if name.strip()))
            enable(self._enabled)
            if not self._enabled and not self._loaded:
                return []
            offered: dict[str, list[OfferedPlugin]] = {}
            for each in installed():
                offered.setdefault(each.name, []).append(each)
            before, self._errors = self._loaded, {}
            made: dict[str, LoadedPlugin] = {}
            for name in self._enabled:
                kept = before.get(name)
                try:
                    found = _one(name, offered.get(name, []))
                    if kept is not None and not anew and kept.offered.version == found.version:
                        loaded = kept
                    else:
                        loaded = await _loaded(found, anew=kept is not None)
                    _check_beside(loaded, made.values())
                except FoliotError as error:
                    self._fail(name, error)
                    loaded = kept if offered.get(name) else None
                if loaded is not None:
                    made[name] = loaded
            self._exchange(before, made)
            return self.list(offered=[one for each in offered.values() for one in each])

    async def reload(self) -> list[PluginInfo]:
        """Read the code of all enabled plug-ins anew."""
        return await self.use(self._enabled, anew=True)

    def list(self, *, offered: Iterable[OfferedPlugin] | None = None) -> list[PluginInfo]:
        """Every plug-in that is installed or enabled, by name."""
        found = installed() if offered is None else offered
        return listed(found, self._enabled, self._errors, self._loaded)

    def _exchange(self, before: dict[str, LoadedPlugin], made: dict[str, LoadedPlugin]) -> None:
        """Put what is new in the place of what was. One that is refused is left out whole, or stays as it was."""
        changed = [name for name in {**before, **made} if before.get(name) is not made.get(name)]
        for name in changed:
            if (old := before.get(name)) is not None:
                self._remove(name, old)
        for name in changed:
            if (new := made.get(name)) is None:
                continue
            try:
                self._put(name, new, made.values())
            except FoliotError as error:
                self._fail(name, error)
                del made[name]
                if (old := before.get(name)) is not None:
                    self._put(name, old, made.values())
                    made[name] = old
        self._loaded = made
        self._hooks.exchange([hook for each in made.values() for hook in each.hooks])
        for told in self._listeners:
            told()

    def _fail(self, name: str, error: FoliotError) -> None:
        self._errors[name] = error.message
        log.log(logging.DEBUG if self._quiet else logging.WARNING, "plug-in %s cannot be used: %s", name, error.message)

    def _put(self, name: str, plugin: LoadedPlugin, all_of_them: Iterable[LoadedPlugin]) -> None:
        """Raises `Conflict` for what is there already, and puts nothing then."""
        others = [*self._hooks.given, *(hook for each in all_of_them if each is not plugin for hook in each.hooks)]
        if taken := {each.name for each in others} & {each.name for each in plugin.hooks}:
            raise Conflict(f"a hook named {min(taken)!r} is there already")
        self._tools.register(*plugin.tools)
        try:
            self._registry.bring(f"plugin:{name}", plugin.providers)
        except FoliotError:
            self._remove(name, plugin)
            raise

    def _remove(self, name: str, plugin: LoadedPlugin) -> None:
        for tool in plugin.tools:
            self._tools.unregister(tool.definition.name, tool.definition.version)
        self._registry.drop(f"plugin:{name}")

    @property
    def _registry(self) -> ProviderRegistry:
        return self._providers or default_registry()

    async def close(self) -> None:
        """Take everything out again that is not this runtime's alone."""
        for name in self._loaded:
            self._registry.drop(f"plugin:{name}")
        self._loaded = {}


def listed(
    offered: Iterable[OfferedPlugin],
    enabled: Sequence[str],
    errors: Mapping[str, str],
    loaded: Mapping[str, LoadedPlugin],
) -> list[PluginInfo]:
    """Returns how each plug-in stands, by name."""
    found: list[PluginInfo] = []
    for each in offered:
        state: State = "disabled"
        if each.name in enabled:
            state = "enabled" if each.name in loaded else "failed"
        error = errors.get(each.name, "") if each.name in enabled else ""
        found.append(PluginInfo(each.name, each.package, each.version, each.kinds, state, error))
    there = {each.name for each in found}
    found += [PluginInfo(name, state="missing", error=errors.get(name, "")) for name in enabled if name not in there]
    return sorted(found, key=lambda each: (each.name, each.package))


async def examined(names: Sequence[str]) -> list[PluginInfo]:
    """How plug-ins would stand in a process with these enabled, for whoever only looks. They are imported for it."""
    plugins = Plugins(ToolRegistry(), HookRegistry(), ProviderRegistry(), quiet=True)
    found = await plugins.use(names)
    return found or plugins.list()


# --- loading one -----------------------------------------------------------------------------------------------------


def _one(name: str, offered: Sequence[OfferedPlugin]) -> OfferedPlugin:
    """The only plug-in of this name. Raises `InvalidInput`."""
    if not offered:
        raise InvalidInput(f"no installed package offers a plug-in named {name!r}")
    if len(offered) > 1:
        packages = ", ".join(each.package for each in offered)
        raise InvalidInput(f"several packages offer a plug-in named {name!r}: {packages}; one of them has to go")
    return offered[0]


async def _loaded(offered: OfferedPlugin, *, anew: bool) -> LoadedPlugin:
    """Import a plug-in, on a thread, and look at what it gives. Raises `FoliotError`, whatever its code does."""
    try:
        async with asyncio.timeout(LOAD_SECONDS):
            return await on_thread(_imported, offered, anew)
    except TimeoutError:
        raise InvalidInput(f"it did not load within {LOAD_SECONDS:g} s") from None
    except FoliotError:
        raise
    except (asyncio.CancelledError, KeyboardInterrupt):
        raise
    except BaseException as error:  # a stranger's code may raise anything, SystemExit too
        raise InvalidInput(_named(error)) from error


def _imported(offered: OfferedPlugin, anew: bool) -> LoadedPlugin:
    if anew:
        _forget_modules(offered)
    made = LoadedPlugin(offered)
    for kind, entry in offered.entries.items():
        given: Any = entry.load()
        match kind:
            case "hooks":
                made.hooks = [check(each) for each in _items(given, lambda each: isinstance(each, Hook))]
            case "tools":
                made.tools = [_tool(each) for each in _items(given, lambda each: hasattr(each, "definition"))]
            case "models":
                made.providers = offered_providers(given)
            case _:
                made.channels = _channels(offered.name, given)
    if len({each.name for each in made.hooks}) < len(made.hooks):
        raise InvalidInput("two of its hooks are named the same")
    return made


def _items(given: Any, is_one: Callable[[Any], bool]) -> list[Any]:
    """Returns what an entry point names as a list: one, several, or what a function without arguments returns."""
    if not is_one(given) and callable(given):
        given = given()
    if is_one(given):
        return [given]
    if isinstance(given, str | Mapping) or not isinstance(given, Iterable):
        raise InvalidInput(f"it gives {type(cast('object', given)).__name__}, and nothing that can be used")
    return list(cast("Iterable[Any]", given))


def _tool(given: Any) -> Tool:
    if not hasattr(given, "definition") or not callable(getattr(given, "invoke", None)):
        raise InvalidInput(f"it gives {given!r:.80}, which is no tool; make it one with @foliot.tool")
    return given


def _channels(name: str, given: Any) -> dict[str, Callable[..., Any]]:
    """A factory of channels, which is named as the plug-in is, or several by their names."""
    found = dict(cast("Mapping[Any, Any]", given)) if isinstance(given, Mapping) else {name: given}
    for key, factory in found.items():
        if not isinstance(key, str) or not callable(factory):
            raise InvalidInput(f"it gives {factory!r:.80}, which makes no channel")
    return found


def _check_beside(new: LoadedPlugin, others: Iterable[LoadedPlugin]) -> None:
    for other in others:
        if taken := new.channels.keys() & other.channels.keys():
            raise Conflict(f"plug-in {other.offered.name!r} has a channel {min(taken)!r} already")


def _forget_modules(offered: OfferedPlugin) -> None:
    """Have the next import read the files again. What was made of the old modules goes on with them."""
    for entry in offered.entries.values():
        root = entry.module.partition(".")[0]
        if root != "foliot" and root not in sys.stdlib_module_names:
            for name in [each for each in sys.modules if each == root or each.startswith(f"{root}.")]:
                del sys.modules[name]
    importlib.invalidate_caches()


def _named(error: BaseException) -> str:
    try:
        return f"{type(error).__name__}: {error}"
    except Exception:
        return type(error).__name__
