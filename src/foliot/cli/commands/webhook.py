"""`foliot webhook`: the addresses of webhooks, what was delivered to them, and a server that takes deliveries."""

from __future__ import annotations

import contextlib
import json
import secrets
import shlex
from datetime import UTC, datetime
from functools import partial
from typing import TYPE_CHECKING, Any

import click

from foliot.cli.invocation import current
from foliot.cli.logs import configure
from foliot.cli.reach import connected, namespace, run
from foliot.cli.runtimes import whoami
from foliot.cli.show.output import as_json, as_yaml, output_option, render
from foliot.cli.show.tables import since, table
from foliot.cli.stop_signals import StopSignals, serve_until_told
from foliot.cli.terminal import out
from foliot.cli.triggers import length, triggering
from foliot.common.text import one_line
from foliot.common.times import iso
from foliot.errors import Unavailable, UsageError
from foliot.runtime.local.groups import opened_store
from foliot.runtime.local.operations import signed_headers
from foliot.tools.secrets.masking import Masker
from foliot.work.triggers.deliveries import Webhooks
from foliot.work.triggers.endpoints import WebhookEndpoints
from foliot.work.triggers.webhook import read_webhook

if TYPE_CHECKING:
    from foliot.store.base import Document
    from foliot.store.triggers import WebhookDelivery

PORT = 8085
_LARGEST_SHOWN = 4096
_name = click.argument("name", metavar="WEBHOOK")
_data = click.option("-d", "--data", default="{}", show_default=True, metavar="TEXT", help="The body; @FILE reads it.")
_event = click.option("--event-id", default="", metavar="ID", help="The id of the event.  [default: a new one]")
_header = click.option("-H", "--header", "headers", multiple=True, metavar="NAME: VALUE", help="One more header.")


@click.group()
def webhook() -> None:
    """List, test and serve webhooks, which make tasks from signed calls.

    \b
    foliot apply -f webhook.yaml       declare a TaskWebhook, after a Task with mode template
    foliot webhook listen              take deliveries on this machine, until stopped
    foliot webhook show NAME           its address, and what came
    foliot webhook send-test NAME      deliver something, signed as the sender would
    """


@webhook.command("list")
@output_option("table", "wide", "json", "yaml", "name", default="table", help="table, wide, json, yaml or name.")
@click.option("-A", "--all-namespaces", is_flag=True, help="Look in every namespace.")
def list_command(output: str, all_namespaces: bool) -> int:
    """List webhooks with their addresses."""
    return run(_list(output, None if all_namespaces else namespace()))


async def _list(output: str, space: str | None) -> int:
    async with connected() as triggers:
        found = await triggers.webhooks.list(namespace=space)
    if not found and output in ("table", "wide"):
        out(f"No webhooks found in {'any namespace' if space is None else f'namespace {space}'}.", err=True)
        return 0
    out(render(found, output, single=False, namespaced=space is None, prefixed=False))
    return 0


@webhook.command()
@_name
@output_option("text", "json", "yaml", default="text", help="text, json or yaml.")
def show(name: str, output: str) -> int:
    """Show one webhook: its address, who may call, its counts, and the last deliveries."""
    return run(_show(name, output))


async def _show(name: str, output: str) -> int:
    async with connected() as triggers:
        document = await triggers.webhooks.get(name, namespace=namespace())
        found = await triggers.webhooks.deliveries(name, namespace=namespace(), limit=5)
    match output:
        case "json":
            out(as_json({**document, "deliveries": [_entry(each) for each in found]}))
        case "yaml":
            out(as_yaml([document]))
        case _:
            out(_text(document, found))
    return 0


@webhook.command()
@_name
@click.option("--grace", default="0s", show_default=True, metavar="TIME", help="How long the old address goes on.")
def rotate(name: str, grace: str) -> int:
    """Give a webhook another address. The old one is refused at once, or after --grace."""
    return run(_rotate(name, length(grace, "--grace")))


async def _rotate(name: str, grace: float) -> int:
    async with connected() as triggers:
        rotated = await triggers.webhooks.rotate(name, namespace=namespace(), grace=grace)
    out(rotated["status"]["endpointPath"])
    return 0


