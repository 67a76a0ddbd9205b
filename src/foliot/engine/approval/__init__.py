"""Questions that a person has to answer before a call may act: kept, shown, decided once, and told to the run."""
