"""Engines: from token ids to token ids, log-probs and versions."""
