"""The last line about a task: how it ended and what it took."""

from __future__ import annotations

from foliot.engine.story.amounts import counted, duration, money, tokens
from foliot.kernel.messages import Usage
from foliot.work.story.telling import TaskStory


def usage_of(story: TaskStory) -> Usage:
    """What the task has used: of an ended one all of it, of a live one what its ended runs have."""
    return story.state.spent.usage()


def closing(story: TaskStory, seconds: float) -> str:
    """`succeeded  3 agents · 3 runs · 412 tokens · $0.0012 · 1.4s · NAME`."""
    ran = [each for each in story.messages.values() if each.run is not None]
    agents = {each.message.to for each in ran}
    usage = usage_of(story)
    parts = [counted(len(agents), "agent"), counted(len(ran), "run")]
    if usage.total_tokens:
        parts.append(tokens(usage.total_tokens))
    if usage.cost_usd:
        parts.append(money(usage.cost_usd))
    return f"{story.info.phase}  {' · '.join((*parts, duration(seconds), story.info.name))}"
