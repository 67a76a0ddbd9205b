"""The keyring: what is sealed opens only with its key, under its name, unchanged; and keys are never lost or shown."""

from __future__ import annotations

import base64
import os
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from foliot.errors import SecretError
from foliot.store.secrets.keyfile import key_id, read_key_file
from foliot.store.secrets.keyring import Keyring, keyring_from_text, load_keyring

KEY = bytes(range(32))
OTHER_KEY = bytes(range(32, 64))
CONTEXT = "default/openai/token"
VALUE = b"sk-very-secret-value"


@dataclass(frozen=True)
class Source:
    secret_key_file: Path
    secret_key: str | None = None


@pytest.fixture
def source(tmp_path: Path) -> Source:
    return Source(tmp_path / "secret.key")


@pytest.fixture
def ring(source: Source) -> Keyring:
    return load_keyring(source, create=True)


@pytest.fixture
def path(source: Source) -> Path:
    return source.secret_key_file


def write_private(path: Path, text: str | bytes) -> None:
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    path.chmod(0o600)


class TestSealing:
    @given(value=st.binary(max_size=300), context=st.text(max_size=40))
    def test_what_was_sealed_opens_to_the_same_bytes(self, value: bytes, context: str) -> None:
        ring = keyring_from_text(KEY.hex())

        assert ring.open(ring.seal(value, context=context), context=context) == value

    def test_a_sealed_value_names_its_key_and_hides_its_value(self, ring: Keyring) -> None:
        sealed = ring.seal(VALUE, context=CONTEXT)

        assert sealed.startswith(f"enc:v1:{ring.active_id}:")
        assert ring.key_id_of(sealed) == ring.active_id
        assert VALUE not in base64.b64decode(sealed.rsplit(":", 1)[1])

    def test_the_same_value_is_sealed_differently_each_time(self, ring: Keyring) -> None:
        assert ring.seal(VALUE, context=CONTEXT) != ring.seal(VALUE, context=CONTEXT)

    def test_a_value_moved_to_another_name_does_not_open(self, ring: Keyring) -> None:
        sealed = ring.seal(VALUE, context=CONTEXT)

        with pytest.raises(SecretError, match=r"default/other/token .* sealed for another") as caught:
            ring.open(sealed, context="default/other/token")
        assert VALUE.decode() not in str(caught.value)

    @given(position=st.integers(0, 200), bit=st.integers(0, 7))
    def test_a_changed_value_never_opens(self, position: int, bit: int) -> None:
        ring = keyring_from_text(KEY.hex())
        sealed = bytearray(ring.seal(VALUE, context=CONTEXT).encode())
        sealed[position % len(sealed)] ^= 1 << bit

        with pytest.raises(SecretError):
            ring.open(sealed.decode("latin-1"), context=CONTEXT)

    def test_an_unknown_key_is_named_with_what_to_do(self, ring: Keyring) -> None:
        foreign = keyring_from_text(KEY.hex()).seal(VALUE, context=CONTEXT)

        with pytest.raises(SecretError, match=f"sealed with key {key_id(KEY)}") as caught:
            ring.open(foreign, context=CONTEXT)
        assert caught.value.details == {"key_id": key_id(KEY)}
        assert f"add key {key_id(KEY)}" in (caught.value.hint or "")

    @pytest.mark.parametrize(
        "text", ["", "plain", "enc:v1:", "enc:v1:aaaa", "enc:v1:aaaa:", "enc:v1:aaaa:%%", "enc:v2:a:b"]
    )
    def test_what_is_not_a_sealed_value_refuses(self, ring: Keyring, text: str) -> None:
        with pytest.raises(SecretError):
            ring.open(text, context=CONTEXT)
        with pytest.raises(SecretError):
            ring.key_id_of(text)


