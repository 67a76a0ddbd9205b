"""Secrets of tools: from the store first, then from variables of the environment with one prefix.

A value is looked up when a call is made and kept nowhere, except in the `Masker` that hides it. A resolver that does
not have a secret raises `NotFound` and the next is asked; any other failure ends the search, because to go on could
send a call out with the wrong credentials.

Namespaces are a boundary: whoever may declare a tool in one could otherwise have the secrets of another sent to a
server of his own. A secret of another namespace needs a ReferenceGrant there.
"""

from __future__ import annotations

import os
import re
from collections.abc import Awaitable, Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, Protocol, TypeAlias

from foliot.errors import Denied, FoliotError, InvalidInput, NotFound, SecretError
from foliot.resources.references import DEFAULT_SECRET_KEY, Origin, ReferenceCheck, Target, refused, target_of
from foliot.settings.settings import PREFIX, RULES, SECRET_PREFIX
from foliot.tools.base import ToolSecretMissing
from foliot.tools.secrets.masking import Masker

Reveal: TypeAlias = "Callable[[str, str], Awaitable[Opened]]"

DEFAULT_KEY: Final = DEFAULT_SECRET_KEY
MOST_KEYS: Final = 10
# Among the hosts of a secret: it is (also) what senders of webhooks sign with.
WEBHOOK: Final = "webhook"
# The key that seals all secrets is a setting whose variable begins like those of secrets: `secretRef: key` must not
# reach it.
_SETTINGS: Final = frozenset(PREFIX + name.upper() for name in RULES)
_ONE_SPELLING: Final = re.compile(r"[a-z0-9]+(-[a-z0-9]+)*")
_KEY: Final = re.compile(r"[A-Za-z0-9._-]+")


@dataclass(frozen=True, slots=True)
class SecretRef:
    """`[namespace/]name[:key]`, taken apart."""

    namespace: str
    name: str
    key: str = DEFAULT_KEY

    @classmethod
    def parse(cls, text: str, namespace: str) -> SecretRef:
        """Raises `InvalidInput`, without the text: it may be the secret itself, pasted into the wrong place."""
        path, _, key = text.strip().partition(":")
        try:
            _, where, name = target_of("Secret", path.strip(), namespace or "default")
        except InvalidInput:
            where = name = ""
        key = key.strip() or DEFAULT_KEY
        if not name or not _KEY.fullmatch(key):
            raise InvalidInput("a reference to a secret is malformed", hint="expected [namespace/]name[:key]")
        return cls(where, name, key)

    def __str__(self) -> str:
        return f"{self.namespace}/{self.name}" + ("" if self.key == DEFAULT_KEY else f":{self.key}")


class Opened(Protocol):
    """One version of a stored secret: its values by key, and the hosts that they may be sent to."""

    @property
    def hosts(self) -> Sequence[str]: ...
    def __contains__(self, key: object, /) -> bool: ...
    def __iter__(self) -> Iterator[str]: ...
    def __getitem__(self, key: str, /) -> bytes: ...


class NotBound(Exception):
    """A secret that may not be sent to `host`."""

    def __init__(self, host: str) -> None:
        super().__init__(host)
        self.host = host


class SecretResolver(Protocol):
    async def resolve(self, ref: SecretRef, hosts: Sequence[str] | None = None) -> str:
        """The value, never blank. With `hosts`, only if it is bound to all of them, by the very version it is from.

        Raises `NotFound` when it is not here, `SecretError` when it cannot be used, `NotBound`.
        """
        ...


class StoreSecrets:
    """Secrets that were declared. `reveal(namespace, name)` opens one of them: its values by key, or `NotFound`."""

    def __init__(self, reveal: Reveal) -> None:
        self._reveal = reveal

    async def resolve(self, ref: SecretRef, hosts: Sequence[str] | None = None) -> str:
        values = await self._reveal(ref.namespace, ref.name)
        _check_bound(hosts, values.hosts)
        if ref.key not in values:
            raise NotFound(f"secret {ref.namespace}/{ref.name} has no key {ref.key!r}", keys=sorted(values))
        try:
            return _usable(values[ref.key].decode(), f"secret {ref}")
        except UnicodeDecodeError:
            raise SecretError(f"secret {ref} is not text and cannot be sent as credentials") from None


class EnvironmentSecrets:
    """Variables with the prefix, and no other: `search-key` is `FOLIOT_SECRET_SEARCH_KEY`.

    A variable for one namespace alone has the namespace and two underscores in front, and wins:
    `FOLIOT_SECRET_TEAM_A__SEARCH_KEY`. Only namespaces of lower-case letters, digits and single hyphens have such
    variables: `team.a` or `Team-A` would read those of `team-a`. `allow`, when given, lists the variables that may be
    read at all. No variable is bound to a host; whether there is one is not told to whoever asks for hosts.
    """

    def __init__(
        self,
        environ: Mapping[str, str] = os.environ,
        *,
        prefix: str = SECRET_PREFIX,
        allow: Collection[str] | None = None,
    ) -> None:
        self._environ = environ
        self._prefix = prefix
        self._allow = allow

    async def resolve(self, ref: SecretRef, hosts: Sequence[str] | None = None) -> str:
        _check_bound(hosts, ())
        if (variable := self.variable_of(ref)) is not None:
            return _usable(self._environ[variable], f"the environment variable {variable}")
        raise NotFound(f"secret {ref} is not in the environment", hint=f"set {next(self.variables(ref))}")

    def variable_of(self, ref: SecretRef) -> str | None:
        """The variable that holds a secret; None when it is not in the environment."""
        for variable in self.variables(ref):
            readable = variable not in _SETTINGS and (self._allow is None or variable in self._allow)
            if readable and variable in self._environ:
                return variable
        return None

    def variables(self, ref: SecretRef) -> Iterator[str]:
        """Yields the names of the variables to look for, in order."""
        keyed = f"{ref.name}:{ref.key}"
        names = (ref.name, keyed) if ref.key == DEFAULT_KEY else (keyed,)
        own = [f"{_normal(ref.namespace)}__"] if _ONE_SPELLING.fullmatch(ref.namespace) else []
        for scope in (*own, ""):
            for name in names:
                yield f"{self._prefix}{scope}{_normal(name)}"


