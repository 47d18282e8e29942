"""Experiments: configuration, arms, store, pipeline, results (design §8, §9)."""
