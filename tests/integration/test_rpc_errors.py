"""Errors, deadlines and trace context over a real grpc.aio server."""

import asyncio

import grpc
import pytest
from structlog.testing import capture_logs

from services.common import errors
from services.common.rpc.channel import open_channel
from services.common.telemetry import trace
from tests.integration.rpc_service import SECRET, error_classes, running, stream, unary

TRACEPARENT = f"00-{'1' * 32}-{'2' * 16}-01"


@pytest.mark.parametrize("cls", error_classes(), ids=lambda cls: cls.__name__)
async def test_every_error_class_comes_back_as_itself(cls):
    async with running() as address, open_channel(address) as channel:
        with pytest.raises(errors.HeadraceError) as raised:
            await unary(channel, "Fail")(cls.__name__.encode())
    assert type(raised.value) is cls
    assert raised.value.message == f"{cls.__name__} holds 64 of 64"
    assert raised.value.metadata == {"key": "value"}


@pytest.mark.parametrize("method", ["FailLater", "WriteAndFail"])
async def test_a_stream_fails_with_the_same_class_after_what_it_sent(method):
    async with running() as address, open_channel(address) as channel:
        responses = aiter(stream(channel, method)(b"FencedError"))
        assert await anext(responses) == b"first"
        with pytest.raises(errors.FencedError, match="holds 64 of 64"):
            await anext(responses)


async def test_an_unexpected_error_does_not_leak_and_is_logged_under_its_trace():
    async with running() as address, open_channel(address) as channel:
        with capture_logs() as logs:
            with trace.use_traceparent(TRACEPARENT), pytest.raises(errors.InternalError) as raised:
                await unary(channel, "Crash")(b"")
            with pytest.raises(errors.InternalError) as raised_later:
                async for _ in stream(channel, "CrashLater")(b""):
                    pass
    assert raised.value.message == f"internal error, trace {'1' * 32}"
    assert SECRET not in raised_later.value.message
    logged = [entry for entry in logs if entry["event"] == "unexpected error in a request"]
    assert [entry["method"] for entry in logged] == ["/test.Test/Crash", "/test.Test/CrashLater"]
    assert all(SECRET in str(entry["exc_info"]) for entry in logged)
    assert logged[1]["error_trace"] in raised_later.value.message


async def test_the_status_is_plain_google_rpc_for_clients_in_other_languages():
    async with running() as address, grpc.aio.insecure_channel(address) as channel:
        with pytest.raises(grpc.aio.AioRpcError) as raised:
            await unary(channel, "Fail")(b"OverloadedError")
    assert raised.value.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
    assert raised.value.details() == "OverloadedError holds 64 of 64"
    assert b"OVERLOADED" in dict(raised.value.trailing_metadata())["grpc-status-details-bin"]


async def test_a_servicer_that_aborts_by_itself_is_left_alone():
    async with running() as address, open_channel(address) as channel:
        with pytest.raises(errors.InvalidInputError, match="its own words"):
            await unary(channel, "AbortItself")(b"")


async def test_a_late_answer_is_a_deadline_error_that_names_the_call():
    async with running() as address, open_channel(address, default_timeout_seconds=0.1) as channel:
        with pytest.raises(errors.DeadlineError, match=f"Slow at {address} did not answer within 0.1 s"):
            await unary(channel, "Slow")(b"5")
        with pytest.raises(errors.DeadlineError, match=r"within 0.2 s"):
            await unary(channel, "Slow")(b"5", timeout=0.2)


async def test_an_unreachable_peer_is_named():
    async with running() as address:
        pass
    async with open_channel(address) as channel:
        with pytest.raises(errors.UnavailableError, match=address):
            await unary(channel, "Echo")(b"")


async def test_an_unknown_method_is_an_internal_error_that_names_it():
    async with running() as address, open_channel(address) as channel:
        with pytest.raises(errors.InternalError, match=r"Nothing at .* failed with UNIMPLEMENTED"):
            await unary(channel, "Nothing")(b"")


async def test_a_message_over_the_bound_is_refused_and_not_retryable():
    async with running(max_message_bytes=1000) as address, open_channel(address) as channel:
        with pytest.raises(errors.InvalidInputError, match="too large"):
            await unary(channel, "Echo")(b"x" * 2000)


async def test_requests_over_the_bound_are_overload():
    async with running(max_concurrent_rpcs=1) as address, open_channel(address) as channel:
        async with asyncio.TaskGroup() as group:
            first = group.create_task(_awaited(unary(channel, "Slow")(b"0.5")))
            await asyncio.sleep(0.1)
            with pytest.raises(errors.OverloadedError):
                await unary(channel, "Echo")(b"")
        assert first.result() == b"done"


async def test_the_callers_trace_is_current_while_its_request_is_served_and_only_then():
    async with running() as address, open_channel(address) as channel:
        with trace.use_traceparent(TRACEPARENT):
            inside = await unary(channel, "CurrentTrace")(b"")
            streamed = [response async for response in stream(channel, "StreamTrace")(b"")]
        outside = await unary(channel, "CurrentTrace")(b"")
    assert inside.decode() == TRACEPARENT
    assert [response.decode() for response in streamed] == [TRACEPARENT]
    assert outside == b"none"


async def test_a_reader_that_leaves_a_stream_ends_it_on_the_server():
    async with running(grace_seconds=30.0) as address, open_channel(address) as channel:
        responses = stream(channel, "Forever")(b"", timeout=30)
        async for response in responses:
            assert response == b"tick"
            break
        responses.cancel()
    # Leaving `running` drains; it would take the whole grace time, and this test too long, if the stream still ran.


async def test_a_caller_that_leaves_a_unary_call_ends_it_on_the_server():
    async with running(grace_seconds=30.0) as address, open_channel(address) as channel:
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.2):
                await unary(channel, "Slow")(b"25", timeout=30)
    # As above: leaving `running` would take long.


async def test_a_call_has_its_own_metadata_beside_the_trace():
    async with running() as address, open_channel(address) as channel:
        with trace.use_traceparent(TRACEPARENT):
            answer = await unary(channel, "CurrentTrace")(b"", metadata=(("own", "1"),))
        with pytest.raises(errors.InternalError):
            await unary(channel, "Nothing")(b"", metadata=(("own", "1"),))
    assert answer.decode() == TRACEPARENT


async def _awaited(call):
    return await call
