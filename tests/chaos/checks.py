"""The verdicts: pure functions from evidence to violations.

As far as possible they do not believe what the system says of itself. The committed lineage is followed back through
the checkpoints, each of which names the groups that its commit consumed; what was trained twice or lost is counted from
that, and the ledger's own words are held against it. Ages are computed anew from the versions that the rollouters noted
on their spans.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.chaos.evidence import Evidence, Use


class Broken(StrEnum):
    """What kind of promise was broken."""

    LOST = "lost"
    """A task or a trajectory is not accounted for."""
    TWICE = "trained_twice"
    """A task was trained on twice in the committed lineage."""
    BOUND = "bound_broken"
    """A token was older than the bound."""
    LEDGER = "ledger"
    """A table does not balance, or disagrees with the lineage."""
    STEPS = "steps"
    """A step is missing or not whole."""
    END = "end"
    """The run did not end well."""
    WEIGHTS = "weights"
    """The final model is not usable or not the committed one."""
    PROCESSES = "processes"
    """Something was left behind, or an old trainer was not stopped."""
    EVIDENCE = "evidence"
    """What is needed for a verdict is missing."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Violation:
    """One broken promise."""

    broken: Broken
    """Which."""
    text: str
    """What was found."""
    count: int = 1
    """How many tasks, trajectories or tokens it concerns."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Lineage:
    """The committed history, from the first commit to the last."""

    results: tuple[tuple[int, dict[str, Any]], ...]
    """Number of the commit and what it says of one group, oldest first."""
    missing: tuple[int, ...]
    """Commit numbers of which no checkpoint was seen."""

    @property
    def sequences(self) -> list[int]:
        """Sequence number of every consumed group, as often as it was."""
        return [result["sequence"] for _, result in self.results if result["outcome"] == "consumed"]


def check(evidence: Evidence) -> list[Violation]:
    """Judge a run."""
    checks = (
        check_end, check_processes, check_ledger, check_moments, check_lineage, check_once, check_lost, check_age,
        check_steps, check_weights,
    )  # fmt: skip
    return [violation for one in checks for violation in one(evidence)]


def committed_lineage(checkpoints: list[dict[str, Any]]) -> Lineage:
    """Follow the commits back from the newest checkpoint.

    A checkpoint's predecessor has the commit number before it and as many groups less as it names itself. Of several,
    the one of the newest trainer counts: what an older one wrote beside it was never built on.
    """
    if not checkpoints:
        return Lineage(results=(), missing=())
    ordered = sorted(
        enumerate(checkpoints), key=lambda item: (item[1]["epoch"], item[1]["policy_version"], item[0]), reverse=True
    )
    ranked = [state for _, state in ordered]
    current: dict[str, Any] | None = max(ranked, key=lambda state: (state["step"], state["epoch"]))
    results: list[tuple[int, dict[str, Any]]] = []
    missing: list[int] = []
    while current is not None:
        number = current["commit_number"]
        results[:0] = [(number, result) for result in current["results"]]
        if number <= 1:
            break
        before = current["num_consumed"] - sum(result["outcome"] == "consumed" for result in current["results"])
        found = [
            state
            for state in ranked
            if state["commit_number"] == number - 1
            and state["num_consumed"] == before
            and state["epoch"] <= current["epoch"]
        ]
        if not found:
            missing.append(number - 1)
        current = found[0] if found else None
    return Lineage(results=tuple(results), missing=tuple(missing))


def check_end(evidence: Evidence) -> Iterator[Violation]:
    """The command ended by itself, and well."""
    if evidence.exit_code is None:
        yield Violation(broken=Broken.END, text=f"the run did not end in time; {evidence.last_words}")
    elif evidence.exit_code != 0:
        yield Violation(broken=Broken.END, text=f"exit status {evidence.exit_code}; {evidence.last_words}")
    if evidence.exit_code == 0 and (evidence.summary or {}).get("state") != "finished":
        yield Violation(broken=Broken.END, text=f"exit status 0 with summary {evidence.summary}")


def check_processes(evidence: Evidence) -> Iterator[Violation]:
    """Nothing outlived the run, and every replaced trainer was refused."""
    for words in evidence.left_behind:
        yield Violation(broken=Broken.PROCESSES, text=f"left behind: {words}")
    for code in evidence.rival_exit_codes:
        # Refused, or ended by an error of its own such as a wiped store; nobody starts it again.
        if not code:
            text = "still ran at the end" if code is None else "took the run for its own and finished it"
            yield Violation(broken=Broken.PROCESSES, text=f"a replaced trainer {text}")


def check_ledger(evidence: Evidence) -> Iterator[Violation]:
    """Both tables of both partitions balance, nothing is open, and the ledger's own verdict is clean."""
    ledger = evidence.ledger
    if ledger is None:
        yield Violation(broken=Broken.LEDGER, text="no ledger.json")
        return
    if ledger["lost"]:
        yield Violation(broken=Broken.LOST, text=f"the ledger says lost = {ledger['lost']}", count=abs(ledger["lost"]))
    if ledger["trained_twice"]:
        twice = ledger["trained_twice"]
        yield Violation(broken=Broken.TWICE, text=f"the ledger says trained_twice = {twice}", count=twice)
    for partition in ("train", "validation"):
        for table, total, part_of, live in (
            ("tasks", "fed", ("refilled",), "open"),
            ("trajectories", "issued", (), "in_flight"),
        ):
            columns = ledger[partition][table]
            ended = sum(_total(value) for name, value in columns.items() if name not in {total, "lost", *part_of})
            if columns[total] != ended:
                off = columns[total] - ended
                text = f"{partition} {table}: {total} {columns[total]} != {ended}: {columns}"
                yield Violation(broken=Broken.LOST, text=text, count=abs(off))
            negative = [name for name, value in columns.items() if _least(value) < 0]
            if columns[live] or negative:
                text = f"{partition} {table}: {live} {columns[live]}, below 0: {negative}"
                yield Violation(broken=Broken.LEDGER, text=text)


