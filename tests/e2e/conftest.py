"""What the end-to-end tests share."""

import pytest


@pytest.fixture(scope="session")
def runs(tmp_path_factory):
    """Folder of run directories; the model is built in it once."""
    return tmp_path_factory.mktemp("runs")
