"""Trainer backends: where the optimiser step happens."""
