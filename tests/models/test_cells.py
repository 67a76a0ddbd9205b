"""The table provider × feature: each cell is asked of a server that keeps the provider's rules; see docs/providers.md.

`make providers` writes the page anew.
"""

from __future__ import annotations

import asyncio
import os
import re
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest

from foliot.catalog.checks import check_documents
from foliot.models.cells import CELLS, CellSubject, CellVerdict, judge
from foliot.models.config import GatewayConfig
from foliot.models.profiles import profile_document, profile_of, provider_facts, providers_with_files
from foliot.models.registry import default_registry
from foliot.resources.reader import parse_text
from foliot.resources.validate import validate_document
from tests.models.obeying import Obeying
from tests.tools.web_service import serving

pytest.importorskip("openai")
pytest.importorskip("anthropic")
pytest.importorskip("google.genai")

PAGE = Path(__file__).parents[2] / "docs" / "providers.md"
RANK = {"wrong": 0, "not asked": 1, "missing": 1, "by design": 2, "right": 3}
EXAMPLES = {
    "{AWS_REGION|AWS_DEFAULT_REGION}": "eu-west-1",
    "{GOOGLE_CLOUD_LOCATION}": "europe-west4",
    "{GOOGLE_CLOUD_PROJECT}": "my-project",
}
HEAD = """\
# Providers

The table says what works with which provider, as the tests judge it: each cell is a tiny question to a server on
loopback that keeps the provider's rules, with the types of the official SDKs (openai, anthropic, google-genai) as
judges of what is sent. `foliot models check ENDPOINT` asks the same of your endpoint. The page is written by
`make providers`; the facts of a provider stand in `src/foliot/models/profiles/<provider>.toml`.

**right**: works. **by design**: the provider has it not, or refuses it, and Foliot says so. **missing**: Foliot does
not do it yet, or not here. **–**: not asked. No real provider was asked for this page: a server of ours that keeps the
documented rules is not the provider.
"""


async def verdicts_of(provider: str) -> dict[str, CellVerdict]:
    facts = provider_facts(provider)
    wire = str(facts["wire"])
    model = str(facts.get("check") or "some-model")
    path = {"openai-chat": "/v1", "anthropic": "/v1", "gemini": "/v1beta"}.get(wire, "")
    path = urlsplit(facts.get("address", "")).path or path
    options = {"max_tokens_field": "max_completion_tokens"} if provider == "openai" else {}
    async with serving(Obeying(provider, wire)) as service:
        config = GatewayConfig(provider, base_url=service.url + path, api_key="key-1", model=model, options=options)
        gateway = default_registry().build(config)
        unnamed = {each: f"some-{each}" for each in ("rerank", "transcription") if facts.get(each) is True}
        if "embeddings" not in facts:
            unnamed["embeddings"] = "some-embeddings"
        subject = CellSubject.of(gateway, provider, model, profile_of(provider, model), **unnamed)
        try:
            return await judge(subject)
        finally:
            await gateway.close()


def page(table: dict[str, dict[str, CellVerdict]]) -> str:
    names = [cell.name for cell in CELLS]
    lines = [HEAD, f"| provider | {' | '.join(names)} |", "|---" * (len(names) + 1) + "|"]
    for provider, found in table.items():
        states = [found[name].state.replace("not asked", "–") for name in names]
        lines.append(f"| `{provider}` | {' | '.join(states)} |")
    for provider, found in table.items():
        facts = provider_facts(provider)
        lines += ["", f"## {facts['title']}", "", *entry(provider), "", *example(provider)]
        odd = [f"{name}: {each.state}, {each.words}" for name, each in found.items() if each.words]
        lines += ["", *(f"- {each}" for each in odd)] if odd else []
    return "\n".join(lines) + "\n"


def entry(provider: str) -> list[str]:
    """What the file of a provider says, in words."""
    document, facts = profile_document(provider), provider_facts(provider)
    also = f" (also {', '.join(f'`{each}`' for each in facts['aliases'])})" if facts.get("aliases") else ""
    where = facts.get("address") or facts.get("address_template") or "`base_url` of the endpoint"
    where = where.replace("|AWS_DEFAULT_REGION", "")
    at = f"; `{facts['address_variable']}` names another" if facts.get("address_variable") else ""
    keys = ", ".join(f"`{key}`" for key in facts.get("keys", ()))
    more = {"aws": "AWS credentials (SigV4)", "google": "a service account, application default credentials"}
    keys = ", or ".join(filter(None, (keys, more.get(facts.get("credentials", ""))))) or "none needed"
    lines = [f"`provider: {provider}`{also}, format {facts['wire']}, at {where}{at}; key: {keys}."]
    options = ", ".join(f"`{name}: {value}`".lower() for name, value in document.get("options", {}).items())
    default = profile_of(provider, str(facts.get("check", "")))
    refused = ", ".join(sorted(default.refuses | default.refuses_reasoning))
    named = {name: facts[name] for name in ("check", "embeddings", "rerank", "transcription") if facts.get(name)}
    models = ", ".join(f"{n.replace('check', 'answers')} `{'any' if m is True else m}`" for n, m in named.items())
    seller = facts.get("seller", provider)
    prices = f"genai-prices (`{seller}`)" if seller else "`pricing` of the endpoint"
    own = ", ".join(f"`{each['match']}` ({each['source']})" for each in document.get("prices", ()))
    limits = ", ".join(f"`{each['match']}` ({each['source']})" for each in document.get("limits", ()))
    rows = {"models for": models, "options set": options, "left out, with a note": refused,
            "prices by": prices + (f", and for {own}" if own else ""),
            "limits": limits or "as the account has them: `rate_limit` of the endpoint"}  # fmt: skip
    said = "; ".join(f"{name}: {value}" for name, value in rows.items() if value)
    return [*lines, f"{said[0].upper()}{said[1:]}.", f"Judged by {facts['judged']}."]


