"""Which key a store is sealed with, so that no other one is ever taken for it.

A store keeps a short text that its key sealed (`secrets.sealed-with`): whoever opens it has the key, and it tells
nobody anything about the key. It is written before the first secret value is, and only if there is none, so that of two
homes which start at the same time on one database one is the first, and the other is refused. A key that is missing is
never replaced by a new one for a store that has values sealed with it.

Values are sealed with the key of that text, wherever it is among the keys of a home: which key comes first in a key
file says only which one a store begins with. A rotation changes the text before it seals anything anew.

Read and written by: store/resources/database.py. Shown by: cli/doctor/surroundings.py.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final

from foliot.errors import SecretError
from foliot.store.base import Database
from foliot.store.secrets.sealing import Sealer
from foliot.store.transaction import Tx, one, run

SEALED_WITH: Final = "secrets.sealed-with"
RETIRED: Final = "secrets.retired"
ROTATING: Final = "secrets.rotating"
"""The new key of a rotation that is under way, and the key before it."""
_CONTEXT: Final = "store/sealed-with"
_TEXT: Final = b"foliot"
_ROUND: Final = 100


async def key_of_store(database: Database) -> str:
    """The id of the key that seals the secrets of a store; blank when nothing was sealed yet."""
    return _id_in(await _setting(database, SEALED_WITH))


async def retired_keys(database: Database) -> tuple[str, ...]:
    """The ids of the keys that sealed values of this store once, and are kept for its backups."""
    return tuple((await _setting(database, RETIRED)).split())


def sealing_key(ring: Sealer) -> Tx[str]:
    """Return the id of the key to seal with, in the transaction that seals values, under the lock of the revision.

    Raises `SecretError` when it is not among those of `ring`, because a rotation began somewhere else meanwhile.
    """
    row = yield from one("setting_get", name=SEALED_WITH)
    assert row is not None  # `StoreKey.sealing` saw it
    return _checked(str(row["value"]), ring)


class StoreKey:
    """The keys of one store. `make` loads them, and makes one where there is none; `load` never does."""

    def __init__(self, database: Database, make: Callable[[], Sealer], load: Callable[[], Sealer] | None) -> None:
        self._database = database
        self._make = make
        self._load = load or make
        self._ring: Sealer | None = None
        self._known = ""

    async def opening(self) -> Sealer:
        """The keys to open a stored value with. Raises `SecretError` when they are not here; makes none."""
        if self._ring is None:
            self._ring = await self._loaded(await key_of_store(self._database))
        return self._ring

    async def sealing(self) -> Sealer:
        """The keys to seal a value with: those that this store is sealed with. Raises `SecretError` for others."""
        while True:
            mark = await _setting(self._database, SEALED_WITH)
            if self._ring is not None and mark and mark == self._known:
                return self._ring
            ring = self._ring or (await self._loaded(_id_in(mark)) if mark else self._make())
            if mark:
                _checked(mark, ring)
                self._ring, self._known = ring, mark
                return ring
            # The first one stands: whoever was later finds the mark of the other, and looks whether it has that key.
            mine = ring.seal(_TEXT, context=_CONTEXT)
            await self._database.write(run, "setting_new", name=SEALED_WITH, value=mine)

    async def rotating(self, renewed: Callable[[Sealer], Sealer]) -> tuple[Sealer, str]:
        """Have values sealed with the active key of `renewed` from now on: the keys, and the id of the one before.

        A rotation that did not end is gone on with.
        """
        ring, before = await self.sealing(), await key_of_store(self._database)
        new, _, noted = (await _setting(self._database, ROTATING)).partition(" ")
        if new != ring.active_id:
            ring = renewed(ring)
        elif noted:
            before = noted
        mark = ring.seal(_TEXT, context=_CONTEXT)
        await self._database.write(_begin, mark, f"{ring.active_id} {before}")
        self._ring, self._known = ring, mark
        return ring, before

    async def rotated(self, ring: Sealer, old: Sequence[str]) -> None:
        """Note that the values are sealed with the active key of `ring` from now on, and with none of the `old`."""
        retired = [
            each for each in dict.fromkeys([*old, *await retired_keys(self._database)]) if each != ring.active_id
        ]
        mark = ring.seal(_TEXT, context=_CONTEXT)
        await self._database.write(_note, mark, " ".join(retired))
        self._ring, self._known = ring, mark

    async def forgotten(self, keys: Sequence[str]) -> None:
        left = [each for each in await retired_keys(self._database) if each not in keys]
        await self._database.write(run, "setting_put", name=RETIRED, value=" ".join(left))

    async def replace_lost(self, kid: str) -> str:
        """Go on with the key that is here, made if there is none, for a store whose key `kid` is lost for good; its id.

        Values that the lost key sealed stay closed until they are stored again. Raises `SecretError` when it is here.
        """
        if kid != await key_of_store(self._database):
            raise SecretError(f"this store is not sealed with key {kid}", hint="`foliot doctor` names the one it is")
        ring = self._make()
        if kid in ring.key_ids:
            raise SecretError(f"key {kid} is here, and not lost", hint="`foliot secrets rotate-key` makes a new one")
        await self.rotated(ring, [kid])
        return ring.active_id

    async def _loaded(self, kid: str) -> Sealer:
        try:
            return self._load()
        except SecretError as error:
            if not kid:
                raise
            message = f"the secrets of this store are sealed with key {kid}, and {error.message}"
            raise SecretError(message, hint=what_to_do(kid), key_id=kid) from None


def _checked(mark: str, ring: Sealer) -> str:
    """The id of the key that sealed `mark`. Raises `SecretError` when `ring` does not have it."""
    try:
        ring.open(mark, context=_CONTEXT)
    except SecretError:
        raise _another(_id_in(mark), ring) from None
    return _id_in(mark)


def _another(kid: str, ring: Sealer) -> SecretError:
    return SecretError(
        f"the secrets of this store are sealed with key {kid}, and the keys here are others "
        f"({', '.join(ring.key_ids)}): nothing is sealed with them, because others on this store could not open it",
        hint=what_to_do(kid),
        key_id=kid,
    )


def what_to_do(kid: str) -> str:
    """Advice for a process that does not have the key of a store."""
    return (
        f"copy the line of key {kid} from the key file in the FOLIOT_HOME that used this store first, or from a backup "
        "of it, to a line of the key file here (mode 0600), or name that file with FOLIOT_SECRET_KEY_FILE. If "
        f"it is lost for good, `foliot secrets replace-lost-key {kid}` goes on with another, and each secret has to be "
        "stored again"
    )


def _begin(mark: str, rotating: str) -> Tx[None]:
    yield from run("setting_put", name=ROTATING, value=rotating)
    yield from run("setting_put", name=SEALED_WITH, value=mark)


def _note(mark: str, retired: str) -> Tx[None]:
    yield from run("setting_put", name=RETIRED, value=retired)
    yield from run("setting_put", name=SEALED_WITH, value=mark)


async def _setting(database: Database, name: str) -> str:
    rows = await database.read("setting_get", name=name)
    return str(rows[0]["value"]) if rows else ""


def _id_in(sealed: str) -> str:
    return sealed.removeprefix("enc:v1:").partition(":")[0]
