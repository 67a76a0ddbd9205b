"""A server in a process of its own, from its first admin on: the real hash, the real sockets, TLS."""

from __future__ import annotations

import datetime
import ipaddress
import os
import re
import ssl
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import httpx2 as httpx
import pytest
from click.testing import CliRunner
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

from foliot.cli.main import cli

PASSWORD = "correct horse battery"


@pytest.fixture
def certificate(tmp_path: Path) -> tuple[Path, Path]:
    """For 127.0.0.1, signed by itself."""
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "foliot test")])
    now = datetime.datetime.now(datetime.UTC)
    made = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - datetime.timedelta(days=1))
        .not_valid_after(now + datetime.timedelta(days=1))
        .add_extension(x509.SubjectAlternativeName([x509.IPAddress(ipaddress.ip_address("127.0.0.1"))]), critical=False)
        .sign(key, hashes.SHA256())
    )
    cert, private = tmp_path / "cert.pem", tmp_path / "key.pem"
    cert.write_bytes(made.public_bytes(serialization.Encoding.PEM))
    private.write_bytes(
        key.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
    )
    return cert, private


@pytest.fixture
def server(tmp_path: Path, certificate: tuple[Path, Path]) -> Iterator[str]:
    cert, key = certificate
    words = ("--home", str(tmp_path / "home"), "server", "--port", "0", "--tls-cert", str(cert), "--tls-key", str(key))
    environment = {name: value for name, value in os.environ.items() if not name.startswith("FOLIOT_")}
    process = subprocess.Popen(
        [sys.executable, "-m", "foliot.cli", *words], env=environment, stderr=subprocess.PIPE, text=True
    )
    timer = threading.Timer(110, process.kill)
    timer.start()
    assert process.stderr is not None
    try:
        yield next(found[0] for line in process.stderr if (found := re.search(r"https://[0-9.]+:\d+", line)))
    finally:
        timer.cancel()
        process.terminate()
        process.communicate(timeout=110)


def test_the_first_admin_is_made_logs_in_writes_and_leaves(
    tmp_path: Path, certificate: tuple[Path, Path], server: str
) -> None:
    made = CliRunner().invoke(cli, ["--home", str(tmp_path / "home"), "users", "setup-token"])
    assert made.exit_code == 0, made.output
    trust = ssl.create_default_context(cafile=str(certificate[0]))
    with httpx.Client(base_url=server, verify=trust, trust_env=False, timeout=110) as browser:
        assert browser.get("/v1/auth/me").status_code == 401
        login = {"username": "ada", "password": PASSWORD}
        setup = {**login, "setup_token": made.stdout.strip()}
        made_admin = browser.post("/v1/auth/setup", json=setup)
        assert made_admin.status_code == 201
        assert browser.get("/v1/auth/me").json()["username"] == "ada"
        left = browser.post("/v1/auth/logout", headers={"X-CSRF-Token": made_admin.json()["csrf_token"]})
        assert left.status_code == 200
        assert browser.get("/v1/auth/me").status_code == 401
        assert browser.post("/v1/auth/login", json={**login, "password": "wrong"}).status_code == 401

        entered = browser.post("/v1/auth/login", json=login)

        assert entered.status_code == 200
        assert entered.headers["set-cookie"].startswith("__Host-foliot_session=")
        body = {"kind": "ModelEndpoint", "metadata": {"name": "x"}, "spec": {"provider": "mock"}}
        assert browser.post("/v1/model-endpoints", json=body).status_code == 403
        csrf = {"X-CSRF-Token": entered.json()["csrf_token"]}
        assert browser.post("/v1/model-endpoints", json=body, headers=csrf).status_code == 201
        assert browser.post("/v1/auth/logout", headers=csrf).status_code == 200
        assert browser.get("/v1/auth/me").status_code == 401
