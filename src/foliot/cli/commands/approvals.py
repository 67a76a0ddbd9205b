"""`foliot approvals`: see which calls wait for somebody's consent, and give it or not."""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path
from typing import Any

import click

from foliot.cli.editor import edit_file, new_draft
from foliot.cli.errors import warn
from foliot.cli.reach import namespace, run
from foliot.cli.runtimes import decider, reached
from foliot.cli.show.approvals import approval_text, approvals_table, decided_about, edited_to
from foliot.cli.show.output import as_json, as_list, as_yaml, output_option
from foliot.cli.terminal import out
from foliot.cli.watch.run import leave, resumed_after_decision
from foliot.common.durations import seconds
from foliot.engine.approval.documents import current_digest, decided_arguments
from foliot.engine.approval.service import Decision
from foliot.engine.explain.trace import trace_of
from foliot.errors import InvalidInput, NotFound, UsageError
from foliot.kernel.arguments import read_arguments
from foliot.store.base import Document

PHASES = ("Pending", "Approved", "Denied", "Expired")
_INTRO = (
    "# Change the arguments of {tool}, save and close. Masked values that you leave as they are stay what they were.\n"
)

_name = click.argument("name", metavar="APPROVAL")
_comment = click.option("--comment", default="", metavar="TEXT", help="Why; it is kept with the decision and the run.")
_as = click.option("--as", "by", metavar="NAME", default=None, help="Who decides.  [default: you]")
_digest = click.option(
    "--digest", default="", metavar="SHA256", help="Only if the arguments are still those of `show`."
)
_resume = click.option("--no-resume", is_flag=True, help="Only decide; leave the run to whoever resumes it.")
_quiet = click.option("-q", "--quiet", is_flag=True, help="Only the answer of the run.")


@click.group()
def approvals() -> None:
    """List tool calls that wait for approval, and approve or deny them.

    APPROVAL is a name from `foliot approvals list`, or as much of its beginning as is unique. A decision is taken once:
    of two people at the same moment one wins, and the other is told who.
    """


@approvals.command("list")
@output_option("table", "json", "yaml", "name", default="table", help="table, json, yaml or name.")
@click.option("-A", "--all-namespaces", is_flag=True, help="Look in every namespace.")
@click.option(
    "--phase",
    type=click.Choice(PHASES, case_sensitive=False),
    metavar="PHASE",
    help=f"Only these: {', '.join(PHASES)}.",
)
@click.option("--run", "run_id", metavar="RUN", help="Only those of one run, by its whole id.")
def list_command(output: str, all_namespaces: bool, phase: str | None, run_id: str | None) -> int:
    """List approvals and standing grants, those that wait for a decision first."""
    return run(_list(output, None if all_namespaces else namespace(), phase, run_id))


async def _list(output: str, space: str | None, phase: str | None, run_id: str | None) -> int:
    async with reached() as client:
        found = await client.approvals.list(namespace=space, run=run_id)
    found = [document for document in found if phase is None or document["status"]["phase"] == phase]
    found.sort(key=lambda document: document["status"]["phase"] != "Pending")
    match output:
        case "json":
            out(as_json(as_list(found)))
        case "yaml":
            out(as_yaml(found))
        case "name":
            out("\n".join(document["metadata"]["name"] for document in found), nl=bool(found))
        case _ if found:
            out(approvals_table(found, namespaced=space is None))
        case _:
            where = "any namespace" if space is None else f"namespace {space}"
            out(f"No approvals found in {where}.", err=True)
    return 0


@approvals.command()
@_name
@output_option("text", "json", "yaml", default="text", help="text, json or yaml.")
def show(name: str, output: str) -> int:
    """Show one: the arguments (secrets masked), why it is asked and by which rule, and the run so far."""
    return run(_show(name, output))


async def _show(name: str, output: str) -> int:
    async with reached() as client:
        document = await client.approvals.get(name, namespace=namespace())
        trace = original = None
        if output == "text" and document["spec"].get("run"):
            run_id = document["spec"]["run"]
            trace = trace_of(run_id, await client.runs.events(run_id))
            if trace.fork is not None:
                with suppress(NotFound):  # forgotten meanwhile
                    original = trace_of(trace.fork.run_id, await client.runs.events(trace.fork.run_id))
    match output:
        case "json":
            out(as_json(document))
        case "yaml":
            out(as_yaml([document]))
        case _:
            out(approval_text(document, trace, original))
    return 0


# --- deciding ----------------------------------------------------------------------------------------------------


@approvals.command()
@_name
@_digest
@_comment
@_as
@_resume
@_quiet
def approve(name: str, digest: str, comment: str, by: str | None, no_resume: bool, quiet: bool) -> int:
    """Approve a call with exactly the arguments that were shown, and resume its run.

    Without --digest they are shown first, on standard error, and those are what you approve.

    The run goes on in the `foliot run` that waits for it, if there is one; otherwise here.
    """
    return run(_decide(name, "approve", comment, by, None, digest=digest, resume=not no_resume, quiet=quiet))


@approvals.command()
@_name
@_comment
@_as
@_resume
@_quiet
def deny(name: str, comment: str, by: str | None, no_resume: bool, quiet: bool) -> int:
    """Deny a call. The model sees the denial, or the run ends, as the agent's `execution.on_denied` says."""
    return run(_decide(name, "deny", comment, by, None, resume=not no_resume, quiet=quiet))


@approvals.command()
@_name
@click.option("--arguments", metavar="JSON", help="The arguments to use instead; without it, your editor opens.")
@_digest
@_comment
@_as
@_resume
@_quiet
def edit(
    name: str, arguments: str | None, digest: str, comment: str, by: str | None, no_resume: bool, quiet: bool
) -> int:
    """Approve a call with other arguments, in your editor ($VISUAL, $EDITOR or vi) or by --arguments.

    They are checked against the tool's schema first. The model is told that they were changed.
    """
    return run(_edit(name, arguments, comment, by, digest=digest, resume=not no_resume, quiet=quiet))


