"""Weights from the trainer's store to a replica over real gRPC: whole, verified, resumable, newest first."""

import asyncio
from contextlib import aclosing, asynccontextmanager

import grpc
import pytest
import torch
from headrace.v1 import policy_service_pb2, policy_service_pb2_grpc

from services.common.clients.policy import PolicyClient
from services.common.errors import CorruptDataError, InvalidInputError, NotFoundError, UnavailableError
from services.common.rpc.channel import open_channel
from services.common.tensors import build_manifest
from services.common.types import Adoption, ReplicaId, RunId
from services.rollouter.policy_sync import PolicySync, no_memory
from services.rollouter.weight_memory import tensor_memory
from services.trainer.policy_servicer import PolicyServicer, add_policy_servicer
from services.trainer.policy_store import PolicyStore
from tests.integration.serving import eventually, serving

RUN = RunId("demo")
REPLICA = ReplicaId("replica-a")


class RecordingEngine:
    """Adopts whatever it is given and remembers it."""

    def __init__(self):
        self.policy_version = -1
        self.adopted = []
        self.tensors = {}

    async def adopt(self, version, digest, tensors, *, keep_running):
        self.policy_version = version
        self.adopted.append((version, digest, keep_running))
        self.tensors = tensors
        return 0.25


def make_tensors(value=0.0, size=1000):
    embedding = torch.full((size,), value)
    return {"embed": embedding, "half": torch.full((7,), value, dtype=torch.bfloat16), "head": embedding}


def publish(store, version, tensors=None, epoch=1):
    tensors = tensors or make_tensors(version)
    manifest = build_manifest(tensors, run_id=RUN, epoch=epoch, version=version)
    store.publish(manifest, tensors)
    return manifest


@asynccontextmanager
async def policy_service(store, *, address="127.0.0.1:0"):
    async def drain():
        store.close()

    async with serving(
        lambda server: add_policy_servicer(PolicyServicer(store), server), address=address, on_drain=drain
    ) as bound:
        yield bound


@asynccontextmanager
async def client_of(address):
    async with open_channel(address) as channel:
        yield PolicyClient(channel, RUN)


@asynccontextmanager
async def following(source, engine, *, make_memory=tensor_memory, keep_running=True):
    sync = PolicySync(
        source,
        engine,
        replica_id=REPLICA,
        make_memory=make_memory,
        keep_running=keep_running,
        pause=lambda _failures: 0.02,
    )
    async with asyncio.TaskGroup() as group:
        task = group.create_task(sync.run())
        yield sync
        task.cancel()


async def test_a_replica_adopts_the_newest_version_with_its_tensors_and_reports_it():
    store = PolicyStore(RUN, keep_versions=2)
    engine = RecordingEngine()
    async with policy_service(store) as address, client_of(address) as client, following(client, engine):
        first = publish(store, 0)
        await eventually(lambda: REPLICA in store.adoptions)
        assert engine.adopted == [(0, first.digest, True)]
        second = publish(store, 4)
        await eventually(lambda: store.adoptions[REPLICA].version == 4)
    assert engine.adopted[1] == (4, second.digest, True)
    assert set(engine.tensors) == {"embed", "half"}
    assert torch.equal(engine.tensors["embed"], torch.full((1000,), 4.0))
    assert torch.equal(engine.tensors["half"], torch.full((7,), 4.0, dtype=torch.bfloat16))
    adoption = store.adoptions[REPLICA]
    assert (adoption.pause_seconds, adoption.received_bytes) == (0.25, second.total_bytes)
    assert 0 < adoption.total_seconds < 10


async def test_a_late_starter_begins_with_the_newest_version():
    store = PolicyStore(RUN, keep_versions=2)
    for version in range(5):
        publish(store, version)
    engine = RecordingEngine()
    async with policy_service(store) as address, client_of(address) as client, following(client, engine):
        await eventually(lambda: engine.adopted)
    assert [version for version, _, _ in engine.adopted] == [4]