def check_moments(evidence: Evidence) -> Iterator[Violation]:
    """The ledger balanced whenever it was looked at while the run went on."""
    if not evidence.num_looks:
        yield Violation(broken=Broken.EVIDENCE, text="the ledger was never seen while the run went on")
    if evidence.unbalanced:
        text = f"{len(evidence.unbalanced)} of {evidence.num_looks} looks at the ledger: {evidence.unbalanced[0]}"
        yield Violation(broken=Broken.LOST, text=text, count=len(evidence.unbalanced))


def check_lineage(evidence: Evidence) -> Iterator[Violation]:
    """The committed lineage is known from end to end and is what the ledger counts."""
    lineage = committed_lineage(evidence.checkpoints)
    if not lineage.results or lineage.missing:
        text = f"of {len(evidence.checkpoints)} checkpoints none is of commit {lineage.missing or 'any'}"
        yield Violation(broken=Broken.EVIDENCE, text=text)
        return
    wanted = evidence.settings["trainer.total_steps"] * evidence.settings["trainer.groups_per_step"]
    counted = len(lineage.sequences)
    said = (evidence.ledger or {}).get("train", {}).get("tasks", {}).get("consumed")
    if not counted == wanted == said:
        text = f"groups consumed: {wanted} by the settings, {counted} by the checkpoints, {said} by the ledger"
        yield Violation(broken=Broken.LEDGER, text=text)


def check_once(evidence: Evidence) -> Iterator[Violation]:
    """No task is in the committed lineage twice: by the checkpoints, and by the spans of the steps that count."""
    lineage = committed_lineage(evidence.checkpoints)
    twice = sorted(sequence for sequence, times in Counter(lineage.sequences).items() if times > 1)
    if twice:
        text = f"sequences consumed twice by the checkpoints: {twice[:10]}"
        yield Violation(broken=Broken.TWICE, text=text, count=len(twice))
    counting = _uses_that_count(evidence)
    steps: dict[str, set[int]] = {}
    for use in counting:
        steps.setdefault(use.task, set()).add(use.step)
    repeated = {task: sorted(found) for task, found in steps.items() if len(found) > 1}
    if repeated:
        text = f"tasks in several steps by the spans: {dict(list(repeated.items())[:10])}"
        yield Violation(broken=Broken.TWICE, text=text, count=len(repeated))
    committed = {(result["task_id"], result["attempt"]) for _, result in lineage.results}
    strange = sorted({(use.task, use.attempt) for use in counting} - committed)
    if strange and not lineage.missing:
        text = f"trained on by the spans, in no commit: {strange[:10]}"
        yield Violation(broken=Broken.LEDGER, text=text, count=len(strange))


def check_lost(evidence: Evidence) -> Iterator[Violation]:
    """Every task below the newest one that was trained on was trained on too, or its end is in the ledger."""
    consumed = set(committed_lineage(evidence.checkpoints).sequences)
    if not consumed or evidence.ledger is None:
        return
    explained = _given_up(evidence, evidence.ledger["train"]["tasks"])
    gaps = sorted(set(range(max(consumed))) - consumed)
    if len(gaps) > explained:
        text = f"{len(gaps)} tasks were never trained on and only {explained} were given up: {gaps[:10]}"
        yield Violation(broken=Broken.LOST, text=text, count=len(gaps) - explained)


