"""`foliot create secret` and `foliot secrets rotate-key`. No value is ever printed, in success or in failure."""

from __future__ import annotations

import base64
import re
import sys
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any, Final

import click

from foliot.cli.invocation import current, is_terminal
from foliot.cli.reach import connected, namespace, run
from foliot.cli.terminal import confirm, out, prompt
from foliot.common.text import counted
from foliot.errors import Conflict, InvalidInput, NotFound, UsageError
from foliot.runtime.local.groups import opened_store
from foliot.runtime.outcomes import Outcome
from foliot.store.base import Rotation
from foliot.store.open import open_database
from foliot.store.secrets.store_key import StoreKey

_VARIABLE: Final = re.compile(r"(?:export\s+)?([A-Za-z_][A-Za-z0-9_]*)\s*=(.*)", re.DOTALL)
_LARGEST: Final = 1024 * 1024


@click.group()
def create() -> None:
    """Create a resource without writing a manifest."""


@create.command()
@click.argument("name")
@click.option(
    "--from-literal", "literals", multiple=True, metavar="KEY=VALUE", help="A value; KEY=- reads it from stdin."
)
@click.option("--from-file", "files", multiple=True, metavar="[KEY=]PATH", help="The content of a file.")
@click.option("--from-env-file", "env_files", multiple=True, metavar="PATH", help="Lines of KEY=VALUE.")
@click.option(
    "--host", "hosts", multiple=True, metavar="HOST", help="A host that the values may be sent to, such as api.example."
)
@click.option("--replace", is_flag=True, help="Put it in the place of one that is there; only its hosts stay.")
@click.option("--dry-run", is_flag=True, help="Check everything, and store nothing.")
def secret(
    name: str,
    literals: tuple[str, ...],
    files: tuple[str, ...],
    env_files: tuple[str, ...],
    hosts: tuple[str, ...],
    replace: bool,
    dry_run: bool,
) -> None:
    """Create a secret. Values are stored encrypted and never shown again.

    \b
    foliot create secret openai-key --from-literal value=-          asks, or reads stdin
    foliot create secret tls --from-file cert=server.pem --from-file key.pem
    foliot create secret app --from-env-file .env
    foliot create secret search --from-literal value=- --host api.example

    A value typed on the command line stays in the shell's history; `KEY=-` does not.
    """
    values = dict(_values(literals, files, env_files))
    if not values:
        raise UsageError(
            "A secret needs at least one value.", hint="Use --from-literal, --from-file or --from-env-file."
        )
    outcome = run(_create(_document(name, values, hosts), replace=replace, dry_run=dry_run))
    out(f"secret/{name} {outcome.action} ({counted(len(values), 'value')}){' (dry run)' if dry_run else ''}")


def _values(
    literals: tuple[str, ...], files: tuple[str, ...], env_files: tuple[str, ...]
) -> Iterator[tuple[str, bytes]]:
    for literal in literals:
        key, equals, text = literal.partition("=")
        if not equals or not key:
            raise UsageError("--from-literal needs the form KEY=VALUE.")  # not repeated: it may be a value
        yield key, (_from_stdin(key) if text == "-" else text.encode())
    for given in files:
        key, equals, path = given.partition("=")
        source = Path(path if equals else given)
        yield (key if equals else source.name), _content(source)
    for given in env_files:
        yield from _env_file(Path(given))


def _from_stdin(key: str) -> bytes:
    if is_terminal(sys.stdin):
        return prompt(key, secret=True).encode()
    data = sys.stdin.buffer.read(_LARGEST + 1)
    return data.removesuffix(b"\n").removesuffix(b"\r")


def _content(path: Path) -> bytes:
    with path.open("rb") as file:
        data = file.read(_LARGEST + 1)
    if len(data) > _LARGEST:
        raise InvalidInput(f"{path} is larger than {_LARGEST // 1024} KiB.", hint="A secret is a key or a certificate.")
    return data


def _env_file(path: Path) -> Iterator[tuple[str, bytes]]:
    try:
        text = _content(path).decode()
    except UnicodeDecodeError:
        raise InvalidInput(f"{path} is not UTF-8 text.") from None
    for number, line in enumerate(text.splitlines(), 1):
        line = line.strip()
        if not line or line.startswith("#"):
            continue
        found = _VARIABLE.fullmatch(line)
        if found is None:
            raise InvalidInput(f"{path}:{number}: this line is not KEY=VALUE.")
        value = found[2].strip()
        if len(value) > 1 and value[0] == value[-1] and value[0] in "'\"":
            value = value[1:-1]
        yield found[1], value.encode()


