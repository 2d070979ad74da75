"""Section of ``gpu-aware page`` on jobs: the selector, the queue with its reasons, explanations."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from slurm_gpu_aware.cli.explain import explain_blocks, headline
from slurm_gpu_aware.cli.state import queue_answer, queue_blocks, status_answer, status_blocks
from slurm_gpu_aware.page.blocks import Block, Link, Page, Table
from slurm_gpu_aware.page.sections import Section, Source

if TYPE_CHECKING:
    from slurm_gpu_aware.config.settings import Config
    from slurm_gpu_aware.selector.job_answers import Answers

MOST_EXPLAINED = 200  # Jobs that get a page.
MOST_ROWS = 500  # Jobs of each table of the queue.
_ROUNDS = 5
_JOB_ID = re.compile(r"[0-9]{1,10}(_[0-9]{1,10})?")
_OF_USERS = ("name", "comment", "account", "model")  # Keys of a request that its user chose.
_NAMES_MODEL = "model"
"""Key of a decision's reasons: why a performance model is missing, with the user and the model."""


@dataclass(frozen=True)
class JobFacts:
    """What is known of the selector and the jobs, as JSON values."""

    status: Mapping[str, Any]
    queue: Mapping[str, Any]
    explained: Mapping[str, Mapping[str, Any]]  # Job -> answer about it.
    paths: Mapping[str, str]  # Job -> path of its page.
    config: Config
    now: float
    public: bool


def jobs_section(known: Answers, public: bool) -> tuple[Section[JobFacts], Mapping[str, str]]:
    """The section, and the paths of the jobs' pages for the other sections. Raises StoreError."""
    queue = queue_answer(known)
    jobs = [*queue["placed"], *queue["parked"]]
    if len(jobs) > MOST_EXPLAINED:  # both kinds, the next in line first
        half = MOST_EXPLAINED // 2
        jobs = [*queue["parked"][:half], *queue["placed"][-half:]]
    ids = [str(job["job_id"]).partition("_[")[0] for job in jobs]
    paths = {job_id: f"jobs/{job_id}.html" for job_id in ids if _JOB_ID.fullmatch(job_id)}

    def read(source: Source) -> JobFacts:
        answers = {job_id: known.explain(job_id) for job_id in paths}
        if public:
            answers = {job_id: without_users(answer) for job_id, answer in answers.items()}
        status = status_answer(known, _ROUNDS)
        return JobFacts(status, queue, answers, paths, source.config, source.now, public)

    return Section("queue", "Queue", read, _blocks, _pages), paths


def without_users(answer: Mapping[str, Any]) -> dict[str, Any]:
    """An answer of `Answers.explain` without users, and without what they name and write."""
    decisions = [
        {
            **decision,
            "user": None,
            "asked": {k: v for k, v in decision["asked"].items() if k not in _OF_USERS},
            "why": {k: v for k, v in decision["why"].items() if k != _NAMES_MODEL},
        }
        for decision in answer["decisions"]
    ]
    return {**answer, "decisions": decisions}


def _blocks(facts: JobFacts) -> Sequence[Block]:
    state, *rounds = status_blocks(facts.status, facts.now, facts.config)
    queue = [
        _bounded(block, facts) if isinstance(block, Table) else block
        for block in queue_blocks(facts.queue)
    ]
    rounds = [replace(block, title="Rounds") for block in rounds]
    return [replace(state, title="Selector"), *queue, *rounds]


def _bounded(table: Table, facts: JobFacts) -> Table:
    """The first rows, with links to the pages of their jobs, in public without users."""
    keep = [not (facts.public and header == "user") for header in table.headers]
    rows = []
    for job_id, *cells in table.rows[:MOST_ROWS]:
        path = facts.paths.get(str(job_id).partition("_[")[0])
        row = [Link(job_id, path) if path else job_id, *cells]
        rows.append([cell for cell, kept in zip(row, keep, strict=True) if kept])
    headers = [header for header, kept in zip(table.headers, keep, strict=True) if kept]
    more = len(table.rows) - MOST_ROWS
    told = f"... and {more} more: gpu-aware queue" if more > 0 else ""
    return replace(table, headers=headers, rows=rows, more=told)


def _pages(facts: JobFacts) -> Iterable[Page]:
    above = [Link("Queue", "queue.html")]
    for job_id, answer in facts.explained.items():
        blocks = list[Block](explain_blocks(answer))
        yield Page(facts.paths[job_id], headline(answer), blocks, "queue", above)
