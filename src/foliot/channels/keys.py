"""The one who can be any sender of a channel: who set the value of the Secret that it is signed or asked with."""

from __future__ import annotations

from typing import Final

from foliot.channels.base import DeclaredChannel
from foliot.errors import InvalidInput, NotFound, SecretError
from foliot.store.base import THE_PROCESS, DeclaredBy, Key, ResourceStore
from foliot.tools.secrets.secrets import SecretRef

SECRET: Final = "Secret"


async def key_by(resources: ResourceStore, channel: DeclaredChannel) -> DeclaredBy:
    """Returns who set the key of a channel, in the order in which its value is looked for.

    What no Secret of the store has, comes from the environment of the process, and so from the operator. Of a reference
    or a value that cannot be read nobody is known.
    """
    try:
        ref = SecretRef.parse(channel.secret_ref, channel.namespace)
        found = await resources.reveal(Key(SECRET, ref.namespace, ref.name))
    except NotFound:
        return THE_PROCESS
    except (InvalidInput, SecretError):
        return DeclaredBy()
    return found.set_by[ref.key] if ref.key in found else THE_PROCESS
