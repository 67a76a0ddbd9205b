"""From what is declared to what a run is pinned to: models, tools, rules, backends."""
