"""Seeds: where randomness comes from, so that a retry, a replica or a restart never changes a sample."""

from __future__ import annotations

import hashlib


def sample_seed(run_seed: int, sequence: int, member: int) -> int:
    """Seed of one member's sampling.

    It depends on the run's seed, the task's sequence number and the member, never on replica, attempt or version.

    Returns:
        An unsigned 63-bit integer.
    """
    text = f"{run_seed}/{sequence}/{member}".encode()
    return int.from_bytes(hashlib.blake2b(text, digest_size=8).digest(), "little") >> 1
