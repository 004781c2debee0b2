"""The headrace command: starts, watches and reports a run."""
