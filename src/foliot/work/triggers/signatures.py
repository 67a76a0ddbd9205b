"""Whether a delivery was signed by somebody who knows the secret: one function for each sender's way of signing.

Pure. Every secret that is valid now is tried, all of them always, and compared in constant time. A refusal says why in
words for the owner of the webhook; the caller is told nothing but that it failed.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import hmac
import json
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import datetime
from typing import Any, Final, Literal, TypeAlias, cast

from msgspec import Struct

Headers: TypeAlias = Mapping[str, str]
"""Names in lower case."""

# A secret that can be tried out is none: bytes of a shared one, and of the key that Standard Webhooks writes in base64.
SHORTEST: Final = 8
SHORTEST_KEY: Final = 16
# HMAC fills a shorter key up with zeros to this, and hashes a longer one (RFC 2104).
_HMAC_BLOCK: Final = 64
_NUMBER: Final = re.compile(r"[0-9]{1,16}")
_MILLISECONDS: Final = 10**12


class SignatureRefused(Exception):
    """The text is for the owner of the webhook. It never holds a secret or a signature."""


class Scheme(Struct, frozen=True):
    """The `auth` of a webhook with every default filled in."""

    profile: str
    signature_header: str
    prefix: str = ""
    timestamp_header: str = ""
    id_header: str = ""
    encoding: Literal["hex", "base64"] = "hex"
    max_skew: float = 300.0


class SignatureClaim(Struct, frozen=True):
    """The content that a delivery claims was signed, and the signatures that it carries."""

    content: bytes
    signatures: tuple[bytes, ...]


def verify(scheme: Scheme, headers: Headers, body: bytes, secrets: Sequence[bytes], now: float) -> str:
    """The digest of what was signed. A secret that is too short proves nothing. Raises `SignatureRefused`."""
    secrets = [secret for secret in secrets if weakness_of(scheme, secret) is None]
    if scheme.profile == "gitlab":
        shown = _header(scheme.signature_header, headers, "signature").encode(errors="surrogateescape")
        good = [hmac.compare_digest(shown, secret) for secret in secrets]
        content = body
    else:
        claim = _CLAIMS[scheme.profile](scheme, headers, body, now)
        content = claim.content
        good = [
            hmac.compare_digest(_mac(key_of(scheme, secret), content), signature)
            for secret in secrets
            for signature in claim.signatures
        ]
    if not any(good):
        raise SignatureRefused("signature mismatch")
    return hashlib.sha256(content).hexdigest()


def sign(scheme: Scheme, secret: bytes, body: bytes, *, now: float, event_id: str) -> dict[str, str]:
    """The headers that a sender would add, the event's id included where it is one of them."""
    stamp = str(int(now))
    key = key_of(scheme, secret)
    headers = {scheme.id_header: event_id} if scheme.id_header else {}
    name = scheme.signature_header
    match scheme.profile:
        case "generic":
            mac = _mac(key, stamp.encode() + b"." + body)
            return {**headers, scheme.timestamp_header: stamp, name: scheme.prefix + _written(mac, scheme)}
        case "stripe":
            return {**headers, name: f"t={stamp},v1={_mac(key, stamp.encode() + b'.' + body).hex()}"}
        case "slack":
            mac = _mac(key, b"v0:" + stamp.encode() + b":" + body)
            return {**headers, scheme.timestamp_header: stamp, name: scheme.prefix + mac.hex()}
        case "standard-webhooks":
            mac = _mac(key, f"{event_id}.{stamp}.".encode() + body)
            return {**headers, scheme.timestamp_header: stamp, name: "v1," + base64.b64encode(mac).decode()}
        case "gitlab":
            return {**headers, name: secret.decode("utf-8", "replace")}
        case _:  # github, linear, shopify: the body alone
            return {**headers, name: scheme.prefix + _written(_mac(key, body), scheme)}


def key_of(scheme: Scheme, secret: bytes) -> bytes:
    """The key of the MAC: Standard Webhooks hands secrets around in base64, the others as they are."""
    if scheme.profile != "standard-webhooks":
        return secret
    try:
        return base64.b64decode(secret.removeprefix(b"whsec_"), validate=True)
    except (binascii.Error, ValueError):
        return secret


def hmac_key(scheme: Scheme, secret: bytes) -> bytes:
    """The key as HMAC-SHA-256 uses it: secrets that are written otherwise and sign alike have the same one."""
    key = key_of(scheme, secret)
    return (hashlib.sha256(key).digest() if len(key) > _HMAC_BLOCK else key).ljust(_HMAC_BLOCK, b"\0")


def weakness_of(scheme: Scheme, secret: bytes) -> str | None:
    """Why nobody is believed by this secret, without it; None for a good one."""
    if scheme.profile == "standard-webhooks" and len(key_of(scheme, secret)) < SHORTEST_KEY:
        return f"a secret of Standard Webhooks holds at least {SHORTEST_KEY} bytes: whsec_ and their base64"
    if len(secret.strip()) < SHORTEST:
        return f"a secret that deliveries are signed with has at least {SHORTEST} characters"
    return None


# --- what each sender signs --------------------------------------------------------------------------------------


def _generic(scheme: Scheme, headers: Headers, body: bytes, now: float) -> SignatureClaim:
    shown = _prefixed(scheme, headers)
    stamp = _header(scheme.timestamp_header, headers, "timestamp")
    _check_time(stamp, scheme, now)
    return SignatureClaim(stamp.encode() + b"." + body, (_read(shown, scheme.encoding),))


