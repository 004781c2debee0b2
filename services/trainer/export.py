"""Writes a Hugging Face folder: weights as safetensors, tokenizer, chat template, generation config.

Owns the folder's completeness: it appears as a whole, by a rename, or not at all. Knows nothing of training.
"""

from __future__ import annotations

import fcntl
import shutil
import tempfile
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

    from transformers import PreTrainedModel, PreTrainedTokenizerBase


_LOCK_FILE = "lock"


def export_model(model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase, folder: Path) -> None:
    """Write model and tokenizer so that `from_pretrained(folder)` gives both back.

    Args:
        model: the model; its generation config is written too.
        tokenizer: its tokenizer; the chat template is written beside it.
        folder: replaced if it exists.
    """

    def write(target: Path) -> None:
        model.save_pretrained(target)
        tokenizer.save_pretrained(target)

    remove_debris(folder)
    replace_folder(folder, write)


def remove_debris(folder: Path) -> None:
    """Remove what a kill in the middle of `replace_folder` left beside a folder; what is being written stays."""
    for debris in folder.parent.glob(f".{folder.name}.*"):
        with suppress(OSError), (debris / _LOCK_FILE).open("a") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            shutil.rmtree(debris, ignore_errors=True)


def replace_folder(folder: Path, write: Callable[[Path], None], *, keep_existing: bool = False) -> None:
    """Fill a new folder beside the old one, then put it in its place.

    Args:
        folder: the place; what was there before is removed last.
        write: fills the empty folder that it is given.
        keep_existing: leave what is there; for caches, where two writers bring the same and a reader may be at it.
    """
    folder.parent.mkdir(parents=True, exist_ok=True)
    staging = Path(tempfile.mkdtemp(prefix=f".{folder.name}.", dir=folder.parent))
    # Held while it is written, so that others can tell a writer from what a kill left.
    with (staging / _LOCK_FILE).open("a") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        try:
            new = staging / "new"
            new.mkdir()
            write(new)
            if folder.exists():
                if keep_existing:
                    return
                folder.rename(staging / "old")
            new.rename(folder)
        finally:
            shutil.rmtree(staging, ignore_errors=True)
