"""Three walks through Foliot, counted: which functions, files and statements of the store one request passes.

    python benchmarks/walks.py [run] [task] [call] [--spine] [--statements]

    run    `foliot run agent.yaml "hi"` in a new home, from the command line to the exit
    task   `POST /v1/tasks` to `foliot up` with its worker, until the task is settled in the store; a second one counts
           what comes with every task, without what is done once in a process
    call   one tool call of a run, from the model's answer to the question that follows

Each walk is a process of its own under `sys.setprofile`. Functions that run while a module is imported do not count:
they are part of no request. Lambdas and comprehensions do not count either. What runs in the background meanwhile does.
`--spine` prints every function in the order of its first call, with its caller; `--statements` the names of all reads
and writes. To count an older tree: `PYTHONPATH=<tree>/src python benchmarks/walks.py`.
"""

from __future__ import annotations

import argparse
import asyncio
import http.client
import json
import os
import re
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from types import CodeType, FrameType
from typing import Any, Final

import apsw

WALKS: Final = ("run", "task", "call")
ROWS: Final = ("functions", "files", "reads", "writes", "opened", "gets", "lists", "revisions")
AGENT: Final = """\
apiVersion: foliot.dev/v1
kind: Agent
metadata: {name: walker}
spec: {model_ref: walker-model, prompt: Walk.}
---
apiVersion: foliot.dev/v1
kind: ModelEndpoint
metadata: {name: walker-model}
spec: {provider: mock, default_model: mock}
"""
# A coroutine is called anew whenever it goes on. At the first call its last instruction is one of the first few.
FIRST_INSTRUCTIONS: Final = 16
IS_FUNCTION: Final = 0x1  # CO_OPTIMIZED: neither a module nor the body of a class
WAITS_AT_MOST: Final = 60.0


class Walk:
    """What was called, in the order of first calls, while `going`."""

    def __init__(self) -> None:
        import foliot

        self._root = str(Path(foliot.__file__).parent) + os.sep
        self.going = False
        self.counts: Counter[str] = Counter()
        self.statements: list[str] = []
        self.spine: dict[CodeType, str] = {}
        self._importing: Counter[int] = Counter()
        self._known: dict[CodeType, str] = {}  # its file, "" when it does not count

    def start(self) -> None:
        threading.setprofile(self.seen)
        sys.setprofile(self.seen)

    def seen(self, frame: FrameType, event: str, argument: Any) -> None:
        code = frame.f_code
        if (file := self._known.get(code)) is None:
            inside = code.co_filename.startswith(self._root)
            file = self._known[code] = code.co_filename[len(self._root) :] if inside else ""
        if not file:
            return
        if code.co_name == "<module>":
            self._importing[threading.get_ident()] += {"call": 1, "return": -1}.get(event, 0)
            return
        if event != "call" or not self.going or code.co_name[0] == "<" or not code.co_flags & IS_FUNCTION:
            return
        if self._importing[threading.get_ident()]:
            return
        if code not in self.spine:
            self.spine[code] = _place(frame.f_back, self._root)
        if file.startswith(("store/", "client/")) and frame.f_lasti < FIRST_INSTRUCTIONS:
            self._count(file, code.co_name, frame)

    def _count(self, file: str, name: str, frame: FrameType) -> None:
        if file == "store/sqlite/database.py":
            if name in ("read", "write"):
                self.counts[f"{name}s"] += 1
                given = frame.f_locals.get("name") or frame.f_locals.get("body")
                plain = given if isinstance(given, str) else type(given).__name__
                self.statements.append(f"{name} {getattr(given, '__qualname__', plain)}")
            elif name == "open":
                self.counts["opened"] += 1
        elif file == "store/resources/database.py" and name in ("get", "list", "revision"):
            self.counts[f"{name}s"] += 1

    def take(self) -> dict[str, Any]:
        """The figures so far, as a new walk begins."""
        files = {code.co_filename for code in self.spine}
        figures = {**dict.fromkeys(ROWS, 0), **self.counts, "functions": len(self.spine), "files": len(files)}
        spine = [f"{_named(code, self._root)}  <-  {caller}" for code, caller in self.spine.items()]
        taken: dict[str, Any] = {"figures": figures, "spine": spine, "statements": self.statements}
        self.counts, self.statements, self.spine = Counter(), [], {}
        return taken


def _named(code: CodeType, root: str) -> str:
    return f"{code.co_filename.removeprefix(root)}: {code.co_qualname}"


def _place(frame: FrameType | None, root: str) -> str:
    """The nearest function of Foliot above this frame; what Python itself calls has none."""
    while frame is not None and not frame.f_code.co_filename.startswith(root):
        frame = frame.f_back
    return "(the event loop)" if frame is None else _named(frame.f_code, root)


# --- the walks -------------------------------------------------------------------------------------------------------


def run_walk(folder: Path) -> list[dict[str, Any]]:
    """`foliot run agent.yaml "hi"`."""
    (folder / "agent.yaml").write_text(AGENT)
    sys.argv = ["foliot", "run", str(folder / "agent.yaml"), "hi"]
    walk = Walk()
    walk.start()
    walk.going = True
    from foliot.cli.main import main

    code: Any = 0
    try:
        main()
    except SystemExit as exit:
        code = exit.code
    walk.going = False
    assert code in (0, None), f"foliot run ended with {code}"
    return [walk.take()]


