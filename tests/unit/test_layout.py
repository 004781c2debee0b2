"""What can only be wrong about the tree: a shadowed standard module, a missing mirror, a heavy import."""

from __future__ import annotations

import queue
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
SERVICES = ("queue", "reward", "rollouter", "trainer")


def test_import_queue_is_the_standard_library():
    assert Path(queue.__file__).parent == Path(subprocess.__file__).parent
    assert queue.SimpleQueue is not None


@pytest.mark.parametrize("service", SERVICES)
def test_every_service_has_the_same_four_files(service):
    folder = ROOT / "services" / service
    assert {"__main__.py", "config.py", "server.py", "servicer.py"} <= {path.name for path in folder.iterdir()}


@pytest.mark.parametrize("module", ["services.queue.server", "services.reward.server", "services.launcher.__main__"])
def test_services_that_need_no_model_do_not_import_torch(module):
    heavy = ("torch", "transformers", "reasoning_gym")
    code = f"import sys, {module}; sys.exit(any(name in sys.modules for name in {heavy}))"
    assert subprocess.run([sys.executable, "-c", code], cwd=ROOT, check=False, timeout=50).returncode == 0
