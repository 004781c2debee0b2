"""The Lua scripts: each one is one atomic change of state. See `lib/run.lua` for the data they work on."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from functools import cache
from pathlib import Path

_FOLDER = Path(__file__).parent
_LIBRARY = ("run", "waits", "groups", "leases")


@dataclass(frozen=True, slots=True, kw_only=True)
class Script:
    """One script with the library it needs in front."""

    name: str
    """File name without ending."""
    source: str
    """What the server runs."""
    sha: str
    """What the server calls it."""


@cache
def load_script(name: str) -> Script:
    """Read `name`.lua and the library from this folder."""
    parts = [_FOLDER / "lib" / f"{part}.lua" for part in _LIBRARY]
    source = "\n".join(path.read_text(encoding="ascii") for path in [*parts, _FOLDER / f"{name}.lua"])
    sha = hashlib.sha1(source.encode(), usedforsecurity=False).hexdigest()
    return Script(name=name, source=source, sha=sha)
