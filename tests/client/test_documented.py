"""Every verb of `foliot.Client` is in docs/client.md."""

from __future__ import annotations

import re
from pathlib import Path

from foliot import Client

PAGE = Path(__file__).parents[2] / "docs" / "client.md"


def test_every_verb_is_shown_and_none_that_is_not_there() -> None:
    verbs = {name for name in dir(Client) if not name.startswith("_")}
    listed = set(re.findall(r"`([a-z_]+)`", "\n".join(re.findall(r"^\| `.*$", PAGE.read_text(), re.MULTILINE))))
    settings = {"server", "token", "token_file", "server_ca", "server_cert", "server_cert_key"}

    assert verbs - listed == set()
    assert listed - verbs - settings - {"arguments"} == set()
