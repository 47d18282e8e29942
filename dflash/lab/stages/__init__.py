"""The stages of a run: each is a key, what it depends on, and a build, a store entry."""
