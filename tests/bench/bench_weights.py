"""Speed of the weight stream against a bare grpc.aio stream of raw bytes with the same chunks, and raw loopback TCP.

`stream` is what a replica receives from the trainer's store through the real service and client; `verified` is the same
with every byte hashed and written to its tensor, as a replica does it. Runs alternate, and each counts its fastest:
other load on the machine only ever slows.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import time

import grpc
import torch

from services.common.clients.policy import PolicyClient
from services.common.rpc.channel import message_size_options, open_channel
from services.common.tensors import build_manifest
from services.common.types import ReplicaId, RunId
from services.common.weights import CHUNK_BYTES
from services.rollouter.policy_sync import PolicySync
from services.rollouter.weight_memory import tensor_memory
from services.trainer.policy_servicer import PolicyServicer, add_policy_servicer
from services.trainer.policy_store import PolicyStore

RUN = RunId("bench")
TARGET_RATIO = 0.9
MAX_MESSAGE_BYTES = 64 * 1024 * 1024
BARE_METHOD = "/bench.Bare/Stream"


class NoEngine:
    """Adopts and forgets."""

    policy_version = -1

    async def adopt(self, version, digest, tensors, *, keep_running):
        self.policy_version = version
        return 0.0


async def time_bare(channel, total_bytes):
    started = time.perf_counter()
    received = 0
    async for data in channel.unary_stream(BARE_METHOD)(b""):
        received += len(data)
    assert received == total_bytes // CHUNK_BYTES * CHUNK_BYTES
    return received / (time.perf_counter() - started)


async def time_stream(client, total_bytes):
    started = time.perf_counter()
    received = 0
    async for _, data in client.stream_shards(0, offset=0):
        received += len(data)
    assert received == total_bytes
    return received / (time.perf_counter() - started)


async def time_verified(client, total_bytes):
    sync = PolicySync(
        client,
        NoEngine(),
        replica_id=ReplicaId("bench"),
        make_memory=tensor_memory,
        keep_running=True,
        pause=lambda _failures: 0.1,
    )
    started = time.perf_counter()
    async with asyncio.TaskGroup() as group:
        task = group.create_task(sync.run())
        await sync.wait_version(0, timeout_seconds=120)
        seconds = time.perf_counter() - started
        task.cancel()
    return total_bytes / seconds


async def time_tcp(total_bytes):
    data = bytes(CHUNK_BYTES)

    async def send(_reader, writer):
        for _ in range(total_bytes // CHUNK_BYTES):
            writer.write(data)
            await writer.drain()
        writer.close()

    server = await asyncio.start_server(send, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    started = time.perf_counter()
    reader, writer = await asyncio.open_connection("127.0.0.1", port, limit=4 * CHUNK_BYTES)
    received = 0
    while data_read := await reader.read(CHUNK_BYTES):
        received += len(data_read)
    seconds = time.perf_counter() - started
    writer.close()
    server.close()
    return received / seconds


async def measure(num_megabytes, repeats):
    tensors = {f"layer{index}": torch.randn(1 << 20) for index in range(num_megabytes // 4)}
    tensors |= {f"norm{index}": torch.randn(576) for index in range(60)}
    manifest = build_manifest(tensors, run_id=RUN, epoch=1, version=0)
    store = PolicyStore(RUN, keep_versions=1)
    store.publish(manifest, tensors)
    server = grpc.aio.server(options=message_size_options(MAX_MESSAGE_BYTES))
    add_policy_servicer(PolicyServicer(store), server)

    async def handle(_request, _context):
        data = bytes(CHUNK_BYTES)
        for _ in range(manifest.total_bytes // CHUNK_BYTES):
            yield data

    handlers = {"Stream": grpc.unary_stream_rpc_method_handler(handle)}
    server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler("bench.Bare", handlers),))
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    bare_options = message_size_options(MAX_MESSAGE_BYTES)
    figures = dict.fromkeys(("bare", "stream", "verified", "tcp"), 0.0)
    async with (
        open_channel(f"127.0.0.1:{port}") as channel,
        grpc.aio.insecure_channel(f"127.0.0.1:{port}", options=bare_options) as bare,
    ):
        client = PolicyClient(channel, RUN)
        for _ in range(repeats):
            for name, rate in (
                ("bare", await time_bare(bare, manifest.total_bytes)),
                ("stream", await time_stream(client, manifest.total_bytes)),
                ("verified", await time_verified(client, manifest.total_bytes)),
                ("tcp", await time_tcp(manifest.total_bytes)),
            ):
                figures[name] = max(figures[name], rate)
        store.close()
    await server.stop(None)
    return figures


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--quick", action="store_true", help="64 MB three times instead of 256 MB ten times")
    quick = parser.parse_args().quick
    rates = asyncio.run(measure(64 if quick else 256, 3 if quick else 10))
    ratio = rates["stream"] / rates["bare"]
    figures = {f"{name}_gigabytes_per_second": round(rate / 1e9, 3) for name, rate in rates.items()}
    figures |= {
        "stream_to_bare": round(ratio, 3),
        "stream_to_tcp": round(rates["stream"] / rates["tcp"], 3),
        "cores": os.cpu_count() or 0,
    }
    targets = {"stream_to_bare": TARGET_RATIO}
    print(json.dumps({"bench": "weights", "figures": figures, "targets": targets, "met": ratio >= TARGET_RATIO}))


if __name__ == "__main__":
    main()