async def test_an_engine_without_weights_gets_verified_bytes_and_no_tensors():
    store = PolicyStore(RUN, keep_versions=2)
    manifest = publish(store, 3)
    engine = RecordingEngine()
    async with (
        policy_service(store) as address,
        client_of(address) as client,
        following(client, engine, make_memory=no_memory, keep_running=False),
    ):
        await eventually(lambda: engine.adopted)
    assert engine.adopted == [(3, manifest.digest, False)]
    assert engine.tensors == {}


async def test_bytes_are_read_from_any_offset():
    store = PolicyStore(RUN, keep_versions=1)
    manifest = publish(store, 1)
    async with policy_service(store) as address, client_of(address) as client:
        whole = b"".join([bytes(data) async for _, data in client.stream_shards(1, offset=0)])
        rest = [(offset, bytes(data)) async for offset, data in client.stream_shards(1, offset=4001)]
        with pytest.raises(InvalidInputError, match="offset 9999 lies outside version 1"):
            [_ async for _ in client.stream_shards(1, offset=9999)]
    assert len(whole) == manifest.total_bytes
    assert rest == [(4001, whole[4001:])]


async def test_a_plain_protobuf_client_reads_the_same_stream():
    store = PolicyStore(RUN, keep_versions=1)
    publish(store, 1)
    async with (
        policy_service(store) as address,
        client_of(address) as client,
        grpc.aio.insecure_channel(address) as channel,
    ):
        stub = policy_service_pb2_grpc.PolicyServiceStub(channel)
        for offset in (0, 300):
            request = policy_service_pb2.StreamShardsRequest(run_id=RUN, version=1, offset=offset)
            plain = [(response.offset, response.data) async for response in stub.StreamShards(request)]
            assert plain == [(at, bytes(data)) async for at, data in client.stream_shards(1, offset=offset)]


async def test_a_version_dropped_in_mid_stream_is_still_sent_whole():
    store = PolicyStore(RUN, keep_versions=1)
    tensors = {f"layer{index}": torch.full((1 << 20,), float(index)) for index in range(12)}
    manifest = publish(store, 0, tensors)
    received = 0
    async with policy_service(store) as address, client_of(address) as client:
        async with aclosing(client.stream_shards(0, offset=0)) as stream:
            async for _, data in stream:
                if not received:
                    publish(store, 1)
                    with pytest.raises(NotFoundError, match="version 0 is not held; held are: 1"):
                        await client.get_manifest(0)
                received += len(data)
        with pytest.raises(NotFoundError):
            [_ async for _ in client.stream_shards(0, offset=0)]
    assert received == manifest.total_bytes == 12 << 22


class Flaky:
    """A source whose first streams break or lie."""

    def __init__(self, client, faults):
        self._client = client
        self._faults = faults
        self.offsets = []

    def __getattr__(self, name):
        return getattr(self._client, name)

    async def stream_shards(self, version, *, offset):
        self.offsets.append(offset)
        fault = self._faults.pop(0) if self._faults else None
        async with aclosing(self._client.stream_shards(version, offset=offset)) as stream:
            async for at, data in stream:
                if fault == "cut":
                    yield at, data[:3000]
                    raise UnavailableError("the connection broke")
                yield at, flipped(data) if fault == "flip" else data


def flipped(data):
    copy = bytearray(data)
    copy[5] ^= 1
    return memoryview(copy)


async def test_a_broken_stream_resumes_and_a_corrupt_one_starts_again():
    store = PolicyStore(RUN, keep_versions=1)
    manifest = publish(store, 2)
    engine = RecordingEngine()
    async with policy_service(store) as address, client_of(address) as client:
        source = Flaky(client, ["flip", "cut", None])
        async with following(source, engine) as sync:
            await eventually(lambda: engine.adopted)
            await eventually(lambda: sync.last_adoption is not None)
    assert source.offsets == [0, 0, 3000]
    assert engine.adopted == [(2, manifest.digest, True)]
    assert torch.equal(engine.tensors["embed"], torch.full((1000,), 2.0))


