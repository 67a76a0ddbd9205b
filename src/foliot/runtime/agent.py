"""An agent declared in Python. It is the same thing as an Agent manifest, with functions for tools."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping
from functools import cached_property
from typing import TYPE_CHECKING, Any, Final, Generic, TypeAlias, cast, overload

from msgspec.structs import replace

from foliot.engine.definition.run_options import RunOptions
from foliot.engine.hooks.base import Hook, distinct
from foliot.engine.python_endpoints import ModelEndpoint
from foliot.errors import InactiveAgent, InvalidInput, UsageError
from foliot.models.base import Gateway
from foliot.resources.digest import definition_digest
from foliot.resources.problems import Finding, ManifestError
from foliot.resources.references import is_name, target_of
from foliot.resources.skill_files import read_skill
from foliot.resources.validate import validate_document
from foliot.runtime.output_types import OutputType
from foliot.runtime.results import Value
from foliot.store.base import Document
from foliot.tools.backends.agent import PREFIX
from foliot.tools.base import Tool
from foliot.tools.function import tool as make_tool

Tools: TypeAlias = "Iterable[Tool | Agent[Any] | Callable[..., Any] | str]"
# What other frameworks call what has another name here.
_ELSEWHERE: Final = {
    **dict.fromkeys(("instructions", "system_prompt", "system_message", "system"), "prompt"),
    **dict.fromkeys(("output_type", "result_type", "response_model", "response_format"), "output"),
}

# Methods of agents elsewhere, which those of a runtime are here.
_DRIVES: Final = frozenset({"run", "run_sync", "run_stream", "stream", "arun", "invoke", "ainvoke", "kickoff"})


class Agent(Generic[Value]):
    """The declaration of an agent: its prompt, its model, its tools and its limits.

    `model` is the name of a ModelEndpoint, `provider:model` (`"anthropic:claude-sonnet-4-5"`), a `ModelEndpoint` of
    Python, or a gateway object.
    `tools` are functions, tools made with `@tool`, other agents (it can then ask them), or names of tools that are
    declared elsewhere (`agent:name` for an agent). `output` asks for a structured answer: a pydantic model, any other
    type that pydantic understands, or a JSON Schema. `hooks` are asked about what its runs and those of its delegates
    do: objects of Python, or declarations as in a manifest. `skills` are names of Skills, or paths of folders.
    Everything else of the Agent manifest can be given by its name there (`limits={"max_steps": 5}`, `execution={…}`).

    Raises `ManifestError`, with every problem, when the declaration is wrong, `UsageError` for arguments that are
    none, and `InvalidInput` for a function that cannot be a tool.
    """

    @overload
    def __init__(
        self,
        name: str,
        *,
        model: str | ModelEndpoint | Gateway = "",
        prompt: str = "",
        tools: Tools = (),
        output: type[Value],
        namespace: str = "default",
        hooks: Iterable[Hook | Mapping[str, Any]] = (),
        **spec: Any,
    ) -> None: ...
    @overload
    def __init__(
        self: Agent[Any],
        name: str,
        *,
        model: str | ModelEndpoint | Gateway = "",
        prompt: str = "",
        tools: Tools = (),
        output: Any = None,
        namespace: str = "default",
        hooks: Iterable[Hook | Mapping[str, Any]] = (),
        **spec: Any,
    ) -> None: ...
    def __init__(
        self,
        name: str,
        *,
        model: str | ModelEndpoint | Gateway = "",
        prompt: str = "",
        tools: Tools = (),
        output: Any = None,
        namespace: str = "default",
        hooks: Iterable[Hook | Mapping[str, Any]] = (),
        **spec: Any,
    ) -> None:
        _check_arguments(name, model, tools, spec)
        given = [_taken(item) for item in tools]
        self.agents: list[Agent[Any]] = [item for item in given if isinstance(item, Agent)]
        self.tools: list[Tool] = _distinct(name, [item for item in given if not isinstance(item, str | Agent)])
        self.endpoint = model if isinstance(model, ModelEndpoint) else None
        self.gateway = None if isinstance(model, str | ModelEndpoint) else model
        named_skills, self.skills = _skills(spec.pop("skills", ()))
        given_hooks = list(hooks)
        self.hooks = distinct((each for each in given_hooks if not isinstance(each, Mapping)), f"Agent({name!r})")
        declared = [each for each in given_hooks if isinstance(each, Mapping)]
        schema = cast("Mapping[str, Any] | None", output) if output is None or isinstance(output, Mapping) else None
        # Not only classes: `list[City]` and `City | None` are types of values too.
        self.output_type = None if schema is output else OutputType(name, output)
        # A gateway object has no name that another process could look up; the run records whose it was.
        named = model.ref if isinstance(model, ModelEndpoint) else model
        ref = named if isinstance(named, str) else f"python:{namespace}/{name}"
        self.document: Document = _document(
            name,
            namespace,
            ref,
            {
                "prompt": prompt,
                "tools": list(dict.fromkeys(_tool_name(item, namespace) for item in given)),
                "output_schema": schema if self.output_type is None else self.output_type.schema,
                "hooks": declared or None,
                "skills": named_skills,
                **spec,
            },
        )

    @classmethod
    def from_document(cls, document: Document) -> Agent[Any]:
        """An agent as it is declared in a manifest or in the store."""
        agent = cls.__new__(cls)
        agent.tools, agent.agents, agent.gateway, agent.output_type, agent.document = [], [], None, None, document
        agent.endpoint, agent.hooks, agent.skills = None, (), ()
        return agent

    @property
    def name(self) -> str:
        return self.document["metadata"]["name"]

    @property
    def namespace(self) -> str:
        return self.document["metadata"].get("namespace", "default")

    @cached_property
    def digest(self) -> str:
        """The digest of the declaration, which does not change."""
        return definition_digest(self.document)

    @cached_property
    def pins(self) -> dict[str, str]:
        """The digests that a run of it is pinned to, by name: one dict for all of its runs."""
        return {f"Agent/{self.name}": self.digest}

    @property
    def model_ref(self) -> str:
        """The endpoint that it asks; blank for an agent that is a program."""
        return self.document["spec"].get("model_ref", "")

    @property
    def is_of_python(self) -> bool:
        """Whether it holds objects that no other process could look up."""
        objects = self.gateway, self.endpoint, self.output_type
        return any(each is not None for each in objects) or bool(self.tools or self.hooks or self.skills)

    if not TYPE_CHECKING:  # type checkers know that it is not there

        def __getattr__(self, name: str) -> Any:
            if name in _DRIVES:
                raise AttributeError(
                    f"an Agent is a declaration and has no {name!r}. Run it by a runtime: `await rt.run(agent, …)` in "
                    "`async with Runtime() as rt:`, or `Runtime().run_sync(agent, …)` where no event loop runs"
                )
            raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")

    def __repr__(self) -> str:
        return f"Agent({self.name!r}, model={self.model_ref!r})"


def _skills(given: Iterable[str | os.PathLike[str]]) -> tuple[list[str], tuple[Document, ...]]:
    """Splits skills into names and the documents of folders. Raises `ManifestError` for a folder that is no skill."""
    items = [given] if isinstance(given, str | os.PathLike) else list(given)
    documents: list[Document] = []
    for folder in (each for each in items if not isinstance(each, str)):
        document, findings = read_skill(os.fspath(folder))
        if document is None:
            raise ManifestError([each for each in findings if each.severity == "error"])
        documents.append(document)
    return [each for each in items if isinstance(each, str)], tuple(documents)


def _document(name: str, namespace: str, ref: str, spec: dict[str, Any]) -> Document:
    spec = {key: value for key, value in spec.items() if value is not None}
    named = ":" not in ref  # provider:model is not a reference to a resource, so it is not checked as one
    raw = {
        "kind": "Agent",
        "metadata": {"name": name, "namespace": namespace},
        "spec": {**spec, "model_ref": ref if named else "model"},
    }
    document, problems = validate_document(raw)
    if document is None:
        raise ManifestError([Finding(problem, f"Agent({name!r})") for problem in problems])
    if ref:
        document["spec"]["model_ref"] = ref
    return document


def _check_arguments(name: str, model: object, tools: object, spec: Mapping[str, Any]) -> None:
    """Checks arguments that a manifest could not have. Raises `UsageError`."""
    for word, here in _ELSEWHERE.items():
        if word in spec:
            raise UsageError(f"Agent({name!r}) has no {word!r}", hint=f"it is called {here!r} here")
    if not isinstance(model, str | ModelEndpoint) and not callable(getattr(model, "respond", None)):
        raise UsageError(
            f"{model!r:.80} is no model of Agent({name!r})",
            hint='name one, such as "anthropic:claude-sonnet-4-5" or a ModelEndpoint, or give a gateway object',
        )
    if isinstance(tools, str) or not isinstance(tools, Iterable):
        raise UsageError(f"the tools of Agent({name!r}) are not a list: {tools!r:.80}", hint="write tools=[…]")


def _taken(item: Any) -> Tool | Agent[Any] | str:
    return cast("Agent[Any] | str", item) if isinstance(item, str | Agent) else as_tool(item)


def _distinct(name: str, tools: list[Tool]) -> list[Tool]:
    """Each tool once. Raises `UsageError` for two that are called the same: the model could not tell them apart."""
    found: dict[str, Tool] = {}
    for each in tools:
        called = each.definition.name
        known = found.setdefault(called, each)
        if known is not each and getattr(known, "function", known) is not getattr(each, "function", each):
            raise UsageError(
                f"two tools of Agent({name!r}) are called {called!r}", hint="give one another name: @tool(name=…)"
            )
    return list(found.values())


def _tool_name(item: Tool | Agent[Any] | str, namespace: str) -> str:
    if isinstance(item, str):
        return item
    if not isinstance(item, Agent):
        return item.definition.name
    if item.namespace != namespace:
        raise UsageError(
            f"agent {item.name!r} is in namespace {item.namespace!r}, and who would call it is in {namespace!r}",
            hint="agents call those of their own namespace",
        )
    return f"{PREFIX}{item.name}"


def as_tool(item: Tool | Callable[..., Any]) -> Tool:
    """A tool as it is, a function as a tool. Raises `InvalidInput` for what is neither."""
    return cast("Tool", item) if hasattr(item, "definition") else make_tool(cast("Callable[..., Any]", item))


def named(agent: Agent | str) -> tuple[str, str]:
    """The namespace and the name of an agent. Raises `InvalidInput`, `UsageError`."""
    if isinstance(agent, Agent):
        return agent.namespace, agent.name
    if not isinstance(cast("object", agent), str):
        raise UsageError(f"{agent!r:.80} is no agent", hint="give an Agent, or the name of one that is declared")
    _, namespace, name = target_of("Agent", agent, "default")
    return namespace, name


def check_active(agent: Agent) -> None:
    """Raises `InactiveAgent` for an agent that takes no new work."""
    if agent.document["spec"].get("active") is False:
        raise InactiveAgent(
            f"agent {agent.namespace}/{agent.name} is inactive",
            hint="`active: true` in its manifest, or no `active`, has it take work again",
        )


# The agent of prompts that name a model and no agent. It has no instructions and no tools.
ONE_SHOT: Final = "one-shot"


def asked_by(
    agent: Agent[Value] | str, options: RunOptions, namespace: str
) -> tuple[Agent[Value] | Agent[Any] | str, RunOptions]:
    """The agent of a run in a namespace, and what is left of its options: without a name, a model is asked by itself.

    Raises `InvalidInput` as `within`.
    """
    if agent == "" and options.model.strip():
        one_shot = Agent[Any](ONE_SHOT, model=options.model.strip(), namespace=namespace)
        return one_shot, replace(options, model="")
    return within(agent, namespace), options


def within(agent: Agent[Value] | str, namespace: str) -> Agent[Value] | str:
    """The agent as it is run in a namespace: an object has its own. Raises `InvalidInput` when that is another."""
    if isinstance(agent, str):
        if not is_name(agent):
            raise InvalidInput(f"{agent[:80]!r} does not name an agent", hint="give its name without the namespace")
        return f"{namespace}/{agent}"
    if isinstance(cast("object", agent), Agent) and namespace not in ("default", agent.namespace):
        raise InvalidInput(
            f"agent {agent.name!r} belongs to namespace {agent.namespace!r}, and cannot be run in {namespace!r}",
            hint=f'make it there: Agent("{agent.name}", namespace="{namespace}", …)',
        )
    return agent
