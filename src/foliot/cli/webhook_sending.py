"""Deliveries from the command line: a body signed as the sender would, as a curl command or sent right away."""

from __future__ import annotations

import shlex
from typing import TYPE_CHECKING

from foliot.errors import Unavailable, UsageError
from foliot.work.triggers.declared_webhook import read_webhook

if TYPE_CHECKING:
    from foliot.store.base import Document

_SECRET_VARIABLE = "$WEBHOOK_SECRET"


def curl_line(document: Document, headers: dict[str, str], body: bytes, url: str) -> str:
    """A command for the shell. A sender that shows the secret itself gets a variable in its place."""
    scheme = read_webhook(document).scheme
    if scheme.profile == "gitlab":
        headers = {**headers, scheme.signature_header: _SECRET_VARIABLE}
    words = ["curl", "-sS", "-X", "POST", url.rstrip("/") + document["status"]["endpointPath"]]
    for name, value in headers.items():
        words += ["-H", f"{name}: {value}"]
    quoted = [f'"{word}"' if word.endswith(_SECRET_VARIABLE) else shlex.quote(word) for word in words]
    return " ".join([*quoted, "--data-binary", shlex.quote(body.decode("utf-8", "replace"))])


async def post(address: str, headers: dict[str, str], body: bytes) -> tuple[int, str]:
    """The status and the answer. Raises `Unavailable` when nobody answers."""
    import aiohttp

    try:
        async with (
            aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=30)) as session,
            session.post(address, data=body, headers={"Content-Type": "application/json", **headers}) as response,
        ):
            return response.status, (await response.text()).strip()
    except (aiohttp.ClientError, TimeoutError, ValueError) as error:
        raise Unavailable(f"{address} does not answer: {error}", hint="Is `foliot webhook listen` running?") from None


def body_of(data: str) -> bytes:
    """What was typed behind --data: the body, or the file that holds it. Raises `UsageError`."""
    if not data.startswith("@"):
        return data.encode()
    try:
        with open(data[1:], "rb") as file:
            return file.read()
    except OSError as error:
        raise UsageError(f"--data: {data[1:]} cannot be read: {error.strerror}") from None


def headers_of(given: tuple[str, ...]) -> dict[str, str]:
    """What was typed behind --header. Raises `UsageError`."""
    found: dict[str, str] = {}
    for line in given:
        name, colon, value = line.partition(":")
        if not name.strip() or not colon:
            raise UsageError(f"--header: {line!r} is no header", hint='such as -H "X-GitHub-Event: push"')
        found[name.strip()] = value.strip()
    return found