def _given_up(evidence: Evidence, tasks: dict[str, Any]) -> int:
    """Tasks that ended for good without being trained on."""
    said = {**tasks["dropped"], "dead_lettered": tasks["dead_lettered"], "filtered": tasks["filtered"]}
    if evidence.settings["async.on_stale"] == "drop":
        return sum(said.values())
    # A stale attempt is followed by another one of the same task, and after a wipe all that were dropped before are one
    # number, stale ones included; so what they were is taken from the looks before.
    seen = {
        reason: max(said.get(reason, 0), evidence.given_up.get(reason, 0)) for reason in {*said, *evidence.given_up}
    }
    return sum(number for reason, number in seen.items() if reason not in {"stale", "reconciled"})


def check_age(evidence: Evidence) -> Iterator[Violation]:
    """No step used a token older than the bound, those that a crash undid included."""
    bound = evidence.settings["async.max_staleness"]
    for entry in evidence.metrics:
        if not 0 <= entry["staleness_max"] <= bound:
            text = f"step {entry['step']} says staleness_max {entry['staleness_max']}, the bound is {bound}"
            yield Violation(broken=Broken.BOUND, text=text)
    for use in evidence.uses:
        ages = {use.version - oldest for oldest in evidence.sampled_by.get(use.trajectory, ())} | {use.staleness}
        # Tried several times: which try was used is not known, but one of them it was.
        if not any(0 <= age <= bound for age in ages) or not 0 <= use.staleness <= bound:
            text = f"step {use.step} used {use.trajectory} at version {use.version}, ages {sorted(ages)}"
            yield Violation(broken=Broken.BOUND, text=f"{text}, the bound is {bound}")
        if len(evidence.sampled_by.get(use.trajectory, ())) == 1 and len(ages) > 1:
            text = f"step {use.step} says {use.trajectory} has age {use.staleness}, the spans say {sorted(ages)}"
            yield Violation(broken=Broken.BOUND, text=text)
    if not evidence.rival_exit_codes:
        # A rival's steps do not count, but its versions would.
        yield from _check_newest(evidence)


def _check_newest(evidence: Evidence) -> Iterator[Violation]:
    """Ages are counted from the newest version there was, not from an older one."""
    for use in _uses_that_count(evidence):
        newest = max((version for time, version in evidence.published if time < use.time), default=use.version)
        if newest > use.version:
            text = f"step {use.step} counts from version {use.version} while {newest} was being published"
            yield Violation(broken=Broken.BOUND, text=text)
            return


def check_steps(evidence: Evidence) -> Iterator[Violation]:
    """Every step from the first to the last is there, whole, in order of version."""
    counting = lineage_of_steps(evidence.metrics)
    wanted = list(range(1, evidence.settings["trainer.total_steps"] + 1))
    if sorted(counting) != wanted:
        missing = sorted(set(wanted) - set(counting))
        text = f"{len(counting)} steps of {len(wanted)}, missing {missing[:10]}"
        yield Violation(broken=Broken.STEPS, text=text)
    groups = evidence.settings["trainer.groups_per_step"]
    partial = {step: entry["num_groups"] for step, entry in counting.items() if entry["num_groups"] != groups}
    if partial:
        yield Violation(broken=Broken.STEPS, text=f"steps with other than {groups} groups: {partial}")
    versions = [counting[step]["version"] for step in sorted(counting)]
    if versions != sorted(versions):
        yield Violation(broken=Broken.STEPS, text=f"versions went back: {versions}")


def check_weights(evidence: Evidence) -> Iterator[Violation]:
    """The final model loads, is finite, and is what the last commit made final."""
    weights = evidence.weights
    if weights.problem or not weights.num_tensors:
        yield Violation(broken=Broken.WEIGHTS, text=f"final/ does not load: {weights.problem or 'it is empty'}")
    if weights.not_finite:
        yield Violation(broken=Broken.WEIGHTS, text=f"not finite: {weights.not_finite}")
    if weights.not_committed:
        yield Violation(broken=Broken.WEIGHTS, text=f"not those of the newest checkpoint: {weights.not_committed}")


def lineage_of_steps(metrics: list[dict[str, Any]]) -> dict[int, dict[str, Any]]:
    """The line of each step that counts: that of the newest version, since each takeover assigns a larger one."""
    found: dict[int, dict[str, Any]] = {}
    for entry in metrics:
        known = found.get(entry["step"])
        if known is None or (entry["version"], entry["epoch"]) >= (known["version"], known["epoch"]):
            found[entry["step"]] = entry
    return found


def _uses_that_count(evidence: Evidence) -> list[Use]:
    """Uses in steps that no crash undid."""
    counting = lineage_of_steps(evidence.metrics)
    return [use for use in evidence.uses if counting.get(use.step, {}).get("version") == use.version]


def _total(value: int | dict[str, int]) -> int:
    """Sum of a column, which may be split by reason."""
    return sum(value.values()) if isinstance(value, dict) else value


def _least(value: int | dict[str, int]) -> int:
    """Smallest number in a column."""
    return min(value.values(), default=0) if isinstance(value, dict) else value
