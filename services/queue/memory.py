"""How the process keeps memory: large blocks come and go with every batch, and stay with the process in between."""

from __future__ import annotations

import ctypes

_TRIM_THRESHOLD, _MMAP_THRESHOLD = -1, -3  # glibc's names for what is set
_KEPT_BYTES = 64 * 1024 * 1024
_LARGEST_KEPT_BLOCK = 32 * 1024 * 1024


def keep_freed_memory() -> bool:
    """Let the C library keep up to 64 MiB that was freed; returns whether it can.

    glibc otherwise gives every large block back at once, and the next batch is copied into pages that the kernel has to
    find and clear anew: a quarter of the service's time where batches are large.
    """
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is None:  # macOS, musl
        return False
    return bool(mallopt(_TRIM_THRESHOLD, _KEPT_BYTES)) and bool(mallopt(_MMAP_THRESHOLD, _LARGEST_KEPT_BLOCK))
