"""Seals secret values, and opens them again, with one of several keys.

A sealed value is `enc:v1:<key id>:<base64 of nonce, ciphertext and tag>` (AES-256-GCM). Its context (the namespace,
name and key it is stored under) is authenticated with it, so a value copied to another name does not open there.

Called by:   store (secret resources), `foliot secrets rotate-key`.
Invariant:   a new key is on disk before anything is sealed with it; nothing is sealed with a key that the key file no
             longer has; whatever is malformed, missing or open to others refuses. No value and no key is ever shown.
"""

from __future__ import annotations

import base64
import os
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple, NoReturn, Protocol

from foliot.errors import SecretError
from foliot.store.secrets.keyfile import (
    Keys,
    Stamp,
    add_active_key,
    create_key_file,
    decode_key,
    key_id,
    read_key_file,
    remove_keys,
    stamp_of,
)

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.ciphers.aead import AESGCM

PREFIX = "enc:v1:"
NONCE_BYTES = 12
TAG_BYTES = 16
VARIABLE = "FOLIOT_SECRET_KEY"


class KeySource(Protocol):
    """A source of keys. `Settings` is one."""

    @property
    def secret_key(self) -> str | None: ...
    @property
    def secret_key_file(self) -> Path: ...


class _Sealed(NamedTuple):
    kid: str
    nonce: bytes
    ciphertext: bytes


class Keyring:
    """Keys by id, one of them active. Safe to share between threads; follows changes that others make to its file."""

    def __init__(self, keys: Keys, *, source: str, path: Path | None = None, stamp: Stamp | None = None) -> None:
        """Use `load_keyring` or `keyring_from_text`; `keys` holds the active one first."""
        self._keys = keys
        self._source = source
        self._path = path
        self._stamp = stamp
        self._ciphers: dict[str, AESGCM] = {}

    def __repr__(self) -> str:
        return f"Keyring(active_id={self.active_id!r}, keys={len(self._keys)}, source={self._source!r})"

    @property
    def active_id(self) -> str:
        """The id of the key that `seal` uses when none is named: the first."""
        return next(iter(self._keys))

    @property
    def key_ids(self) -> tuple[str, ...]:
        """Every key that can open values, the active one first."""
        return tuple(self._keys)

    def seal(self, value: bytes, *, context: str, kid: str = "") -> str:
        """Encrypt `value` for `context` with the key `kid`, or with the one that is active now, in any process.

        Raises `SecretError` when the key file is gone or can no longer be trusted: what would be sealed now could
        not be opened after a restart. Also when it has no such key.
        """
        self._follow_file()
        kid = kid or self.active_id
        if (key := self._keys.get(kid)) is None:
            self._refuse_unknown(kid, context)
        nonce = os.urandom(NONCE_BYTES)
        body = nonce + self._cipher(kid, key).encrypt(nonce, value, _associated(kid, context))
        return f"{PREFIX}{kid}:{base64.b64encode(body).decode()}"

    def open(self, sealed: str, *, context: str) -> bytes:
        """The clear value. Raises `SecretError` when its key is missing, or it was changed or moved."""
        from cryptography.exceptions import InvalidTag

        part = _parse(sealed)
        if part.kid not in self._keys:
            self._follow_file()  # another process may have rotated meanwhile
        if (key := self._keys.get(part.kid)) is None:
            self._refuse_unknown(part.kid, context)
        try:
            return self._cipher(part.kid, key).decrypt(part.nonce, part.ciphertext, _associated(part.kid, context))
        except InvalidTag:
            raise SecretError(
                f"the secret value {context} does not open with key {part.kid}: "
                "it was changed, or was sealed for another namespace, name or key",
                hint="store the value again",
                key_id=part.kid,
            ) from None

    @staticmethod
    def key_id_of(sealed: str) -> str:
        """The id of the key that a value is sealed with. Raises `SecretError` when it is not a sealed value."""
        return _parse(sealed).kid

    def rotate(self) -> Keyring:
        """Make a new key the active one, on disk before this returns. Older keys still open what they sealed.

        Returns this ring. Raises `SecretError` when the keys come from the environment, which cannot be written.
        """
        add_active_key(self._writable_path())
        self._reload()
        return self

    def retire(self, key_ids: Iterable[str]) -> None:
        """Forget keys for good, here and in the key file; what is still sealed with them can never be opened again.

        Raises `SecretError` for the active key, or when the keys come from the environment.
        """
        remove_keys(self._writable_path(), frozenset(key_ids))
        self._reload()

    def _cipher(self, kid: str, key: bytes) -> AESGCM:
        if (cipher := self._ciphers.get(kid)) is None:
            from cryptography.hazmat.primitives.ciphers.aead import AESGCM

            cipher = self._ciphers[kid] = AESGCM(key)
        return cipher

    def _follow_file(self) -> None:
        if self._path is None:
            return
        try:
            changed = stamp_of(self._path) != self._stamp
        except OSError:
            changed = True  # reading it tells why
        if changed:
            self._reload()

    def _reload(self) -> None:
        assert self._path is not None
        try:
            keys, stamp = read_key_file(self._path)
        except FileNotFoundError:
            raise SecretError(
                f"key file {self._path} is gone", hint="put it back: without it no stored secret can be opened"
            ) from None
        # Keys first: a thread in between would only read the file once more.
        self._keys, self._stamp = keys, stamp

    def _writable_path(self) -> Path:
        if self._path is None:
            raise SecretError(
                f"the keys come from the {self._source}, which cannot be changed from here",
                hint=f"put a new key in front of the old one in {VARIABLE} (separated by a comma), "
                f"or move the keys to a key file and unset {VARIABLE}",
            )
        return self._path

    def _refuse_unknown(self, kid: str, context: str) -> NoReturn:
        known = ", ".join(self._keys)
        raise SecretError(
            f"the secret value {context} is sealed with key {kid}, which is not among the keys of the "
            f"{self._source} ({known})",
            hint=f"add key {kid} behind the active key, or store the value again",
            key_id=kid,
        )


