"""What `make run` shows: a system of agents at work, a process killed in the middle of a run, nothing done twice.

It runs offline, in about twenty-five seconds. Kill it with `kill -9` whenever you like and start it again: it goes on
with the run that was under way. Everything is kept in .foliot/tour, or in the folder given with --home.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import shlex
import shutil
import subprocess
import sys
import time
from pathlib import Path

import click

from foliot import Runtime
from foliot.cli.main import cli
from foliot.errors import NotFound

NEWSROOM = Path(__file__).resolve().parent / "newsroom"
DESK = Path(__file__).resolve().parent / "first-run"
LETTER = "Order A-1007 arrived broken. I want my money back."
PATIENCE = 15.0
WAITS = 8  # the exit code of a run that waits for a person


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--home", type=Path, default=Path(".foliot/tour"), help="where runs and the ledger are kept")
    home = parser.parse_args().home.resolve()
    home.mkdir(parents=True, exist_ok=True)
    tour = Tour(home)
    tour.prepare()
    tour.play()


class Tour:
    """One tour has a number, and the ids of its runs come from it: so a tour that was killed finds them again."""

    def __init__(self, home: Path) -> None:
        self.home = home
        self.state = home / "tour.json"
        number, done = self._remembered()
        self.again = not done and number > 0
        self.number = number if self.again else number + 1
        self.ledger = home / f"ledger-{self.number}.jsonl"

    def _remembered(self) -> tuple[int, bool]:
        try:
            state = json.loads(self.state.read_text(encoding="utf-8"))
            return int(state["number"]), bool(state["done"])
        except (OSError, ValueError, KeyError, TypeError):
            return 0, True

    def _remember(self, *, done: bool) -> None:
        draft = self.state.with_suffix(".new")
        draft.write_text(json.dumps({"number": self.number, "done": done}), encoding="utf-8")
        draft.replace(self.state)

    def prepare(self) -> None:
        """A home of its own: whatever your own settings point to is left alone."""
        for name in [name for name in os.environ if name.startswith("FOLIOT_")]:
            del os.environ[name]
        os.environ["FOLIOT_HOME"] = str(self.home)
        os.environ["DESK_LEDGER"] = str(self.ledger)
        # The tools are in desk.py, beside the manifest.
        os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, [str(DESK), os.environ.get("PYTHONPATH")]))
        sys.path.insert(0, str(DESK))
        self._remember(done=False)

    def play(self) -> None:
        first, second = f"tour-{self.number}", f"tour-{self.number}-killed"
        if self.again:
            say("Going on with the tour that was interrupted.")
        act("1", "A system of agents at work: watch its graph fill in")
        self._have_done(f"tour-{self.number}-page")
        act("2", "One agent, with tools that pay money")
        self._run(first)
        act("3", "The same again, but the process is killed right after the refund was paid")
        self._run_and_kill(second)
        act("4", "Started again: it goes on where it was")
        self._settled(second, foliot("resume", second))
        self._count(second)
        act("5", "What happened? Everything is in the journal")
        command("foliot", "why", second)
        foliot("why", second)
        click.echo()
        command("foliot", "trace", second)
        foliot("trace", second)
        self._remember(done=True)
        self._goodbye(second)

    def _have_done(self, task: str) -> None:
        """The name of the task comes from the tour, so one that was killed goes on with it, behind what is done."""
        command("foliot", "task", "run", "-f", "examples/newsroom")
        if code := foliot("task", "run", str(NEWSROOM), "--name", task, "--here", "--no-wait"):
            sys.exit(code)

    def _run(self, run_id: str) -> None:
        wait_for_orphan(run_id)
        command("foliot", "run", "-f", "examples/first-run", LETTER)
        self._settled(run_id, foliot("run", str(DESK), LETTER, "--id", run_id))
        self._count(run_id)

    def _run_and_kill(self, run_id: str) -> None:
        """Watch a run in another process through its JSON lines, and kill it when the payment is recorded."""
        wait_for_orphan(run_id)
        words = [sys.executable, "-m", "foliot.cli", "run", str(DESK), LETTER, "--id", run_id, "-o", "json"]
        with subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True) as child:
            assert child.stdout is not None
            for line in child.stdout:
                event = json.loads(line)
                name = event["data"].get("result", {}).get("name") if event["type"] == "tool.finished" else None
                if name:
                    click.echo(f"  {click.style('✓', fg='green')} {name}")
                if name == "pay_refund":
                    child.kill()
                    break
        if child.returncode < 0:
            say(f"kill -9 {child.pid}: the process is gone, in the middle of the run.")

    def _settled(self, run_id: str, code: int) -> None:
        """A kill can hit the payment itself. Then nobody knows, and the run asks; here the ledger has the answer."""
        if code != WAITS:
            if code:
                sys.exit(code)
            return
        paid = len(self._payments(run_id))
        say(f"The kill hit the payment itself. The ledger shows {paid} payment(s), so we can tell:")
        decision = ["happened", "--result", '{"paid":49.9}'] if paid else ["run"]
        command("foliot", "settle", run_id, "pay_refund", *decision)
        if code := foliot("settle", run_id, "pay_refund", *decision):
            sys.exit(code)

    def _payments(self, run_id: str) -> list[dict[str, object]]:
        if not self.ledger.exists():
            return []
        rows = [json.loads(row) for row in self.ledger.read_text(encoding="utf-8").splitlines()]
        return [row for row in rows if row["run"] == run_id]

    def _count(self, run_id: str) -> None:
        paid = len(self._payments(run_id))
        if paid != 1:
            sys.exit(f"The ledger holds {paid} payments of run {run_id}, and it should hold exactly one.")
        say("The ledger holds exactly 1 payment of this run.")

    def _goodbye(self, run_id: str) -> None:
        act("✓", "That is Foliot. Try next")
        path = "" if shutil.which("foliot") else f" PATH={Path(sys.executable).parent}:$PATH"
        click.echo(f"  cd examples/first-run && export FOLIOT_HOME={self.home}{path}")
        for words, what in (
            ("foliot runs", "every run so far"),
            (f"foliot task trace tour-{self.number}-page", "the six runs of the page, step by step"),
            (f'foliot run agent.yaml "{LETTER}"', "and kill -9 it"),
            ("foliot resume", "goes on with whatever was interrupted"),
            (f"foliot replay {run_id}", "decides it again, offline, byte for byte"),
            (f'foliot fork {run_id} --at 5 --prompt "Be brief."', "what if?"),
            ("cat ../programmer/README.md", "an agent that writes and runs programs, in the sandbox"),
            ("cat ../code-review/README.md", "a review of a repository that the agent cannot change"),
            ("foliot init my-agent", "an agent of your own"),
        ):
            click.echo(f"  {click.style(words, fg='cyan')}  {click.style('# ' + what, dim=True)}")


def wait_for_orphan(run_id: str) -> None:
    """When the tour itself was killed, a run of it may be driven a moment longer by a process that nobody watches."""
    deadline = time.monotonic() + PATIENCE
    while asyncio.run(_is_driven(run_id)) and time.monotonic() < deadline:
        time.sleep(0.2)


async def _is_driven(run_id: str) -> bool:
    async with Runtime() as runtime:
        try:
            info = await runtime.runs.find(run_id)
            left = {each.id for each in await runtime.runs.interrupted(namespace=None)}
        except NotFound:
            return False
    return info.phase == "running" and info.id not in left


def foliot(*words: str) -> int:
    """The real command line, in this process, so that killing this process kills the run."""
    try:
        cli.main(list(words), prog_name="foliot")
    except SystemExit as exit:
        return exit.code if isinstance(exit.code, int) else 1
    return 0


def act(number: str, title: str) -> None:
    click.echo(f"\n{click.style(f'━━ {number} ', fg='cyan')}{click.style(title, bold=True)}\n")


def command(*words: str) -> None:
    click.echo(click.style(f"$ {shlex.join(words)}", dim=True))


def say(text: str) -> None:
    click.echo(f"\n{click.style('→', fg='cyan')} {text}")


if __name__ == "__main__":
    main()
