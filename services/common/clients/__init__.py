"""Typed clients, one per service: domain types in, domain types out."""
