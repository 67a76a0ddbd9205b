"""The stores of `tests/store/corpus`, unpacked and opened with the present code."""

from __future__ import annotations

import io
import sys
import tarfile
import time
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path

import apsw

from foliot.catalog.apply import apply_documents
from foliot.common.process import identity
from foliot.resources.reader import parse_text
from foliot.runtime.runtime import Runtime
from foliot.settings.settings import load_settings
from foliot.store.base import Document, Filter, Key
from foliot.store.queue.placement import Offer
from tests.postgres_tools import run_tool
from tests.store.corpus import story

FOLDER = Path(__file__).parent / "corpus"
# Behind its last event: all leases of the processes that made a store are over, and no approval has expired yet.
LATER = 300.0


class Found:
    """One store of the corpus in a folder of its own, with the key that seals its secrets.

    A file; or, with the `url` of an empty database of PostgreSQL, a dump that is put back there.
    """

    def __init__(self, schema: int, folder: Path, url: str | None = None) -> None:
        self.schema = schema
        self.folder = folder
        self.store = folder / "foliot.db"
        self.ledger = folder / "ledger"
        self.url = url or str(self.store)
        # Since this one a database knows where it is, and begins a new incarnation where it was put back.
        self.is_renewed = url is not None and schema >= 21
        with tarfile.open(packed(schema) if url is None else packed_dump(schema)) as archive:
            archive.extractall(folder, filter="data")
        newest = "SELECT max(at) FROM event"
        if url is None:
            connection = apsw.Connection(str(self.store))
            self.made_at = float(connection.execute(newest).fetchall()[0][0])
            connection.close()
        else:
            put_back(folder / "dump.sql", url)
            self.made_at = float(run_tool("psql", "-At", "-c", newest, url))
        (folder / "home").mkdir()
        (folder / "home" / "secret.key").write_text(f"{story.KEY}\n")
        (folder / "home" / "secret.key").chmod(0o600)

    @property
    def payments(self) -> int:
        return self.ledger.read_text().count("paid ")

    def backup(self) -> Path:
        """The backup that the old Foliot made, as it made it."""
        file = self.folder / "backup.tar"
        with tarfile.open(file, "w", format=tarfile.USTAR_FORMAT) as archive:
            for name in ("manifest.json", "foliot.db"):
                content = (self.folder / name).read_bytes()
                member = tarfile.TarInfo(name)
                member.size, member.mode = len(content), 0o600
                archive.addfile(member, io.BytesIO(content))
        return file

    @asynccontextmanager
    async def opened(self, later: float = LATER) -> AsyncGenerator[Runtime]:
        settings = load_settings({"home": str(self.folder / "home"), "store": self.url}, environ={})
        # By the time of the store, so that it is the same test in ten years.
        ahead = self.made_at + later - time.monotonic()
        async with Runtime(settings=settings, clock=lambda: time.monotonic() + ahead) as runtime:
            yield runtime


def packed(schema: int) -> Path:
    return FOLDER / f"{schema:04}.tar.xz"


def packed_dump(schema: int) -> Path:
    return FOLDER / f"{schema:04}.postgres.tar.xz"


def kept() -> list[int]:
    """The schemas of which there is a store."""
    return sorted(int(file.name[:4]) for file in FOLDER.glob("[0-9][0-9][0-9][0-9].tar.xz"))


def kept_dumps() -> list[int]:
    """The schemas of which there is a dump of PostgreSQL."""
    return sorted(int(file.name[:4]) for file in FOLDER.glob("[0-9]*.postgres.tar.xz"))


def put_back(dump: Path, url: str) -> None:
    run_tool("psql", "--no-psqlrc", "--quiet", "--set=ON_ERROR_STOP=1", "--single-transaction", f"--file={dump}", url)


async def declare_again(runtime: Runtime) -> None:
    """Apply what is declared once more, as an upgrade asks for: stores of some builds do not know who declared it."""
    files = [FOLDER / "declared.yaml", FOLDER / "declared_work.yaml"]
    declared = {Key(each["kind"], "default", each["metadata"]["name"]) for each in (await listed(runtime))}
    documents = [
        resource
        for file in files
        for resource in parse_text(file.read_text(), file.name).documents
        if Key(resource["kind"], "default", resource["metadata"]["name"]) in declared
    ]
    await apply_documents(runtime.inside.resources, documents)


async def listed(runtime: Runtime) -> list[Document]:
    return (await runtime.inside.resources.list(Filter())).items


async def do_all_work(runtime: Runtime) -> None:
    """One worker, until there is nothing to do."""
    await runtime.inside.tasking.worker(Offer("now", identity(), capacity=4), once=True).run()


def forget_desk() -> None:
    sys.modules.pop("desk", None)
