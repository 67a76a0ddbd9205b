"""The queue of runs: who may take which, under which limits, and who is there to take them."""
