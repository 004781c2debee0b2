"""The rollouter: one engine, agent loops, and the adopted weights."""
