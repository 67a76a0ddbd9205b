"""Copies of a PostgreSQL store, taken and put back by PostgreSQL's own programs, `pg_dump` and `pg_restore`.

A program older than the server cannot dump it, so one that fits is looked for. The password goes to it in the
environment: arguments can be read by every user of the machine. What is put back is put back in one transaction, and a
store that is there is renamed before, never overwritten.
"""

from __future__ import annotations

import asyncio
import os
import re
import shlex
import subprocess
import tempfile
from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final
from urllib.parse import parse_qsl, quote, unquote, urlencode, urlsplit, urlunsplit

from foliot.common.postgres_programs import program_folders
from foliot.errors import Conflict, FoliotError, InvalidInput, NotFound, Unavailable
from foliot.store.postgres.driver import DriverErrors, PostgresConnection, connect, explain, place
from foliot.store.schema import store_functions, store_tables
from foliot.version import install_command

CONNECT_WITHIN: Final = 30.0
MAGIC: Final = b"PGDMP"
# What the library of PostgreSQL reads in a URL. Our driver takes anything else for a setting of the server.
_LIBRARY_PARAMETERS: Final = frozenset(
    (
        *("host", "port", "dbname", "user", "passfile", "sslmode", "sslcert", "sslkey", "sslrootcert", "sslcrl"),
        *("target_session_attrs", "options", "connect_timeout", "application_name", "service", "channel_binding"),
    )
)
_VERSION: Final = re.compile(r"\(PostgreSQL\)\s+(\d+)")
# A line of `pg_restore --list`: "3456; 1259 16421 TABLE public schema_version owner".
_STORE_TABLE: Final = re.compile(r" TABLE (.+) schema_version \S")
_FUNCTION: Final = re.compile(r"^\d+; \d+ \d+ FUNCTION ", re.MULTILINE)
# A row of `schema_version`, as a dump has it.
_VERSION_ROW: Final = re.compile(r"^(\d+)\t", re.MULTILINE)
_IN_PATH: Final = re.compile(r'"((?:[^"]|"")*)"|([^",\s]+)')
# Everything that stands in a schema depends on it. The members of an extension are dumped and restored by its name, and
# statistics go with their table; neither has a name of its own that something of the store could have.
_OTHERS: Final = """
SELECT pg_describe_object(d.classid, d.objid, 0) AS name
  FROM pg_depend AS d
 WHERE d.refclassid = 'pg_namespace'::regclass AND d.refobjid = CAST($1 AS regnamespace) AND d.deptype = 'n'
   AND d.classid NOT IN ('pg_extension'::regclass, 'pg_statistic_ext'::regclass)
   AND NOT EXISTS (
       SELECT FROM pg_depend AS e WHERE e.classid = d.classid AND e.objid = d.objid AND e.deptype = 'e')
   AND NOT (d.classid = 'pg_class'::regclass AND d.objid IN (
       SELECT c.oid FROM pg_class AS c
        WHERE c.relnamespace = CAST($1 AS regnamespace) AND c.relkind IN ('r', 'p') AND c.relname = ANY($2)
        UNION ALL
       SELECT s.objid FROM pg_depend AS s JOIN pg_class AS c ON c.oid = s.refobjid
        WHERE s.classid = 'pg_class'::regclass AND s.refclassid = 'pg_class'::regclass AND s.deptype IN ('a', 'i')
          AND c.relnamespace = CAST($1 AS regnamespace) AND c.relname = ANY($2)))
   AND NOT (d.classid = 'pg_proc'::regclass AND d.objid IN (
       SELECT p.oid FROM pg_proc AS p WHERE p.proname || '(' || oidvectortypes(p.proargtypes) || ')' = ANY($3)))
 ORDER BY 1
"""
_FUNCTIONS: Final = """
SELECT proname || '(' || oidvectortypes(proargtypes) || ')' AS signature, pg_get_functiondef(oid) AS statement
  FROM pg_proc
 WHERE pronamespace = CAST($1 AS regnamespace) AND proname || '(' || oidvectortypes(proargtypes) || ')' = ANY($2)
"""


@dataclass(frozen=True, slots=True)
class Access:
    """How a program reaches a database: the address without the password, and the environment that has it."""

    address: str
    environment: Mapping[str, str]


