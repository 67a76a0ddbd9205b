"""The stages of the tool pipeline, one class in one file each. `pipeline.py` puts them in order.

*Layers* are pure: a call and the rules in, a verdict out. *Gates* may ask the world outside and raise to refuse.
*Stages* stand around the backend. *Finishers* make of what came back the one result that is seen.
"""
