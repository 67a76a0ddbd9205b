"""Texts of models and tenants that try to steer the terminal of whoever looks, or to pass for lines of ours.

Every command that shows something is run over a store full of such texts, piped and on a terminal, as text, JSON and
YAML.
"""

from __future__ import annotations

import ast
import json
import os
import pty
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import click
import pytest
import yaml

import foliot.cli
from foliot.cli.main import cli
from foliot.cli.terminal import out, paint
from foliot.common.text import UNSAFE

CLI = Path(foliot.cli.__file__).parent
FORGED = "FORGED-HEADING"
# In one text: titles, cursors, colours that hide, C1, reordering, separators of lines, nothing at all, tags, marks.
EVIL = (
    "ok\x1b]0;title\x07\x1b[2J\x1b[8mhidden\x9b2J\x90q\x9c \u202egnp.exe\u2066 \u200b\u00ad\ufeff\u3164\U000e0041"
    f"\r{FORGED}\u2028{FORGED}\x0b{FORGED}\x0c{FORGED}\x85{FORGED}\n{FORGED}: phase  Approved\nstep 9\n[bold]x[/bold]"
    + " " * 300
    + "\u0301" * 40
)
NAME = "evil\u202e\x9b2J\u200b\u2028x"
OURS = re.compile(r"\x1b\[[0-9;]*m")


def document(kind: str, name: str, spec: dict[str, Any]) -> dict[str, Any]:
    told = {"labels": {"team": "a"}, "annotations": {"note": EVIL}}
    return {"apiVersion": "foliot.dev/v1", "kind": kind, "metadata": {"name": name, **told}, "spec": spec}


