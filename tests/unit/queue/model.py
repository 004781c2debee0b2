"""The rules of the queue, told a second time and as simply as they can be, for one partition.

Whatever the store answers and counts must be what this says.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field


@dataclass
class Member:
    state: str = "pending"
    """pending, leased, done or given_up."""
    issue: int = 0
    """The live issue when leased, the next one when pending, the one that was put when done."""
    failures: int = 0
    version: int = 0


@dataclass
class Group:
    sequence: int
    attempt: int
    size: int
    state: str = "open"
    members: list[Member] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.members = [Member() for _ in range(self.size)]

    @property
    def oldest(self) -> int:
        return min(member.version for member in self.members if member.state == "done")


class Model:
    def __init__(self, *, max_member_issues: int, min_group_members: int, max_staleness: int) -> None:
        self.max_member_issues = max_member_issues
        self.min_group_members = min_group_members
        self.max_staleness = max_staleness
        self.groups: dict[int, Group] = {}
        self.ended: dict[int, str] = {}
        self.issues: dict[tuple, str] = {}
        """(sequence, attempt, member, issue) -> live, lapsed, or the column where it ended."""
        self.tasks: Counter = Counter()
        self.commit_number = 0

    def feed(self, sequence: int, size: int) -> None:
        if sequence not in self.groups and sequence not in self.ended:
            self.groups[sequence] = Group(sequence, 0, size)
            self.tasks["fed"] += 1

    def lease(self, name: tuple) -> None:
        sequence, attempt, member, issue = name
        group = self.groups[sequence]
        record = group.members[member]
        assert (group.state, group.attempt) == ("open", attempt)
        assert (record.state, record.issue) == ("pending", issue)
        record.state = "leased"
        self.issues[name] = "live"

    def _record(self, name: tuple) -> Member | None:
        group = self.groups.get(name[0])
        return group.members[name[2]] if group and group.attempt == name[1] else None

    def _holds(self, name: tuple) -> bool:
        record = self._record(name)
        return record is not None and record.state == "leased" and record.issue == name[3]

    def _again(self, name: tuple) -> None:
        record = self._record(name)
        record.state, record.issue = "pending", record.issue + 1

    def _blame(self, name: tuple) -> None:
        record = self._record(name)
        record.failures += 1
        if record.failures < self.max_member_issues:
            self._again(name)
        else:
            record.state = "given_up"
            self._close(self.groups[name[0]])

    def _close(self, group: Group) -> None:
        states = Counter(member.state for member in group.members)
        if states["done"] + states["given_up"] < group.size:
            return
        if states["done"] == 0:
            self.end(group, "dead_lettered")
        elif states["done"] < self.min_group_members:
            self.end(group, "dropped:too_few_members")
        else:
            group.state = "ready"

    def end(self, group: Group, column: str) -> None:
        del self.groups[group.sequence]
        self.ended[group.sequence] = column
        self.tasks[column] += 1

    def put(self, name: tuple, version: int) -> str:
        record = self._record(name)
        if record and record.state == "done" and record.issue == name[3]:
            return "accepted"
        if self.issues[name] not in {"live", "lapsed"}:
            return "duplicate"
        if record is None or record.state in {"done", "given_up"}:
            self.issues[name] = "duplicate"
            return "duplicate"
        self.issues[name] = "put"
        record.state, record.issue, record.version = "done", name[3], version
        self._close(self.groups[name[0]])
        return "accepted"

    def fail(self, name: tuple, reason: str) -> str:
        record = self._record(name)
        wanted = record is not None and record.state in {"pending", "leased"}
        before = self.issues[name]
        if before in {"live", "lapsed"}:
            self.issues[name] = f"failed:{reason}" if wanted else "duplicate"
        if not wanted:
            return "given_up" if record is not None and record.state == "given_up" else "duplicate"
        if before == "live" and self._holds(name):
            self._blame(name)
            if record.state == "given_up":
                return "given_up"
        return "reissued"

    def release(self, name: tuple, reason: str) -> None:
        if self.issues[name] == "live":
            self.issues[name] = f"released:{reason}"
            if self._holds(name):
                self._again(name)

    def lapse(self, name: tuple) -> None:
        if self.issues[name] == "live":
            holds = self._holds(name)
            self.issues[name] = "lapsed" if holds else "duplicate"
            if holds:
                self._blame(name)

    def extend(self, name: tuple) -> bool:
        """Whether the lease is lost."""
        if self.issues[name] == "live" and self._holds(name):
            return False
        if self.issues[name] == "live":
            self.issues[name] = "duplicate"
        return True

    def retire_stale(self, use_version: int) -> None:
        for group in list(self.groups.values()):
            if group.state == "ready" and use_version - group.oldest > self.max_staleness:
                self.tasks["dropped:stale"] += 1
                self.tasks["fed"] += 1
                self.tasks["refilled"] += 1
                self.groups[group.sequence] = Group(group.sequence, group.attempt + 1, group.size)

    def ready(self) -> list[int]:
        return sorted(group.sequence for group in self.groups.values() if group.state == "ready")

    def commit(self, number: int, results: list[tuple[int, int, str]]) -> None:
        if number != self.commit_number + 1:
            assert number <= self.commit_number
            return
        self.commit_number = number
        for sequence, attempt, column in results:
            group = self.groups.get(sequence)
            if group and group.attempt == attempt:
                self.end(group, column)

    def release_batch(self) -> None:
        for group in self.groups.values():
            if group.state == "leased":
                group.state = "ready"
