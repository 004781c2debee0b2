"""One server per session, one run per test."""

from __future__ import annotations

import uuid

import pytest

from services.common.types import RunId
from services.queue.store import QueueStore
from tests.redis_server import running_server
from tests.unit.queue.driver import Driver


@pytest.fixture(scope="session")
def redis_url(tmp_path_factory):
    with running_server(tmp_path_factory.mktemp("redis")) as url:
        yield url


@pytest.fixture
async def store(redis_url):
    store = QueueStore(redis_url)
    await store.start()
    yield store
    await store.close()


@pytest.fixture
def driver(store):
    return Driver(store, RunId(f"run-{uuid.uuid4().hex[:12]}"))
