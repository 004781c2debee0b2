"""Translation between domain types and protobuf: pure, total, tested by round trips."""
