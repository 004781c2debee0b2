import dataclasses

import pytest
import torch

from services.common.errors import CorruptDataError, InvalidInputError
from services.common.tensors import allocate, build_manifest, byte_view, stream_buffers
from services.common.types import RunId
from services.common.weights import CHUNK_BYTES, Receiver, check_manifest, iter_chunks


def make_tensors():
    generator = torch.Generator().manual_seed(7)
    embedding = torch.randn(40, 8, generator=generator)
    return {
        "embed.weight": embedding,
        "norm.weight": torch.randn(8, generator=generator).to(torch.bfloat16),
        "scale": torch.tensor(0.5, dtype=torch.float16),
        "empty": torch.empty(0, 4),
        "steps": torch.arange(5, dtype=torch.int64),
        "flags": torch.tensor([True, False]),
        "head.weight": embedding,
        "last": torch.empty(0),
    }


def make_manifest(tensors, version=3):
    return build_manifest(tensors, run_id=RunId("demo"), epoch=1, version=version)


def send(manifest, tensors, receiver, *, chunk_bytes=CHUNK_BYTES):
    for chunk in iter_chunks(stream_buffers(manifest, tensors), offset=receiver.offset, chunk_bytes=chunk_bytes):
        receiver.feed(chunk.offset, b"".join(chunk.parts))


@pytest.mark.parametrize("chunk_bytes", [1, 7, 64, 1280, CHUNK_BYTES])
def test_every_type_survives_the_stream_at_any_chunk_size(chunk_bytes):
    tensors = make_tensors()
    manifest = make_manifest(tensors)
    received = allocate(manifest)
    receiver = Receiver(manifest, {name: byte_view(tensor) for name, tensor in received.items()})
    send(manifest, tensors, receiver, chunk_bytes=chunk_bytes)
    assert receiver.complete
    assert receiver.finish() == manifest.digest
    assert set(received) == set(tensors) - {"head.weight"}
    for name, tensor in received.items():
        assert tensor.dtype == tensors[name].dtype
        assert torch.equal(tensor, tensors[name])


def test_tensors_that_share_storage_are_sent_once():
    manifest = make_manifest(make_tensors())
    assert manifest.tied == {"head.weight": "embed.weight"}
    assert [spec.name for spec in manifest.tensors].count("head.weight") == 0
    assert manifest.total_bytes == 40 * 8 * 4 + 8 * 2 + 2 + 5 * 8 + 2


def test_names_that_the_caller_left_out_as_tied_are_kept():
    manifest = build_manifest({"a": torch.zeros(2)}, run_id=RunId("demo"), epoch=1, version=0, tied={"b": "a"})
    assert manifest.tied == {"b": "a"}


def test_chunks_are_views_of_at_most_the_chunk_size_that_cover_the_stream():
    tensors = {"a": torch.arange(1000, dtype=torch.uint8), "b": torch.arange(9, dtype=torch.uint8)}
    buffers = stream_buffers(make_manifest(tensors), tensors)
    for offset in (0, 1, 63, 64, 999, 1000, 1004, 1009):
        chunks = list(iter_chunks(buffers, offset=offset, chunk_bytes=64))
        assert b"".join(b"".join(chunk.parts) for chunk in chunks) == b"".join(buffers)[offset:]
        assert all(chunk.num_bytes <= 64 for chunk in chunks)
        assert [chunk.offset for chunk in chunks] == list(range(offset, 1009, 64))
    tensors["a"][0] = 77
    assert next(iter_chunks(buffers, offset=0, chunk_bytes=64)).parts[0][0] == 77


def test_an_offset_outside_the_stream_is_refused():
    with pytest.raises(InvalidInputError, match="offset 5 lies outside the stream of 4 bytes"):
        next(iter_chunks((memoryview(b"abcd"),), offset=5))


def test_a_flipped_bit_names_the_tensor_and_the_version():
    tensors = make_tensors()
    manifest = make_manifest(tensors)
    stream = bytearray(b"".join(stream_buffers(manifest, tensors)))
    spec = next(spec for spec in manifest.tensors if spec.name == "norm.weight")
    stream[spec.offset + 3] ^= 1
    receiver = Receiver(manifest)
    with pytest.raises(CorruptDataError, match=r"version 3: tensor norm\.weight has digest"):
        receiver.feed(0, bytes(stream))


def test_a_stream_goes_on_at_the_offset_where_it_broke():
    tensors = make_tensors()
    manifest = make_manifest(tensors)
    received = allocate(manifest)
    receiver = Receiver(manifest, {name: byte_view(tensor) for name, tensor in received.items()})
    first = next(iter_chunks(stream_buffers(manifest, tensors), offset=0, chunk_bytes=701))
    receiver.feed(first.offset, b"".join(first.parts))
    assert receiver.offset == 701
    with pytest.raises(CorruptDataError, match="ended at byte 701"):
        receiver.finish()
    send(manifest, tensors, receiver)
    assert receiver.finish() == manifest.digest
    assert torch.equal(received["embed.weight"], tensors["embed.weight"])


@pytest.mark.parametrize("offset", [0, 5])
def test_repeated_or_missing_bytes_are_refused(offset):
    tensors = make_tensors()
    receiver = Receiver(make_manifest(tensors))
    receiver.feed(0, bytes(byte_view(tensors["embed.weight"])[:4]))
    with pytest.raises(CorruptDataError, match="where byte 4 was next"):
        receiver.feed(offset, b"x")


def test_too_many_bytes_are_refused():
    tensors = {"a": torch.zeros(2, dtype=torch.uint8)}
    receiver = Receiver(make_manifest(tensors))
    with pytest.raises(CorruptDataError, match="got bytes 0 to 3 of 2"):
        receiver.feed(0, bytes(3))


def test_a_manifest_that_contradicts_itself_is_refused():
    manifest = make_manifest(make_tensors())
    with pytest.raises(CorruptDataError, match="announces"):
        check_manifest(dataclasses.replace(manifest, total_bytes=manifest.total_bytes + 1))
    with pytest.raises(CorruptDataError, match="hole or an overlap"):
        check_manifest(dataclasses.replace(manifest, tensors=manifest.tensors[1:]))
    with pytest.raises(CorruptDataError, match="digest"):
        check_manifest(dataclasses.replace(manifest, tied={}))


def test_memory_is_not_made_for_a_tensor_whose_length_is_wrong():
    manifest = make_manifest(make_tensors())
    wrong = dataclasses.replace(manifest.tensors[0], shape=(40, 9))
    with pytest.raises(CorruptDataError, match=r"has 1280 bytes instead of 1440"):
        allocate(dataclasses.replace(manifest, tensors=(wrong,)))
    unknown = dataclasses.replace(manifest.tensors[0], dtype="nn")
    with pytest.raises(CorruptDataError, match="unknown type 'nn'"):
        allocate(dataclasses.replace(manifest, tensors=(unknown,)))


def test_digest_depends_on_content_and_not_on_the_version_number():
    tensors = make_tensors()
    assert make_manifest(tensors, 1).digest == make_manifest(tensors, 2).digest
    tensors["steps"] = tensors["steps"] + 1
    assert make_manifest(tensors).digest != make_manifest(make_tensors()).digest
