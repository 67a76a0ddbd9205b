"""The stages of the tool pipeline, one file each. `pipeline.py` puts them in order."""
