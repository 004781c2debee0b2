"""gRPC as every service uses it: channels, error mapping, health, retries and the life of a server."""
