"""LangGraph: a graph by hand, `create_agent`, and `create_agent` with its SQLite checkpointer (`durability="sync"`)."""

from __future__ import annotations

import contextlib
import os
import sys
import tempfile
import uuid
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

os.environ.update(LANGSMITH_TRACING="false", LANGCHAIN_TRACING_V2="false")

from harness import DONE, FOUND, QUESTION, STEPS, RunOnce, always, arguments, serve
from langchain.agents import create_agent
from langchain_core.language_models.chat_models import BaseChatModel
from langchain_core.messages import AIMessage, BaseMessage, HumanMessage
from langchain_core.outputs import ChatGeneration, ChatResult
from langchain_core.tools import tool
from langgraph.checkpoint.sqlite.aio import AsyncSqliteSaver
from langgraph.graph import START, MessagesState, StateGraph
from langgraph.prebuilt import ToolNode, tools_condition

CONFIG = {"recursion_limit": 4 * STEPS}


@tool
async def lookup(key: str) -> str:
    """Look up the value of a key."""
    return FOUND


def answer(messages: list[BaseMessage]) -> AIMessage:
    step = sum(isinstance(message, AIMessage) for message in messages)
    if step == STEPS:
        return AIMessage(DONE)
    call = {"name": "lookup", "args": arguments(step), "id": f"call_{step}", "type": "tool_call"}
    return AIMessage("", tool_calls=[call])


class InProcess(BaseChatModel):
    """A chat model that answers from a function."""

    @property
    def _llm_type(self) -> str:
        return "in-process"

    def bind_tools(self, tools: Any, **kwargs: Any) -> InProcess:
        return self

    def _generate(self, messages: list[BaseMessage], *args: Any, **kwargs: Any) -> ChatResult:
        return ChatResult(generations=[ChatGeneration(message=answer(messages))])

    async def _agenerate(self, messages: list[BaseMessage], *args: Any, **kwargs: Any) -> ChatResult:
        return self._generate(messages)


def graph() -> Any:
    """The plainest graph there is: a node that answers, and LangGraph's own node for tools."""

    async def agent(state: MessagesState) -> dict[str, Any]:
        return {"messages": [answer(state["messages"])]}

    builder = StateGraph(MessagesState)
    builder.add_node("agent", agent)
    builder.add_node("tools", ToolNode([lookup]))
    builder.add_edge(START, "agent")
    builder.add_conditional_edges("agent", tools_condition)
    builder.add_edge("tools", "agent")
    return builder.compile()


def runner(agent: Any, **options: Any) -> RunOnce:
    async def run() -> int:
        config = {**CONFIG, "configurable": {"thread_id": uuid.uuid4().hex}}
        result = await agent.ainvoke({"messages": [HumanMessage(QUESTION)]}, config, **options)
        return sum(message.type == "tool" for message in result["messages"])

    return run


@contextlib.asynccontextmanager
async def checkpointed() -> AsyncIterator[RunOnce]:
    with tempfile.TemporaryDirectory() as folder:
        async with AsyncSqliteSaver.from_conn_string(str(Path(folder) / "checkpoints.db")) as saver:
            agent = create_agent(InProcess(), [lookup], system_prompt="You look up keys.", checkpointer=saver)
            yield runner(agent, durability="sync")


if __name__ == "__main__":
    variant = sys.argv[1]
    if variant == "graph":
        serve("LangGraph StateGraph", always(runner(graph())), packages=["langgraph"])
    elif variant == "agent":
        agent = create_agent(InProcess(), [lookup], system_prompt="You look up keys.")
        serve("LangGraph create_agent", always(runner(agent)), packages=["langgraph", "langchain"])
    else:
        packages = ["langgraph", "langchain", "langgraph-checkpoint-sqlite"]
        serve("LangGraph create_agent + SQLite", checkpointed, packages=packages, durable=True)
