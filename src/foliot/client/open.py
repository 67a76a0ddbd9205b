"""The connection to a server that settings ask for."""

from __future__ import annotations

from typing import TYPE_CHECKING

from foliot.errors import UsageError

if TYPE_CHECKING:
    from foliot.client.http import Server
    from foliot.settings.settings import Settings


def server_of(settings: Settings) -> Server:
    """Reads the address of the server and the token. Raises `UsageError` without one, or for a token that is none."""
    from foliot.client.http import Server

    if settings.server is None:
        raise UsageError("no server is named", hint="set FOLIOT_SERVER, or give --server")
    typed = settings.origin("token_file").startswith("flag")
    token = None if typed else settings.token
    if token is None and settings.token_file is not None:
        token = _token_in(settings)
    return Server(
        settings.server,
        token,
        home=settings.home,
        ca=settings.server_ca,
        cert=settings.server_cert,
        cert_key=settings.server_cert_key,
    )


def _token_in(settings: Settings) -> str:
    from foliot.settings.settings import Given, as_token

    path = settings.token_file
    assert path is not None, "asked only when there is one"
    try:
        text = path.read_text(encoding="ascii")
    except OSError as error:
        raise UsageError(f"the file {path} with the token cannot be read: {error.strerror}") from None
    except UnicodeDecodeError:
        text = ""
    return as_token(Given(text, f"file {path}", path.parent))
