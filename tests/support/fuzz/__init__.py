"""Fuzzers: each module compares a part of datakit with a simple model on random cases; `make fuzz` runs them all.

A module has `CASES`, a Hypothesis strategy, and `check(case)`, which raises AssertionError if datakit and the model
differ. A reduced finding becomes a test beside the module that was wrong: `check(Case(...))`.
"""
