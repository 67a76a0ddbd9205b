"""The checks of `foliot doctor`, one file for each part of the building."""
