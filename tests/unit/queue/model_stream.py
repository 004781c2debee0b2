"""One partition of a run: what it holds, and how a group, a member and a lease end. See `model.py`.

A lease is named by its id, "<partition>/<task>/<attempt>/<member>/<issue>/<token>"; every call of LeaseTasks has its
own token. A member that was tried by several holders takes one result; the lease ids tell them apart.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field

from services.common.types import Ledger, Partition, PartitionStats, RunSettings, TaskLedger, TrajectoryLedger

UNBOUNDED = 2**32 - 1


class Refusal(Exception):  # noqa: N818 - it is an answer
    """The call is refused; the argument is the reason as `services.common.errors` has it."""


@dataclass
class Member:
    state: str = "pending"
    """pending, leased, done or given_up."""
    issue: int = 0
    """How often it was issued before: of the live lease when leased, of the next one when pending."""
    failures: int = 0
    """Issues that failed or lapsed; `max_member_issues` of them give the member up."""
    lease: str = ""
    """The lease that is live, or whose result was accepted."""
    version: int = 0
    """Oldest version among the tokens of the accepted result."""
    num_bytes: int = 0
    """Its size."""


@dataclass
class Group:
    """One attempt at a task: fresh -> open -> ready <-> leased -> ended."""

    sequence: int
    size: int
    content: object
    min_version: int
    attempt: int = 0
    state: str = "fresh"
    waited_for: int | None = None
    """With `wait`: the version it was begun under, while a batch may be held for it."""
    is_spent: bool = False
    """It became ready after nobody waited for it any more."""
    members: list[Member] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.members = [Member() for _ in range(self.size)]

    def num(self, state: str) -> int:
        return sum(member.state == state for member in self.members)

    @property
    def done(self) -> list[Member]:
        return [member for member in self.members if member.state == "done"]

    @property
    def oldest(self) -> int:
        return min(member.version for member in self.done)

    @property
    def num_bytes(self) -> int:
        return sum(member.num_bytes for member in self.done)


class Stream:
    """One partition of the run."""

    def __init__(self, partition: Partition, settings: RunSettings) -> None:
        self.partition = partition
        self.is_train = partition is Partition.TRAIN
        self.waits = self.is_train and settings.on_stale == "wait"
        self.settings = settings
        self.groups: dict[int, Group] = {}
        self.ended: set[int] = set()
        """Sequence numbers that have ended; what is fed under one of them is accepted and not added."""
        self.issues: dict[str, str] = {}
        """Every lease is in one place: `live`, `lapsed`, or the column of the ledger where it ended."""
        self.tasks: Counter[str] = Counter()
        self.trained: dict[tuple[int, int], int] = {}
        """(sequence, attempt) that were consumed, and by which commit: never by a second one."""
        self.data_ended = False
        self.wanted = 0
        """Groups that a waiting LeaseBatch needs; a batch may be larger than the bounds of the queue."""
        self.held = 0
        """Unfinished groups that it is held for."""
        self.request: tuple[str, int] = ("", 0)
        self.batch: list[int] = []
        """What the newest LeaseBatch request of an epoch got."""

    def in_order(self, *states: str) -> list[Group]:
        return [self.groups[at] for at in sorted(self.groups) if self.groups[at].state in states]

    def find(self, lease: str) -> tuple[Group, Member] | tuple[None, None]:
        """The group and member that a lease is of, while that attempt is in the queue."""
        _, task, attempt, member, *_ = lease.split("/")
        group = self.groups.get(int(task))
        if group is None or group.attempt != int(attempt):
            return None, None
        return group, group.members[int(member)]

    @property
    def live(self) -> list[str]:
        return [lease for lease, place in self.issues.items() if place == "live"]

    @property
    def queued_bytes(self) -> int:
        return sum(group.num_bytes for group in self.in_order("open", "ready"))

    # How a group ends.

    def end(self, group: Group, column: str) -> None:
        """It leaves the run for one column of the ledger. Its live leases stay, and end as duplicates."""
        del self.groups[group.sequence]
        self.ended.add(group.sequence)
        self.tasks[column] += 1

    def close(self, group: Group) -> None:
        """Once each member is done or given up, the group is ready, or dropped if too few are done."""
        if group.num("done") + group.num("given_up") < group.size:
            return
        if not group.done:
            self.end(group, "dead_lettered")
        elif self.is_train and len(group.done) < min(group.size, self.settings.min_group_members):
            self.end(group, "dropped:too_few_members")
        else:
            group.state, group.is_spent = "ready", self.waits and group.waited_for is None
            if self.is_train and self.settings.when_full == "drop_oldest":
                self.drop_oldest()

    def drop_oldest(self) -> None:
        settings = self.settings
        while (ready := self.in_order("ready")) and (
            len(ready) > max(settings.max_queue_size, self.wanted)
            or (len(ready) > max(1, self.wanted) and self.queued_bytes > settings.max_queue_bytes)
        ):
            self.end(ready[0], "dropped:queue_full")

    def retire(self, oldest_allowed: int) -> None:
        """Groups with a token that is too old are not handed out: dropped, or issued again as the next attempt."""
        for group in self.in_order("ready"):
            if group.oldest >= oldest_allowed:
                continue
            if self.settings.on_stale == "drop":
                self.end(group, "dropped:stale")
                continue
            self.tasks.update(["dropped:stale", "fed", "refilled"])
            least = max(group.min_version, oldest_allowed)
            again = Group(group.sequence, group.size, group.content, least, attempt=group.attempt + 1)
            self.groups[group.sequence] = again
        for group in self.in_order("open"):
            if group.waited_for is not None and group.waited_for < oldest_allowed:
                group.waited_for = None

    # How an issue begins and ends.

    def issue(self, group: Group, room: int, token: str) -> list[str]:
        """Lease the waiting members of a group, as many as there is room for."""
        given = []
        for index, member in enumerate(group.members):
            if member.state == "pending" and len(given) < room:
                where = f"{self.partition}/{group.sequence:08d}/{group.attempt}/{index}"
                member.state, member.lease = "leased", f"{where}/{member.issue}/{token}"
                self.issues[member.lease] = "live"
                given.append(member.lease)
        return given

    def holds(self, lease: str) -> bool:
        """Whether it is the live lease of its member; not so when a late result came before, or the group ended."""
        _, member = self.find(lease)
        return member is not None and (member.state, member.lease) == ("leased", lease)

    def again(self, member: Member) -> None:
        member.state, member.issue = "pending", member.issue + 1

    def blame(self, lease: str) -> None:
        """A failure or lapse: the member is issued again, or given up at the bound."""
        group, member = self.find(lease)
        member.failures += 1
        if member.failures < self.settings.max_member_issues:
            self.again(member)
        else:
            member.state = "given_up"
            self.close(group)

    def lapse(self, lease: str) -> None:
        if self.issues.get(lease) == "live":
            self.issues[lease] = "lapsed" if self.holds(lease) else "duplicate"
            if self.issues[lease] == "lapsed":
                self.find(lease)[0].waited_for = None
                self.blame(lease)

    def put(self, lease: str, version: int, num_bytes: int) -> str:
        """The first result of a member is accepted, under a live lease or a lapsed one, and once."""
        group, member = self.find(lease)
        if member is not None and (member.state, member.lease) == ("done", lease):
            return "accepted"
        is_first = member is not None and member.state in {"pending", "leased"}
        answerable = self.issues.get(lease) in {"live", "lapsed"}
        if answerable:
            self.issues[lease] = "put" if is_first else "duplicate"
        if not (answerable and is_first):
            return "duplicate"
        member.state, member.lease, member.version, member.num_bytes = "done", lease, version, num_bytes
        self.close(group)
        return "accepted"

    def fail(self, lease: str, reason: str) -> str:
        """A failure under the live lease counts against the member; a late one only names what the lapse was."""
        _, member = self.find(lease)
        is_wanted = member is not None and member.state in {"pending", "leased"}
        before = self.issues.get(lease)
        if before in {"live", "lapsed"}:
            self.issues[lease] = f"failed:{reason}" if is_wanted else "duplicate"
        if is_wanted and before == "live" and self.holds(lease):
            self.blame(lease)
            return "given_up" if member.state == "given_up" else "reissued"
        if is_wanted:
            return "reissued"
        return "given_up" if member is not None and member.state == "given_up" else "duplicate"

    def release(self, lease: str, reason: str) -> None:
        if self.issues.get(lease) == "live":
            self.issues[lease] = f"released:{reason}"
            if self.holds(lease):
                self.again(self.find(lease)[1])

    def extend(self, lease: str) -> bool:
        """Whether the lease is lost; one whose work nobody wants any more is ended."""
        if self.issues.get(lease) == "live" and not self.holds(lease):
            self.issues[lease] = "duplicate"
        return self.issues.get(lease) != "live"

    # What can be read.

    @property
    def first_open(self) -> int:
        return next(at for at in range(len(self.ended) + 1) if at not in self.ended)

    def ledger(self) -> Ledger:
        ends = Counter(self.issues.values())
        tasks, first_open = self.tasks, self.first_open
        return Ledger(
            partition=self.partition,
            tasks=TaskLedger(
                fed=tasks["fed"],
                refilled=tasks["refilled"],
                consumed=tasks["consumed"],
                filtered=tasks["filtered"],
                dropped=by_reason(tasks, "dropped:"),
                dead_lettered=tasks["dead_lettered"],
                open=len(self.groups),
            ),
            trajectories=TrajectoryLedger(
                issued=len(self.issues),
                put=ends["put"],
                duplicate=ends["duplicate"],
                lapsed=ends["lapsed"],
                failed=by_reason(ends, "failed:"),
                released=by_reason(ends, "released:"),
                in_flight=ends["live"],
            ),
            trained_twice=0,
            commits=tasks["commits"],
            first_open_sequence=first_open,
            ended_sequences=tuple(sorted(at for at in self.ended if at > first_open)),
        )

    def stats(self) -> PartitionStats:
        return PartitionStats(
            partition=self.partition,
            pending_members=sum(group.num("pending") for group in self.groups.values()),
            in_flight_members=sum(place == "live" for place in self.issues.values()),
            open_groups=len(self.in_order("fresh", "open")),
            ready_groups=len(self.in_order("ready")),
            leased_groups=len(self.in_order("leased")),
            payload_bytes=sum(group.num_bytes for group in self.groups.values()),
            held_for_groups=self.held,
            queued_bytes=sum(group.num_bytes for group in self.groups.values() if group.state != "leased"),
            data_ended=self.data_ended,
        )


def by_reason(counts: Counter[str], prefix: str) -> dict[str, int]:
    return {name.removeprefix(prefix): count for name, count in counts.items() if name.startswith(prefix) and count}
