import asyncio
import dataclasses

import pytest
import torch

from services.common.errors import InvalidInputError, NotFoundError
from services.common.tensors import build_manifest
from services.common.types import Adoption, ReplicaId, RunId
from services.trainer.policy_store import MAX_ADOPTIONS, MAX_DIGESTS, NO_VERSION, PolicyStore

RUN = RunId("demo")
TENSORS = {"w": torch.arange(4, dtype=torch.float32)}


def publish(store, version, **changes):
    manifest = build_manifest(TENSORS, run_id=RUN, epoch=1, version=version)
    store.publish(dataclasses.replace(manifest, **changes), TENSORS)


async def test_only_the_newest_versions_are_held():
    store = PolicyStore(RUN, keep_versions=2)
    assert store.newest_version == NO_VERSION
    for version in (1, 3, 4):
        publish(store, version)
    assert store.newest_version == store.manifest(RUN).version == 4
    assert store.manifest(RUN, 3).version == 3
    with pytest.raises(NotFoundError, match="version 1 is not held; held are: 3, 4"):
        store.manifest(RUN, 1)


async def test_version_numbers_only_grow():
    store = PolicyStore(RUN, keep_versions=2)
    publish(store, 3)
    for version in (2, 3):
        with pytest.raises(ValueError, match="cannot follow version 3"):
            publish(store, version)
    with pytest.raises(ValueError, match="of run other"):
        publish(store, 4, run_id=RunId("other"))


async def test_chunks_begin_where_they_are_asked_to():
    store = PolicyStore(RUN, keep_versions=1)
    publish(store, 0)
    assert b"".join(part for chunk in store.chunks(RUN, 0, offset=12) for part in chunk.parts) == b"\0\0@@"
    assert list(store.chunks(RUN, 0, offset=16)) == []
    with pytest.raises(InvalidInputError, match="offset 17 lies outside"):
        store.chunks(RUN, 0, offset=17)


async def test_a_slow_watcher_skips_to_the_newest_and_ends_with_the_store():
    store = PolicyStore(RUN, keep_versions=1)
    publish(store, 0)
    seen = []

    async def watch():
        async for manifest in store.watch(RUN):
            seen.append(manifest.version)
            await asyncio.sleep(0.02)

    async with asyncio.TaskGroup() as group:
        group.create_task(watch())
        await asyncio.sleep(0.01)
        for version in (1, 2, 3):
            publish(store, version)
        await asyncio.sleep(0.05)
        store.close()
    assert seen == [0, 3]


def adopt(store, version, *, replica="replica-a"):
    digest = build_manifest(TENSORS, run_id=RUN, epoch=1, version=version).digest
    store.report_adoption(
        RUN,
        Adoption(
            replica_id=ReplicaId(replica),
            version=version,
            digest=digest,
            pause_seconds=0.1,
            total_seconds=1.0,
            received_bytes=16,
        ),
    )


async def test_what_is_known_of_old_versions_and_gone_replicas_is_bounded():
    store = PolicyStore(RUN, keep_versions=1)
    for version in range(MAX_DIGESTS + 2):
        publish(store, version)
    adopt(store, 2)
    with pytest.raises(NotFoundError, match="version 1 was not published by this trainer lately"):
        adopt(store, 1)
    for number in range(MAX_ADOPTIONS):
        adopt(store, MAX_DIGESTS, replica=f"replica-{number}")
    assert len(store.adoptions) == MAX_ADOPTIONS
    assert "replica-a" not in store.adoptions