def task_walk(folder: Path) -> list[dict[str, Any]]:
    """`POST /v1/tasks` on `foliot up`, twice. The client is a thread that nobody looks at."""
    foliot = [sys.executable, "-m", "foliot.cli"]
    subprocess.run([*foliot, "apply", "-f", "-"], input=AGENT, text=True, check=True, stdout=2)
    words = [*foliot, "tokens", "create", "walker", "--role", "operator"]
    made = subprocess.run(words, text=True, check=True, stdout=subprocess.PIPE)
    token = made.stdout.strip()
    walk, taken, failed = Walk(), list[dict[str, Any]](), list[BaseException]()
    log = folder / "up.log"
    os.dup2(os.open(log, os.O_CREAT | os.O_WRONLY), 2)

    def ask() -> None:
        sys.setprofile(None)
        try:
            address = _until(lambda: re.search(r"http://([\d.]+):(\d+)", log.read_text()))
            _until(lambda: "Ctrl-C" in log.read_text())
            for name in ("first", "second"):
                time.sleep(1)  # what `up` does by itself when it starts has been done
                walk.going = True
                _post(address[1], int(address[2]), token, name)
                _until(lambda name=name: _settled(folder / "home" / "foliot.db", name))
                time.sleep(0.2)  # what follows the commit
                walk.going = False
                taken.append(walk.take())
        except BaseException as error:
            failed.append(error)
        finally:
            os.kill(os.getpid(), signal.SIGTERM)

    sys.argv = ["foliot", "up", "--port", "0"]
    walk.start()
    from foliot.cli.main import main

    threading.Thread(target=ask, daemon=True).start()
    with suppress(SystemExit):
        main()
    if failed:
        raise failed[0]
    return taken


def _post(host: str, port: int, token: str, name: str) -> None:
    connection = http.client.HTTPConnection(host, port, timeout=WAITS_AT_MOST)
    body = json.dumps({"metadata": {"name": name}, "spec": {"agent": "walker", "input": {"topic": "hi"}}})
    headers = {"Content-Type": "application/json", "Authorization": f"Bearer {token}"}
    connection.request("POST", "/v1/tasks", body, headers)
    answer = connection.getresponse()
    text = answer.read()
    assert answer.status == 201, text
    connection.close()


def _settled(store: Path, name: str) -> bool:
    connection: Any = apsw.Connection(str(store), flags=apsw.SQLITE_OPEN_READONLY)
    row = connection.execute("SELECT phase FROM task WHERE name = ?", (name,)).fetchone()
    connection.close()
    return row is not None and row[0] == "succeeded"


def _until(look: Callable[[], Any]) -> Any:
    for _ in range(int(WAITS_AT_MOST / 0.02)):
        if found := look():
            return found
        time.sleep(0.02)
    raise TimeoutError("what a walk waits for did not happen")


def call_walk(folder: Path) -> list[dict[str, Any]]:
    """One call of a function, in a run that has made the same call before."""
    from foliot import Agent, Runtime, ScriptedModel, tool

    walk = Walk()
    times = 0

    @tool(effect="read")
    def add(a: int, b: int) -> int:
        """Add two numbers."""
        return a + b

    class Model(ScriptedModel):
        async def respond(self, *given: Any, **named: Any) -> Any:
            nonlocal times
            times += 1
            walk.going = False
            answer = await super().respond(*given, **named)
            walk.going = times == 2
            return answer

    async def play() -> None:
        model = Model([{"call": {"add": {"a": 1, "b": 2}}}, {"call": {"add": {"a": 2, "b": 3}}}, "done"])
        async with Runtime(str(folder / "calls.db"), tools=[add]) as runtime:
            walk.start()
            await runtime.run(Agent("walker", model=model, tools=["add"]), "hi")
            sys.setprofile(None)

    asyncio.run(play())
    return [walk.take()]


# --- telling ---------------------------------------------------------------------------------------------------------


def walked(name: str) -> list[dict[str, Any]]:
    """The figures of one walk, from a process of its own with a home of its own."""
    with tempfile.TemporaryDirectory(prefix="foliot-walk-") as folder:
        clean = {key: value for key, value in os.environ.items() if not key.startswith("FOLIOT_")}
        environ = {**clean, "FOLIOT_HOME": f"{folder}/home"}
        command = [sys.executable, __file__, name, "--here", folder]
        done = subprocess.run(command, env=environ, cwd=folder, capture_output=True, text=True)
        if done.returncode != 0:
            raise SystemExit(f"the walk {name!r} did not come to its end:\n{done.stdout}{done.stderr}")
        return json.loads((Path(folder) / "walk.json").read_text())


def main() -> int:
    parser = argparse.ArgumentParser(description="Count what three walks through Foliot pass.")
    parser.add_argument("walks", nargs="*", choices=[*WALKS, []], metavar="WALK", help="run, task, call; or all")
    parser.add_argument("--spine", action="store_true", help="print every function with its caller")
    parser.add_argument("--statements", action="store_true", help="print the names of all reads and writes")
    parser.add_argument("--here", type=Path, help=argparse.SUPPRESS)
    asked = parser.parse_args()
    names: list[str] = asked.walks or list(WALKS)
    if asked.here is not None:
        taken = {"run": run_walk, "task": task_walk, "call": call_walk}[names[0]](asked.here)
        sys.setprofile(None)
        (asked.here / "walk.json").write_text(json.dumps(taken))
        return 0
    print(f"{'':<16}" + "".join(f"{row:>11}" for row in ROWS))
    for name in names:
        for number, walk in enumerate(walked(name)):
            title = f"{name}{', again' if number else ''}"
            print(f"{title:<16}" + "".join(f"{walk['figures'][row]:>11}" for row in ROWS))
            if asked.spine:
                print(*(f"    {line}" for line in walk["spine"]), sep="\n")
            if asked.statements:
                counted: Counter[str] = Counter(walk["statements"])
                print(*(f"    {times:>3} {statement}" for statement, times in counted.items()), sep="\n")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
