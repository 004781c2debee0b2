"""In-memory stand-ins for what a rollouter meets: engine, queue, scorer, policy news."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field, replace

import numpy as np

from services.common.errors import InvalidInputError
from services.common.types import (
    Assignment,
    EndReason,
    FailedMember,
    LeasedTasks,
    LeaseId,
    MemberKey,
    Partition,
    PutOutcome,
    ReplicaId,
    RunId,
    Score,
    VersionSpan,
)
from services.rollouter.agents.single_turn import SingleTurn
from services.rollouter.attempts import AttemptRunner
from services.rollouter.config import WorkerSettings
from services.rollouter.engine.port import Generation, TokenChunk
from services.rollouter.worker import Worker
from tests.factories import make_stats, make_task

REPLICA = ReplicaId("replica-a")
RUN = RunId("demo")
TRACEPARENT = "00-0123456789abcdef0123456789abcdef-0123456789abcdef-01"


def make_assignment(sequence=0, member=0, *, issue=0, partition=Partition.TRAIN, **changes):
    task = make_task(sequence, partition=partition, **changes)
    key = MemberKey(partition=partition, task_id=task.task_id, attempt=0, member=member)
    return Assignment(
        lease_id=LeaseId(f"{key}/{issue}"),
        key=key,
        issue=issue,
        task=task,
        min_version=0,
        lease_seconds=10.0,
        traceparent=TRACEPARENT,
        enqueue_time=1000.0,
        issue_time=1000.5,
    )


def make_generation(text="4", *, num_tokens=2, versions=(3,), logprob=-0.5, end_reason=EndReason.STOP):
    bounds = np.linspace(0, num_tokens, len(versions) + 1).astype(int)
    spans = zip(versions, bounds[:-1], bounds[1:], strict=True)
    return Generation(
        token_ids=np.arange(100, 100 + num_tokens, dtype=np.int32),
        logprobs=np.full(num_tokens, logprob, dtype=np.float32),
        version_spans=tuple(VersionSpan(start=int(a), end=int(b), version=v) for v, a, b in spans),
        end_reason=end_reason,
        text=text,
    )


class FakeEngine:
    """Answers from a list, at once or when it is told to."""

    def __init__(self, *, max_slots=4, version=3):
        self.policy_version = version
        self.policy_digest = "digest"
        self.max_slots = max_slots
        self.context_length = 16
        self.answers = []
        self.requests = []
        self.running = {}
        self.cancelled = []
        self.gate = asyncio.Event()
        self.gate.set()

    @property
    def busy_slots(self):
        return len(self.running)

    def render(self, messages):
        return tuple(range(sum(len(message.content.split()) for message in messages)))

    async def generate(self, request):
        self.requests.append(request)
        self.running[request.request_id] = self.policy_version
        try:
            await self.gate.wait()
        except asyncio.CancelledError:
            self.cancelled.append(request.request_id)
            raise
        finally:
            self.running.pop(request.request_id)
        answer = self.answers.pop(0) if self.answers else make_generation(versions=(self.policy_version,))
        if isinstance(answer, Exception):
            raise answer
        return answer

    async def stream(self, request):
        if not request.prompt_ids:
            raise InvalidInputError("the prompt is empty")
        generation = await self.generate(request)
        yield TokenChunk(
            token_ids=generation.token_ids,
            logprobs=generation.logprobs,
            version_spans=generation.version_spans,
            text=generation.text,
            end_reason=generation.end_reason,
        )

    def oldest_versions(self):
        return dict(self.running)


class FakeQueue:
    """Hands out what was put on `waiting` and remembers what came back."""

    def __init__(self, assignments=()):
        self.waiting = list(assignments)
        self.polls = []
        self.put = {}
        self.put_calls = []
        self.released = []
        self.extended = []
        self.lost = set()
        self.errors = []
        self.statuses = []
        self.stats = make_stats()
        self.wanted_version = None
        self.finished = False
        self.outcome = PutOutcome.ACCEPTED

    def _fail(self):
        if self.errors:
            error = self.errors[0]
            if error is not None:
                raise error

    async def lease_tasks(self, replica_id, *, max_members, policy_version, wait_seconds):
        self._fail()
        self.polls.append((max_members, policy_version))
        if not self.waiting and not self.finished and self.wanted_version is None:
            await asyncio.sleep(min(wait_seconds, 0.02))
        taken, self.waiting = self.waiting[:max_members], self.waiting[max_members:]
        return LeasedTasks(
            assignments=tuple(taken), run_finished=self.finished, wanted_version=None if taken else self.wanted_version
        )

    async def extend_lease(self, replica_id, lease_ids):
        self._fail()
        self.extended.append(tuple(lease_ids))
        return tuple(lease_id for lease_id in lease_ids if lease_id in self.lost)

    async def release_tasks(self, lease_ids, *, reason):
        self._fail()
        self.released += [(lease_id, reason) for lease_id in lease_ids]

    async def put_trajectories(self, results):
        self._fail()
        self.put_calls.append(len(results))
        self.put |= {result.lease_id: result for result in results}
        return tuple(PutOutcome.REISSUED if isinstance(result, FailedMember) else self.outcome for result in results)

    async def get_stats(self):
        self._fail()
        return self.stats

    async def heartbeat(self, status):
        self._fail()
        self.statuses.append(status)
        return self.finished


@dataclass
class FakeScorer:
    """Scores everything alike, or raises."""

    error: Exception | None = None
    reward: float = 1.0
    requests: list = field(default_factory=list)

    async def score(self, request, *, timeout_seconds, traceparent=""):
        self.requests.append((request, timeout_seconds, traceparent))
        if self.error is not None:
            raise self.error
        return Score(reward=self.reward, parts={}, scorer="exact_match", scorer_version="1")


class FakeSync:
    """Knows the versions that it is told."""

    def __init__(self, engine, *, newest=3):
        self._engine = engine
        self.newest_version = newest
        self.last_adoption = None
        self.waits = []

    def adoption_time(self, version):
        return None

    async def wait_version(self, version, *, timeout_seconds=None):
        self.waits.append(version)
        async with asyncio.timeout(5):
            while self._engine.policy_version < version:
                await asyncio.sleep(0.005)
        return True


def make_runner(scorer=None, agent=None, **changes):
    from services.common.clients.reward import failure_of

    runner = AttemptRunner(
        run_id=RUN,
        replica_id=REPLICA,
        agent=agent or SingleTurn(),
        scorer=scorer or FakeScorer(),
        explain=failure_of,
        score_seconds=5.0,
    )
    return replace(runner, **changes)


def make_settings(**changes):
    return WorkerSettings(
        **(
            {
                "max_staleness": 1,
                "lease_seconds": 0.15,
                "max_finishing": 8,
                "lease_wait_seconds": 0.05,
                "stale_check_seconds": 0.02,
                "drain_seconds": 0.3,
            }
            | changes
        )
    )


def make_worker(queue, engine, *, sync=None, scorer=None, agent=None, **settings):
    return Worker(
        queue,
        engine,
        sync or FakeSync(engine),
        runner=make_runner(scorer, agent),
        settings=make_settings(**settings),
        pause=lambda _failures: 0.01,
    )
