"""Engines of containers that this machine really has."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache

from foliot.sandbox.base import Enforcement
from foliot.sandbox.container import ContainerSandbox
from foliot.sandbox.container_cli import find
from tests.sandbox.containers.images import system_image

# The runtime of the engine, or another one where that does not work.
RUNTIMES = {"container": ("", "runc", "crun"), "gvisor": ("runsc",)}
REAL = [
    ("podman", "container", "real podman"),
    ("podman", "gvisor", "real podman, gVisor"),
    ("docker", "container", "real docker"),
    ("docker", "gvisor", "real docker, gVisor"),
]


@cache
def usable(cli: str, backend: str) -> tuple[str, str]:
    """The runtime with which an engine makes containers here; or the empty text, and why it does not."""
    if find(cli) is None:
        return "-", f"{cli} is not installed"
    why = ""
    for runtime in RUNTIMES[backend]:
        found = asyncio.run(_looked(cli, runtime))
        if found.available:
            return runtime, ""
        why = why or found.why
    return "-", why


async def _looked(cli: str, runtime: str) -> Enforcement:
    sandbox = ContainerSandbox(cli=cli, runtime=runtime)
    try:
        return await sandbox.enforces()
    finally:
        await sandbox.close()


def sandbox_of(cli: str, backend: str) -> ContainerSandbox:
    """A sandbox on a real engine, with the image of a small system. Look first whether the engine is `usable`."""
    runtime, _ = usable(cli, backend)
    return ContainerSandbox(cli=cli, runtime=runtime, image=system_image(find(cli) or cli))


@contextmanager
def folders_for_all() -> Iterator[None]:
    """As root, folders that are made can be written by the user inside, who is another one."""
    before = os.umask(0 if not os.geteuid() else 0o022)
    try:
        yield
    finally:
        os.umask(before)