def access_of(url: str) -> Access:
    """Takes the password out of the URL of a store. Raises `InvalidInput` for a URL that cannot be read."""
    place(url)
    parts = urlsplit(url)
    environment: dict[str, str] = {}
    kept: list[tuple[str, str]] = []
    settings: list[str] = []
    for name, value in parse_qsl(parts.query, keep_blank_values=True):
        if name == "password":
            environment["PGPASSWORD"] = value
        elif name in _LIBRARY_PARAMETERS:
            kept.append((name, value))
        else:
            settings.append(f"-c {name}={value}".replace(" ", "\\ ").replace("-c\\ ", "-c "))
    if settings:
        environment["PGOPTIONS"] = " ".join(settings)
    if parts.password is not None:
        environment["PGPASSWORD"] = unquote(parts.password)
    login, at, host = parts.netloc.rpartition("@")
    user = quote(unquote(login.partition(":")[0]), safe="")
    bare = parts._replace(scheme="postgresql", netloc=f"{user}{at}{host}", query=urlencode(kept, quote_via=quote))
    return Access(urlunsplit(bare), environment)


# --- programs ----------------------------------------------------------------------------------------------------


def find_program(name: str, server: int, *, then: str) -> Path:
    """Returns the program for a server of this major version: the same version, else the nearest newer one.

    Raises `NotFound` that says which were found, where to get one, and what to type `then`.
    """
    found: dict[Path, int] = {}
    for folder in program_folders(name):
        program = (folder / name).resolve()
        if program not in found and program.is_file() and (version := _version_of(program)) is not None:
            found[program] = version
    fitting = {program: version for program, version in found.items() if version >= server}
    if fitting:
        return min(fitting, key=lambda program: fitting[program])
    old = ", ".join(f"{program} is {version}" for program, version in found.items())
    raise NotFound(
        f"the server is PostgreSQL {server}, and there is no {name} of that version here" + (f": {old}" if old else ""),
        hint=f"install postgresql-client-{server}, or {install_command('services')}; where there is one: {then}",
    )


def _version_of(program: Path) -> int | None:
    try:
        said = subprocess.run([str(program), "--version"], capture_output=True, text=True, check=True, timeout=30)
    except (OSError, subprocess.SubprocessError):
        return None
    match = _VERSION.search(said.stdout)
    return int(match[1]) if match else None


async def _run(program: Path, *words: str, access: Access | None = None) -> str:
    """Runs a program to its end, and returns its output. Raises `FoliotError` with its errors."""
    environment = {**os.environ, **(access.environment if access is not None else {})}
    process = await asyncio.create_subprocess_exec(
        str(program),
        *words,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env=environment,
    )
    try:
        output, errors = await process.communicate()
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()
    if process.returncode:
        said = errors.decode(errors="replace").strip()
        raise FoliotError(f"{program.name} ended with code {process.returncode}: {said[-2000:]}")
    return output.decode(errors="replace")


# --- taking ------------------------------------------------------------------------------------------------------


async def back_up(url: str, file: Path) -> dict[str, Any]:
    """Dumps the store into `file` while it is in use: one moment of it, in the custom format of pg_dump.

    Raises `Conflict` when `file` is there, `NotFound` without a program that fits, `Unavailable`, `FoliotError`.
    """
    _check_free(file)
    access = access_of(url)
    async with _opened(url) as connection:
        server = await _major(connection)
        version = await _schema_version(connection)
        schema = await _schema(connection)
        # The store alone: the database may have schemas of others, and stores that a restore has set aside.
        only = [f"--schema={_quoted(schema)}"]
        if await _others(connection, schema):
            # pg_dump leaves out no function or type: the tables are named, and `restore` makes the functions.
            only = [f"--table={_quoted(schema)}.{_quoted(name)}" for name in await _own_tables(connection, schema)]
    typed = (
        f"pg_dump --password --format=custom {shlex.join(only)} --file={shlex.quote(str(file))} "
        f"{shlex.quote(access.address)}"
    )
    program = find_program("pg_dump", server, then=typed)
    with tempfile.TemporaryDirectory(dir=file.parent, prefix=f".{file.name}.") as folder:  # for its owner alone
        copy = Path(folder, file.name)
        # Not by way of standard output: there it writes its table of contents a second time, behind the data, and what
        # is cut off a copy is not missed.
        await _run(program, "--format=custom", *only, f"--file={copy}", f"--dbname={access.address}", access=access)
        size = _place(copy, file)
    return {"format": "pg_dump", "postgres": server, "schema": version, "bytes": size}


