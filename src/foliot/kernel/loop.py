"""One agent: the fold of its journal, and what to do next.

fold(spec, run_id, records, history=()) -> State
apply(state, event, at) -> State      # changes `state` in place, and returns it
decide(state) -> Action               # changes nothing
"""
