"""Signatures against vectors made by each sender's documented recipe, and against people who try."""

from __future__ import annotations

import base64
import hashlib
import hmac
import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from foliot.resources.definitions.task_webhook import PROFILES
from foliot.work.triggers.signatures import Scheme, SignatureRefused, lowered, moment_of, sign, verify

NOW = 1_780_300_800.0
SECRET = b"It's a Secret to Everybody"
BODY = b'{"hello": "world"}'


def scheme(profile: str, **changed: object) -> Scheme:
    defaults = PROFILES[profile]
    return Scheme(
        **{
            "profile": profile,
            "signature_header": defaults.signature_header,
            "prefix": defaults.signature_prefix,
            "timestamp_header": defaults.timestamp_header,
            "id_header": defaults.event_id_header,
            "encoding": defaults.encoding,
            **changed,
        }
    )


def mac(content: bytes, secret: bytes = SECRET) -> bytes:
    return hmac.new(secret, content, hashlib.sha256).digest()


def vectors() -> dict[str, tuple[bytes, bytes, dict[str, str]]]:
    """Secret, body and headers, as the documentation of each sender says how to make them."""
    stamp = str(int(NOW))
    raw_key = b"standard-key-of-24-bytes"
    whsec = b"whsec_" + base64.b64encode(raw_key)
    linear = json.dumps({"action": "create", "webhookTimestamp": int(NOW * 1000)}).encode()
    return {
        # github.com documents this very vector.
        "github": (
            SECRET,
            b"Hello, World!",
            {"X-Hub-Signature-256": "sha256=757107ea0eb2509fc211221cce984b8a37570b6d7586c22c46f4379c8b043e17"},
        ),
        "generic": (
            SECRET,
            BODY,
            {"X-Timestamp": stamp, "X-Signature": "sha256=" + mac(stamp.encode() + b"." + BODY).hex()},
        ),
        "gitlab": (SECRET, BODY, {"X-Gitlab-Token": SECRET.decode()}),
        "stripe": (
            SECRET,
            BODY,
            {"Stripe-Signature": f"t={stamp},v1={'0' * 64},v1={mac(stamp.encode() + b'.' + BODY).hex()},v0=abc"},
        ),
        "slack": (
            SECRET,
            b"token=x&command=%2Fweather",
            {
                "X-Slack-Request-Timestamp": stamp,
                "X-Slack-Signature": "v0=" + mac(b"v0:" + stamp.encode() + b":token=x&command=%2Fweather").hex(),
            },
        ),
        "standard-webhooks": (
            whsec,
            BODY,
            {
                "webhook-id": "msg_1",
                "webhook-timestamp": stamp,
                "webhook-signature": "v1,"
                + base64.b64encode(mac(b"wrong")).decode()
                + " v1,"
                + base64.b64encode(mac(f"msg_1.{stamp}.".encode() + BODY, raw_key)).decode(),
            },
        ),
        "linear": (SECRET, linear, {"Linear-Signature": mac(linear).hex()}),
        "shopify": (SECRET, BODY, {"X-Shopify-Hmac-Sha256": base64.b64encode(mac(BODY)).decode()}),
    }


VECTORS = vectors()


def check(profile: str, headers: dict[str, str], body: bytes, secrets: list[bytes], now: float = NOW) -> str:
    return verify(scheme(profile), lowered(headers.items()), body, secrets, now)


def test_every_profile_has_a_vector() -> None:
    assert VECTORS.keys() == PROFILES.keys()


@pytest.mark.parametrize("profile", VECTORS)
def test_a_delivery_that_the_sender_signed_is_believed(profile: str) -> None:
    secret, body, headers = VECTORS[profile]
    assert check(profile, headers, body, [secret])
    assert check(profile, {name.upper(): value for name, value in headers.items()}, body, [secret])


@pytest.mark.parametrize("profile", VECTORS)
def test_any_of_the_secrets_that_are_valid_will_do_while_they_are_changed(profile: str) -> None:
    secret, body, headers = VECTORS[profile]
    assert check(profile, headers, body, [b"new-secret", secret])
    assert check(profile, headers, body, [secret, b"new-secret"])
    with pytest.raises(SignatureRefused, match="signature mismatch"):
        check(profile, headers, body, [b"new-secret", b"newer"])


@pytest.mark.parametrize("profile", sorted(VECTORS.keys() - {"gitlab"}))
def test_a_body_that_was_changed_is_not_believed(profile: str) -> None:
    secret, body, headers = VECTORS[profile]
    with pytest.raises(SignatureRefused, match="signature mismatch"):
        check(profile, headers, body + b" ", [secret])


@pytest.mark.parametrize("profile", sorted(VECTORS.keys() - {"gitlab", "github", "shopify"}))
def test_what_was_signed_long_ago_is_not_believed(profile: str) -> None:
    secret, body, headers = VECTORS[profile]
    assert check(profile, headers, body, [secret], NOW + 300)
    assert check(profile, headers, body, [secret], NOW - 300)
    for now in (NOW + 301, NOW - 301):
        with pytest.raises(SignatureRefused, match="timestamp outside allowed skew"):
            check(profile, headers, body, [secret], now)


