from __future__ import annotations

import hashlib
import re
from pathlib import Path

import services.queue.scripts as package
from services.queue.scripts import load_script

FOLDER = Path(package.__file__).parent


def test_every_script_is_loaded_with_its_library_in_front():
    names = [path.stem for path in FOLDER.glob("*.lua")]
    assert "put_trajectories" in names
    for name in names:
        script = load_script(name)
        assert script.source.startswith("-- The run, its partitions and the clock.")
        assert script.sha == hashlib.sha1(script.source.encode()).hexdigest()


def test_every_script_that_the_code_names_exists():
    named = set()
    for path in FOLDER.parent.glob("*.py"):
        named |= set(re.findall(r'\.(?:write_and_)?run\(\s*"(\w+)"', path.read_text()))
    assert named == {path.stem for path in FOLDER.glob("*.lua")}
