"""Faults planted on purpose, and the proof that the contract suite sees each of them."""
