"""Tools that come with Foliot. Agents name them in `tools:` like any other; they pass the same pipeline.

`catalogue.py` says which there are. What a run writes down (notes, to-dos, findings) is kept in its journal as the
calls and results themselves, so a resumed or forked run finds it again and nothing else has to be kept in step.
"""
