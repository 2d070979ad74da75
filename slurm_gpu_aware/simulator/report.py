"""Report: one self-contained page with tables and pictures of a result folder."""

import base64
import html
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from slurm_gpu_aware.errors import SourceError
from slurm_gpu_aware.simulator.columns import Column, columns_of, gain_text
from slurm_gpu_aware.simulator.files import DAMAGE, damaged, load_results
from slurm_gpu_aware.simulator.history import BASELINE, RECORDED
from slurm_gpu_aware.simulator.pictures import PICTURES, POWER_PICTURE, draw_picture
from slurm_gpu_aware.simulator.result import as_good
from slurm_gpu_aware.time_text import counted

_SAME_PERCENT = 0.05  # Below it a difference is printed as 0.0%.
_ONE_SEED = (
    "One run of each policy says nothing about chance; with --seeds 8, gpu-aware simulate draws "
    "GPUs of --variability and jobs of --synthetic anew, and gpu-aware tune the days of a history."
)


def write_report(folder: Path) -> tuple[list[Path], list[str]]:
    """Write ``report.html`` and its pictures; return their paths and :func:`plain_summary`.

    Raises SourceError if the folder is damaged or not writable, or no job ended in every run.
    """
    head, runs = load_results(folder)
    if not all(len(run.columns["jct_s"]) for run in runs):
        raise SourceError(f"{folder}: no job ended in every run, nothing to compare")
    power = [POWER_PICTURE] if any(len(run.power_s) for run in runs) else []
    try:
        pictures = [
            (title, text, draw_picture(folder / f"{name}.png", draw, runs, head))
            for name, title, text, draw in (*PICTURES, *power)
        ]
        page = folder / "report.html"
        page.write_text(page_text(head, pictures), encoding="utf-8")
        return [page, *(path for _, _, path in pictures)], plain_summary(head)
    except OSError as exc:
        raise SourceError(f"{folder}: cannot be written: {exc.strerror}") from None
    except DAMAGE as exc:
        raise damaged(folder, exc) from None


def plain_summary(head: Mapping[str, Any]) -> list[str]:
    """One sentence per policy after the first; a record only calibrates that first one."""
    runs = [run for run in head["runs"] if run["avg_jct_s"] is not None]
    record = next((run for run in runs if run["policy"] == RECORDED), None)
    runs = [run for run in runs if run is not record]
    if not runs or (record is None and len(runs) == 1):
        return [f"{run['policy']}: {run['jobs']} jobs ended." for run in (runs or head["runs"])[:1]]
    first = runs[0]
    slurm = first["policy"]
    if slurm == BASELINE:
        slurm += ", Slurm's own placement"
    past = record is not None
    where = f"On {head['trace']}" if past else f"On {head['trace']}, against {first['policy']}"
    verb, than = ("would have been", f" than with {slurm}") if past else ("is", "")
    sentences = []
    seeds = head.get("seeds", 1)
    for run in runs[1:]:
        if seeds > 1 and as_good(run["gain"]):
            sentences.append(_not_worth(head["trace"], first["policy"], run, seeds))
            continue
        saved = first["avg_jct_s"] - run["avg_jct_s"]
        percent = 100 * saved / first["avg_jct_s"] if first["avg_jct_s"] else 0.0
        if seeds > 1:
            percent = 100 * run["gain"]["mean"]
        text = f"{where}, average completion time with {run['policy']} {verb} "
        if abs(percent) < _SAME_PERCENT:
            text += f"the same as with {slurm}" if past else "the same"
        else:
            text += f"{abs(percent):.1f}% {'shorter' if percent > 0 else 'longer'}{than}"
            text += _spread(run["gain"], seeds) if seeds > 1 else ""
            if saved > 0 and percent > 0:
                text += f"; {_where_from(saved, first['avg_run_s'] - run['avg_run_s'])}"
        sentences.append(f"{text}{_of_each(run, first['policy'])}.")
    if seeds == 1 and runs[1:] and "seeds" in head:
        sentences.append(_ONE_SEED)
    return [*sentences, *([calibration(record, first)] if record is not None else [])]


def _not_worth(trace: str, first: str, run: Mapping[str, Any], seeds: int) -> str:
    """The sentence for a policy that does not pay."""
    return (
        f"On {trace}, {first} is as good as {run['policy']}, as far as {seeds} seeds tell: gain "
        f"{gain_text(run['gain'])}{_of_each(run, first)}."
    )


def _spread(gain: Mapping[str, float], seeds: int) -> str:
    """`` (gains of 8 seeds: -1.2% to 2.0%; the sign is not the same in all)``."""
    low, high = 100 * gain["low"], 100 * gain["high"]
    mixed = "; the sign is not the same in all" if low <= 0.0 <= high else ""
    return f" (gains of {seeds} seeds: {low:.1f}% to {high:.1f}%{mixed})"


def _of_each(run: Mapping[str, Any], first: str) -> str:
    """``; 12% of the jobs end later than with packed``; empty if that is not known."""
    each = run.get("each_job")
    if each is None:
        return ""
    return f"; {each['slower']:.0%} of the jobs take longer than with {first}"


