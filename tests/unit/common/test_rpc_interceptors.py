import asyncio

import grpc
import pytest
from google.rpc import status_pb2

from services.common import errors
from services.common.rpc.interceptors import ActiveCalls, error_from_rpc, status_from_error


def failed_call(code, details="", metadata=()):
    return grpc.aio.AioRpcError(code, grpc.aio.Metadata(), grpc.aio.Metadata(*metadata), details=details)


def returned(code, details="", metadata=()):
    return error_from_rpc(
        failed_call(code, details, metadata), address="queue:50051", method="LeaseTasks", timeout_seconds=3.0
    )


def test_reasons_are_unique_in_the_tree():
    def tree(cls):
        return [cls, *(below for child in cls.__subclasses__() for below in tree(child))]

    reasons = [cls.reason for cls in tree(errors.HeadraceError)[1:]]
    assert len(reasons) == len(set(reasons))


@pytest.mark.parametrize(
    ("code", "cls"),
    [
        (grpc.StatusCode.INVALID_ARGUMENT, errors.InvalidInputError),
        (grpc.StatusCode.NOT_FOUND, errors.NotFoundError),
        (grpc.StatusCode.ALREADY_EXISTS, errors.ConflictError),
        (grpc.StatusCode.RESOURCE_EXHAUSTED, errors.OverloadedError),
        (grpc.StatusCode.DEADLINE_EXCEEDED, errors.DeadlineError),
        (grpc.StatusCode.UNAVAILABLE, errors.UnavailableError),
        (grpc.StatusCode.CANCELLED, errors.UnavailableError),
        (grpc.StatusCode.DATA_LOSS, errors.CorruptDataError),
        (grpc.StatusCode.FAILED_PRECONDITION, errors.InternalError),
        (grpc.StatusCode.UNKNOWN, errors.InternalError),
    ],
)
def test_without_error_info_the_code_decides_and_the_peer_is_named(code, cls):
    error = returned(code, "what the peer said")
    assert type(error) is cls
    assert "LeaseTasks" in error.message
    assert "queue:50051" in error.message


def test_a_reason_of_another_domain_is_not_ours():
    status = status_from_error(errors.FencedError("no"))
    foreign = status_pb2.Status.FromString(dict(status.trailing_metadata)["grpc-status-details-bin"])
    foreign.details[0].value = foreign.details[0].value.replace(b"headrace.v1", b"somebody.v1")
    error = returned(grpc.StatusCode.NOT_FOUND, "no", [("grpc-status-details-bin", foreign.SerializeToString())])
    assert type(error) is errors.NotFoundError


def test_a_message_over_the_bound_is_not_retryable():
    error = returned(grpc.StatusCode.RESOURCE_EXHAUSTED, "Received message larger than max (2000 vs. 1000)")
    assert not error.retryable


def test_long_texts_are_cut_so_that_the_status_fits_into_the_headers():
    status = status_from_error(errors.NotFoundError("x" * 100_000, fact="y" * 100_000))
    assert len(status.details) == 2000
    assert len(dict(status.trailing_metadata)["grpc-status-details-bin"]) < 4000


async def test_active_calls_are_idle_only_when_all_have_left():
    active = ActiveCalls()
    await active.wait_idle()
    active.enter()
    active.enter()
    active.leave()
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0.01):
            await active.wait_idle()
    active.leave()
    await active.wait_idle()
    assert active.count == 0
