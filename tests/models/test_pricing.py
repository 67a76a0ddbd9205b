from __future__ import annotations

import subprocess
import sys
from datetime import UTC, datetime

import pytest
from hypothesis import given
from hypothesis import strategies as st

from foliot.errors import InvalidInput
from foliot.kernel.messages import Usage
from foliot.models.routing.pricing import PriceBook, Pricing


@pytest.fixture(scope="module")
def book() -> PriceBook:
    return PriceBook(now=lambda: datetime(2026, 1, 1, 12, tzinfo=UTC))


def test_known_models_have_the_price_of_the_tables(book: PriceBook):
    usage = Usage(input_tokens=1_000_000, output_tokens=1_000_000)
    assert book.cost("openai", "gpt-4o", usage) == pytest.approx(12.5)
    assert book.cost("openai-responses", "gpt-4o", usage) == pytest.approx(12.5)
    assert book.cost("anthropic", "claude-3-5-haiku-latest", usage) == pytest.approx(4.8)
    assert (book.cost("gemini", "gemini-2.0-flash", usage) or 0) > 0


def test_cached_tokens_have_their_own_price(book: PriceBook):
    fresh = book.cost("openai", "gpt-4o", Usage(input_tokens=1000))
    cached = book.cost("openai", "gpt-4o", Usage(input_tokens=1000, cache_read_tokens=1000))
    assert fresh is not None
    assert cached == pytest.approx(fresh / 2)


@pytest.mark.parametrize(
    ("provider", "model", "base_url"),
    [
        ("openai", "no-such-model", ""),
        ("no-such-provider", "gpt-4o", ""),
        ("scripted", "gpt-4o", ""),
        ("ollama", "llama3", ""),
        ("ollama", "llama3", "http://127.0.0.1:11434"),
        ("vllm", "gpt-4o", "http://10.0.0.1/v1"),
        ("openai", "gpt-4o", "http://localhost:8000/v1"),  # somebody else's server that speaks the same protocol
        ("anthropic", "claude-3-5-haiku-latest", "https://proxy.example/v1"),
        ("google", "gemini-2.5-flash", "http://10.0.0.5/v1beta"),
        ("google", "gemini-2.5-flash", "https://googleapis.com.example/v1beta"),
        ("groq", "openai/gpt-oss-20b", "https://api.groq.com.example/v1"),
    ],
)
def test_an_unknown_price_is_none_and_never_zero(book: PriceBook, provider: str, model: str, base_url: str):
    assert book.cost(provider, model, Usage(1000, 1000), base_url=base_url) is None


@pytest.mark.parametrize("prefix", ["models/", "publishers/google/models/"])
def test_a_model_is_priced_by_its_name_wherever_it_stands(book: PriceBook, prefix: str):
    usage = Usage(1_000_000, 1_000_000)
    assert book.cost("google", f"{prefix}gemini-2.5-flash", usage) == book.cost("google", "gemini-2.5-flash", usage)


def test_the_address_tells_who_sells(book: PriceBook):
    usage = Usage(1_000_000, 0)
    assert book.cost("openai", "gpt-4o", usage, base_url="https://api.openai.com/v1") == pytest.approx(2.5)
    assert (book.cost("openai-compatible", "deepseek-chat", usage, base_url="https://api.deepseek.com/v1") or 0) > 0
    own = [
        ("anthropic", "claude-3-5-haiku-latest", "https://api.anthropic.com/v1"),
        ("bedrock", "openai.gpt-oss-20b-1:0", "https://bedrock-runtime.eu-west-1.amazonaws.com/openai/v1"),
        ("azure", "gpt-4o", "https://me.openai.azure.com/openai/v1"),
        ("moonshot", "kimi-k2.6", "https://api.moonshot.ai/v1"),
        ("vertex", "gemini-2.5-flash", "https://europe-west1-aiplatform.googleapis.com/v1"),
        ("cohere", "command-a-03-2025", "https://api.cohere.ai/compatibility/v1"),
    ]
    assert all((book.cost(provider, model, usage, base_url=url) or 0) > 0 for provider, model, url in own)


@given(
    number=st.integers(0, 10**6),
    fresh=st.integers(0, 300_000),
    read=st.integers(0, 300_000),
    write=st.integers(0, 10_000),
    output=st.integers(0, 100_000),
)
def test_the_quick_sum_equals_the_sum_of_the_library(number: int, fresh: int, read: int, write: int, output: int):
    import genai_prices
    from genai_prices.data_snapshot import get_snapshot

    now = datetime(2026, 1, 1, 12, tzinfo=UTC)
    models = [(seller, info) for seller in get_snapshot().providers for info in seller.models]
    seller, info = models[number % len(models)]
    usage = Usage(fresh + read + write, output, read, write)

    mine = PriceBook(now=lambda: now).cost(seller.id, info.id, usage)
    if mine is None:
        return
    counts = genai_prices.Usage(
        input_tokens=usage.input_tokens, output_tokens=output, cache_read_tokens=read, cache_write_tokens=write
    )
    found = get_snapshot().calc(counts, info.id, seller.id, None, now)
    assert mine == pytest.approx(float(found.total_price), abs=1e-12)


def test_an_endpoint_may_state_its_own_prices():
    pricing = Pricing.read({"input": 2, "output": "8", "cache_read": 0.5, "request": 0.001})
    assert pricing.cost(Usage(1_000_000, 500_000, cache_read_tokens=400_000)) == pytest.approx(1.2 + 0.2 + 4.0 + 0.001)
    assert Pricing.read({"input": 0, "output": 0}).cost(Usage(5, 5)) == 0.0


@pytest.mark.parametrize(
    ("pricing", "words"),
    [
        ({"input": 1}, "output is missing"),
        ({"input": 1, "output": -1}, "pricing.output must be"),
        ({"input": "cheap", "output": 1}, "pricing.input must be"),
        ({"input": float("nan"), "output": 1}, "pricing.input must be"),
        ({"input": 1, "output": 1, "outptu": 1}, "pricing.outptu is not known"),
    ],
)
def test_prices_that_make_no_sense_are_refused(pricing: dict[str, object], words: str):
    with pytest.raises(InvalidInput, match=words):
        Pricing.read(pricing)


async def test_loading_is_done_once_and_off_the_loop():
    book = PriceBook()
    await book.load()
    await book.load()
    assert book.cost("openai", "gpt-4o", Usage(1, 1)) is not None


def test_importing_the_router_does_not_import_the_price_tables():
    code = "import sys, foliot.models.routing.router, foliot.models.scripted.model\n"
    code += "assert 'genai_prices' not in sys.modules"
    subprocess.run([sys.executable, "-c", code], check=True)