def calibration(record: Mapping[str, Any], first: Mapping[str, Any]) -> str:
    """A sentence on the difference between the simulation of Slurm (``first``) and the record."""
    percent = 100 * (first["avg_jct_s"] / record["avg_jct_s"] - 1)
    text = f"Calibration: simulated with {first['policy']}, average completion time is "
    if abs(percent) < _SAME_PERCENT:
        return f"{text}what Slurm recorded."
    return (
        f"{text}{abs(percent):.1f}% {'shorter' if percent < 0 else 'longer'} than Slurm recorded; "
        "that difference is the model's, not a gain."
    )


def _where_from(saved: float, on_gpus: float) -> str:
    """Split the saved time into time on GPUs and waiting, also that of preempted jobs."""
    waiting = round(100 * (1 - on_gpus / saved))
    if waiting > 100:
        return "all of it from less waiting, runs took longer"
    if waiting < 0:
        return "all of it from faster runs, jobs waited longer"
    if waiting in (0, 100):
        return f"all of it from {'less waiting' if waiting else 'faster runs'}"
    return f"{waiting}% of it from less waiting, the rest from faster runs"


def _cell(run: Mapping[str, Any], column: Column) -> str:
    value = column.in_run(run)
    if value is None:
        return "<td>n/a</td>"
    text = html.escape(column.text(value))
    ends = (run.get("range") or {}).get(column.key)
    if ends is not None and ends[0] != ends[1]:
        low, high = (html.escape(column.text(end)) for end in ends)
        text += f"<br><small>{low} to {high}</small>"
    return f"<td>{text}</td>"


def page_text(head: Mapping[str, Any], pictures: Sequence[tuple[str, str, Path]]) -> str:
    """The page in HTML with the pictures embedded; ``pictures``: (title, explanation, PNG file)."""
    columns = list(columns_of(head["runs"], lambda column: column.page))
    headers = "".join(f"<th>{column.page}</th>" for column in columns)
    rows = "".join(
        "<tr>" + "".join(_cell(run, column) for column in columns) + "</tr>" for run in head["runs"]
    )
    figures = "".join(
        f"<h2>{html.escape(title)}</h2><p>{html.escape(text)}</p>"
        f'<img alt="{html.escape(title)}" src="data:image/png;base64,'
        f'{base64.b64encode(path.read_bytes()).decode()}">'
        for title, text, path in pictures
    )
    says = "".join(f"<li>{html.escape(line)}</li>" for line in plain_summary(head))
    lists = {"Limits of the model": head["limits"]}
    lists["What the record lacks"] = head["input"].get("missing", ())
    limits = "".join(
        f"<h2>{name}</h2><ul>{''.join(f'<li>{html.escape(line)}</li>' for line in lines)}</ul>"
        for name, lines in lists.items()
        if lines
    )
    title = html.escape(f"Simulation of {head['trace']}")
    return f"""<!doctype html>
<html lang="en"><head><meta charset="utf-8"><title>{title}</title>
<meta name="viewport" content="width=device-width, initial-scale=1">
<style>
body {{ font: 16px/1.5 system-ui, sans-serif; max-width: 62rem; margin: 2rem auto; padding: 0 1rem;
  color: #1a1a1a }}
table {{ border-collapse: collapse; font-size: 14px; display: block; overflow-x: auto }}
td, th {{ padding: .3rem .6rem; text-align: right; border-bottom: 1px solid #ccc }}
td:first-child, th:first-child {{ text-align: left }}
img {{ max-width: 100%; height: auto }}
</style></head><body>
<h1>{title}</h1>
<p>{html.escape(_about(head))}</p>
<ul>{says}</ul>
<table><thead><tr>{headers}</tr></thead><tbody>{rows}</tbody></table>
{figures}
{limits}
</body></html>
"""


def _about(head: Mapping[str, Any]) -> str:
    """A paragraph on the jobs, the cluster, and the compared jobs."""
    given, compared = head["input"], head["compared_jobs"]
    bad = counted(len(given["bad_rows"]), "bad row")
    other = counted(sum(given["skipped"].values()), "other job")
    text = (
        f"{counted(given['jobs'], 'job')} of {head['trace']} on {head['cluster']}; order "
        f"{head['settings']['order']}; variability: {head['site']['variability']}. "
        f"{bad} and {other} were left out. Times, percentiles, makespan and pictures are those of "
        f"the {counted(compared, 'job')} that ended in every run"
    )
    if compared < given["jobs"]:
        text += f"; {given['jobs'] - compared} did not"
    if head.get("seeds", 1) > 1:
        text += (
            f". Numbers are means over {head['seeds']} seeds, with the lowest and the highest "
            "below; counts of jobs and pictures are those of the first seed"
        )
    if given["background"]:
        more = counted(given["background"], "more holds", "more hold")
        text += f"; {more} GPUs at the recorded times"
    return f"{text}."
