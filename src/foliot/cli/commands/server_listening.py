"""Where a server listens, told by flags, and what has to be in order before others can reach it."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final, TypedDict, TypeVar, Unpack

import click

from foliot.cli.errors import warn
from foliot.cli.invocation import current
from foliot.errors import UsageError

if TYPE_CHECKING:
    from foliot.server.edge.serving import Listen

F = TypeVar("F", bound=Callable[..., Any])
# Files that a server has open besides its connections: the store, models, tools.
BESIDES: Final = 256


class Flags(TypedDict):
    """What `listening` adds to a command."""

    host: str | None
    port: int | None
    tls_cert: str | None
    tls_key: str | None
    tls_client_ca: str | None
    insecure: bool


def listening(command: F) -> F:
    """Give a command the flags of a server."""
    for option in (
        click.option(
            "--insecure",
            is_flag=True,
            help="Listen where others can reach it although there is no token yet, or no TLS. Nobody is let in without "
            "a token even then.",
        ),
        click.option("--tls-client-ca", metavar="FILE", help="Talk only to those with a certificate signed by it."),
        click.option("--tls-key", metavar="FILE", help="The private key of the certificate."),
        click.option("--tls-cert", metavar="FILE", help="A certificate, to be reached by https."),
        click.option("--port", type=click.IntRange(0, 65535), metavar="N", help="0 is any that is free."),
        click.option("--host", metavar="ADDRESS", help="Where to listen.  [default: the setting `listen`]"),
    ):
        command = option(command)
    return command


def take(**flags: Unpack[Flags]) -> None:
    """Have the settings of this invocation say what the flags say."""
    invocation = current()
    host, port = flags["host"], flags["port"]
    if host is not None or port is not None:
        given_host, _, given_port = invocation.settings().listen.rpartition(":")
        shown = f"[{host}]" if host and ":" in host and not host.startswith("[") else host
        invocation.give("listen", f"{shown or given_host}:{port if port is not None else given_port}")
    for name in ("tls_cert", "tls_key", "tls_client_ca"):
        value = flags[name]
        if value is not None:
            invocation.give(name, value)


def check_reach(listen: Listen, *, local: bool, known: bool, insecure: bool) -> None:
    """Before others can reach the server. `known`: somebody can show who they are.

    Raises `UsageError` when nobody can, and warns when who they are would be sent in clear; not when `insecure` is so
    on purpose.
    """
    if local or insecure:
        return
    if not known:
        raise UsageError(
            f"{listen.host} can be reached from elsewhere, and there is no token yet",
            hint="make one with `foliot tokens create --admin`, or listen on 127.0.0.1",
        )
    if listen.cert is None:
        warn(
            f"{listen.host} can be reached from elsewhere, and without TLS: tokens are sent in clear. Set tls_cert and "
            "tls_key, or let a proxy on this machine do it; --insecure says that it is meant."
        )


def allow_open_files(connections: int) -> None:
    """Have the system let this process open as many files as there may be connections, as far as it can."""
    try:
        import resource
    except ImportError:  # not a Unix
        return
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = connections + BESIDES
    if soft == resource.RLIM_INFINITY or soft >= wanted:
        return
    most = wanted if hard == resource.RLIM_INFINITY else min(wanted, hard)
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (most, hard))
    except (OSError, ValueError) as error:
        warn(f"the limit of open files stays at {soft}: {error}")
        return
    if most < wanted:
        warn(f"max_connections is {connections}, but the system allows {hard} open files (ulimit -n)")
