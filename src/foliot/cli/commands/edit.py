"""`foliot edit`: a resource in your editor, again and again until it is valid or you give up."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path
from typing import Final

import click

from foliot.cli import complete
from foliot.cli.editor import edit_file, new_draft
from foliot.cli.errors import warn
from foliot.cli.reach import connected, namespace, run
from foliot.cli.show.output import ref_of
from foliot.cli.targets import parse_one
from foliot.cli.terminal import out
from foliot.errors import Conflict, FoliotError, InvalidDefinition
from foliot.resources.problems import Problem
from foliot.resources.syntax.yaml_text import dump_yaml
from foliot.resources.wording import as_written
from foliot.store.base import Document
from foliot.store.resources.documents import same, same_spec

ROUNDS: Final = 10
"""How often the editor opens again. A script in the place of an editor may never get it right."""

_INTRO: Final = """\
# Change what you like, save and close. Lines that begin with '#' are left out; an empty file changes nothing.
# Status and versions are kept by the store and are not shown.{secret}
"""
_SECRET: Final = "\n# '***' keeps a value as it is; to change one, put the new value under `stringData`."


@click.command()
@click.argument("what", nargs=-1, metavar="KIND NAME | KIND/NAME", shell_complete=complete.targets)
@click.option("--take-over", is_flag=True, help="Declare all of it, also what somebody else put there.")
def edit(what: tuple[str, ...], take_over: bool) -> int:
    """Change a resource in your editor ($VISUAL, $EDITOR or vi).

    What you save is checked first; if something is wrong the editor opens again with the problems on top. When
    somebody else changed the resource meanwhile, your text is kept in a file and you are told where. What somebody
    with fewer rights declared stays theirs when you change a part of it, unless you take it over.
    """
    kind, name = parse_one(what, verb="edit")
    return run(_edit(kind.name, name, take_over))


async def _edit(kind: str, name: str, take_over: bool) -> int:
    space = namespace()
    async with connected() as client:
        live = await client.resources.get(kind, name, namespace=space)
    draft = new_draft(name)
    try:
        wanted = _ask(live, draft)
        if wanted is None:
            draft.unlink()
            out(f"{ref_of(live)}: no changes", err=True)
            return 0
        # The store is opened anew: an editor can stay open for hours, and a file must not be held for so long.
        async with connected() as client:
            outcome = await client.resources.replace(wanted, take_over=take_over)
    except FoliotError as error:
        raise _kept(draft, live, error) from None
    draft.unlink()
    out(f"{ref_of(outcome.document)} {outcome.action}")
    if outcome.warning:
        warn(outcome.warning)
    return 0


def _kept(draft: Path, live: Document, error: FoliotError) -> FoliotError:
    """The same error, with where the user's text is: nothing that a person typed is thrown away."""
    written = _body(draft.read_text(encoding="utf-8", errors="replace"))
    if not written.strip() or written == _text(_editable(live)):
        draft.unlink()
        return error
    error.hint = "\n".join(filter(None, [error.hint, f"Your text is kept in {draft}"]))
    if isinstance(error, Conflict):
        error.hint += f"\nEdit again, or put yours over it with `foliot apply -f {draft}`."
    return error


def _ask(live: Document, draft: Path) -> Document | None:
    """The edited document with the version it was read at; None when nothing was changed.

    Raises `InvalidInput` when the text is wrong and was saved a second time as it was, or too often.
    """
    original = _editable(live)
    body, problems = _text(original), []
    for _ in range(ROUNDS):
        _write(draft, _intro(live, problems) + body)
        edit_file(draft, os.environ)
        saved = _body(draft.read_text(encoding="utf-8", errors="replace"))
        if not saved.strip() or saved == _text(original):
            return None
        if problems and saved == body:
            raise InvalidDefinition("The text still has the same problems; giving up.")
        body = saved
        document, problems = _checked(saved, live, draft)
        if document is not None:
            return None if _same(_editable(as_written(document)), original) else document
    raise InvalidDefinition(f"The text is still wrong after {ROUNDS} rounds; giving up.")


def _editable(document: Document) -> Document:
    metadata = {
        key: document["metadata"][key]
        for key in ("name", "namespace", "labels", "annotations")
        if document["metadata"].get(key)
    }
    return {key: metadata if key == "metadata" else value for key, value in document.items() if key != "status"}


def _same(one: Document, other: Document) -> bool:
    """Whether saving would change nothing. For Python `1 == True == 1.0`; in a spec they are three values."""
    return same(one, other) and same_spec(one.get("spec") or {}, other.get("spec") or {})


def _text(document: Document) -> str:
    return dump_yaml(document)


def _intro(live: Document, problems: list[Problem]) -> str:
    intro = _INTRO.format(secret=_SECRET if live["kind"] == "Secret" else "")
    if not problems:
        return intro + "#\n"
    wrong = [f"#   {line}" for problem in problems for line in str(problem).splitlines()]
    return intro + "#\n# It cannot be stored like this:\n" + "\n".join(wrong) + "\n#\n"


def _body(text: str) -> str:
    """Returns the edited text, without our comment on top."""
    lines = text.splitlines(keepends=True)
    start = next((i for i, line in enumerate(lines) if not line.startswith("#")), len(lines))
    return "".join(lines[start:])


def _write(draft: Path, text: str) -> None:
    draft.write_text(text, encoding="utf-8")


def _checked(text: str, live: Document, draft: Path) -> tuple[Document | None, list[Problem]]:
    from foliot.resources.reader import read_manifests

    _write(draft, text)  # read without our comments, so that lines in messages are those the user sees in the body
    bundle = read_manifests([str(draft)])
    errors = [finding for finding in bundle.findings if finding.severity == "error"]
    if errors:
        return None, [_at_line(finding.problem, finding.line) for finding in errors]
    if len(bundle.items) != 1:
        return None, [Problem((), f"expected one document, found {len(bundle.items)}")]
    document = bundle.items[0].document
    for field, value in (("kind", document["kind"]), *document["metadata"].items()):
        fixed = live["kind"] if field == "kind" else live["metadata"].get(field)
        if field in ("kind", "name", "namespace") and value != fixed:
            return None, [Problem((field,), f"{field} cannot be changed from {fixed!r} to {value!r}")]
    document["metadata"]["resourceVersion"] = live["metadata"]["resourceVersion"]
    return document, []


def _at_line(problem: Problem, line: int | None) -> Problem:
    return replace(problem, message=f"line {line}: {problem}") if line else problem