@webhook.command()
@_name
@click.argument("delivery", required=False)
@output_option("table", "json", default="table", help="table or json.")
@click.option("--limit", type=click.IntRange(1, 500), default=20, show_default=True, metavar="N", help="The newest N.")
def deliveries(name: str, delivery: str | None, output: str, limit: int) -> int:
    """List deliveries and their outcomes, newest first; or show all about one DELIVERY."""
    return run(_deliveries(name, delivery, output, limit))


async def _deliveries(name: str, id: str | None, output: str, limit: int) -> int:
    async with connected() as triggers:
        if id is not None:
            one = await triggers.webhooks.delivery(name, id, namespace=namespace())
            out(as_json({**_entry(one), "headers": json.loads(one.headers), "body": _shown_body(one)}))
            return 0
        found = await triggers.webhooks.deliveries(name, namespace=namespace(), limit=limit)
    if output == "json":
        out(as_json([_entry(each) for each in found]))
    elif found:
        out(_delivery_table(found))
    else:
        out("Nothing has been delivered yet.", err=True)
    return 0


@webhook.command()
@_name
@click.argument("delivery")
def replay(name: str, delivery: str) -> int:
    """Make a new task of a DELIVERY that was signed and is still remembered, also when it made none before."""
    return run(_replay(name, delivery))


async def _replay(name: str, id: str) -> int:
    async with connected() as triggers:
        out(await triggers.webhooks.replay(name, id, namespace=namespace(), by=whoami()))
    return 0


@webhook.command()
@_name
@_data
@_event
@_header
@click.option("--url", default=f"http://127.0.0.1:{PORT}", show_default=True, metavar="URL", help="Where it listens.")
def sign(name: str, data: str, event_id: str, headers: tuple[str, ...], url: str) -> int:
    """Print a curl command that delivers a body, signed now as the sender would. The secret is not in it.

    Only where the store is: the secret does not leave its machine. `send-test` works with a server too.
    """

    return run(_sign(name, body_of(data), event_id, headers_of(headers), url))


async def _sign(name: str, body: bytes, event_id: str, extra: dict[str, str], url: str) -> int:

    document, signed = await _signed(name, body, event_id)
    out(curl_line(document, {**signed, **extra}, body, url))
    return 0


@webhook.command("send-test")
@_name
@_data
@_event
@_header
@click.option("--url", metavar="URL", help="Send it to a server there.  [default: deliver it right here]")
def send_test(name: str, data: str, event_id: str, headers: tuple[str, ...], url: str | None) -> int:
    """Deliver a body, signed as the sender would, and print the answer. Exit code 1 when it was not taken."""

    return run(_send_test(name, body_of(data), event_id, headers_of(headers), url))


async def _send_test(name: str, body: bytes, event_id: str, extra: dict[str, str], url: str | None) -> int:
    if url is None:
        event = event_id or secrets.token_hex(8)
        async with connected() as triggers:
            sent = await triggers.webhooks.send_test(
                name, body, namespace=namespace(), event_id=event, headers=extra, by=whoami()
            )
        status, said = sent.status, as_json(sent.document)
    else:
        document, signed = await _signed(name, body, event_id)
        status, said = await post(url.rstrip("/") + document["status"]["endpointPath"], {**signed, **extra}, body)
    out(said)
    if status >= 300:
        out(f"It was refused with {status}: `foliot webhook deliveries {name}` says why.", err=True)
    return 0 if status < 300 else 1


@webhook.command()
@click.option("--host", default="127.0.0.1", show_default=True, metavar="HOST", help="Where to listen.")
@click.option(
    "--port", type=click.IntRange(0, 65535), default=PORT, show_default=True, metavar="PORT", help="0: any free one."
)
def listen(host: str, port: int) -> int:
    """Take deliveries for all webhooks over HTTP, until SIGTERM or Ctrl-C.

    No token is asked for: the signature says who calls. Put a proxy with TLS in front before you let it out.
    """
    return serve_until_told(partial(_listen, host, port))