def _place(copy: Path, file: Path) -> int:
    """Gives a whole dump its name; its size."""
    copy.chmod(0o600)
    with copy.open("rb") as opened:
        os.fsync(opened.fileno())
    _check_free(file)
    copy.rename(file)
    return file.stat().st_size


def _check_free(file: Path) -> None:
    if file.exists():
        raise Conflict(f"{file} is there already, and is not written over", hint="name another file")


# --- putting back ------------------------------------------------------------------------------------------------


async def verify(url: str, file: Path) -> dict[str, Any]:
    """Reads a dump through. Raises `NotFound`, `InvalidInput` when it is none or is damaged."""
    size = _dump_size(file)
    async with _opened(url) as connection:
        server = await _major(connection)
    program = find_program("pg_restore", server, then=f"pg_restore --file=/dev/null {shlex.quote(str(file))}")
    try:
        await _run(program, "--file=/dev/null", str(file))
    except FoliotError as error:
        raise InvalidInput(f"{file} cannot be put back: {error.message}") from None
    return {"format": "pg_dump", "postgres": server, "bytes": size}


async def restore(url: str, file: Path, *, replace: bool = False) -> tuple[dict[str, Any], str]:
    """Puts the store of a dump into the database; what it was, and the schema that now has the store that was there.

    Raises `Conflict` when there is a store and not `replace`, and what `verify` does. Nothing has changed then.
    """
    about, access = await verify(url, file), access_of(url)
    typed = (
        f"pg_restore --password --no-owner --single-transaction --dbname={shlex.quote(access.address)} "
        f"{shlex.quote(str(file))}"
    )
    program = find_program("pg_restore", about["postgres"], then=typed)
    listed = await _run(program, "--list", str(file))
    schema = _store_schema(listed, file)
    makes = [] if _FUNCTION.search(listed) else [*store_functions(await _dumped_version(program, file)).values()]
    words = ("--no-owner", "--exit-on-error", "--single-transaction", f"--dbname={access.address}", str(file))
    async with _opened(url) as connection:
        await _check_schema(connection, schema)
        aside = await _set_aside(connection, schema, replace=replace)
        left: list[str] | None = None
        try:
            await connection.execute(f"CREATE SCHEMA IF NOT EXISTS {_quoted(schema)}")
            left = await _replace_functions(connection, schema, makes)
            await _run(program, f"--schema={schema}", *words, access=access)
            about["schema"] = await _schema_version(connection)
        except BaseException:
            if aside:
                await _put_back(connection, schema, aside)
            elif left is not None:
                await _replace_functions(connection, schema, left)
            raise
    return about, aside


async def _check_schema(connection: PostgresConnection, schema: str) -> None:
    """Raises `Conflict` when a store in the schema of the dump would not be found by the URL."""
    path: str = await connection.fetchval("SHOW search_path")
    user: str = await connection.fetchval("SELECT current_user")
    names = [quoted.replace('""', '"') or plain.lower() for quoted, plain in _IN_PATH.findall(path)]
    names = [user if name == "$user" else name for name in names]
    # Where there is no store yet, it will be found in each schema of the path, also in one that does not exist yet.
    found = [await _schema(connection)] if await _is_there(connection) else names
    if schema not in found:
        raise Conflict(
            f"the dump holds a store in schema {schema!r}, and the URL leads to schema {next(iter(found), '')!r}",
            hint=f"add search_path={quote(_quoted(schema))} to the parameters of the URL",
        )


async def _others(connection: PostgresConnection, schema: str) -> list[str]:
    """Lists what stands in the schema of the store and is not the store's, such as `type mood`."""
    found = await connection.fetch(_OTHERS, _quoted(schema), [*store_tables()], [*store_functions()])
    return [row["name"] for row in found]


async def _own_tables(connection: PostgresConnection, schema: str) -> list[str]:
    found = await connection.fetch("SELECT tablename FROM pg_tables WHERE schemaname = $1 ORDER BY tablename", schema)
    return [row["tablename"] for row in found if row["tablename"] in store_tables()]


async def _replace_functions(connection: PostgresConnection, schema: str, statements: Sequence[str]) -> list[str]:
    """Makes functions of the store, in the place of those that a store which is gone has left; what made these."""
    found = await connection.fetch(_FUNCTIONS, _quoted(schema), [*store_functions()])
    async with connection.transaction():
        await connection.execute("SELECT set_config('search_path', $1, true)", _quoted(schema))
        for row in found:
            await connection.execute(f"DROP FUNCTION {row['signature']}")
        for statement in statements:
            await connection.execute(statement)
    return [row["statement"] for row in found]


