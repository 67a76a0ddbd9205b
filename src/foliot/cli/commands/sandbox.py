"""`foliot sandbox`: a program in the fence, for trying, and what the fence of a tool is."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, Final, cast

import click

from foliot.cli.invocation import current
from foliot.cli.reach import namespace, run
from foliot.cli.runtimes import reached
from foliot.cli.show.output import as_json, output_option
from foliot.cli.show.tables import table
from foliot.cli.terminal import out
from foliot.errors import UsageError
from foliot.sandbox import bubblewrap
from foliot.sandbox.base import MIB, Enforcement, Finished, Limits, Mount, SandboxPolicy, WorkspaceAccess
from foliot.tools.governance.judge import PolicyQuestion

if TYPE_CHECKING:
    from foliot.sandbox.base import Stream
    from foliot.sandbox.container import ContainerSandbox

TIMED_OUT = 124
# Isolation modes of which it is known what enforces them.
_FENCED: Final = ("sandboxed", "container", "wasm")


@click.group(name="sandbox")
def sandbox() -> None:
    """Run a program fenced in, and see what the fence of a tool is.

    \b
    foliot sandbox run -- sh -c 'id; ls /'
    foliot sandbox run --workspace . --read-only -- grep -r TODO .
    foliot sandbox explain bash
    """


@sandbox.command(name="run", context_settings={"allow_interspersed_args": False})
@click.option("--workspace", type=click.Path(exists=True, file_okay=False), help="A folder, seen at /workspace.")
@click.option("--read-only", is_flag=True, help="The workspace cannot be written.")
@click.option(
    "--mount", "mounts", multiple=True, metavar="SRC:DST[:rw]", help="A file or folder, read-only unless :rw is given."
)
@click.option("--timeout", type=click.FloatRange(min=0.1), default=120.0, show_default=True, help="Seconds.")
@click.option("--memory", type=click.IntRange(min=16), default=512, show_default=True, help="MiB.")
@click.option("--processes", type=click.IntRange(min=1), default=256, show_default=True, help="How many at once.")
@click.option("--require", multiple=True, metavar="NAME", help="Refuse to run unless this is enforced: memory, pids, …")
@click.argument("command", nargs=-1, required=True, type=click.UNPROCESSED)
def run_fenced(
    workspace: str | None,
    read_only: bool,
    mounts: tuple[str, ...],
    timeout: float,
    memory: int,
    processes: int,
    require: tuple[str, ...],
    command: tuple[str, ...],
) -> int:
    """Run a program fenced in, as `bash` and sandboxed tools are.

    It sees a read-only system, an empty /tmp, the workspace, what is mounted, and no network. What is piped in is its
    input. Options come before the program. The exit code is that of the program; 124 when it took too long.
    """
    access: WorkspaceAccess = "read_only" if read_only else "read_write"
    if read_only and workspace is None:
        raise UsageError("--read-only needs a --workspace")
    policy = SandboxPolicy(
        mounts=tuple(map(_mount, mounts)),
        workspace=None if workspace is None else os.path.abspath(workspace),
        workspace_access=access,
        limits=Limits(memory=memory * MIB, processes=processes, seconds=timeout, output=4096),
        require=frozenset(require),
    )
    given = b"" if sys.stdin is None or sys.stdin.isatty() else sys.stdin.buffer.read()
    done = run(_fenced(policy, command, given))
    if done.ended_by:
        reasons = {"timeout": f"it took longer than {timeout:g} seconds", "memory": f"it used more than {memory} MiB"}
        out(f"The program was ended: {reasons.get(done.ended_by, done.ended_by)}.", err=True)
    return TIMED_OUT if done.ended_by == "timeout" else done.exit_code


def _mount(text: str) -> Mount:
    """Reads `SRC:DST` or `SRC:DST:rw`. Raises `UsageError`."""
    source, _, rest = text.partition(":")
    target, _, access = rest.partition(":")
    if not source or not target.startswith("/") or access not in ("", "ro", "rw"):
        raise UsageError(f"{text!r} is not a mount", hint="such as --mount ./data:/data, or --mount ./data:/data:rw")
    path = os.path.abspath(source)
    if not os.path.exists(path):
        raise UsageError(f"--mount: {path} does not exist")
    return Mount(path, target, writable=access == "rw")


async def _fenced(policy: SandboxPolicy, command: tuple[str, ...], given: bytes) -> Finished:
    from foliot.sandbox.process import ProcessSandbox

    def heard(stream: Stream, data: bytes) -> None:
        to = sys.stdout if stream == "stdout" else sys.stderr
        to.write(data.decode("utf-8", "replace"))
        to.flush()

    fence = ProcessSandbox()
    try:
        session = await fence.open(policy)
        return await session.exec(command, stdin=given, on_output=heard)
    finally:
        await fence.close()


@sandbox.command()
@click.argument("tool")
@click.option("--agent", metavar="NAME", default="", help="As this agent would call it, with its execution policy.")
@click.option("--task", metavar="NAME", default="", help="Under this task, with the policies that target it.")
@click.option("--system", metavar="NAME", default="", help="Under this AgentSystem, with the policies that target it.")
@output_option("table", "json", default="table", help="table or json.")
def explain(tool: str, agent: str, task: str, system: str, output: str) -> int:
    """Explain how a tool is fenced: what it asks for, what policies leave of that, what this machine enforces.

    Policies that target tasks or systems count with --task and --system. The machine is the one that this runs on.
    """
    return run(_explain(tool, agent, task, system, output))


async def _explain(tool: str, agent: str, task: str, system: str, output: str) -> int:
    from foliot.sandbox.process import ProcessSandbox
    from foliot.sandbox.wasm import Wasm

    async with reached() as client:
        found = await client.tools.get(tool, namespace=namespace())
        question = PolicyQuestion(agent, tool, task=task, system=system)
        if agent:
            judgement = (await client.policies.explain(question, namespace=namespace())).judgement
        else:
            (fate,) = await client.policies.simulate([], [question], namespace=namespace())
            judgement = fate.after
    around = next((each.details for each in judgement.verdicts if each.layer == "sandbox"), dict[str, Any]())
    refusal = judgement.decided if judgement.outcome == "deny" else None
    mode = str(found.get("isolation", "none"))
    left = around.get("left", {})
    backend = "wasm" if mode == "wasm" else left.get("backend", "process")
    fence = Wasm() if backend == "wasm" else ProcessSandbox() if backend == "process" else _containers(backend)
    try:
        enforcement = await fence.enforces()
    finally:
        await fence.close()
    lacking = [name for name in left.get("require", ()) if not enforcement.enforces(name)]
    problems = [*_problems(found, mode, around, enforcement), *map("{} must be enforced, and is not".format, lacking)]
    if output == "json":
        told = {"refused": f"{refusal.rule or refusal.layer}: {refusal.reason}"} if refusal else {}
        out(as_json({**_data(tool, mode, problems, enforcement), **around, **told, "lacking": lacking}))
        return 0
    can = "can" if not problems and refusal is None else "cannot"
    out(f"{tool} runs with isolation {mode!r}; it {can} be called here{'' if can == 'can' else ' like this'}.")
    for problem in problems:
        out(f"  {problem}")
    if refusal is not None:
        out(f"  A call would be refused by {refusal.rule or f'the layer {refusal.layer}'}: {refusal.reason}")
    if around:
        out(table(("FIELD", "ASKED FOR", "LEFT BY POLICIES"), [*_fields(around["asked"], left)]))
        for line in around["taken"]:
            out(f"  taken away: {line}")
    if mode not in _FENCED:
        out("  Nothing is fenced: it has the rights of the worker." if mode == "none" else "  Not by processes.")
        return 0
    if not enforcement.available:
        return 0
    rows = [
        (name, "yes" if each.enforced else "no", each.how if each.enforced else each.why.partition(";")[0])
        for name, each in enforcement.features.items()
    ]
    out(table(("FEATURE", "ENFORCED", "BY, OR WHY NOT"), rows))
    return 0


def _problems(found: dict[str, Any], mode: str, around: dict[str, Any], enforcement: Enforcement) -> Iterator[str]:
    """Yields the reasons that keep a tool from being called, as far as can be seen here without calling it."""
    if problem := found.get("problem"):
        yield problem
    elif not found.get("available"):
        yield "it is not available here"
    if mode in _FENCED and not enforcement.available:
        yield f"Nothing can be fenced here: {enforcement.why}; {enforcement.hint}"
    left: dict[str, Any] = around.get("left", {})
    mounts: list[dict[str, Any]] = left.get("mounts", [])
    for mount in mounts:
        if not os.path.exists(mount["source"]):
            yield f"the source of a mount is not on this machine: {mount['source']} (at {mount['target']})"
    for secret in around.get("absent", ()):
        yield f"the Secret {secret} does not exist: `foliot create secret`"
    program = around.get("program", "")
    if program and left.get("backend") == "process" and not bubblewrap.shows_program(program, mounts):
        yield f"the program {program} is not in the sandbox: install it below /usr, or show its folder as a mount"


def _containers(backend: str) -> ContainerSandbox:
    from foliot.sandbox.container import ContainerSandbox
    from foliot.sandbox.container_cli import RUNSC

    settings = current().settings()
    runtime = RUNSC if backend == "gvisor" else settings.container_runtime
    return ContainerSandbox(cli=settings.container_cli, runtime=runtime)


def _fields(asked: dict[str, Any], left: dict[str, Any]) -> Iterator[tuple[str, str, str]]:
    """The rows of what is around a tool: as it asks for it, and as it gets it."""
    for name in dict.fromkeys((*asked, *left)):
        if name == "limits":
            for bound in asked[name] | left[name]:
                yield f"limits.{bound}", str(asked[name].get(bound, "-")), str(left[name].get(bound, "-"))
        elif name == "within":
            yield "network, within", "-", " and ".join(_shown(rules) for rules in left[name])
        else:
            yield name, _shown(asked.get(name, "none")), _shown(left.get(name, "none"))


def _shown(value: Any) -> str:
    """One field in a line: hosts with their ports, secrets with their hosts, mounts as source and target."""
    if not isinstance(value, list):
        return str(value)
    return ", ".join(map(_shown_part, cast("list[Any]", value)))


def _shown_part(part: Any) -> str:
    match part:
        case {"source": source, "target": target, "writable": writable}:
            return f"{source} at {target}{', writable' if writable else ''}"
        case {"secretRef": secret, "hosts": hosts}:
            return f"{secret} to {' '.join(hosts)}"
        case {"hosts": hosts, "ports": ports}:
            methods = f"{' '.join(part['methods'])} " if part.get("methods") else ""
            return f"{'not ' if part.get('deny') else ''}{methods}{' '.join(hosts)}:{'/'.join(map(str, ports))}"
        case _:
            return str(part)


def _data(tool: str, mode: str, problems: list[str], enforcement: Enforcement) -> dict[str, Any]:
    features = {
        name: {"enforced": each.enforced, **({"how": each.how} if each.enforced else {"why": each.why})}
        for name, each in enforcement.features.items()
    }
    return {
        "tool": tool,
        "isolation": mode,
        "available": not problems,
        **({"problem": problems[0], "problems": problems} if problems else {}),
        "enforced": features if mode in _FENCED else {},
    }
