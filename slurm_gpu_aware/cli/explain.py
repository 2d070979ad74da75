"""``gpu-aware explain``: the reasons for the GPUs of a job, or for its wait."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Any

import click

from slurm_gpu_aware.cli.job_text import (
    asked_text,
    decision_blocks,
    event_text,
    facts_of,
    flat,
    held_words,
    slurm_words,
)
from slurm_gpu_aware.cli.options import Context, pass_context
from slurm_gpu_aware.cli.output import (
    blocks_text,
    json_option,
    paragraph,
    place_text,
    print_json,
    say,
    some,
)
from slurm_gpu_aware.features import found
from slurm_gpu_aware.model.job_phase import OPEN_DECISION, JobPhase
from slurm_gpu_aware.page.blocks import Pairs, Sentences, Table, Words
from slurm_gpu_aware.time_text import duration, stamp

if TYPE_CHECKING:
    from slurm_gpu_aware.selector.job_answers import Answers

NO_HOLD = ("Licenses", "Priority", "Resources", "None", None)
"""Slurm's reasons of jobs that only the gate keeps waiting."""
_STATES = {
    JobPhase.LEFT: "left to Slurm",
    JobPhase.OPENED: "released by hand",
    "not ours": "left to Slurm",
}
"""Phases with a longer name in the text."""
_MAX_ROWS = 12
_JOB_ID = re.compile(r"[0-9]{1,10}(_[0-9]{1,10})?\Z")
_COMPONENT = re.compile(r"([0-9]{1,10})\+([0-9]{1,3})\Z")
_TASKS = re.compile(r"([0-9]{1,10})_\[([0-9]{1,10})[0-9,:%.-]*\]\Z")
"""Waiting tasks of an array as in ``queue`` and ``squeue``: ``44_[3-9]``."""


def check_job_id(ctx: click.Context, param: click.Parameter, value: Any) -> Any:
    """Callback of arguments with one job id or several."""
    for job_id in value if isinstance(value, tuple) else (value,):
        if not (_JOB_ID.match(job_id) or _COMPONENT.match(job_id)):
            raise click.BadParameter(
                f"{job_id!r} is not a job id; expected 123, 123_4 for a task, or 123+1 for a"
                " component"
            )
    return value


def _job_id(ctx: click.Context, param: click.Parameter, value: Any) -> Any:
    """Callback: one job id; the first one of several tasks."""
    tasks = _TASKS.match(value)
    if tasks is None:
        return check_job_id(ctx, param, value)
    first = f"{tasks[1]}_{tasks[2]}"
    say(f"This is task {first}, the first of {value}.")
    return first


@click.command("explain")
@click.argument("job_id", metavar="JOBID", callback=_job_id)
@click.option("--details", is_flag=True, help="Also how the policy came to its choice.")
@json_option
@pass_context
def command(context: Context, job_id: str, details: bool, as_json: bool) -> None:
    """Explain why a job got its GPUs, or why it waits.

    Shows the request, the chosen GPUs and why, the predicted slowdown, and the events since; with
    --details also the cells of the locality x variability matrix that were tried, and the sets that
    were considered. Every user may run it. The exit code is 1 if the job is unknown.

    \b
    Examples:
      gpu-aware explain 1234
      gpu-aware explain 1234 --details
      gpu-aware explain 1234_7 --json
      gpu-aware explain 1234+1
    """
    from slurm_gpu_aware.selector.job_answers import Answers, open_reader

    config = context.config()
    with open_reader(config) as reader:
        answer = _explain(Answers(reader, config), job_id)
        note = reader.note()
    if as_json:
        told = [{**d, "words": facts_of(d["why"]).lines()} for d in answer["decisions"]]
        print_json({k: v for k, v in answer.items() if k != "away"} | {"decisions": told})
    else:
        click.echo(explain_text(answer, details=details))
        if "no_slurm" in answer:
            say(paragraph(f"{no_slurm(answer['no_slurm'])} This is what the ledger says."))
        if note:
            say(note)
    if answer["state"] == "unknown":
        raise click.exceptions.Exit(1)


def _explain(answers: Answers, job_id: str) -> dict[str, Any]:
    """The answer about a job; about all its components if this one is not known by its number."""
    component = _COMPONENT.match(job_id)
    if component is None:
        return answers.explain(job_id)
    number = str(int(component[1]) + int(component[2]))  # Slurm numbers them one by one
    answer = answers.explain(number)
    if answer["state"] != "unknown":
        return answer
    return {**answers.explain(component[1]), "component": number}


