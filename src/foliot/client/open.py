"""The client that settings ask for."""

from __future__ import annotations

from typing import TYPE_CHECKING

from foliot.client.base import Client

if TYPE_CHECKING:
    from foliot.settings import Settings


async def open_client(settings: Settings) -> Client:
    """A client on the store that `settings.store` names. Close it when done.

    Raises `UsageError` for a store that cannot be named so, `Unavailable` when it does not answer.
    """
    from functools import partial

    from foliot.client.local import LocalClient
    from foliot.store.keyring import load_keyring
    from foliot.store.open import open_database
    from foliot.store.resources import SqlResourceStore

    database = await open_database(settings.store)
    return LocalClient(SqlResourceStore(database, partial(load_keyring, settings)), close=database.close)