async def _dumped_version(program: Path, file: Path) -> int:
    """Returns the version of the store in a dump."""
    rows = await _run(program, "--data-only", "--table=schema_version", "--file=-", str(file))
    return max((int(version) for version in _VERSION_ROW.findall(rows)), default=0)


def _store_schema(listed: str, file: Path) -> str:
    """Returns the schema of the store in a dump, by its list. Raises `InvalidInput` for a dump of something else."""
    match = _STORE_TABLE.search(listed)
    if match is None:
        raise InvalidInput(f"{file} is a dump of PostgreSQL, but there is no store of Foliot in it")
    return match[1]


def _dump_size(file: Path) -> int:
    try:
        with file.open("rb") as opened:
            begins = opened.read(len(MAGIC))
    except FileNotFoundError:
        raise NotFound(f"there is no backup at {file}") from None
    if begins != MAGIC:
        raise InvalidInput(
            f"{file} is not a dump of PostgreSQL in the custom format, and the store is PostgreSQL",
            hint="a backup of a SQLite store is put back with --store sqlite:///…",
        )
    return file.stat().st_size


async def _set_aside(connection: PostgresConnection, schema: str, *, replace: bool) -> str:
    """Renames the schema of a store that is there; returns its new name, or a blank one when there is no store.

    Raises `Conflict` when it holds what belongs to others, who would not find it any more.
    """
    if not await _is_there(connection):
        return ""
    if not replace:
        raise Conflict(
            "there is a store in the database, and it is not written over",
            hint="--force sets it aside as another schema, or name another database with --store",
        )
    if others := await _others(connection, schema):
        raise Conflict(
            f"schema {schema!r} also holds what is not Foliot's: {', '.join(others[:5])}{', …' if others[5:] else ''}",
            hint="move that to another schema, or put the store back into another database",
        )
    aside = f"{schema}_before_restore_{datetime.now(UTC):%Y%m%d%H%M%S%f}"
    async with connection.transaction():
        await connection.execute(f"ALTER SCHEMA {_quoted(schema)} RENAME TO {_quoted(aside)}")
        await connection.execute(f"CREATE SCHEMA {_quoted(schema)}")
    return aside


async def _put_back(connection: PostgresConnection, schema: str, aside: str) -> None:
    async with connection.transaction():
        await connection.execute(f"DROP SCHEMA IF EXISTS {_quoted(schema)} CASCADE")  # what the dump has left in it
        await connection.execute(f"ALTER SCHEMA {_quoted(aside)} RENAME TO {_quoted(schema)}")


def _quoted(name: str) -> str:
    return '"' + name.replace('"', '""') + '"'


@asynccontextmanager
async def _opened(url: str) -> AsyncGenerator[PostgresConnection]:
    """A connection. Nothing of the store is brought up to date by it. Raises `Unavailable`."""
    try:
        connection = await connect(url, within=CONNECT_WITHIN)
    except TimeoutError:
        raise Unavailable(f"the store at {place(url)} does not answer") from None
    except DriverErrors as error:
        raise explain(error, place(url)) from None  # the driver may quote the URL
    try:
        yield connection
    except DriverErrors as error:
        raise explain(error, place(url)) from None
    finally:
        connection.terminate()


async def _major(connection: PostgresConnection) -> int:
    return int(await connection.fetchval("SHOW server_version_num")) // 10_000


async def _is_there(connection: PostgresConnection) -> bool:
    found: bool = await connection.fetchval("SELECT to_regclass('schema_version') IS NOT NULL")
    return found


async def _schema(connection: PostgresConnection) -> str:
    """Returns the schema of the store: not always the first of the path."""
    found: str = await connection.fetchval(
        "SELECT nspname FROM pg_class AS c JOIN pg_namespace AS n ON n.oid = c.relnamespace"
        " WHERE c.oid = to_regclass('schema_version')"
    )
    return found


async def _schema_version(connection: PostgresConnection) -> int:
    if not await _is_there(connection):
        raise NotFound("there is no store in this database", hint="name the store with --store or FOLIOT_STORE")
    return int(await connection.fetchval("SELECT COALESCE(MAX(version), 0) FROM schema_version"))
