"""Every verb of `foliot.Client` is in docs/client.md."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from foliot import Client

PAGE = Path(__file__).parents[2] / "docs" / "client.md"
ALONE = {"run", "run_sync", "stream", "resume", "version", "health", "me", "capabilities", "close"}


def public(thing: Any) -> set[str]:
    return {name for name in dir(thing) if not name.startswith("_")}


def promised(group: Any) -> set[str]:
    """The verbs that a runtime has as well."""
    base = next(each for each in type(group).__mro__ if each.__module__.startswith("foliot.runtime.groups."))
    return public(base)


def test_every_verb_is_shown_and_none_that_is_not_there() -> None:
    client = Client("http://127.0.0.1:9")
    groups = public(Client) - ALONE
    verbs = ALONE | {f"{group}.{verb}" for group in groups for verb in promised(getattr(client, group))}
    listed = set(re.findall(r"`([a-z_.]+)`", "\n".join(re.findall(r"^\| `.*$", PAGE.read_text(), re.MULTILINE))))
    settings = {"server", "token", "token_file", "server_ca", "server_cert", "server_cert_key"}

    assert verbs - listed == set()
    assert listed - verbs - settings == set()