async def test_a_transfer_that_fails_leaves_the_old_version_serving():
    store = PolicyStore(RUN, keep_versions=1)
    publish(store, 0)
    engine = RecordingEngine()
    async with policy_service(store) as address, client_of(address) as client:
        source = Flaky(client, [None, "flip", "flip", "flip"])
        async with following(source, engine):
            await eventually(lambda: engine.adopted)
            publish(store, 1)
            await eventually(lambda: len(source.offsets) >= 3)
            assert engine.policy_version == 0
            await eventually(lambda: engine.policy_version == 1)


async def test_a_restarted_trainer_is_found_again():
    store = PolicyStore(RUN, keep_versions=1)
    publish(store, 0)
    engine = RecordingEngine()
    async with policy_service(store) as address:
        pass
    async with client_of(address) as client, following(client, engine):
        async with policy_service(store := PolicyStore(RUN, keep_versions=1), address=address):
            publish(store, 7, epoch=1)
            await eventually(lambda: engine.policy_version == 7)
        async with policy_service(store := PolicyStore(RUN, keep_versions=1), address=address):
            publish(store, 8, epoch=2)
            await eventually(lambda: engine.policy_version == 8)


async def test_an_older_epoch_and_a_smaller_number_are_refused():
    new, old = PolicyStore(RUN, keep_versions=1), PolicyStore(RUN, keep_versions=1)
    publish(new, 5, epoch=2)
    engine = RecordingEngine()
    async with (
        policy_service(new) as address,
        client_of(address) as client,
        following(source := Switch(client), engine) as sync,
    ):
        await eventually(lambda: engine.policy_version == 5)
        publish(old, 9, epoch=1)
        source.now = RefusedSource(old, client)
        new.close()
        await eventually(lambda: source.now.watched > 2)
        assert sync.newest_version == 5
    assert [version for version, _, _ in engine.adopted] == [5]


class Switch:
    """A source that can be exchanged for another."""

    def __init__(self, source):
        self.now = source

    def __getattr__(self, name):
        return getattr(self.now, name)


class RefusedSource:
    """A trainer that was replaced and does not know it."""

    def __init__(self, store, client):
        self._store = store
        self.watched = 0
        self.report_adoption = client.report_adoption

    async def get_manifest(self, version=None):
        return self._store.manifest(RUN, version)

    async def watch_versions(self, _replica_id):
        self.watched += 1
        yield 9, 1
        yield 4, 2


async def test_a_report_with_another_digest_or_version_is_refused():
    store = PolicyStore(RUN, keep_versions=1)
    publish(store, 0)
    adoption = Adoption(
        replica_id=REPLICA, version=0, digest="bad", pause_seconds=0.0, total_seconds=1.0, received_bytes=3
    )
    async with policy_service(store) as address, client_of(address) as client:
        with pytest.raises(CorruptDataError, match="serves version 0 with digest bad"):
            await client.report_adoption(adoption)
        with pytest.raises(NotFoundError, match="was not published"):
            await client.report_adoption(
                Adoption(**{name: getattr(adoption, name) for name in adoption.__slots__} | {"version": 8})
            )
    assert store.adoptions == {}


async def test_another_run_is_refused():
    store = PolicyStore(RunId("other"), keep_versions=1)
    async with policy_service(store) as address, client_of(address) as client:
        with pytest.raises(NotFoundError, match="serves run 'other', not 'demo'"):
            await client.get_manifest()
        with pytest.raises(NotFoundError, match="serves run 'other', not 'demo'"):
            [_ async for _ in client.watch_versions(REPLICA)]


async def test_a_watch_ends_cleanly_when_the_trainer_stops():
    store = PolicyStore(RUN, keep_versions=1)
    publish(store, 0)
    heard = []

    async def listen(client):
        async for version, epoch in client.watch_versions(REPLICA):
            heard.append((version, epoch))

    async with asyncio.TaskGroup() as group, policy_service(store) as address, client_of(address) as client:
        listening = group.create_task(listen(client))
        await eventually(lambda: heard)
        store.close()
        await asyncio.wait_for(listening, 5)
    assert heard == [(0, 1)]
