"""Traces and logs: names, trajectory context, exporters and set-up."""