def _document(name: str, values: dict[str, bytes], hosts: tuple[str, ...]) -> dict[str, Any]:
    from foliot.resources.validate import validate_document

    data = {key: base64.b64encode(value).decode("ascii") for key, value in values.items()}
    raw = {
        "apiVersion": "foliot.dev/v1",
        "kind": "Secret",
        "metadata": {"name": name, "namespace": namespace()},
        "spec": {"data": data, **({"hosts": [*hosts]} if hosts else {})},
    }
    document, problems = validate_document(raw)
    if document is None:
        raise InvalidInput("The secret cannot be stored:\n" + "\n".join(str(problem) for problem in problems))
    return document


async def _create(document: dict[str, Any], *, replace: bool, dry_run: bool) -> Outcome:
    metadata = document["metadata"]
    async with connected() as client:
        try:
            there = await client.resources.get("Secret", metadata["name"], namespace=metadata["namespace"])
        except NotFound:
            there = None
        if there is not None and not replace:
            raise Conflict(
                f"secret/{metadata['name']} is there already.", hint="Add --replace to put this one in its place."
            )
        if there is None:
            return (await client.resources.apply([document], dry_run=dry_run)).outcomes[0]
        # As a whole: a value that somebody else added would survive an apply, and it may be the one that leaked.
        said = bool(document["spec"].get("hosts"))
        if not said and there["spec"].get("hosts"):
            document["spec"]["hosts"] = there["spec"]["hosts"]
        kept = {name: there["metadata"][name] for name in ("labels", "annotations") if name in there["metadata"]}
        version = there["metadata"]["resourceVersion"]
        whole = {**document, "metadata": {**metadata, **kept, "resourceVersion": version}}
        return await client.resources.replace(whole, take_over=said, dry_run=dry_run)


@click.group()
def secrets() -> None:
    """Look after the key that seals secrets at rest."""


@secrets.command("rotate-key")
@click.option(
    "--forget-retired",
    is_flag=True,
    help="Give up for good the keys that earlier rotations retired: backups sealed with them do not open then.",
)
def rotate_key(forget_retired: bool) -> None:
    """Make a new key, and seal every stored secret value with it.

    Nothing has to be stopped meanwhile. When it was interrupted, run it again: it goes on where it was. The older keys
    stay in the key file, because backups are sealed with them, until --forget-retired. The key that was active until
    now stays even then: the newest backups are sealed with it.
    """
    rotation = run(_rotate(forget_retired))
    out(
        f"Key {rotation.key_id} is active; {counted(rotation.values, 'value')} of"
        f" {counted(rotation.secrets, 'secret')} sealed with it."
    )
    if rotation.retired:
        out(f"Retired, and gone for good: {', '.join(rotation.retired)}")
    if rotation.kept:
        out(
            f"Kept to open backups of before: {', '.join(rotation.kept)}. Other homes on this store need a copy of the"
            " key file now; the next `foliot secrets rotate-key --forget-retired` gives them up."
        )


async def _rotate(forget: bool) -> Rotation:
    async with opened_store(current().store_settings()) as groups:  # a server has keys of its own
        return await groups.store.rotate_key(forget=forget)


@secrets.command("replace-lost-key")
@click.argument("key_id")
@click.option("-y", "--yes", is_flag=True, help="Do not ask.")
def replace_lost_key(key_id: str, yes: bool) -> None:
    """Replace the key that a store is sealed with, when it is lost for good.

    Every secret has to be stored again. A copy of the key file, or of the one line in it, is always better.
    """
    if not yes:
        confirm(f"Give up every secret value that key {key_id} sealed?")
    out(f"Key {run(_replace_lost(key_id))} is active. Store each secret again.")


async def _replace_lost(key_id: str) -> str:
    from foliot.store.secrets.keyring import load_keyring

    settings = current().store_settings()
    database = await open_database(settings.store)
    try:
        return await StoreKey(database, partial(load_keyring, settings), None).replace_lost(key_id)
    finally:
        await database.close()
