"""Which tools come with Foliot, and what each of them needs to be made.

An agent names them in `tools:`; a Tool of the same name that is declared, or given in Python, is meant instead.
`read_file`, `write_file`, `edit_file`, `submit`, `ask` and `spawn` are other names of `read`, `write`, `edit`,
`submit_work`, `ask_user` and `spawn_agent`.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from copy import copy
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, Final, TypeAlias, cast

from foliot.errors import InvalidInput, NotFound
from foliot.sandbox.base import Sandbox
from foliot.tools.backends.agent import Agents
from foliot.tools.base import Tool, ToolDefinition
from foliot.tools.builtin.answers import Decide, EmitDiagnosis, SubmitWork
from foliot.tools.builtin.code import Code
from foliot.tools.builtin.delegation import DelegateTool, SpawnAgent, WaitAgents
from foliot.tools.builtin.files import EditFile, ReadFile, WriteFile
from foliot.tools.builtin.find import Glob, Grep
from foliot.tools.builtin.jobs import JobTool
from foliot.tools.builtin.journal import History
from foliot.tools.builtin.memory import MemoryList, MemoryRead, MemorySearch, MemoryWrite, SharedMemory
from foliot.tools.builtin.names import OTHER_NAMES, names_of
from foliot.tools.builtin.notes import ReadScratchpad, ReadTodos, Scratchpad, WriteTodos
from foliot.tools.builtin.overview import Definitions, ListTools, MonitorRuns
from foliot.tools.builtin.python import PythonTool
from foliot.tools.builtin.questions import AskUser
from foliot.tools.builtin.recall import Recall
from foliot.tools.builtin.results import ReadResult
from foliot.tools.builtin.run_processes import RunProcesses
from foliot.tools.builtin.shell import Bash
from foliot.tools.builtin.skills import SKILLS_TOOL, DraftSkill, SkillDrafts, SkillsTool, UnpackSkill
from foliot.tools.builtin.web import HttpRequestTool
from foliot.tools.builtin.workspace import FileSource, RunFiles, Workspace
from foliot.tools.fences import Fences
from foliot.tools.outbound.client import OutboundClient
from foliot.tools.workspaces import SharedWorkspace


@dataclass(frozen=True)
class BuiltinServices:
    """The services that built-in tools use. A tool that needs one which is None cannot be used.

    `call_files` are what file tools work on. `fences` and `processes` are there where programs can be fenced.
    `mounts` are folders that agents of others than the operator may show in them. `drafts` keeps skills that agents
    write. `actions` and `restricted_actions` are what `decide` may choose.
    """

    call_files: FileSource | None = None
    outbound: Callable[[], OutboundClient] | None = None
    journal: History | None = None
    actions: Sequence[str] = ()
    restricted_actions: Sequence[str] = ()
    agents: Agents | None = None
    memory: SharedMemory | None = None
    sandbox: Callable[[], Sandbox] | None = None
    fences: Fences | None = None
    processes: RunProcesses | None = None
    mounts: Sequence[str] = ()
    drafts: SkillDrafts | None = None

    @property
    def drafted(self) -> SkillDrafts:
        if self.drafts is None:
            raise _lacks("a store", "use it inside a runtime that has one")
        return self.drafts

    @property
    def files(self) -> FileSource:
        if self.call_files is None:
            raise _lacks("a workspace", "set FOLIOT_WORKSPACE to the folder that file tools may use")
        return self.call_files

    @property
    def client(self) -> OutboundClient:
        if self.outbound is None:
            raise _lacks("a way out to the web", "give the runtime an outbound client")
        return self.outbound()

    @property
    def history(self) -> History:
        if self.journal is None:
            raise _lacks("a journal", "use it inside a runtime")
        return self.journal

    @property
    def shared(self) -> SharedMemory:
        if self.memory is None:
            raise _lacks("a store", "use it inside a runtime that has one")
        return self.memory

    @property
    def delegates(self) -> Agents:
        if self.agents is None:
            raise _lacks("agents to delegate to", "use it inside a runtime")
        return self.agents


def _lacks(what: str, hint: str) -> InvalidInput:
    return InvalidInput(f"it needs {what}, and there is none here", hint=hint)


_Make: TypeAlias = Callable[[BuiltinServices, Definitions], Tool]

_MAKERS: Final[Mapping[str, _Make]] = {
    "decide": lambda around, _: Decide(around.actions, around.restricted_actions),
    "submit_work": lambda around, _: SubmitWork(),
    "ask_user": lambda around, _: AskUser(),
    "code": lambda around, definitions: Code(around.delegates, definitions, around.sandbox),
    "delegate": lambda around, _: DelegateTool(around.delegates),
    "spawn_agent": lambda around, _: SpawnAgent(around.delegates),
    "wait_agents": lambda around, _: WaitAgents(around.delegates),
    "memory.read": lambda around, _: MemoryRead(around.shared),
    "memory.write": lambda around, _: MemoryWrite(around.shared),
    "memory.list": lambda around, _: MemoryList(around.shared),
    "memory.search": lambda around, _: MemorySearch(around.shared),
    "emit_diagnosis": lambda around, _: EmitDiagnosis(),
    "recall": lambda around, _: Recall(around.history),
    "read_result": lambda around, _: ReadResult(around.history),
    "list_tools": lambda around, definitions: ListTools(definitions),
    "monitor_runs": lambda around, _: MonitorRuns(around.history),
    "write_todos": lambda around, _: WriteTodos(),
    "read_todos": lambda around, _: ReadTodos(around.history),
    "scratchpad": lambda around, _: Scratchpad(),
    "read_scratchpad": lambda around, _: ReadScratchpad(around.history),
    "http_get": lambda around, _: HttpRequestTool(around.client, reading=True),
    "http_request": lambda around, _: HttpRequestTool(around.client),
    "read": lambda around, _: ReadFile(around.files),
    "write": lambda around, _: WriteFile(around.files),
    "edit": lambda around, _: EditFile(around.files),
    "glob": lambda around, _: Glob(around.files),
    "grep": lambda around, _: Grep(around.files),
    "bash": lambda around, _: Bash(around.fences, around.processes and around.processes.jobs, around.mounts),
    "job": lambda around, _: JobTool(around.processes and around.processes.jobs, around.journal),
    SKILLS_TOOL: lambda around, _: SkillsTool(),
    "unpack_skill": lambda around, _: UnpackSkill(around.files),
    "draft_skill": lambda around, _: DraftSkill(around.drafted),
    "python": lambda around, _: PythonTool(around.processes and around.processes.interpreters, around.mounts),
}
NAMES: Final = frozenset({*_MAKERS, *OTHER_NAMES})


def builtin_tools(
    names: Iterable[str],
    *,
    workspace: str | os.PathLike[str] | None = None,
    outbound: OutboundClient | None = None,
    journal: History | None = None,
    definitions: Definitions | None = None,
    actions: Sequence[str] = (),
    restricted_actions: Sequence[str] = (),
    agents: Agents | None = None,
    memory: SharedMemory | None = None,
    sandbox: Sandbox | None = None,
    fences: Fences | None = None,
    processes: RunProcesses | None = None,
    drafts: SkillDrafts | None = None,
) -> list[Tool]:
    """Makes these tools, in this order. `definitions` are what `list_tools` lists, by default the tools made here.

    `workspace` is one folder for all calls of the namespace `default`; `fences` stand for it and for `sandbox`. What
    `processes` hold is ended by whoever gave them.
    Raises `NotFound` for a name that is none, `InvalidInput` for a tool that needs what was not given.
    """
    way_out = None if outbound is None else lambda: outbound
    if fences is None and sandbox is not None:
        folders = SharedWorkspace(None if workspace is None else Path(workspace), "default")
        fences = Fences(lambda backend: sandbox, workspaces=folders)
    files = RunFiles(fences) if fences is not None and workspace is None else None
    around = BuiltinServices(
        files if workspace is None else Workspace(workspace),
        way_out,
        journal,
        actions,
        restricted_actions,
        agents,
        memory,
        None if sandbox is None else lambda: sandbox,
        fences,
        processes or (None if fences is None else RunProcesses(fences, journal)),
        drafts=drafts,
    )
    made: list[Tool] = []
    listed = definitions or partial(_definitions, made)
    made += [builtin_tool(name, around, listed) for name in names]
    return made


def _definitions(tools: Iterable[Tool]) -> list[ToolDefinition]:
    return [tool.definition for tool in tools]


def builtin_tool(name: str, around: BuiltinServices, definitions: Definitions) -> Tool:
    """One of them. Raises as `builtin_tools`."""
    make = _MAKERS.get(OTHER_NAMES.get(name, name))
    if make is None:
        raise NotFound(f"there is no built-in tool {name!r}", hint=f"there are: {', '.join(sorted(NAMES))}")
    try:
        tool = make(around, definitions)
    except InvalidInput as error:
        raise InvalidInput(f"the tool {name!r} cannot be used: {error.message}", hint=error.hint) from None
    own = tool.definition.name
    names = {*names_of(own)}
    return tool if names == {name} else _renamed(tool, name, tuple(sorted(names - {name})))


def builtin_definition(name: str) -> ToolDefinition | None:
    """Returns the declaration of a built-in tool, wherever it would run; None when there is none of that name."""
    tool = builtin_to_judge(name)
    return None if tool is None else tool.definition


def builtin_to_judge(name: str) -> Tool | None:
    """A built-in tool that is never called, for whoever says what would become of a call."""
    if name not in NAMES:
        return None
    # Tools keep what they are given until they are called.
    anywhere = BuiltinServices(
        cast("Any", object()),
        cast("Any", lambda: None),
        cast("Any", object()),
        agents=cast("Any", object()),
        memory=cast("Any", object()),
        drafts=cast("Any", object()),
    )
    return builtin_tool(name, anywhere, lambda: ())


def _renamed(tool: Tool, name: str, others: tuple[str, ...]) -> Tool:
    """The same tool under one of its names, with whatever else it can do."""
    other = cast("Any", copy(tool))
    other.definition = replace(tool.definition, name=name, other_names=others)
    return other
