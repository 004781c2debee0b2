"""What a replica believes of its trainers; whole transfers over gRPC are in `tests/integration/test_weight_sync.py`."""

import asyncio

from services.common.errors import UnavailableError
from services.common.tensors import build_manifest
from services.rollouter.policy_sync import NO_VERSION, PolicySync, no_memory
from tests.integration.serving import eventually
from tests.unit.rollouter.fakes import REPLICA


class Trainers:
    """News and manifests, which may come from different trainers: nobody promises that one process gives both."""

    def __init__(self, *, heard, manifests):
        self.heard = heard
        self.manifests = manifests
        self.num_asked = 0

    async def get_manifest(self, version=None):
        manifest = self.manifests[min(self.num_asked, len(self.manifests) - 1)]
        self.num_asked += 1
        return manifest

    async def watch_versions(self, _replica_id):
        yield self.heard
        await asyncio.Event().wait()

    async def stream_shards(self, version, *, offset):
        raise UnavailableError(f"version {version} has no bytes from {offset} on")
        yield

    async def report_adoption(self, adoption):
        pass


class Engine:
    policy_version = NO_VERSION

    def __init__(self):
        self.adopted = []

    async def adopt(self, version, digest, tensors, *, keep_running):
        self.policy_version = version
        self.adopted.append((version, digest))
        return 0.0


def manifest_of(version, *, epoch):
    return build_manifest({}, run_id="run", epoch=epoch, version=version)


async def adopted_from(trainers, *, until):
    engine = Engine()
    sync = PolicySync(
        trainers, engine, replica_id=REPLICA, make_memory=no_memory, keep_running=True, pause=lambda _tries: 0.001
    )
    async with asyncio.TaskGroup() as group:
        following = group.create_task(sync.run())
        await eventually(lambda: until(engine))
        following.cancel()
    return engine.adopted


async def test_a_manifest_of_an_older_epoch_is_refused_however_large_its_number_is():
    old, new = manifest_of(9, epoch=1), manifest_of(7, epoch=2)
    trainers = Trainers(heard=(7, 2), manifests=[old, old, new])
    assert await adopted_from(trainers, until=lambda engine: engine.adopted) == [(7, new.digest)]
    assert trainers.num_asked == 3


async def test_as_long_as_only_a_replaced_trainer_answers_nothing_is_adopted():
    trainers = Trainers(heard=(7, 2), manifests=[manifest_of(9, epoch=1)])
    assert await adopted_from(trainers, until=lambda _engine: trainers.num_asked > 3) == []