class SecretChain:
    """The first that has it."""

    def __init__(self, resolvers: Sequence[SecretResolver | None]) -> None:
        self._resolvers = [resolver for resolver in resolvers if resolver is not None]

    async def resolve(self, ref: SecretRef, hosts: Sequence[str] | None = None) -> str:
        missing = NotFound(f"secret {ref} is not there: nowhere to look for secrets")
        for resolver in self._resolvers:
            try:
                return await resolver.resolve(ref, hosts)
            except NotFound as error:
                # A Secret without the key is nearer to what was meant than no variable for it.
                missing = missing if "keys" in missing.details else error
        raise missing


class Secrets:
    """The one way to a secret's value for tools: within the caller's namespace, and hidden from then on.

    `may` says whether the secret of another namespace has been granted; without it none has.
    """

    def __init__(self, resolver: SecretResolver, masker: Masker, *, may: ReferenceCheck | None = None) -> None:
        self._resolver = resolver
        self._may = may
        self.masker = masker

    async def value(
        self, text: str, *, namespace: str, tool: str = "", hosts: Sequence[str] | None = None, by: str = "Tool"
    ) -> str:
        """The secret that `text` names, for a resource of the kind `by`.

        With `hosts`, only if the secret is bound to all of them; without, whoever asks may send it anywhere. Raises
        `ToolSecretMissing`, which never holds a value.
        """
        whose = f" of tool {tool!r}" if tool else ""
        try:
            ref = SecretRef.parse(text, namespace)
            if ref.namespace != namespace:
                await self._cross(Origin(by, namespace), ref)
            value = await self._resolver.resolve(ref, hosts)
        except NotBound as error:
            raise ToolSecretMissing(
                f"the secret{whose} is not bound to the host {error.host!r}, and is not sent there",
                hint="add the host to spec.hosts of the Secret, or have the operator declare what sends it",
                cause="not_bound",
            ) from None
        except NotFound as error:
            if "keys" in error.details:
                raise _without_key(SecretRef.parse(text, namespace), whose, error.details["keys"], namespace) from None
            raise ToolSecretMissing(
                f"secret {text!r}{whose} is not there",
                hint="`foliot create secret`, or set its variable, which begins with " + SECRET_PREFIX,
                secret_ref=text,
                cause="not_found",
            ) from None
        except FoliotError as error:
            cause = "refused" if isinstance(error, Denied | InvalidInput) else "failed"
            raise ToolSecretMissing(
                f"the secret{whose} cannot be used: {error.message}", hint=error.hint, cause=cause
            ) from None
        self.masker.add(value)
        return value

    async def _cross(self, origin: Origin, ref: SecretRef) -> None:
        """Raises `Denied`."""
        target = Target("Secret", ref.namespace, ref.name)
        if self._may is None:
            raise refused(origin, target)
        await self._may(origin, target)

    async def has(self, namespace: str, text: str) -> bool:
        """Whether a secret could be had; one that is there but unusable counts as missing."""
        try:
            await self.value(text, namespace=namespace)
        except ToolSecretMissing:
            return False
        return True


def _without_key(ref: SecretRef, whose: str, keys: Sequence[str], namespace: str) -> ToolSecretMissing:
    """Names of keys are told in the namespace of the Secret, where it can be listed, and not in another."""
    told = ref.namespace == namespace
    has = ", ".join(f"`{each}`" for each in keys[:MOST_KEYS]) or "none"
    found = f"; it has {has}" if told else ""
    hint = f"write {ref.name}:KEY, or store the value under `{ref.key}`"
    if told and len(keys) == 1:
        hint = f"write {ref.name}:{keys[0]}, or store the value under `{ref.key}`"
    return ToolSecretMissing(
        f"Secret/{ref.name}{whose} has no key `{ref.key}`{found}", hint=hint, secret_ref=str(ref), cause="not_found"
    )


def unbound(targets: Sequence[str], hosts: Sequence[str]) -> str | None:
    """The first target that is not among the hosts a secret is bound to."""
    from foliot.tools.outbound.guard import Hosts  # only what others declared is held against it

    bound = Hosts(hosts)
    return next((host for host in targets if not bound.hold_host(host)), None)


def takes_webhooks(hosts: Sequence[str]) -> bool:
    """Whether deliveries may be held against a secret that is bound to these hosts: to none, or by name to webhooks."""
    return not hosts or WEBHOOK in hosts


def _check_bound(targets: Sequence[str] | None, hosts: Sequence[str]) -> None:
    """Raises `NotBound`."""
    if targets is not None and (host := unbound(targets, hosts)) is not None:
        raise NotBound(host)


def _usable(value: str, what: str) -> str:
    value = value.strip()
    if not value:
        raise SecretError(f"{what} is empty")
    return value


def _normal(text: str) -> str:
    # Runs become one underscore, so that no name can spell the two that stand behind a namespace.
    return re.sub(r"[^A-Z0-9]+", "_", text.upper())
