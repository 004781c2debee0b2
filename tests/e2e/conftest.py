"""What the end-to-end tests share."""

import pytest


@pytest.fixture(scope="session")
def runs(tmp_path_factory):
    """Folder of run directories; the model is built in it once."""
    return tmp_path_factory.mktemp("runs")


@pytest.fixture
def started():
    """Processes that a test starts by hand; what is left of them is ended."""
    processes = []
    yield processes
    for process in processes:
        process.kill()
        process.communicate(timeout=30)
