"""`http_get` and `http_request`: asking any web address, through the guarded client.

Two tools, because what a tool may do is declared before it is called: a GET can be repeated after a crash, a POST
cannot. Credentials that a model writes into headers stay with the origin that it wrote them for.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping
from html import unescape
from typing import Any, Final, cast

from foliot.tools.base import (
    Invocation,
    OnOutput,
    ToolArgumentsInvalid,
    ToolAuthForbidden,
    ToolAuthInvalid,
    ToolDefinition,
    ToolError,
    ToolRateLimited,
)
from foliot.tools.builtin.arguments import given, object_schema, optional, optional_text, text
from foliot.tools.builtin.results import ToolNothingThere
from foliot.tools.outbound.client import OutboundAnswer, OutboundClient, Patience, decoded
from foliot.tools.pipeline.running import blocking

# --- page text -------------------------------------------------------------------------------------------------------

# A web page as text that a model can read: what is visible, one line for each block, links with their addresses.
#
# Whoever wrote the page chose its bytes, so reading goes forward only: each character is looked at a fixed number of
# times, whatever is left open. The parser of the standard library begins anew at every tag that does not end, and
# takes minutes for 100 kB of them.

_HIDDEN: Final = frozenset({"noscript", "template", "svg", "object"})
_BLOCKS: Final = frozenset(
    [
        "address",
        "article",
        "aside",
        "blockquote",
        "br",
        "dd",
        "div",
        "dl",
        "dt",
        "fieldset",
        "figure",
        "footer",
        "form",
        "h1",
        "h2",
        "h3",
        "h4",
        "h5",
        "h6",
        "header",
        "hr",
        "li",
        "main",
        "nav",
        "ol",
        "p",
        "pre",
        "section",
        "table",
        "tr",
        "ul",
    ]
)


# What is inside is text up to their own end, whatever it looks like. Of two of them it is visible.
_RAW: Final = frozenset({"script", "style", "iframe", "noembed", "noframes", "xmp", "textarea", "title"})
_RAW_SHOWN: Final = frozenset({"xmp", "textarea"})
_RAW_ENDS: Final = {name: re.compile(rf"</{name}(?=[ \t\n\r\f/>]|\Z)", re.IGNORECASE) for name in _RAW}
_NAME: Final = re.compile(r"[A-Za-z][^ \t\n\r\f/>]*+")
# Python refuses to read a number of thousands of digits, and no character has more than seven.
_NO_CHARACTER: Final = re.compile(r"&#(?:[0-9]{4000,}|0*+[1-9][0-9]{7,}|[xX]0*+[1-9a-fA-F][0-9a-fA-F]{6,});?")
_BLANKS: Final = re.compile(r"\s+")
# One attribute, or the end of the tag. Possessive: what was read once is never given back and read again.
_ATTRIBUTE: Final = re.compile(
    r"[ \t\n\r\f/]*+(?:(?P<end>>)|(?P<name>[^ \t\n\r\f/>][^ \t\n\r\f/>=]*+)(?:[ \t\n\r\f]*+=[ \t\n\r\f]*+"
    r"(?:\"(?P<double>[^\"]*+)\"|'(?P<single>[^']*+)'|(?P<open>[\"'])|(?P<bare>[^ \t\n\r\f>]*+)))?+)"
)


class _Page:
    """The text that is found so far. Pure: tags and texts in, pieces out."""

    def __init__(self) -> None:
        self.pieces: list[str] = []
        self.title = ""
        self._hidden: list[str] = []
        self._hiding: Counter[str] = Counter()
        self._links: list[str] = []

    def opened(self, tag: str, href: str) -> None:
        if tag in _HIDDEN:
            self._hidden.append(tag)
            self._hiding[tag] += 1
        elif tag in _BLOCKS:
            self.pieces.append("\n- " if tag == "li" else "\n")
        elif tag in ("td", "th"):
            self.pieces.append(" | ")
        elif tag == "a":
            self._links.append(href)

    def closed(self, tag: str) -> None:
        if self._hiding[tag] > 0:
            while True:  # what was left open inside ends with it
                inner = self._hidden.pop()
                self._hiding[inner] -= 1
                if inner == tag:
                    return
        elif tag in _BLOCKS:
            self.pieces.append("\n")
        elif tag == "a" and self._links:
            address = self._links.pop()
            if address.startswith(("http://", "https://", "/")) and not self._hidden:
                self.pieces.append(f" ({address})")

    def raw(self, tag: str, text: str) -> None:
        if tag == "title" and not self._hidden:
            self.title = self.title or " ".join(unescaped(text).split())
        elif tag in _RAW_SHOWN:
            self.said(text)

    def said(self, text: str) -> None:
        if text and not self._hidden:
            self.pieces.append(_BLANKS.sub(" ", unescaped(text)))


def unescaped(text: str) -> str:
    """Resolve the entities in a text; numbers that no character can have are none."""
    return unescape(_NO_CHARACTER.sub("\ufffd", text))


def page_text(html: str) -> str:
    """The visible text. Broken markup gives what can be made of it."""
    page = _Page()
    at = 0
    while at < len(html):
        start = html.find("<", at)
        if start < 0:
            page.said(html[at:])
            break
        page.said(html[at:start])
        at = _markup(html, start, page)
    lines = [" ".join(line.split()) for line in "".join(page.pieces).split("\n")]
    body = "\n".join(line for line in lines if line and line != "-")
    return f"{page.title}\n\n{body}" if page.title else body


def _markup(html: str, start: int, page: _Page) -> int:
    """Read what begins with `<`, and say where it ends. What has no end hides the rest of the page, as in a browser."""
    if html.startswith("<!--", start):
        return _behind(html, "-->", start + 4)
    closing = html.startswith("</", start)
    name = _NAME.match(html, start + (2 if closing else 1))
    if name is None:
        if closing or html.startswith(("<!", "<?"), start):
            return _behind(html, ">", start + 2)
        page.said("<")
        return start + 1
    tag = name[0].lower()
    href, alone, end = _attributes(html, name.end())
    if end < 0:
        return len(html)
    if closing:
        page.closed(tag)
        return end
    if tag in _RAW:
        stop = _RAW_ENDS[tag].search(html, end)
        page.raw(tag, html[end : stop.start() if stop else len(html)])
        return _behind(html, ">", stop.end()) if stop else len(html)
    page.opened(tag, href)
    if alone and tag in _HIDDEN:
        page.closed(tag)
    return end


def _attributes(html: str, at: int) -> tuple[str, bool, int]:
    """The address in a tag, whether the tag closes itself, and where it ends; -1 when it does not."""
    href: str | None = None
    while True:
        found = _ATTRIBUTE.match(html, at)
        if found is None or found["open"]:
            return "", False, -1
        at = found.end()
        if found["end"]:
            return href or "", html[at - 2] == "/", at
        if href is None and found["name"].lower() == "href":
            href = unescaped(found["double"] or found["single"] or found["bare"] or "")


def _behind(html: str, mark: str, at: int) -> int:
    found = html.find(mark, at)
    return len(html) if found < 0 else found + len(mark)


# --- web -------------------------------------------------------------------------------------------------------------

LARGEST_BODY: Final = 100 * 1024
LONGEST_TEXT: Final = 20_000
LARGEST_SENT: Final = 1024 * 1024
SECONDS: Final = 30.0
_PATIENCE: Final = Patience(head=20.0, silence=10.0, body=25.0)  # less than that, so that it is known what was slow
READING: Final = ("GET", "HEAD")
METHODS: Final = (*READING, "POST", "PUT", "PATCH", "DELETE")
_CUT: Final = "\n[content truncated]"
_SHOWN_OF_ERROR: Final = 500
_HEADER: Final = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+")
# They steer the connection, or say who is speaking to whom: that is the client's business.
_NOT_THEIRS: Final = frozenset(
    [
        "accept-encoding",
        "connection",
        "content-length",
        "expect",
        "host",
        "idempotency-key",
        "keep-alive",
        "proxy-authorization",
        "proxy-connection",
        "te",
        "trailer",
        "transfer-encoding",
        "upgrade",
    ]
)
_HTML: Final = frozenset({"text/html", "application/xhtml+xml"})
_TEXT: Final = ("text/", "application/json", "application/xml", "application/javascript", "application/x-www-form")


class HttpRequestTool:
    """`reading` makes it `http_get`: nothing but GET and HEAD, and no body."""

    def __init__(self, client: OutboundClient, *, reading: bool = False) -> None:
        self._client = client
        self._methods = READING if reading else METHODS
        fields = {
            "url": text("Begins with http:// or https://.", minLength=1),
            "method": optional("string", f"One of {', '.join(self._methods)}; GET when not given."),
            "headers": optional("object", "Headers to send.", additionalProperties={"type": "string"}),
        }
        if not reading:
            fields["body"] = optional("string", "What to send, as text; set the Content-Type header to match.")
        limits = f"Answers over {LONGEST_TEXT} characters are cut. Addresses inside private networks are refused."
        self.definition = ToolDefinition(
            name="http_get" if reading else "http_request",
            description=(
                f"Fetches a web address and shows status and text; HTML is reduced to its visible text. {limits}"
                if reading
                else f"Sends an HTTP request and shows status and text; HTML is reduced to its visible text. {limits}"
            ),
            schema=object_schema(fields, ["url"]),
            effect="read" if reading else "once",
            category="network",
            breaker=False,
            risk="low" if reading else "medium",
            timeout=SECONDS,
        )

    async def invoke(self, call: Invocation, *, on_output: OnOutput | None = None) -> Any:
        url, method = _url(call), self._method(call)
        headers, body = _headers(call), _body(call, method)
        if body is not None and not any(name.lower() == "content-type" for name in headers):
            headers["Content-Type"] = "text/plain; charset=utf-8"
        if method not in READING and call.idempotency_key:
            headers["Idempotency-Key"] = call.idempotency_key
        async with self._client.send(method, url, headers=headers, body=body, patience=_PATIENCE) as answer:
            if not 200 <= answer.status < 400:
                raise await _refusal(answer)
            body, whole = await _read(answer)
        # A page of 100 kB takes a while to read, however it is written: beside the event loop.
        return await blocking(call, self, _shown, answer, body, whole)

    def _method(self, call: Invocation) -> str:
        method = str(given(call, "method", "GET")).strip().upper()
        if method not in self._methods:
            raise ToolArgumentsInvalid(f"method must be one of {', '.join(self._methods)}", field="method")
        return method


def _url(call: Invocation) -> str:
    url = call.arguments.get("url")
    if not isinstance(url, str) or not url.strip():
        raise ToolArgumentsInvalid("url is required", field="url")
    if not url.strip().lower().startswith(("http://", "https://")):
        raise ToolArgumentsInvalid("url must start with http:// or https://", field="url")
    return url.strip()


def _headers(call: Invocation) -> dict[str, str]:
    headers = {"Accept": "text/html, application/json, text/*;q=0.9, */*;q=0.5"}
    for name, value in cast("Mapping[str, Any]", given(call, "headers", {})).items():
        if not _HEADER.fullmatch(name) or not isinstance(value, str) or not value.isprintable():
            raise ToolArgumentsInvalid(f"the header {name[:80]!r} cannot be sent", field=f"headers/{name[:80]}")
        if name.lower() in _NOT_THEIRS:
            raise ToolArgumentsInvalid(f"the header {name} is set by the client", field=f"headers/{name}")
        headers = {known: old for known, old in headers.items() if known.lower() != name.lower()} | {name: value}
    return headers


def _body(call: Invocation, method: str) -> bytes | None:
    body = optional_text(call, "body")
    if body is None:
        return None
    if method in READING:
        raise ToolArgumentsInvalid(f"{method} takes no body", field="body")
    sent = body.encode("utf-8", "replace")
    if len(sent) > LARGEST_SENT:
        raise ToolArgumentsInvalid(f"body is {len(sent)} bytes, more than {LARGEST_SENT}", field="body")
    return sent


def _shown(answer: OutboundAnswer, body: bytes, whole: bool) -> str:
    """Status, where it came from, what it is and what was done to it, then the text: all within the limit."""
    words = [f"HTTP {answer.status}", f"URL: {answer.url}"]
    if answer.media_type:
        words.append(f"Content-Type: {answer.media_type}")
    if not _is_text(answer.media_type, body):
        size = f"{len(body)} bytes" if whole else f"more than {LARGEST_BODY} bytes"
        return "\n".join([*words, "", f"[{size} that are not text; not shown]"])
    content = decoded(body, answer.charset)
    if answer.media_type in _HTML:
        content = page_text(content)
        words.append("Shown: visible text of the page")
    head = "\n".join(words)[: LONGEST_TEXT // 4] + "\n\n"
    room = LONGEST_TEXT - len(head)
    if whole and len(content) <= room:
        return head + content
    return head + content[: room - len(_CUT)] + _CUT


async def _read(answer: OutboundAnswer) -> tuple[bytes, bool]:
    """The beginning of the body, and whether that is all of it. Raises when it breaks off."""
    found = bytearray()
    async for piece in answer.pieces(limit=1 << 62):
        found += piece
        if len(found) > LARGEST_BODY:
            return bytes(found[:LARGEST_BODY]), False
    return bytes(found), True


def _is_text(media_type: str, body: bytes) -> bool:
    if media_type.startswith(_TEXT) or media_type.endswith(("+json", "+xml")):
        return True
    if media_type not in ("", "application/octet-stream", "binary/octet-stream"):
        return False
    start = body[:8192]
    return b"\0" not in start and start.decode("utf-8", "replace").count("\N{REPLACEMENT CHARACTER}") <= 1


async def _refusal(answer: OutboundAnswer) -> ToolError:
    """The failure that a status means, with the beginning of what the server said."""
    start = await answer.beginning(_SHOWN_OF_ERROR + 1)
    said = decoded(start[:_SHOWN_OF_ERROR], answer.charset) if _is_text(answer.media_type, start) else ""
    said += "..." if len(start) > _SHOWN_OF_ERROR else ""
    message = f"HTTP {answer.status}: {said}".rstrip(": ")
    match answer.status:
        case 401:
            return ToolAuthInvalid(message, status=401)
        case 403:
            return ToolAuthForbidden(message, status=403)
        case 404 | 410:
            return ToolNothingThere(message, status=answer.status)
        case 429:
            limited = ToolRateLimited(message, status=429)
            limited.before_effect = False  # what the server did before it said so is not known
            return limited
        case status:
            return ToolError(message, retryable=status >= 500, status=status)