MANIFESTS = [
    document(
        "ModelEndpoint",
        "m",
        {
            "provider": "scripted",
            "default_model": "scripted",
            "script": [
                {"say": EVIL, "call": {"look": {"text": EVIL, "more": {"naïve\u0430": "p\u0430ypal", f"k{EVIL}": 1}}}},
                {"say": EVIL, "call": {"pay": {"text": EVIL, "amount": 5}}},
                {"say": EVIL},
            ],
        },
    ),
    document("Tool", "look", {"type": "function", "function": "evil_tools:look", "description": EVIL}),
    document(
        "Tool",
        "pay",
        {"type": "function", "function": "evil_tools:pay", "operation_classes": ["write"], "description": EVIL},
    ),
    document(
        "ToolPermission",
        "pay",
        {
            "operation_rules": [{"operation_class": "write", "verdict": "approval_required"}],
            "conditions": [{"when": "args.amount > 1", "verdict": "approval_required", "reason": EVIL}],
        },
    ),
    document("Agent", "desk", {"model_ref": "m", "tools": ["look", "pay"], "prompt": EVIL, "description": EVIL}),
]
TOOLS = f"""\
EVIL = {EVIL!r}


async def look(text: str = "", more: dict = {{}}) -> str:
    print(EVIL)
    raise ValueError(EVIL)


async def pay(text: str = "", amount: int = 0) -> str:
    return EVIL
"""


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a store in which all that others wrote is hostile, and a run that waits for an approval."""
    folder = tmp_path_factory.mktemp("evil")
    (folder / "evil_tools.py").write_text(TOOLS, encoding="utf-8")
    (folder / "evil.json").write_text(json.dumps({"kind": "List", "apiVersion": "foliot.dev/v1", "items": MANIFESTS}))
    assert piped(folder, "apply", "-f", "evil.json")[0] == 0
    code, shown = piped(folder, "run", "desk", EVIL.replace("\0", ""), "--id", "r1")
    assert code == 8, shown
    check(shown)
    return folder


def environ(folder: Path) -> dict[str, str]:
    kept = {name: value for name, value in os.environ.items() if not name.startswith("FOLIOT_")}
    return {**kept, "FOLIOT_HOME": str(folder / "home"), "PYTHONPATH": str(folder), "TERM": "xterm", "COLUMNS": "100"}


def piped(folder: Path, *words: str) -> tuple[int, str]:
    command = [sys.executable, "-m", "foliot.cli", *words]
    done = subprocess.run(command, cwd=folder, env=environ(folder), capture_output=True, timeout=120)
    return done.returncode, (done.stdout + done.stderr).decode()


def on_terminal(folder: Path, *words: str) -> str:
    ours, theirs = pty.openpty()
    command = [sys.executable, "-m", "foliot.cli", *words]
    process = subprocess.Popen(
        command, cwd=folder, env=environ(folder), stdin=subprocess.DEVNULL, stdout=theirs, stderr=theirs
    )
    os.close(theirs)
    read = b""
    while True:
        try:
            piece = os.read(ours, 65536)
        except OSError:  # how Linux says that nobody writes any more
            break
        if not piece:
            break
        read += piece
    process.wait(timeout=120)
    os.close(ours)
    return read.decode().replace("\r\n", "\n")


def check(text: str) -> None:
    """Raises when something in the text steers a terminal, or begins a line that is not ours."""
    plain = OURS.sub("", text)
    assert not (found := UNSAFE.search(plain)), f"{found.group()!r} in {plain[max(0, found.start() - 60) :][:120]!r}"
    assert "\x1b[8m" not in text
    for line in plain.split("\n"):
        assert not re.match(rf"{FORGED}|step 9\b|phase\s+Approved", line), line


SHOWS = [
    ("get", "agents"),
    ("get", "agents", "-o", "wide"),
    ("get", "all"),
    ("get", "agent", NAME),
    ("get", "nothing-like-this", EVIL),
    ("get", "agent", EVIL),
    ("describe", "agent", "desk"),
    ("describe", "tool", "pay"),
    ("describe", "agent", NAME),
    ("diff", "-f", "evil.json"),
    ("validate", "evil.json"),
    ("approvals", "list"),
    ("runs",),
    ("runs", "-o", "wide"),
    ("trace", "r1"),
    ("trace", "r1", "--full"),
    ("why", "r1"),
    ("why", EVIL),
    ("replay", "r1"),
    ("audit", "list"),
    ("policy", "explain", "--agent", "desk", "--tool", "pay", "--args", json.dumps({"amount": 5, "text": EVIL})),
    ("tools", "list"),
    ("task", "list"),
    ("answer",),
    ("context", "use", EVIL),
    ("explain", EVIL),
    (EVIL,),
]
MACHINE = [
    ("get", "agents"),
    ("get", "tools"),
    ("describe", "agent", "desk"),
    ("approvals", "list"),
    ("runs",),
    ("trace", "r1"),
    ("why", "r1"),
    ("audit", "list"),
]


@pytest.mark.parametrize("words", SHOWS, ids=lambda words: " ".join(words)[:30].encode("ascii", "replace").decode())
def test_what_others_wrote_steers_no_terminal_and_forges_no_line(place: Path, words: tuple[str, ...]) -> None:
    check(piped(place, *words)[1])


@pytest.mark.parametrize("words", [("trace", "r1", "--full"), ("get", "all"), ("describe", "tool", "pay")])
def test_the_same_holds_on_a_terminal(place: Path, words: tuple[str, ...]) -> None:
    check(on_terminal(place, *words))


@pytest.mark.parametrize("words", MACHINE, ids=" ".join)
@pytest.mark.parametrize("form", ["json", "yaml"])
def test_what_programs_read_is_safe_too_and_means_the_same(place: Path, words: tuple[str, ...], form: str) -> None:
    code, text = piped(place, *words, "-o", form)
    check(text) if code == 0 else None
    if code == 2:
        pytest.skip(f"{words} has no -o {form}")
    found = json.loads(text) if form == "json" else list(yaml.safe_load_all(text))
    if words[0] in ("get", "describe"):
        assert EVIL in _texts(found)


def test_an_approver_sees_every_argument_and_no_line_that_is_not_ours(place: Path) -> None:
    name = piped(place, "approvals", "list", "-o", "name")[1].split()[0]
    for shown in (piped(place, "approvals", "show", name)[1], on_terminal(place, "approvals", "show", name)):
        check(shown)
        plain = OURS.sub("", shown)
        arguments = plain.split("\nArguments\n")[1].split("\n\n")[0]
        assert all(line.startswith(("  │ ", "  note:")) for line in arguments.split("\n"))
        assert [line for line in plain.split("\n") if re.match(r"  phase\b", line)] == ["  phase      Pending"]


def test_only_one_module_prints() -> None:
    """A new command cannot forget it: whoever prints otherwise is found here."""
    others: list[str] = []
    for file in sorted(CLI.rglob("*.py")):
        if file == CLI / "terminal.py":
            continue
        for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
            match node:
                case ast.Attribute(value=ast.Name(id="click"), attr="echo" | "secho" | "style" | "prompt" | "confirm"):
                    others.append(f"{file.name}:{node.lineno}")
                case ast.Call(func=ast.Name(id="print" | "Console")):
                    others.append(f"{file.name}:{node.lineno}")
                case ast.Attribute(
                    value=ast.Attribute(value=ast.Name(id="sys"), attr="stdout" | "stderr"), attr="write"
                ):
                    others.append(f"{file.name}:{node.lineno}")
                case _:
                    pass
    assert others == []


def test_a_colour_that_others_bring_along_is_not_ours(capsys: pytest.CaptureFixture[str]) -> None:
    out(f"{paint('red', fg='red')} \x1b[31mnot red\x1b[0m \x1b[1;31mnor this", color=True)

    assert capsys.readouterr().out == "\x1b[31mred\x1b[0m \\u001b[31mnot red\\u001b[0m \\u001b[1;31mnor this\n"


def _commands(command: click.Command, path: tuple[str, ...] = ()) -> list[tuple[str, ...]]:
    if not isinstance(command, click.Group):
        return [path]
    context = click.Context(command)
    names = command.list_commands(context)
    return [
        each for name in names if (sub := command.get_command(context, name)) for each in _commands(sub, (*path, name))
    ]


@pytest.mark.parametrize("path", _commands(cli), ids=" ".join)
def test_a_mistake_that_quotes_a_hostile_word_is_told_safely(
    path: tuple[str, ...], capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit):
        cli.main(args=[*path, f"--{EVIL}"], prog_name="foliot")
    said = capsys.readouterr()
    check(said.out + said.err)


def _texts(value: Any) -> set[str]:
    if isinstance(value, str):
        return {value}
    inside = value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()
    return {text for item in inside for text in _texts(item)}
