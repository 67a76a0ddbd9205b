"""One name for each thing: commands, pages and examples spell it the same way, and helps say what a command does."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import click
import pytest

from foliot.cli.main import cli
from foliot.kernel.graph.lifecycle import API_PHASES as PHASES
from foliot.resources.reader import parse_text

ROOT = Path(__file__).parents[2]
# The page of words lists the older spellings.
PAGES = [
    ROOT / "README.md",
    *sorted(each for each in (ROOT / "docs").glob("*.md") if each.name != "words.md"),
]
EXAMPLES = sorted(each for each in (ROOT / "examples").rglob("*") if each.suffix in {".yaml", ".yml", ".md", ".py"})

# A spelling that is still read, and the one that pages and examples write.
OLDER = {
    r"secret_refs?\b": "secretRef",
    r"--json\b": "-o json",
    r"foliot decide\b": "foliot settle",
    r"task requeue\b": "task retry",
}

VERBS = re.compile(
    r"(Accept|Add|Answer|Approve|Ask|Call|Change|Check|Copy|Create|Delete|Deliver|Deny|Disable|Do|Enable|"
    r"End|Explain|Foliot|Follow|Forget|Fork|Give|Have|Hide|Judge|Let|List|Look|Make|Print|Put|Replace|"
    r"Restore|Resume|Retry|Revoke|Run|Say|Serve|Set|Settle|Show|Start|Stop|Take|Use|Verify|Wait|Walk|Write)\b"
)


def commands(command: click.Command = cli, path: str = "foliot") -> Iterator[tuple[str, click.Command]]:
    yield path, command
    if isinstance(command, click.Group):
        context = click.Context(command, info_name=path)
        for name in command.list_commands(context):
            below = command.get_command(context, name)
            assert below is not None
            yield from commands(below, f"{path} {name}")


COMMANDS = dict(commands())


@pytest.mark.parametrize("older", OLDER)
def test_pages_and_examples_write_one_spelling(older: str) -> None:
    found = [
        f"{page.relative_to(ROOT)}: {line.strip()[:100]}"
        for page in (*PAGES, *EXAMPLES)
        for line in page.read_text(encoding="utf-8").splitlines()
        if re.search(older, line)
    ]
    assert not found, f"write {OLDER[older]}:\n" + "\n".join(found)


def test_both_spellings_of_a_reference_to_a_secret_are_read() -> None:
    text = "kind: TaskWebhook\nmetadata: {name: w}\nspec: {task_ref: t, auth: {profile: github, %s: hook}}\n"
    first, second = (parse_text(text % word, "w.yaml") for word in ("secretRef", "secret_ref"))
    assert first.errors == second.errors == []
    assert first.items[0].document["spec"] == second.items[0].document["spec"]


@pytest.mark.parametrize("path", COMMANDS)
def test_help_begins_with_a_verb_and_explains_each_option(path: str) -> None:
    command = COMMANDS[path]
    assert VERBS.match(command.help or ""), command.help
    options = [each for each in command.params if isinstance(each, click.Option) and not each.hidden]
    assert [each.opts[0] for each in options if not each.help] == []


@pytest.mark.parametrize("path", [path for path, each in COMMANDS.items() if isinstance(each, click.Group)])
def test_the_lines_of_a_group_are_not_cut(path: str) -> None:
    command = COMMANDS[path]
    # click keeps the help option of the first context that asks for it.
    names = ["-h", "--help"]
    text = command.get_help(click.Context(command, info_name=path, terminal_width=80, help_option_names=names))
    assert not re.search(r"[a-z,]\.\.\.$", text, re.MULTILINE), text


def test_json_is_asked_for_in_one_way() -> None:
    for path, command in COMMANDS.items():
        options = {name: each for each in command.params if isinstance(each, click.Option) for name in each.opts}
        if "--json" in options:
            assert options["--json"].hidden, path
            assert "json" in options["-o"].type.choices, path  # type: ignore[attr-defined]


def test_the_words_for_phases_of_tasks_are_in_one_table() -> None:
    text = (ROOT / "docs" / "tasks.md").read_text(encoding="utf-8")
    for word, shown in PHASES.items():
        assert f"| `{word}` | `{shown}` |" in text
