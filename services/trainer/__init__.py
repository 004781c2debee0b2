"""The trainer: feeds tasks, learns from groups, publishes versions, commits with checkpoints."""
