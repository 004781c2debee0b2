"""The queue: tasks, leases, trajectories, groups and the ledger, all in Redis."""
