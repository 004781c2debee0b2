"""Headrace: the services, what they share, and the command that runs them."""
