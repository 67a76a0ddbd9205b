"""The table client x feature: what each client of OpenAI's API does against a Foliot, cell by cell.

    python -m tests.clients.table          # or `make clients`: installs what is missing, runs all, writes the table
    python -m tests.clients.table NAME…    # only these clients; of the others the last results stand

Each client but those that the tests need anyway has an environment of its own under .clients/. The results are kept in
results.json beside this file, and docs/clients.md is made from them; a test holds the two together.
"""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import subprocess
import sys
import tempfile
import venv
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final, NamedTuple

from tests.clients.world import Address, world

HERE: Final = Path(__file__).parent
ROOT: Final = HERE.parents[1]
ENVIRONMENTS: Final = ROOT / ".clients"
RESULTS: Final = HERE / "results.json"
DOCS: Final = ROOT / "docs" / "clients.md"
FEATURES: Final = ("plain", "stream", "schema", "tools", "own tools", "history", "errors")
APIS: Final = {"chat": "chat completions", "responses": "responses"}
WITHIN: Final = 300


class Client(NamedTuple):
    """`script` is below cells/; `bundled` clients are among what the tests need, and run in its environment."""

    title: str
    script: str
    bundled: bool = False


CLIENTS: Final[dict[str, Client]] = {
    "openai": Client("openai (Python)", "openai_sdk.py", bundled=True),
    "pydantic-ai": Client("Pydantic AI", "pydantic_ai_client.py", bundled=True),
    "openai-agents": Client("OpenAI Agents SDK", "openai_agents_client.py"),
    "agno": Client("Agno", "agno_client.py"),
    "langchain-openai": Client("LangChain ChatOpenAI", "langchain_client.py"),
    "litellm": Client("LiteLLM", "litellm_client.py"),
    "vercel-ai": Client("Vercel AI SDK (npm)", ""),
}
# Cells that are as they are meant to be, though they are not what a client may expect.
BY_DESIGN: Final[dict[str, str]] = {}
HEAD: Final = """\
# Clients that were tried

Made by `make clients`, which installs each client from its registry in an environment of its own, and has it do each of
these things against a server with a token, over both APIs. **Do not edit**: the cells are what the scripts in
`tests/clients` found, and a test holds this page against them. [Clients of OpenAI](openai.md) tells what they get.

| feature | what the client does |
|---|---|
| plain | asks an agent, and reads the answer and what it used |
| stream | reads the answer in pieces, as its own streaming gives them |
| schema | asks for a type of its own, and gets a value of it |
| tools | brings functions along, which the agent calls, and answers them in its own loop, whole and streamed |
| own tools | asks an agent that calls tools on the server: it shows the answer, and calls nothing a second time |
| history | goes on with a conversation in the client's own way |
| errors | hears that a model does not exist, as its own error |

"""


def render(results: Mapping[str, Any]) -> str:
    """The page, from what `results.json` holds."""
    lines = [HEAD + f"| client | version | API | {' | '.join(FEATURES)} |", "|---|---|---|" + "---|" * len(FEATURES)]
    notes: list[str] = []
    for name, client in CLIENTS.items():
        found = results[name]
        for api, title in APIS.items():
            cells: list[str] = []
            for feature in FEATURES:
                cell = f"{api}.{feature}"
                told = found["cells"].get(cell, "missing")
                if told == "right":
                    cells.append("right")
                elif f"{name}.{cell}" in BY_DESIGN:
                    cells.append("by design")
                    notes.append(f"- {client.title}, {title}, {feature}: {BY_DESIGN[f'{name}.{cell}']}")
                else:
                    cells.append("**missing**")
                    notes.append(f"- {client.title}, {title}, {feature}: `{told}`")
            lines.append(f"| {client.title} | {found['version']} | {title} | {' | '.join(cells)} |")
    return "\n".join([*lines, *([""] if notes else []), *notes]) + "\n"


def script_of(name: str) -> list[str]:
    """The command that runs the cells of a client."""
    if name == "vercel-ai":
        return [shutil.which("node") or "node", str(ENVIRONMENTS / name / "cells.mjs")]
    client = CLIENTS[name]
    python = sys.executable if client.bundled else str(ENVIRONMENTS / name / "bin" / "python")
    return [python, str(HERE / "cells" / client.script)]


def install(name: str) -> None:
    """Make the environment of a client, if it has one of its own. Raises `CalledProcessError`."""
    if CLIENTS[name].bundled:
        return
    home = ENVIRONMENTS / name
    if name == "vercel-ai":
        home.mkdir(parents=True, exist_ok=True)
        for file in ("package.json", "cells.mjs"):
            shutil.copy(HERE / "vercel" / file, home / file)
        subprocess.run(["npm", "install", "--silent", "--no-audit", "--no-fund"], cwd=home, check=True)
        return
    if not (home / "bin" / "python").exists():
        venv.create(home, with_pip=True)
    pip = [str(home / "bin" / "python"), "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
    subprocess.run([*pip, "-r", str(HERE / "requirements" / f"{name}.txt")], check=True)


async def try_client(name: str, address: Address) -> dict[str, Any]:
    """The results of one client's cells. Raises `RuntimeError` when it printed none."""
    environ = {**os.environ, "FOLIOT_BASE": address.base, "FOLIOT_KEY": address.key, "DO_NOT_TRACK": "1"}
    process = await asyncio.create_subprocess_exec(
        *script_of(name), env=environ, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE
    )
    async with asyncio.timeout(WITHIN):
        out, err = await process.communicate()
    for line in reversed(out.decode().splitlines()):
        if line.startswith('{"client"'):
            found: dict[str, Any] = json.loads(line)
            return {"version": found["version"], "cells": found["cells"]}
    raise RuntimeError(f"{name} printed no results:\n{err.decode()[-2000:]}")


async def try_all(names: Sequence[str]) -> dict[str, Any]:
    """The results of these clients, against a world of their own."""
    with tempfile.TemporaryDirectory() as home:
        async with world(Path(home)) as address:
            return {name: await try_client(name, address) for name in names}


def main(names: Sequence[str]) -> int:
    if unknown := [name for name in names if name not in CLIENTS]:
        print(f"there is no client {unknown[0]!r}; there are: {', '.join(CLIENTS)}", file=sys.stderr)
        return 2
    chosen = names or list(CLIENTS)
    for name in chosen:
        print(f"Installing {name} …", flush=True)
        install(name)
    results: dict[str, Any] = json.loads(RESULTS.read_text()) if RESULTS.exists() else {}
    results |= asyncio.run(try_all(chosen))
    RESULTS.write_text(json.dumps(results, indent=1, sort_keys=True) + "\n")
    page = render(results)
    DOCS.write_text(page)
    print(page)
    return int("**missing**" in page)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
