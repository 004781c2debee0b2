"""The rules that turn a completion into a reward; loaded by name in the worker processes."""