class TestEnvironmentKeys:
    @pytest.mark.parametrize(
        "text",
        [
            KEY.hex(),
            KEY.hex().upper(),
            base64.b64encode(KEY).decode(),
            base64.b64encode(KEY).decode().rstrip("="),
            base64.urlsafe_b64encode(bytes([255] * 32)).decode(),
        ],
    )
    def test_hex_and_base64_keys_are_read(self, text: str) -> None:
        ring = keyring_from_text(text)

        assert ring.open(ring.seal(VALUE, context=CONTEXT), context=CONTEXT) == VALUE

    @pytest.mark.parametrize(
        "text", ["", " ", "short", "zz" * 32, KEY.hex()[:-1], KEY.hex() + "00", f"{KEY.hex()},", "é" * 64]
    )
    def test_anything_else_refuses_and_does_not_show_it(self, text: str, path: Path) -> None:
        with pytest.raises(SecretError, match="FOLIOT_SECRET_KEY") as caught:
            load_keyring(Source(path, text), create=True)
        assert len(text.strip()) < 5 or text.strip() not in f"{caught.value} {caught.value.hint}"
        assert not path.exists()

    def test_the_first_of_several_keys_seals_and_all_of_them_open(self) -> None:
        old = keyring_from_text(KEY.hex()).seal(VALUE, context=CONTEXT)
        ring = keyring_from_text(f"{OTHER_KEY.hex()}, {KEY.hex()}")

        assert ring.active_id == key_id(OTHER_KEY)
        assert ring.open(old, context=CONTEXT) == VALUE

    def test_one_key_listed_twice_refuses(self) -> None:
        with pytest.raises(SecretError, match="key 2 of 2, is the same as an earlier one"):
            keyring_from_text(f"{KEY.hex()},{KEY.hex()}")

    def test_rotation_is_refused_with_the_way_to_do_it(self) -> None:
        ring = keyring_from_text(KEY.hex())

        with pytest.raises(SecretError, match="environment variable FOLIOT_SECRET_KEY") as caught:
            ring.rotate()
        assert "in front of the old one" in (caught.value.hint or "")
        with pytest.raises(SecretError):
            ring.retire([])


class TestKeyFile:
    def test_a_missing_file_is_made_for_the_owner_only(self, ring: Keyring, path: Path) -> None:
        assert path.stat().st_mode & 0o777 == 0o600
        assert path.read_text().startswith(f"{ring.active_id} ")

    def test_a_missing_file_is_not_made_unless_asked(self, source: Source, path: Path) -> None:
        with pytest.raises(SecretError, match="no key file at"):
            load_keyring(source, create=False)
        assert not path.exists()

    def test_a_second_load_opens_what_the_first_sealed(self, source: Source, ring: Keyring) -> None:
        sealed = ring.seal(VALUE, context=CONTEXT)

        assert load_keyring(source).open(sealed, context=CONTEXT) == VALUE

    @pytest.mark.parametrize("mode", [0o640, 0o604, 0o660, 0o622])
    def test_a_file_open_to_others_refuses_with_the_command_to_type(
        self, source: Source, ring: Keyring, path: Path, mode: int
    ) -> None:
        path.chmod(mode)

        with pytest.raises(SecretError, match=f"mode {mode:04o}") as caught:
            load_keyring(source)
        assert caught.value.hint == f"chmod 600 {path}"

    @pytest.mark.parametrize(
        ("text", "problem"),
        [
            ("", "holds no key"),
            ("# only a comment\n\n", "holds no key"),
            ("nonsense\n", "line 1 is not a key"),
            (f"# fine\n{KEY.hex()[:-2]}\n", "line 2 is not a key"),
            (f"00000000 {KEY.hex()}\n", "line 1: the key does not belong to the id"),
            (f"{key_id(KEY)} {KEY.hex()} more\n", "line 1: expected a key id and a key, found 3 words"),
            (f"{KEY.hex()}\n{key_id(KEY)} {KEY.hex()}\n", "line 2: key .* is listed twice"),
            (b"\xff\xfe\x00", "is not text"),
            ("#" * 70_000, "larger than"),
        ],
    )
    def test_a_malformed_file_refuses_with_the_place_and_no_key(
        self, source: Source, path: Path, text: str | bytes, problem: str
    ) -> None:
        write_private(path, text)

        with pytest.raises(SecretError, match=problem) as caught:
            load_keyring(source, create=True)
        assert KEY.hex()[:-2] not in f"{caught.value} {caught.value.hint}"

    def test_a_bare_key_and_comments_are_read_and_kept(self, source: Source, path: Path) -> None:
        write_private(path, f"# made by hand\n\n{KEY.hex()}\n# the end")

        ring = load_keyring(source).rotate()

        assert ring.key_ids[1:] == (key_id(KEY),)
        assert path.read_text().splitlines()[0] == "# made by hand"
        assert path.read_text().splitlines()[-1] == "# the end"

    @pytest.mark.parametrize("make", [Path.mkdir, lambda path: os.mkfifo(path, 0o600)], ids=["folder", "pipe"])
    def test_what_is_not_a_file_refuses(self, source: Source, path: Path, make) -> None:
        make(path)

        with pytest.raises(SecretError):
            load_keyring(source, create=True)

    def test_a_folder_that_cannot_be_written_is_explained(self, tmp_path: Path) -> None:
        (tmp_path / "file").touch()

        with pytest.raises(SecretError, match=r"cannot be (read|written)"):
            load_keyring(Source(tmp_path / "file" / "secret.key"), create=True)


