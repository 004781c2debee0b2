"""A small service for the rpc tests: generic handlers over bytes, so that no proto of ours is needed.

`python -m tests.integration.rpc_service SCENARIO` runs it in a process of its own; the first line it prints is its
address.
"""

import asyncio
import sys
import time
from contextlib import asynccontextmanager
from pathlib import Path

import grpc

from services.common import errors
from services.common.rpc.server import run_service
from services.common.telemetry import names, trace
from services.common.telemetry.setup import setup_telemetry

SECRET = "the password is hunter2"


async def echo(request, _context):
    return request


async def fail(request, _context):
    name = request.decode()
    cls = next(cls for cls in error_classes() if cls.__name__ == name)
    raise cls(f"{name} holds 64 of 64", key="value")


async def crash(_request, _context):
    raise RuntimeError(SECRET)


async def fail_later(request, context):
    yield b"first"
    await fail(request, context)


async def crash_later(_request, _context):
    yield b"first"
    raise RuntimeError(SECRET)


async def write_and_fail(request, context):
    await context.write(b"first")
    await fail(request, context)


async def abort_itself(_request, context):
    await context.abort(grpc.StatusCode.OUT_OF_RANGE, "its own words")


async def slow(request, _context):
    await asyncio.sleep(float(request.decode()))
    return b"done"


async def forever(_request, _context):
    while True:
        yield b"tick"
        await asyncio.sleep(0.01)


async def current_trace(_request, _context):
    return (trace.current_traceparent() or "none").encode()


async def stream_trace(_request, _context):
    yield (trace.current_traceparent() or "none").encode()


UNARY = {
    "Echo": echo,
    "Fail": fail,
    "Crash": crash,
    "AbortItself": abort_itself,
    "Slow": slow,
    "CurrentTrace": current_trace,
}
STREAMS = {
    "FailLater": fail_later,
    "CrashLater": crash_later,
    "WriteAndFail": write_and_fail,
    "Forever": forever,
    "StreamTrace": stream_trace,
}


def error_classes(root=errors.HeadraceError):
    """Every class of the tree below the base."""
    children = root.__subclasses__()
    return [*children, *(cls for child in children for cls in error_classes(child))]


def register(server):
    handlers = {name: grpc.unary_unary_rpc_method_handler(behavior) for name, behavior in UNARY.items()}
    handlers |= {name: grpc.unary_stream_rpc_method_handler(behavior) for name, behavior in STREAMS.items()}
    server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler("test.Test", handlers),))


def unary(channel, name):
    return channel.unary_unary(f"/test.Test/{name}")


def stream(channel, name):
    return channel.unary_stream(f"/test.Test/{name}")


@asynccontextmanager
async def running(**options):
    """Run the service in this process; yields its address."""
    stop = asyncio.Event()
    address = asyncio.get_running_loop().create_future()

    async def on_started(bound):
        address.set_result(bound)

    options = {"address": "127.0.0.1:0", "grace_seconds": 2.0} | options
    async with asyncio.TaskGroup() as group:
        group.create_task(
            run_service("test", register=register, on_started=on_started, stop=stop, handle_signals=False, **options)
        )
        try:
            yield await address
        finally:
            stop.set()


async def _announce(address):
    print(address, flush=True)


async def _crash_soon():
    await asyncio.sleep(0.1)
    raise errors.FencedError("epoch 1 was replaced by epoch 2")


async def _note_end(path):
    try:
        await asyncio.sleep(60)
    finally:
        path.write_text("cancelled")


async def _drain(path, seconds):
    path.write_text("begun")
    await asyncio.sleep(seconds)
    path.write_text("drained")


def main():
    scenario, folder = sys.argv[1], Path(sys.argv[2])
    telemetry = setup_telemetry("test", traces_path=folder / "traces.jsonl")
    began = time.time()
    trace.record_span(names.SPAN_TRAIN_STEP, parent=None, start_time=began, end_time=began)
    options = {
        "drain": {
            "background": [lambda: _note_end(folder / "background")],
            "on_drain": lambda: _drain(folder / "drain", 0.3),
        },
        "stuck": {"on_drain": lambda: _drain(folder / "drain", 60)},
        "crash": {"background": [_crash_soon]},
        "plain": {},
    }[scenario]
    grace_seconds = float(sys.argv[3]) if len(sys.argv) > 3 else 5.0
    asyncio.run(
        run_service(
            "test",
            address="127.0.0.1:0",
            register=register,
            on_started=_announce,
            grace_seconds=grace_seconds,
            telemetry=telemetry,
            **options,
        )
    )


if __name__ == "__main__":
    main()
