"""The client that settings ask for."""

from __future__ import annotations

from typing import TYPE_CHECKING

from foliot.client.base import Client

if TYPE_CHECKING:
    from foliot.client.declared_work import DeclaredWork
    from foliot.settings import Settings
    from foliot.store.secrets import Sealer


async def open_client(settings: Settings) -> Client:
    """A client on the store that `settings.store` names. Close it when done.

    Raises `UsageError` for a store that cannot be named so, `Unavailable` when it does not answer.
    """
    from foliot.client.local import LocalClient
    from foliot.store.open import open_database
    from foliot.store.resources import SqlResourceStore

    def keyring() -> Sealer:
        # Most commands never touch a secret value, and loading this takes a sixth of the time that they may take.
        from foliot.store.keyring import load_keyring

        return load_keyring(settings)

    database = await open_database(settings.store)

    async def budgets_changed(namespace: str) -> None:
        from time import time

        from foliot.engine.budgets.waking import wake_paused
        from foliot.store.journal import SqlJournal

        await wake_paused(SqlJournal(database), namespace, clock=time)

    def work() -> DeclaredWork:
        from foliot.client.declared_work import DeclaredWork

        return DeclaredWork(database, settings)

    store = SqlResourceStore(database, keyring)
    return LocalClient(store, close=database.close, budgets_changed=budgets_changed, work=work)
