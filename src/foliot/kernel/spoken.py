"""Messages as plain text, for whoever reads a conversation instead of taking part in it: summaries, searches."""

from __future__ import annotations

from typing import Final

from foliot.kernel.messages import Media, Message, Reasoning, Text, ToolCall, ToolResult

# So much of one message is shown, and of one result of a tool; the middle of longer ones is left out.
LONGEST_SAID: Final = 6_000
LONGEST_RESULT: Final = 1_500
LONGEST_ARGUMENTS: Final = 500


def spoken(message: Message, *, whole: bool = False) -> str:
    """A message as text: calls and results named, files by their kind, and without `whole` nothing at great length."""
    said: list[str] = []
    for part in message.parts:
        match part:
            case Text(text=text):
                said.append(text if whole else clipped(text, LONGEST_SAID))
            case ToolCall(name=name, arguments=arguments):
                said.append(f"calls {name}({arguments if whole else clipped(arguments, LONGEST_ARGUMENTS)})")
            case ToolResult(name=name):
                failed = " failed" if part.error is not None else ""
                files = "".join(f" {_file(each)}" for each in part.content if isinstance(each, Media))
                text = part.text or (part.error.message if part.error is not None else "")
                said.append(f"{name}{failed} -> {text if whole else clipped(text, LONGEST_RESULT)}{files}")
            case Media():
                said.append(_file(part))
            case Reasoning():
                pass
    return "\n".join(each for each in said if each)


def _file(media: Media) -> str:
    return f"[{media.media_type}{f' {media.name}' if media.name else ''}]"


def clipped(text: str, most: int) -> str:
    """The text, without its middle when it is longer."""
    if len(text) <= most:
        return text
    return f"{text[: most * 2 // 3]}\n[… {len(text) - most:,} characters left out …]\n{text[-(most // 3) :]}"