async def _edit(
    name: str, text: str | None, comment: str, by: str | None, *, digest: str, resume: bool, quiet: bool
) -> int:
    if text is not None:
        return await _decide(name, "edit", comment, by, _object(text), digest=digest, resume=resume, quiet=quiet)
    async with reached() as client:
        document = await client.approvals.get(name, namespace=namespace())
    # The store is opened anew afterwards: an editor can stay open for hours.
    given = _ask(document)
    if given is None:
        out("Nothing was changed, and nothing is decided.", err=True)
        return 0
    return await _decide(
        document["metadata"]["name"],
        "edit",
        comment,
        by,
        given,
        digest=current_digest(document),
        resume=resume,
        quiet=quiet,
    )


def _ask(document: Document) -> dict[str, Any] | None:
    """The arguments as they were saved in the editor; None when they are as before. Raises `InvalidInput`."""
    shown = decided_arguments(document)[0]
    body = as_json(shown) + "\n"
    draft: Path = new_draft(document["metadata"]["name"])
    try:
        draft.write_text(_INTRO.format(tool=document["spec"]["tool"]) + body, encoding="utf-8")
        edit_file(draft, os.environ)
        lines = draft.read_text(encoding="utf-8", errors="replace").splitlines(keepends=True)
    finally:
        draft.unlink(missing_ok=True)
    saved = "".join(line for line in lines if not line.startswith("#"))
    return None if saved.strip() in ("", body.strip()) else _object(saved)


def _object(text: str) -> dict[str, Any]:
    value, problem = read_arguments(text)
    if value is None:
        raise InvalidInput(f"The arguments cannot be used: {problem}.", hint="Nothing was decided; try again.")
    return value


async def _decide(
    name: str,
    decision: Decision,
    comment: str,
    by: str | None,
    arguments: dict[str, Any] | None,
    *,
    digest: str = "",
    resume: bool,
    quiet: bool,
) -> int:
    async with reached() as client:
        who = decider(client, by)
        found = await client.approvals.get(name, namespace=namespace())
        if not digest and decision != "deny" and not quiet and found["status"]["phase"] == "Pending":
            out(decided_about(found) if arguments is None else edited_to(found, arguments), err=True)
            digest = current_digest(found)
        exact, asked = found["metadata"]["name"], client.approvals
        told = {"by": who, "namespace": found["metadata"]["namespace"], "comment": comment, "digest": digest}
        if arguments is not None:
            decided = await asked.edit(exact, arguments, **told)
        else:
            decided = await (asked.approve if decision == "approve" else asked.deny)(exact, **told)
        status, spec = decided.document["status"], decided.document["spec"]
        if status["phase"] == "Pending":
            votes, needed = len(status.get("votes", ())), spec.get("required_approvals", 1)
            out(f"{spec['tool']}: {votes} of {needed} approvals ({found['metadata']['name']})", err=True)
            return 0
        out(f"{spec['tool']} {status['decision']} by {status['decided_by']} ({found['metadata']['name']})", err=True)
        if not resume:
            return 0
        attended_by = status.get("attended_by") or ""
        code = await resumed_after_decision(client, decided.run_id, attended_by=attended_by, left=True, quiet=quiet)
    return leave(code)


# --- standing grants ---------------------------------------------------------------------------------------------


@approvals.command()
@click.option("--tool", required=True, metavar="NAME", help="Calls of this tool.")
@click.option("--agent", default="", metavar="NAME", help="Only those of this agent.")
@click.option("--when", default="", metavar="CEL", help='Only those for which this is true, e.g. "args.amount < 100".')
@click.option("--until", required=True, metavar="DURATION", help="How long it stands, such as 30m or 2h.")
@click.option("--max-uses", type=click.IntRange(min=1), metavar="N", help="For at most N calls.")
@_comment
@_as
def grant(tool: str, agent: str, when: str, until: str, max_uses: int | None, comment: str, by: str | None) -> int:
    """Approve in advance: calls like these pass without a question until the grant ends.

    \b
    foliot approvals grant --tool pay_refund --agent refund-desk --until 2h --max-uses 5
    foliot approvals grant --tool pay_refund --when "args.amount < 100" --until 8h
    """
    try:
        length = seconds(until)
    except ValueError as error:
        raise UsageError(f"--until {until!r}: {error}.", hint="For example `--until 2h`.") from None
    return run(_grant(tool, agent, when, length, max_uses, comment, by))


async def _grant(
    tool: str, agent: str, when: str, length: float, max_uses: int | None, comment: str, by: str | None
) -> int:
    space = namespace()
    async with reached() as client:
        who = decider(client, by)
        try:
            await client.resources.get("Tool", tool, namespace=space)
        except NotFound as error:
            warn(f"{error.message} The grant waits for one of that name.")
        document = await client.approvals.grant(
            tool, by=who, seconds=length, namespace=space, agent=agent, when=when, max_uses=max_uses, comment=comment
        )
    out(f"{document['metadata']['name']} granted until {document['status']['expires_at']}")
    return 0


@approvals.command()
@_name
@_as
def revoke(name: str, by: str | None) -> int:
    """End a standing grant now. Calls that were made under it stay made."""
    return run(_revoke(name, by))


async def _revoke(name: str, by: str | None) -> int:
    async with reached() as client:
        who = decider(client, by)
        found = await client.approvals.get(name, namespace=namespace())
        document = await client.approvals.revoke(found["metadata"]["name"], by=who, namespace=namespace())
    out(f"{document['metadata']['name']} revoked")
    return 0