def example(provider: str) -> list[str]:
    facts = provider_facts(provider)
    model = facts.get("check") or facts.get("rerank") or "some-model"
    address = str(facts.get("address_template", ""))
    for variable, value in EXAMPLES.items():
        address = address.replace(variable, value)
    if facts.get("needs_address") and not address:
        address = "https://my-resource.openai.azure.com" if provider == "azure-openai" else "http://127.0.0.1:8080/v1"
    spec = [f"provider: {provider}", f'default_model: "{model if isinstance(model, str) else "some-model"}"']
    spec += [f"base_url: {address}"] if address else []
    spec += [f"auth: {{secretRef: {provider}-key}}"] if facts.get("keys") else []
    body = [f"metadata: {{name: {provider}}}", "spec:", *(f"  {each}" for each in spec)]
    return ["```yaml", "kind: ModelEndpoint", *body, "```"]


def committed() -> dict[tuple[str, str], str]:
    rows = [line.strip("| \n").split(" | ") for line in PAGE.read_text("utf-8").splitlines() if line.startswith("| ")]
    head, body = rows[0], rows[1:]
    return {
        (row[0].strip("`"), name): state.replace("–", "not asked")
        for row in body
        for name, state in zip(head[1:], row[1:], strict=True)
    }


@pytest.mark.parametrize("provider", providers_with_files())
def test_each_provider_has_an_entry_with_an_example_that_is_good(provider: str) -> None:
    (found,) = parse_text("\n".join(example(provider)[1:-1]), "example.yaml").items
    document, problems = validate_document(found.document)
    assert document is not None, problems
    # Nothing but that the Secret is not there yet.
    assert [problem for _, problem in check_documents([document], None) if problem.path[:2] != ("spec", "auth")] == []
    text = PAGE.read_text("utf-8")
    assert "\n".join(example(provider)) in text, "run make providers"
    assert all(line in text for line in entry(provider)), "run make providers"


async def test_the_page_says_what_the_cells_say() -> None:
    table = {name: await verdicts_of(name) for name in providers_with_files()}
    if os.environ.get("FOLIOT_TEST_WRITE_PAGES"):
        await asyncio.to_thread(PAGE.write_text, page(table), "utf-8")
    wrong = {
        (provider, name): verdict.words
        for provider, found in table.items()
        for name, verdict in found.items()
        if verdict.state == "wrong"
    }
    assert not wrong
    promised = committed()
    found = {(provider, name): v.state for provider, cells in table.items() for name, v in cells.items()}
    assert set(promised) == set(found), "run make providers"
    # A cell may have become better than its page; the page never promises more than the cell.
    worse = {place: (promised[place], found[place]) for place in found if RANK[found[place]] < RANK[promised[place]]}
    assert not worse, "run make providers"


async def test_a_server_that_breaks_its_promises_is_found_out() -> None:
    """The cells can fail: an answer that was cut and says otherwise, a call without its arguments."""

    class Lying(Obeying):
        def answer(self, body: dict[str, Any], raw: str) -> Any:
            import msgspec

            said = super().answer(body, raw)
            calls = tuple(
                msgspec.structs.replace(part, arguments="{}") if part in said.message.calls else part
                for part in said.message.parts
            )
            message = msgspec.structs.replace(said.message, parts=calls)
            return msgspec.structs.replace(said, message=message, stop="end" if said.stop == "length" else said.stop)

    async with serving(Lying("openai", "openai-chat")) as service:
        config = GatewayConfig("openai", base_url=service.url + "/v1", api_key="key-1", model="gpt-4.1")
        gateway = default_registry().build(config)
        try:
            found = await judge(CellSubject(gateway, "gpt-4.1", profile_of("openai", "gpt-4.1"), "e"))
        finally:
            await gateway.close()
    assert {name for name, verdict in found.items() if verdict.state == "wrong"} >= {"finish reasons", "tools"}
    assert not re.search("key-1", str(found))


async def test_a_wrong_answer_is_told_by_its_true_cause() -> None:
    class Chatting(Obeying):
        def answer(self, body: dict[str, Any], raw: str) -> Any:
            import msgspec

            from foliot.kernel.messages import Message, Text

            said = super().answer(body, raw)
            return msgspec.structs.replace(said, message=Message("assistant", (Text("Hello there."),)), stop="end")

    async with serving(Chatting("openai", "openai-chat")) as service:
        config = GatewayConfig("openai", base_url=service.url + "/v1", api_key="key-1", model="gpt-4.1")
        gateway = default_registry().build(config)
        try:
            cells = [cell for cell in CELLS if cell.name in ("plain answer", "tools")]
            found = await judge(CellSubject(gateway, "gpt-4.1", profile_of("openai", "gpt-4.1"), "e"), cells)
        finally:
            await gateway.close()
    assert found["plain answer"] == CellVerdict("wrong", "the one word that was asked for is not in its answer")
    assert found["tools"] == CellVerdict("wrong", "a call was wanted, 0 came")
