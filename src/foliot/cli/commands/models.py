"""`foliot models`: what an endpoint can do, found out by asking it."""

from __future__ import annotations

import os
import time
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

import click

from foliot.cli.invocation import current
from foliot.cli.reach import namespace, run
from foliot.cli.show.output import as_json, output_option
from foliot.cli.show.tables import table
from foliot.cli.terminal import confirm, out
from foliot.common.waits import Waits
from foliot.errors import Unavailable, UsageError
from foliot.store.open import open_database

if TYPE_CHECKING:
    from foliot.models.cells import CellVerdict
    from foliot.models.routing.endpoints import EndpointConfig


@click.group()
def models() -> None:
    """Check model endpoints, outside any run."""


@models.command()
@click.argument("endpoint")
@click.option("--model", default="", metavar="NAME", help="The model to ask; the endpoint's default otherwise.")
@click.option("--embeddings", default="", metavar="NAME", help="The model for embeddings; one that is known otherwise.")
@click.option("-y", "--yes", is_flag=True, help="Ask the endpoint without confirmation.")
@output_option("table", "json", default="table", help="table or json")
def check(endpoint: str, model: str, embeddings: str, yes: bool, output: str) -> int:
    """Ask an endpoint one tiny question for each feature, and show what works.

    \b
    foliot models check main                      a ModelEndpoint of the namespace
    foliot models check openai:gpt-5-mini         with the key from the environment

    The same questions are the cells of docs/providers.md. What they cost is estimated first. The exit code is 1 when
    something is wrong, and 7 when nobody answers. An address that somebody else than the operator chose is asked as in
    a run: the public internet, and what the setting outbound_allow names.
    """
    return run(_check(endpoint, model, embeddings, yes, output))


async def _check(ref: str, model: str, embeddings: str, yes: bool, output: str) -> int:
    from foliot.models.cells import CELLS, UNREACHABLE, CellSubject, expected, judge
    from foliot.models.profiles import profile_of, provider_facts
    from foliot.models.registry import default_registry
    from foliot.models.routing.pricing import PriceBook

    async with _found(ref) as found:
        config = found.gateway
        registry = default_registry()
        provider = registry.find(config.provider).name
        facts = provider_facts(provider)
        name = model or config.model or str(facts.get("check", ""))
        if not name:
            raise UsageError(f"{ref} names no model.", hint="Name one with --model.")
        usage = expected()
        cost = found.pricing.cost(usage) if found.pricing is not None else None
        if cost is None:
            book = PriceBook()
            await book.load()
            cost = book.cost(provider, name, usage, base_url=config.base_url)
        price = "an unknown price" if cost is None else f"about {cost:.4f} US dollars"
        words = f"{len(CELLS)} questions to {name} of {provider}, about {usage.total_tokens:,} tokens, for {price}"
        if not yes:
            confirm(f"Ask {words}?")
        gateway = registry.build(config)
        profile = profile_of(provider, name, config.mapping("profile"))
        try:
            subject = CellSubject.of(gateway, provider, name, profile, embeddings=embeddings)
            verdicts = await judge(subject)
        finally:
            await gateway.close()
    if output == "json":
        shown = {cell: {"state": each.state, "words": each.words} for cell, each in verdicts.items()}
        estimate = {"tokens": usage.total_tokens, "cost_usd": cost}
        out(as_json({"endpoint": ref, "provider": provider, "model": name, "estimate": estimate, "cells": shown}))
    else:
        out(words, err=True)
        out(_table(verdicts))
    if any(each.words == UNREACHABLE for each in verdicts.values()):
        return Unavailable.exit_code
    return 1 if any(each.state == "wrong" for each in verdicts.values()) else 0


def _table(verdicts: dict[str, CellVerdict]) -> str:
    rows = [(cell, each.state, each.words or "-") for cell, each in verdicts.items()]
    return table(("FEATURE", "STATE", "WHY"), rows)


@asynccontextmanager
async def _found(ref: str) -> AsyncGenerator[EndpointConfig]:
    """The endpoint with its key: from the environment for `provider:model`, else from the store."""
    from foliot.engine.definition.endpoints import RunModels
    from foliot.store.resources.database import SqlResourceStore
    from foliot.store.secrets.keyring import load_keyring
    from foliot.tools.outbound.client import OutboundClient
    from foliot.tools.outbound.guard import Guard, Outbound

    if ":" in ref:
        models = RunModels(None, clock=time.monotonic, environ=os.environ)
        try:
            yield await models.endpoint(ref, namespace())
        finally:
            await models.close()
        return
    settings = current().store_settings()
    database = await open_database(settings.store)
    client = OutboundClient(Guard(Outbound(allow_hosts=settings.outbound_allow)), waits=Waits(settings.lease))
    try:
        store = SqlResourceStore(
            database, lambda: load_keyring(settings), existing=lambda: load_keyring(settings, create=False)
        )
        models = RunModels(store, clock=time.monotonic, environ=os.environ, outbound=lambda: client)
        try:
            qualified = ref if "/" in ref else f"{namespace()}/{ref}"
            yield await models.endpoint(qualified, namespace())
        finally:
            await models.close()
    finally:
        await client.close()
        await database.close()