def no_slurm(why: object) -> str:
    """The sentence on a Slurm that could not be asked."""
    return f"Slurm does not answer: {why}."


def explain_text(answer: Mapping[str, Any], *, details: bool = False) -> str:
    """The text on a job; ``answer``: its JSON, and ``away``; ``details``: accounts of policies."""
    return f"{headline(answer)}\n\n{blocks_text(explain_blocks(answer, details=details))}".rstrip()


def headline(answer: Mapping[str, Any]) -> str:
    """``Job 98: waiting``."""
    state, slurm = answer["state"], answer["slurm"]
    over = state in OPEN_DECISION and slurm is not None and slurm["ended"]
    return f"Job {answer['job_id']}: {'ended' if over else _STATES.get(state, state)}"


def explain_blocks(answer: Mapping[str, Any], *, details: bool = False) -> list[Words]:
    """What is said about a job below its headline; arguments as of `explain_text`."""
    decisions, blocks = answer["decisions"], list[Words]()
    if about := _about(answer):
        blocks.append(Sentences(about))
    for texts in found("text", "EXPLAINED"):
        said = [(key, text) for key, words in texts.items() if (text := words(answer.get(key)))]
        blocks += [Pairs(said)] if said else []
    void = answer["state"] in (JobPhase.WAITING, JobPhase.LEFT)
    if decisions:  # the request of a void placement is still valid
        newest = decisions[-1]
        account = decision_blocks(newest, answer["events"], details=details)
        blocks += [Pairs(asked_text(newest))] if void else account
    if earlier := decisions if void else decisions[:-1]:
        past = [
            (stamp(d["decided_at"]), place_text(d), f"{d['slowdown']:.3f}", d["state"])
            for d in earlier
        ]
        headers = ["time", "place", "slowdown", "became"]
        blocks.append(Table(headers, past, ["slowdown"], "Earlier placements"))
    if answer["events"]:
        blocks.append(_events(answer["events"], details=details))
    return blocks


def _events(events: Sequence[Mapping[str, Any]], *, details: bool) -> Table:
    """What happened; ``details``: as it was recorded."""
    if details:
        rows = [(stamp(e["at"]), e["kind"], flat(e["detail"])) for e in events]
        return Table(["time", "event", "detail"], rows, title="Events")
    told = [(stamp(e["at"]), event_text(e["kind"], e["detail"])) for e in events]
    return Table(["time", "what happened"], told, title="Events")


def _about(answer: Mapping[str, Any]) -> list[str]:
    """Sentences on the state of the job."""
    from slurm_gpu_aware.selector.job_answers import left_reason

    state, slurm, tasks = answer["state"], answer["slurm"] or {}, answer["tasks"]
    about = []
    if (component := answer.get("component")) and state != "unknown":
        about.append(f"Job {component} is a component of this job and starts with it.")
    if tasks:
        shown = some(tasks, _MAX_ROWS)
        about.append(f"A job array; each task was placed separately: {shown}. Explain one of them.")
    elif state == "unknown" and "no_slurm" in answer:
        about.append(f"The ledger does not know job {answer['job_id']}, and Slurm was not asked.")
    elif state == "unknown":
        about.append(
            f"Neither the ledger nor Slurm knows job {answer['job_id']}. It may be too old, or a"
            " task that was cancelled while it waited, or the id may be mistyped."
        )
    elif state == "not ours" and slurm.get("why"):
        about.append(
            f"Slurm places this job, not the selector ({_in_slurm(slurm)}): {slurm['why']}."
        )
    elif state == "not ours":
        about.append(
            f"Slurm places this job, not the selector ({_in_slurm(slurm)}). The selector leaves out"
            " unsupported request forms (such as --gpu-bind=map_gpu, heterogeneous and scrontab"
            " jobs), partitions that are not managed, jobs with GPU_AWARE=place=off, and jobs that"
            " were submitted before the filter was there."
        )
    elif "placed_at" in slurm:
        about.append(
            f"It was placed at {stamp(slurm['placed_at'])} (state {slurm['state']}); the published"
            " copy of the ledger does not have the placement yet. Try again in a moment."
        )
    elif state == "not recorded yet":
        about.append(
            f"It has started ({_in_slurm(slurm)}) since the published copy of the ledger was"
            " written. Try again in a moment."
        )
    elif state == JobPhase.ENDED and slurm and not answer["decisions"]:
        about.append(f"It ended while it waited ({_in_slurm(slurm)}).")
    elif state == JobPhase.LEFT:
        why = left_reason(answer["events"]) or slurm.get("why")
        why = why or "it was released by hand, it was cancelled, or the selector was away"
        did = "places" if slurm["state"] == "PENDING" else "placed"
        about.append(
            f"It was parked; now its gate is open, and Slurm {did} it ({_in_slurm(slurm)}): {why}."
        )
    elif not answer["decisions"] and any("without_us" in e["detail"] for e in answer["events"]):
        about.append(f"Slurm placed it: {_why_without_us(answer['events'])}.")
    for sentences in found("declared", "sentences"):
        with suppress(KeyError, TypeError, ValueError, AttributeError):  # events of another release
            about += sentences(answer)
    if state in OPEN_DECISION and slurm and "placed_at" not in slurm:
        about += _unrecorded(answer)
    return about + _waiting(answer) if state == JobPhase.WAITING else about


