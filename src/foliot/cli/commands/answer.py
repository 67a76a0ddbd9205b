"""`foliot answer`: what runs ask people, and the answers."""

from __future__ import annotations

import sys
import time
from collections.abc import Sequence

import click
import msgspec

from foliot.cli.reach import namespace, run
from foliot.cli.runtimes import decider, reached, run_of
from foliot.cli.show.output import as_json, output_option
from foliot.cli.show.tables import table
from foliot.cli.terminal import out, prompt
from foliot.cli.watch.questions import can_ask, print_question
from foliot.cli.watch.run import leave, resumed_after_decision
from foliot.common.durations import duration
from foliot.common.text import one_line
from foliot.engine.approval.questions import OpenQuestion, choose_question
from foliot.errors import InvalidInput, UsageError

WIDTH = 80


@click.command()
@click.argument("words", nargs=-1, metavar="[RUN [CALL] TEXT]")
@click.option("--as", "by", metavar="NAME", default=None, help="Who answers.  [default: you]")
@click.option("--no-resume", is_flag=True, help="Only answer; leave the run to whoever resumes it.")
@click.option("-A", "--all-namespaces", is_flag=True, help="Without RUN: look in every namespace.")
@click.option("-q", "--quiet", is_flag=True, help="Only the answer of the run.")
@output_option("table", "json", default="table", help="Without RUN: table or json.")
def answer(
    words: tuple[str, ...], by: str | None, no_resume: bool, all_namespaces: bool, quiet: bool, output: str
) -> int:
    """Answer the question of a run, and resume it; without RUN, list the questions.

    \b
    foliot answer                                what all runs ask
    foliot answer 01HV3 "the blue one"           the only question of a run
    foliot answer 01HV3 call_2 - < letter.txt    one of several; - reads from standard input
    foliot answer 01HV3                          shows the question, and asks you on a terminal

    Of choices the number will do. The answer is the result of the call, word for word; the model is not asked again.
    The run goes on in the `foliot run` that waits for it, if there is one; otherwise here.

    Exit code: as `foliot run`; 0 when the run goes on elsewhere.
    """
    if not words:
        if by is not None:
            raise UsageError("--as says who answers, and here is no answer.", hint="Name the run and give the answer.")
        return run(_list(None if all_namespaces else namespace(), output))
    run_id, *rest = words
    if len(rest) > 2:
        raise UsageError(f"The answer is one text, and here are {len(rest)}.", hint="Put it in quotes.")
    call = rest[0] if len(rest) == 2 else None
    text = _text(rest[-1]) if rest else None
    return run(_answer(run_id, call, text, by, resume=not no_resume, quiet=quiet))


def _text(word: str) -> str:
    if word != "-":
        return word
    try:
        return sys.stdin.buffer.read().decode("utf-8").removesuffix("\n")
    except UnicodeDecodeError as error:
        raise InvalidInput(f"The answer is not UTF-8 text (byte {error.start}).") from None


async def _list(space: str | None, output: str) -> int:
    async with reached() as client:
        found = await client.questions.list(namespace=space)
    if output == "json":
        out(as_json([msgspec.to_builtins(each) for each in found]))
    elif found:
        out(_table(found, namespaced=space is None))
    else:
        where = "any namespace" if space is None else f"namespace {space}"
        out(f"No run asks anything in {where}.", err=True)
    return 0


def _table(found: Sequence[OpenQuestion], *, namespaced: bool) -> str:
    now = time.time()
    headings = ["RUN", "CALL", "AGENT", "QUESTION", "CHOICES", "ASKED", "EXPIRES"]
    rows = [
        [
            each.run_id,
            each.call_id,
            each.agent,
            one_line(each.question, WIDTH),
            one_line(" | ".join(each.choices), WIDTH) or "-",
            f"{duration(max(0.0, now - each.since))} ago",
            "-" if each.expires_at is None else f"in {duration(max(0.0, each.expires_at - now))}",
        ]
        for each in found
    ]
    if namespaced:
        headings.insert(0, "NAMESPACE")
        rows = [[each.namespace, *row] for each, row in zip(found, rows, strict=True)]
    return table(headings, rows)


async def _answer(word: str, call: str | None, text: str | None, by: str | None, *, resume: bool, quiet: bool) -> int:
    async with reached() as client:
        who = decider(client, by)
        info = await run_of(client, word)
        if text is None:
            asked = await client.questions.list(namespace=info.namespace, run=info.id)
            text = _ask(choose_question(info, asked, call))
        run_id = (await client.questions.answer(info.id, text, call=call, by=who)).id
        if not resume:
            out(f"Answered. `foliot resume {run_id}` goes on with the run.", err=True)
            return 0
        code = await resumed_after_decision(client, info.id, left=True, quiet=quiet)
    return leave(code)


def _ask(asked: OpenQuestion) -> str:
    """The answer of whoever sits at the terminal. Raises `UsageError` when nobody does."""
    print_question(asked)
    if not can_ask():
        raise UsageError("There is no answer.", hint=f'Give it: `foliot answer {asked.run_id} {asked.call_id} "…"`.')
    return prompt("Answer")