@pytest.mark.parametrize("profile", sorted(VECTORS.keys() - {"gitlab", "github", "shopify", "linear"}))
def test_a_time_that_was_moved_breaks_the_signature(profile: str) -> None:
    secret, body, headers = VECTORS[profile]
    moved = {name: value.replace(str(int(NOW)), str(int(NOW) + 200)) for name, value in headers.items()}
    assert moved != headers
    with pytest.raises(SignatureRefused, match="signature mismatch"):
        check(profile, moved, body, [secret], NOW + 400)


@pytest.mark.parametrize("profile", PROFILES)
@settings(deadline=None)
@given(body=st.binary(max_size=200), secret=st.binary(min_size=16, max_size=40), id=st.uuids())
def test_what_we_sign_ourselves_is_believed(profile: str, body: bytes, secret: bytes, id: object) -> None:
    if profile == "gitlab":
        secret = secret.hex().encode()  # it goes into a header as it is
    if profile == "standard-webhooks":
        secret = b"whsec_" + base64.b64encode(secret)
    if profile == "linear":
        body = b'{"webhookTimestamp": %d, "body": "%s"}' % (NOW, body.hex().encode())
    if len(secret.strip()) < 16:
        return
    headers = sign(scheme(profile), secret, body, now=NOW, event_id=str(id))
    assert check(profile, headers, body, [secret])


@pytest.mark.parametrize("profile", PROFILES)
@settings(deadline=None)
@given(data=st.data())
def test_nonsense_is_refused_and_nothing_else_happens(profile: str, data: st.DataObject) -> None:
    text = st.one_of(st.text(max_size=30), st.sampled_from(["sha256=", "v0=", "v1,", "t=,v1=", "t=1,v1=zz", "\udcff"]))
    names = st.sampled_from(
        [scheme(profile).signature_header, scheme(profile).timestamp_header or "x", scheme(profile).id_header or "y"]
    )
    headers = data.draw(st.dictionaries(names, text))
    with pytest.raises(SignatureRefused) as refused:
        check(profile, headers, data.draw(st.binary(max_size=50)), [SECRET])
    assert SECRET.decode() not in str(refused.value)


@pytest.mark.parametrize(
    ("headers", "detail"),
    [
        ({}, "missing signature header X-Signature"),
        ({"X-Signature": "  "}, "missing signature header X-Signature"),
        ({"X-Signature": "md5=ab"}, "invalid signature prefix"),
        ({"X-Signature": "SHA256="}, "signature is empty"),
        ({"X-Signature": "sha256=ab"}, "missing timestamp header X-Timestamp"),
        ({"X-Signature": "sha256=ab", "X-Timestamp": "yesterday"}, "timestamp outside allowed skew"),
        ({"X-Signature": "sha256=ab", "X-Timestamp": str(int(NOW) - 301)}, "timestamp outside allowed skew"),
        ({"X-Signature": "sha256=xyz", "X-Timestamp": str(int(NOW))}, "signature must be hex"),
        ({"X-Signature": "sha256=ab", "X-Timestamp": str(int(NOW))}, "signature mismatch"),
    ],
)
def test_the_owner_can_read_what_was_wrong(headers: dict[str, str], detail: str) -> None:
    with pytest.raises(SignatureRefused) as refused:
        check("generic", headers, BODY, [SECRET])
    assert str(refused.value) == detail


def test_the_prefix_may_be_written_in_any_case_and_be_left_out_by_declaration() -> None:
    _, body, headers = VECTORS["github"]
    digest = headers["X-Hub-Signature-256"].removeprefix("sha256=")
    assert check("github", {"X-Hub-Signature-256": "SHA256=" + digest.upper()}, body, [SECRET])
    bare = scheme("github", prefix="")
    assert verify(bare, {"x-hub-signature-256": digest}, body, [SECRET], NOW)


def test_the_generic_profile_can_be_written_in_base64() -> None:
    chosen = scheme("generic", encoding="base64")
    headers = sign(chosen, SECRET, BODY, now=NOW, event_id="e")
    assert verify(chosen, lowered(headers.items()), BODY, [SECRET], NOW)


@pytest.mark.parametrize("stamp", ["1780300800", "1780300800000", "2026-06-01T08:00:00Z", "2026-06-01T10:00:00+02:00"])
def test_times_in_seconds_milliseconds_and_words(stamp: str) -> None:
    assert moment_of(stamp) == NOW


@pytest.mark.parametrize("stamp", ["", "nan", "inf", "1e9", "-5", "2026-06-01T08:00:00", "9" * 17, "٣٤٥", "0x10"])
def test_what_is_no_time(stamp: str) -> None:
    assert moment_of(stamp) is None


def test_of_several_headers_with_one_name_the_first_counts() -> None:
    assert lowered([("X-A", "1"), ("x-a", "2")]) == {"x-a": "1"}
