import json

import pytest
import torch

from services.common.types import RunId
from services.trainer.backend.port import PolicyWeights
from services.trainer.publishing import Publisher
from services.trainer.versions import VersionFile
from tests.unit.trainer.fakes import FakeShelf
from tests.unit.trainer.test_feeding import make_feeder

WEIGHTS = PolicyWeights(tensors={"weight": torch.ones(3)}, tied={"head": "weight"})


async def make_publisher(tmp_path):
    _, queue, link = await make_feeder(tmp_path)
    shelf = FakeShelf()
    publisher = Publisher(link, shelf, VersionFile(tmp_path / "version.json"), run_id=RunId("demo"))
    return publisher, queue, shelf


async def test_a_number_is_on_disk_before_anybody_hears_of_it(tmp_path):
    publisher, queue, shelf = await make_publisher(tmp_path)

    version = await publisher.assign(above=6)

    assert json.loads((tmp_path / "version.json").read_text())["version"] == version == publisher.version == 7
    assert queue.version == 0
    assert shelf.versions == []


async def test_a_version_is_registered_before_it_is_served(tmp_path):
    publisher, queue, shelf = await make_publisher(tmp_path)
    await publisher.assign(above=0, branch=True)
    seen = []
    original = shelf.publish

    def publish(manifest, tensors):
        seen.append(queue.version)
        original(manifest, tensors)

    shelf.publish = publish
    await publisher.publish(WEIGHTS)

    assert seen == [1]
    manifest = shelf.manifests[0]
    assert (manifest.version, manifest.epoch, manifest.run_id, manifest.tied) == (1, 1, "demo", {"head": "weight"})
    assert queue.digest == manifest.digest == publisher.digest
    assert queue.registered[-1] == (1, True)


async def test_a_reminder_registers_the_same_version_again(tmp_path):
    publisher, queue, _ = await make_publisher(tmp_path)
    await publisher.remind()
    assert len(queue.registered) == 1
    await publisher.assign(above=0)
    await publisher.publish(WEIGHTS)

    await publisher.remind()

    assert queue.registered[-2:] == [(1, False), (1, False)]


async def test_what_cannot_be_registered_is_not_served(tmp_path):
    publisher, queue, shelf = await make_publisher(tmp_path)
    await publisher.assign(above=0)
    queue.epoch += 1

    with pytest.raises(Exception, match="was replaced"):
        await publisher.publish(WEIGHTS)
    assert shelf.versions == []