def _body_alone(scheme: Scheme, headers: Headers, body: bytes, now: float) -> SignatureClaim:
    return SignatureClaim(body, (_read(_prefixed(scheme, headers), scheme.encoding),))


def _linear(scheme: Scheme, headers: Headers, body: bytes, now: float) -> SignatureClaim:
    """The time is in the body, which is signed."""
    claim = _body_alone(scheme, headers, body, now)
    stamp = _member(body, "webhookTimestamp")
    if not isinstance(stamp, int) or isinstance(stamp, bool):
        raise SignatureRefused("missing webhookTimestamp in the body")
    _check_time(str(stamp), scheme, now)
    return claim


def _slack(scheme: Scheme, headers: Headers, body: bytes, now: float) -> SignatureClaim:
    shown = _prefixed(scheme, headers)
    stamp = _header(scheme.timestamp_header, headers, "timestamp")
    _check_time(stamp, scheme, now)
    return SignatureClaim(b"v0:" + stamp.encode() + b":" + body, (_read(shown, "hex"),))


def _stripe(scheme: Scheme, headers: Headers, body: bytes, now: float) -> SignatureClaim:
    """`t=1492774577,v1=5257…,v1=…`: one time, and a signature for each secret that is valid at the sender."""
    shown = _header(scheme.signature_header, headers, "signature")
    parts = [part.strip().partition("=") for part in shown.split(",")]
    stamps = [value for name, _, value in parts if name == "t"]
    if not stamps:
        raise SignatureRefused(f"missing timestamp in header {scheme.signature_header}")
    _check_time(stamps[0], scheme, now)
    signatures = [value for name, _, value in parts if name == "v1" and value]
    if not signatures:
        raise SignatureRefused("signature is empty")
    return SignatureClaim(stamps[0].encode() + b"." + body, tuple(_read(each, "hex") for each in signatures))


def _standard(scheme: Scheme, headers: Headers, body: bytes, now: float) -> SignatureClaim:
    """`v1,<base64> v1,<base64>` over `id.time.body`."""
    shown = _header(scheme.signature_header, headers, "signature")
    stamp = _header(scheme.timestamp_header, headers, "timestamp")
    _check_time(stamp, scheme, now)
    id = _header(scheme.id_header, headers, "id")
    signatures = [each.removeprefix("v1,") for each in shown.split() if each.startswith("v1,")]
    if not any(signatures):
        raise SignatureRefused("signature is empty")
    return SignatureClaim(
        f"{id}.{stamp}.".encode(errors="surrogateescape") + body,
        tuple(_read(each, "base64") for each in signatures if each),
    )


_CLAIMS: Final[dict[str, Callable[[Scheme, Headers, bytes, float], SignatureClaim]]] = {
    "generic": _generic,
    "github": _body_alone,
    "shopify": _body_alone,
    "linear": _linear,
    "slack": _slack,
    "stripe": _stripe,
    "standard-webhooks": _standard,
}


# --- parts -------------------------------------------------------------------------------------------------------


def lowered(headers: Iterable[tuple[str, str]]) -> dict[str, str]:
    """Headers by their names in lower case; of several with one name the first counts, for everybody alike."""
    found: dict[str, str] = {}
    for name, value in headers:
        found.setdefault(name.lower(), value)
    return found


def moment_of(text: str) -> float | None:
    """Seconds since 1970 from unix seconds, unix milliseconds, or RFC 3339; None when it is none of them."""
    text = text.strip()
    if _NUMBER.fullmatch(text):
        number = int(text)
        return number / 1000 if number > _MILLISECONDS else float(number)
    try:
        moment = datetime.fromisoformat(text)
        return moment.timestamp() if moment.tzinfo is not None else None
    except (ValueError, OverflowError):
        return None


def _header(name: str, headers: Headers, what: str) -> str:
    value = headers.get(name.lower(), "").strip()
    if not value:
        raise SignatureRefused(f"missing {what} header {name}")
    return value


def _prefixed(scheme: Scheme, headers: Headers) -> str:
    shown = _header(scheme.signature_header, headers, "signature")
    prefix = scheme.prefix
    if shown[: len(prefix)].lower() != prefix.lower():
        raise SignatureRefused("invalid signature prefix")
    if not (rest := shown[len(prefix) :].strip()):
        raise SignatureRefused("signature is empty")
    return rest


def _check_time(stamp: str, scheme: Scheme, now: float) -> None:
    moment = moment_of(stamp)
    if moment is None or not abs(now - moment) <= scheme.max_skew:
        raise SignatureRefused("timestamp outside allowed skew")


def _read(text: str, encoding: str) -> bytes:
    try:
        if encoding == "hex":
            return bytes.fromhex(text) if re.fullmatch(r"[0-9A-Fa-f]+", text) else _refuse_encoding(encoding)
        return base64.b64decode(text, validate=True)
    except (ValueError, binascii.Error):
        return _refuse_encoding(encoding)


def _refuse_encoding(encoding: str) -> bytes:
    raise SignatureRefused(f"signature must be {encoding}") from None


def _written(mac: bytes, scheme: Scheme) -> str:
    return mac.hex() if scheme.encoding == "hex" else base64.b64encode(mac).decode()


def _mac(key: bytes, content: bytes) -> bytes:
    return hmac.new(key, content, hashlib.sha256).digest()


def _member(body: bytes, name: str) -> Any:
    try:
        found = json.loads(body)
    except (ValueError, RecursionError):
        return None
    return cast("dict[str, Any]", found).get(name) if isinstance(found, dict) else None