async def _listen(host: str, port: int, signals: StopSignals) -> int:
    from aiohttp import web

    from foliot.cli.webhook_server import application

    settings = current().store_settings()
    configure(settings, service=True)
    async with triggering() as (database, store, tasks, _):
        endpoints = WebhookEndpoints(database, store)
        await endpoints.tick()
        runner = web.AppRunner(application(Webhooks(database, store, tasks)), access_log=None)
        await runner.setup()
        try:
            site = web.TCPSite(runner, host, port)
            try:
                await site.start()
            except OSError as error:
                raise Unavailable(f"cannot listen on {host}:{port}: {error.strerror}", hint="try --port 0") from None
            actual = runner.addresses[0][1]
            out(f"Taking deliveries on http://{host}:{actual}/v1/webhook-deliveries/. Ctrl-C stops it.", err=True)
            await signals.wait_beside(endpoints.run())
        finally:
            await runner.cleanup()
            with contextlib.suppress(Unavailable):
                await endpoints.tick()  # what was counted last
        out("Stopped.", err=True)
    return 0


# --- parts ---------------------------------------------------------------------------------------------------------


async def _signed(name: str, body: bytes, event_id: str) -> tuple[Document, dict[str, str]]:
    """The webhook, which has an address from now on, and the headers of a delivery to it."""

    # On the store itself: a server does not give away what deliveries are signed with.
    async with opened_store(current().store_settings()) as groups:
        document = await groups.webhooks.get(name, namespace=namespace())
        return document, await signed_headers(document, groups.store, body, event_id or secrets.token_hex(8))


def _text(document: Document, found: list[WebhookDelivery]) -> str:
    spec: dict[str, Any] = document["spec"]
    status: dict[str, Any] = document.get("status") or {}
    auth = spec.get("auth", {})
    facts = {
        "Name": document["metadata"]["name"],
        "Makes": f"tasks after {spec['task_ref']}",
        "Path": status.get("endpointPath", ""),
        "Phase": status.get("phase", ""),
        "Signed as": auth.get("profile", "generic"),
        "Secrets": ", ".join(filter(None, [auth.get("secret_ref", ""), *auth.get("secret_refs", [])])),
        "Filter": spec.get("filter", ""),
        "Counted": ", ".join(
            f"{status.get(f'{what}Count', 0)} {what}" for what in ("accepted", "duplicate", "filtered", "rejected")
        ),
        "Last task": status.get("lastTriggeredTask", ""),
        "Last error": status.get("lastError", ""),
    }
    lines = [f"{name + ':':11} {one_line(str(value))}" for name, value in facts.items() if value]
    if found:
        lines += ["", "Last deliveries:", *(f"  {line}" for line in _delivery_table(found).splitlines())]
    return "\n".join(lines)


def _delivery_table(found: list[WebhookDelivery]) -> str:
    now = datetime.now(UTC)
    rows = [
        [
            each.id,
            since(_utc(each.at), now=now),
            each.outcome,
            one_line(each.event) or "-",
            str(each.size),
            one_line(each.task or each.detail or each.reason) or "-",
        ]
        for each in found
    ]
    return table(("ID", "AGE", "OUTCOME", "EVENT", "BYTES", "TASK_OR_REASON"), rows)


def _entry(each: WebhookDelivery) -> dict[str, Any]:
    return {
        "id": each.id,
        "at": _utc(each.at),
        "outcome": each.outcome,
        "reason": each.reason,
        "detail": each.detail,
        "status": each.status,
        "event": each.event,
        "task": each.task,
        "bytes": each.size,
        "sha256": each.digest,
    }


def _shown_body(each: WebhookDelivery) -> str | None:
    """The body for people: what looks like a secret is hidden, and only its beginning is shown."""
    if each.body is None:
        return None

    return Masker().redact(each.body[:_LARGEST_SHOWN].decode("utf-8", "replace"))


def _utc(moment: float) -> str:
    return iso(moment)


# --- webhook sending -------------------------------------------------------------------------------------------------

# Deliveries from the command line: a body signed as the sender would, as a curl command or sent right away.

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
    """Return the body that --data gives, or that of the file it names. Raises `UsageError`."""
    if not data.startswith("@"):
        return data.encode()
    try:
        with open(data[1:], "rb") as file:
            return file.read()
    except OSError as error:
        raise UsageError(f"--data: {data[1:]} cannot be read: {error.strerror}") from None


def headers_of(given: tuple[str, ...]) -> dict[str, str]:
    """Parses the values of --header. Raises `UsageError`."""
    found: dict[str, str] = {}
    for line in given:
        name, colon, value = line.partition(":")
        if not name.strip() or not colon:
            raise UsageError(f"--header: {line!r} is no header", hint='such as -H "X-GitHub-Event: push"')
        found[name.strip()] = value.strip()
    return found
