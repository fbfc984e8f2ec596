"""Tests: the rules of a store (contract, property, mutants) and of everything that stands on it."""
