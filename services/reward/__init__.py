"""The reward service: a score or an explicit failure, before the deadline."""