class TestRotation:
    def test_a_new_key_is_active_on_disk_and_old_values_still_open(
        self, source: Source, ring: Keyring, path: Path
    ) -> None:
        first, old = ring.active_id, ring.seal(VALUE, context=CONTEXT)

        rotated = ring.rotate()

        keys, _ = read_key_file(path)
        assert list(keys) == [rotated.active_id, first]
        assert path.stat().st_mode & 0o777 == 0o600
        assert rotated.key_id_of(rotated.seal(VALUE, context=CONTEXT)) == rotated.active_id != first
        assert load_keyring(source).open(old, context=CONTEXT) == VALUE

    def test_another_process_seals_with_the_new_key_at_once(self, source: Source, ring: Keyring) -> None:
        elsewhere = load_keyring(source)

        ring.rotate()

        assert elsewhere.key_id_of(elsewhere.seal(VALUE, context=CONTEXT)) == ring.active_id

    def test_another_process_opens_what_the_new_key_sealed(self, source: Source, ring: Keyring) -> None:
        elsewhere = load_keyring(source)

        sealed = ring.rotate().seal(VALUE, context=CONTEXT)

        assert elsewhere.open(sealed, context=CONTEXT) == VALUE

    def test_a_retired_key_is_gone_from_the_ring_and_the_file(self, ring: Keyring, path: Path) -> None:
        first, old = ring.active_id, ring.seal(VALUE, context=CONTEXT)
        ring.rotate()

        ring.retire([first, "unknown1"])

        assert ring.key_ids == (ring.active_id,)
        assert list(read_key_file(path)[0]) == [ring.active_id]
        with pytest.raises(SecretError, match=f"sealed with key {first}"):
            ring.open(old, context=CONTEXT)

    def test_the_active_key_cannot_be_retired(self, ring: Keyring) -> None:
        with pytest.raises(SecretError, match="is the active one"):
            ring.retire([ring.active_id])
        assert ring.open(ring.seal(VALUE, context=CONTEXT), context=CONTEXT) == VALUE

    def test_nothing_is_sealed_once_the_file_is_gone_but_old_values_open(self, ring: Keyring, path: Path) -> None:
        sealed = ring.seal(VALUE, context=CONTEXT)
        path.unlink()

        with pytest.raises(SecretError, match="is gone"):
            ring.seal(VALUE, context=CONTEXT)
        assert ring.open(sealed, context=CONTEXT) == VALUE

    def test_a_link_keeps_pointing_at_the_file_that_was_rotated(
        self, ring: Keyring, path: Path, tmp_path: Path
    ) -> None:
        link = tmp_path / "link.key"
        link.symlink_to(path)

        through_link = load_keyring(Source(link)).rotate()

        assert link.is_symlink()
        assert next(iter(read_key_file(path)[0])) == through_link.active_id

    def test_rotations_and_creations_at_once_lose_no_key(self, source: Source, path: Path) -> None:
        with ThreadPoolExecutor(8) as pool:
            made = list(pool.map(lambda _: load_keyring(source, create=True).rotate().key_ids, range(8)))

        keys, _ = read_key_file(path)
        assert len(keys) == 9
        assert {kid for ids in made for kid in ids} == set(keys)
        assert [p.name for p in path.parent.glob(".secret.key*")] == []


class TestSilence:
    def test_a_ring_never_shows_its_keys(self, ring: Keyring) -> None:
        environment = keyring_from_text(KEY.hex())

        assert KEY.hex() not in repr(environment)
        assert repr(environment) == (
            f"Keyring(active_id={key_id(KEY)!r}, keys=1, source='environment variable FOLIOT_SECRET_KEY')"
        )

    def test_loading_a_ring_does_not_import_the_cipher(self, ring: Keyring, path: Path) -> None:
        code = (
            "import sys, pathlib; from foliot.store.secrets import keyring\n"
            "class S: secret_key = None; secret_key_file = pathlib.Path(sys.argv[1])\n"
            "keyring.load_keyring(S())\n"
            "assert not [m for m in sys.modules if m.startswith('cryptography')]"
        )

        subprocess.run([sys.executable, "-c", code, str(path)], check=True, timeout=110)
