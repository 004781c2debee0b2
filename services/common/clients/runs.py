"""The typed client of the queue service for whoever looks after its runs."""

from __future__ import annotations

from typing import TYPE_CHECKING

from headrace.v1 import queue_service_pb2, queue_service_pb2_grpc

from services.common.convert.runs import summary_from_proto
from services.common.types import Deletion

if TYPE_CHECKING:
    import grpc

    from services.common.types import RunId, RunSummary

_CALL_SECONDS = 30.0


class RunsClient:
    """All runs of one queue. It repeats no call; each says if that is safe.

    Example:
        runs = RunsClient(open_channel("127.0.0.1:50051"))
        for run in await runs.list_runs():
            ...
    """

    def __init__(self, channel: grpc.aio.Channel) -> None:
        """Use a channel of `services.common.rpc.channel`; its owner closes it."""
        self._stub = queue_service_pb2_grpc.QueueServiceStub(channel)  # type: ignore[no-untyped-call]

    async def list_runs(self) -> tuple[RunSummary, ...]:
        """Describe every run, in order of id. Safe to retry."""
        response = await self._stub.ListRuns(queue_service_pb2.ListRunsRequest(), timeout=_CALL_SECONDS)
        return tuple(summary_from_proto(run) for run in response.runs)

    async def delete_run(self, run_id: RunId, *, force: bool = False) -> Deletion:
        """Delete a run with all that is kept of it. Safe to retry.

        Args:
            run_id: the run; one that is not there is deleted already.
            force: also one that has not finished, or whose state another version of Headrace wrote.

        Raises:
            RunNotFinishedError: it has not finished.
        """
        request = queue_service_pb2.DeleteRunRequest(run_id=run_id, force=force)
        response = await self._stub.DeleteRun(request, timeout=_CALL_SECONDS)
        return Deletion(num_keys=response.num_keys, complete=response.complete)
