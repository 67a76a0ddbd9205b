"""`foliot models check`: the cells asked of an endpoint, here one on loopback that keeps its rules."""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from foliot.models.cells import CELLS
from tests.cli.conftest import Foliot
from tests.models.obeying import Obeying
from tests.tools.web_service import serving

pytest.importorskip("openai")
KEY = "sk-very-secret-5150"


@pytest.fixture
def url() -> Iterator[str]:
    """A server on a thread of its own: the command has an event loop of its own too."""
    ready, over, found = threading.Event(), asyncio.Event(), list[str]()
    loop = asyncio.new_event_loop()

    async def serve() -> None:
        async with serving(Obeying("openai", "openai-chat")) as service:
            found.append(service.url)
            ready.set()
            await over.wait()

    thread = threading.Thread(target=lambda: loop.run_until_complete(serve()))
    thread.start()
    assert ready.wait(60)
    yield f"{found[0]}/v1"
    loop.call_soon_threadsafe(over.set)
    thread.join()
    loop.close()


def applied(foliot: Foliot, tmp_path: Path, url: str) -> None:
    spec = f"{{provider: openai-compatible, base_url: {url!r}, default_model: gpt-4.1, auth: {{secretRef: key}}, "
    spec += "pricing: {input: 1, output: 2}}"
    (tmp_path / "main.yaml").write_text(f"kind: ModelEndpoint\nmetadata: {{name: main}}\nspec: {spec}\n")
    assert foliot("create", "secret", "key", "--from-literal", "value=-", stdin=KEY).code == 0
    said = foliot("apply", "-f", tmp_path / "main.yaml")
    assert said.code == 0, said.err


def test_an_endpoint_is_asked_each_cell_and_the_price_is_said_first(foliot: Foliot, tmp_path: Path, url: str) -> None:
    applied(foliot, tmp_path, url)
    declined = foliot("models", "check", "main", stdin="n\n")
    assert declined.code != 0
    assert f"{len(CELLS)} questions to gpt-4.1 of openai-compatible" in declined.out + declined.err
    assert "US dollars" in declined.out + declined.err
    assert "plain answer" not in declined.out

    said = foliot("models", "check", "main", "--yes")
    assert said.code == 0, said.out + said.err
    assert "plain answer" in said.out
    asked = foliot("models", "check", "main", "--yes", "-o", "json", "--embeddings", "e")
    cells = json.loads(asked.out)["cells"]
    for name in ("plain answer", "stream", "tools", "schema with tools", "tools in a stream", "embeddings"):
        assert cells[name]["state"] == "right"
    for each in (declined, said, asked):
        assert KEY not in each.out + each.err


def test_what_cannot_be_asked_is_told_in_words(foliot: Foliot, tmp_path: Path) -> None:
    said = foliot("models", "check", "nobody", "--yes")
    assert said.code != 0
    assert "nobody" in said.err
    assert "Traceback" not in said.err
    applied(foliot, tmp_path, "http://127.0.0.1:9/v1")
    said = foliot("models", "check", "main", "--yes")
    assert said.code == 7
    assert said.out.count("the connection to model provider") == 1
    assert said.out.count("nobody answers at this address") == len(CELLS) - 1
    assert " wrong " in said.out
    unasked = foliot("models", "check", "main", stdin="")
    assert unasked.code == 2
    assert "--yes" in unasked.err
    assert KEY not in said.out + said.err
