"""Budgets as they are declared: windows, scopes and accounts."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from foliot.engine.budgets.declared import BudgetRule, Payer, budget_rule, span_of
from foliot.store.ledger.budgets import BudgetAccount
from tests.engine.test_budgets import MIDNIGHT, NOON, budget


@pytest.mark.parametrize(
    ("window", "zone", "period", "until"),
    [
        ("day", "UTC", "2026-11-16", MIDNIGHT),
        ("day", "Asia/Tokyo", "2026-11-16", NOON + 3 * 3600),
        ("day", "Pacific/Kiritimati", "2026-11-17", NOON + 22 * 3600),
        ("week", "UTC", "2026-W47", MIDNIGHT + 6 * 86400),
        ("month", "UTC", "2026-11", MIDNIGHT + 14 * 86400),
        ("total", "UTC", "total", None),
        ("run", "UTC", "run:r1", None),
    ],
)
def test_windows_begin_at_midnight_where_the_budget_says(window: Any, zone: str, period: str, until: Any) -> None:
    assert span_of(window, zone, NOON, "r1") == (period, until)


def test_a_day_on_which_clocks_change_has_its_own_length() -> None:
    before = 1_793_484_000.0  # 2026-10-31 22:00 UTC
    assert span_of("day", "America/New_York", before, "").until == 1_793_505_600.0  # midnight in New York, at UTC-4
    assert span_of("day", "America/New_York", before + 43_200, "").until == 1_793_505_600.0 + 25 * 3600


PAYER = Payer("default", "r1", ("helper", "boss"), "ann", {"team": "a"})


@pytest.mark.parametrize(
    ("scope", "applies"),
    [
        ({}, True),
        ({"agent": "helper"}, True),
        ({"agent": "boss"}, True),
        ({"agent": "clerk"}, False),
        ({"user": "ann"}, True),
        ({"user": "bob"}, False),
        ({"labels": {"team": "a"}}, True),
        ({"labels": {"team": "a", "tier": "1"}}, False),
        ({"agent": "helper", "user": "bob"}, False),
    ],
)
def test_a_budget_applies_to_what_its_scope_names(scope: dict[str, Any], applies: bool) -> None:
    assert budget_rule(budget(limit={"tokens": 1}, scope=scope)).applies(PAYER) is applies


def test_a_budget_for_each_user_does_not_apply_where_nobody_knows_the_user() -> None:
    rule = BudgetRule("default", "b", user="*", micros=1)
    assert [each.account for each in rule.ceilings(PAYER, NOON)] == [BudgetAccount("default", "b", "total", "user=ann")]
    assert not rule.applies(replace(PAYER, user=""))