def _in_slurm(slurm: Mapping[str, Any]) -> str:
    reason = slurm["reason"]
    known = reason not in (None, "", "None")
    return f"state {slurm['state']}" + (f", reason {reason}" if known else "")


def _why_without_us(events: Sequence[Mapping[str, Any]]) -> str:
    """Why a parked job ran without a decision of the selector."""
    from slurm_gpu_aware.selector.job_answers import left_reason

    if reason := left_reason(events):
        return f"it was left to Slurm: {reason}"
    if any(e["kind"] == "opened_by_hand" for e in events):
        return "it was released by hand"
    return "the gate had opened by itself, because the selector was away"


def _unrecorded(answer: Mapping[str, Any]) -> list[str]:
    """The state of a placed job in Slurm, if it is newer than the ledger."""
    state, away = answer["slurm"]["state"], answer["selector_away"]
    if state is None:
        text = "Slurm no longer lists this job: it has ended"
    elif answer["slurm"]["ended"]:
        text = f"Its state in Slurm is {state}: it has ended"
    elif away and (state == "PENDING") == (answer["state"] == JobPhase.STARTED):
        text = f"Its state in Slurm is {state}"
    else:
        return []
    because = ""
    if away:
        since = "a while" if away["quiet_s"] is None else duration(away["quiet_s"])
        because = f", because it has not answered for {since}"
    return [f"{text}. The selector has not recorded that{because}."]


def _waiting(answer: Mapping[str, Any]) -> list[str]:
    """Why a parked job waits."""
    waiting, slurm, away = answer["waiting"], answer["slurm"], answer.get("away")
    if slurm is not None and slurm["state"] is None:
        return [
            "It was parked in the selector's last round. Slurm no longer lists it: it was"
            " cancelled, or it has run, while the selector was away."
        ]
    if waiting is not None:
        why = held_words(str(waiting.get("reason") or "no reason was recorded"))
        about = [f"Why it waits: {why}"]
        if words := waiting.get("class_from"):
            about.append(f"Its class is {words}.")
        about += facts_of(waiting).waiting()
        if (start := waiting.get("shadow_start_s")) and not away:
            when = stamp(float(start))
            about.append(f"GPUs are reserved for it: it starts by {when} at the latest.")
        if (start := waiting.get("expected_start_s")) and not away:
            about.append(f"It is expected to start at {stamp(float(start))}.")
        about += _by_slurm(slurm)
        about.append(f"As of the round at {stamp(answer['waiting_as_of'])}.")
        return [*about, str(away)] if away else about
    reason = (slurm or {}).get("reason")
    newest = answer["decisions"][-1] if answer["decisions"] else {}
    outcome = newest.get("outcome") or {}
    if newest.get("state") == JobPhase.WAITING and outcome.get("step") == "prepare":
        failed = outcome.get("why") or "no reason was recorded"
        return [f"It could not be placed: {failed}. {away or 'The next round tries again.'}"]
    if reason and reason not in NO_HOLD:
        why = f"Why it waits: {slurm_words(reason)}. {away or 'It is planned once that ends.'}"
        return [why, *_by_slurm(slurm)]
    return [str(away or "It waits for the selector's next round."), *_by_slurm(slurm)]


def _by_slurm(slurm: Mapping[str, Any] | None) -> list[str]:
    """Why Slurm is to choose the GPUs of a parked job; empty: the selector does."""
    left = (slurm or {}).get("left")
    if not left:
        return []
    if (slurm or {}).get("type_is_gone"):
        return [f"{left[0].upper()}{left[1:]}."]
    return [f"Slurm chooses its GPUs when its turn comes: {left}."]