def load_keyring(source: KeySource, *, create: bool = True) -> Keyring:
    """The ring that the settings name: the environment's keys when given, else those of the key file.

    A missing key file is made, with one new key and readable only by its owner, unless `create` is off. Raises
    `SecretError` for a file that is malformed, open to other users, or missing and not to be made.
    """
    if source.secret_key is not None:
        return keyring_from_text(source.secret_key)
    path = source.secret_key_file
    try:
        keys, stamp = read_key_file(path)
    except FileNotFoundError:
        if not create:
            raise SecretError(
                f"there is no key file at {path}",
                hint=f"set FOLIOT_SECRET_KEY_FILE or {VARIABLE}, or restore the file from a backup",
            ) from None
        create_key_file(path)
        keys, stamp = read_key_file(path)
    return Keyring(keys, source=f"key file {path}", path=path, stamp=stamp)


def check_keys(source: KeySource) -> None:
    """Raises `SecretError` for keys that are there and cannot be used: a service says so when it starts, not later."""
    if source.secret_key is not None or source.secret_key_file.exists():
        load_keyring(source, create=False)


def keyring_from_text(text: str, *, origin: str = f"environment variable {VARIABLE}") -> Keyring:
    """A ring of the keys in `text`, separated by commas, the active one first. Raises `SecretError`."""
    keys: Keys = {}
    words = [word.strip() for word in text.split(",")]
    for number, word in enumerate(words, start=1):
        where = f"{origin}, key {number} of {len(words)}," if len(words) > 1 else origin
        if not word:
            raise SecretError(f"{where} is empty", hint=f"unset {VARIABLE} to use a key file instead")
        key = decode_key(word, where=where)
        if (kid := key_id(key)) in keys:
            raise SecretError(f"{where} is the same as an earlier one", hint="list each key once")
        keys[kid] = key
    return Keyring(keys, source=origin)


def _associated(kid: str, context: str) -> bytes:
    return f"{PREFIX}{kid}:{context}".encode()


def _parse(sealed: str) -> _Sealed:
    kid, colon, encoded = sealed.removeprefix(PREFIX).partition(":")
    if not sealed.startswith(PREFIX) or not colon:
        raise SecretError("a stored secret value is not sealed", hint="store the value again")
    try:
        body = base64.b64decode(encoded, validate=True)
    except ValueError:
        body = b""
    if len(body) < NONCE_BYTES + TAG_BYTES or base64.b64encode(body).decode() != encoded:
        raise SecretError("a stored secret value is damaged", hint="store the value again", key_id=kid)
    return _Sealed(kid, body[:NONCE_BYTES], body[NONCE_BYTES:])
