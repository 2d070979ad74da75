"""What the feature of docs/architecture.md does; `test_feature_example` runs it beside a copy."""

import json
import runpy
from dataclasses import replace
from pathlib import Path

import luafilter
import pytest
from commands import gpu_aware
from luafilter import CLASSES, CONF, ERROR, POLICIES, SUCCESS, Filter, install
from make import sizes
from rounds_bench import RoundsBench
from slurm_folder import SlurmFolder, parked

import slurm_gpu_aware
from slurm_gpu_aware.config.load import load_config
from slurm_gpu_aware.config.settings import Config
from slurm_gpu_aware.errors import ConfigError, RequestError
from slurm_gpu_aware.features.hints import HINTS
from slurm_gpu_aware.features.night.declared import HELD, NightConfig
from slurm_gpu_aware.features.registry import FEATURES
from slurm_gpu_aware.model.cluster import Cluster
from slurm_gpu_aware.model.facets import named
from slurm_gpu_aware.model.job_hints import HINTED, JobHints, parse_comment
from slurm_gpu_aware.model.request import Request
from slurm_gpu_aware.planning.placed import Round
from slurm_gpu_aware.planning.plan import PlanSettings
from slurm_gpu_aware.planning.record import read_round, record_round, replay
from slurm_gpu_aware.planning.stages import World, plan_stages, told
from slurm_gpu_aware.simulator.engine import simulate
from slurm_gpu_aware.simulator.settings import SimSettings
from slurm_gpu_aware.simulator.trace import Trace, TraceJob
from slurm_gpu_aware.time_text import stamp

COPY = Path(slurm_gpu_aware.__file__).parents[1]
HOUR = 3600.0
PACKED = PlanSettings(policy="packed")
LARGE = Config().put(NightConfig(least_gpus=8)).sections
NIGHT = [stage for stage in FEATURES if stage.name == "night"]


@pytest.fixture(scope="module")
def filter_(tmp_path_factory: pytest.TempPathFactory) -> Filter:
    """The filter of the copy in a real Lua, with rules that docs/generate.py writes."""
    rules = runpy.run_path(str(COPY / "docs/generate.py"))["lua_rules"]()
    (COPY / "etc/lua/gpu_aware_rules.lua").write_text(rules)
    folder = tmp_path_factory.mktemp("filter")
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(luafilter, "LUA", COPY / "etc/lua")
        install(folder, CONF.format(submit_file="/nonexistent", more=""))
    return Filter(folder)


@pytest.mark.parametrize(
    ("comment", "value", "refusal"),
    [
        ("night=only", "only", None),
        ("class=A, night=any", "any", None),
        ("night=maybe", None, "gpu-aware: night=maybe is not valid; valid: only, any"),
        ("night=", None, "gpu-aware: night= is not valid; valid: only, any"),
        (
            "night=any,night=only",
            None,
            "gpu-aware: comment key 'night' is given twice; give it once",
        ),
        ("nights=only", None, None),
    ],
)
def test_both_parsers_read_the_key(
    filter_: Filter, comment: str, value: str | None, refusal: str | None
) -> None:
    in_lua, sentence = filter_.parse_comment(comment)
    assert ((in_lua or {}).get("night"), sentence) == (value, refusal)
    assert filter_.submit(tres_per_node="gres/gpu:2", comment=comment).rc == (
        ERROR if refusal else SUCCESS
    )
    lists = {"classes": CLASSES, "policies": POLICIES}
    if refusal is not None:
        with pytest.raises(RequestError) as caught:
            parse_comment(comment, HINTS, lists)
        assert str(caught.value) == refusal
    else:
        found = parse_comment(comment, HINTS, lists)
        assert (None if found is None else dict(found.values)) == in_lua


def test_the_filter_names_it_among_the_keys_and_for_shards(filter_: Filter) -> None:
    (message,) = filter_.submit(tres_per_node="gres/gpu:2", comment="night=only, lr=0.1").messages
    assert message.index(" move,") < message.index(" night,") < message.index(" due,")
    texts = {
        word: filter_.submit(tres_per_node="gres/shard:2", comment=f"night={word}").messages
        for word in ("only", "any")
    }
    assert texts["only"][0].endswith("so these play no part: night=")
    assert texts["any"] == []


def test_the_section_is_read_and_checked(tmp_path: Path) -> None:
    file = tmp_path / "config.toml"
    file.write_text('[night]\nleast_gpus = 16\nbegins = 20\n[site.defaults.user]\nbob="night=only"')
    config = load_config(file)
    assert config.of(NightConfig) == NightConfig(16, 20, 6)
    for text, wrong in (
        ("[night]\nends = 24", "night.ends: expected a whole number from 0 to 23, not 24"),
        ("[night]\nends = 18", "night.ends: must differ from night.begins (18)"),
        ("[night]\nx = 1", "night.x: unknown; known: begins, ends, least_gpus"),
        ('[site.defaults.user]\nbob="night=no"', "night=no is not valid; valid: only, any"),
    ):
        file.write_text(text)
        with pytest.raises(ConfigError) as caught:
            load_config(file)
        assert str(caught.value).startswith(f"{file}: ")
        assert wrong in str(caught.value)


def by_day() -> Round:
    """A round at noon: a large job, a small one, and a small one that waits for the night."""
    queue = [
        Request("large", 8, priority=9.0),
        Request("small", 2, priority=8.0),
        Request("patient", 1, priority=7.0, facets=named(HINTED, JobHints({"night": "only"}))),
    ]
    return told(Round(queue, Cluster.uniform(1, 8), PACKED, 12 * HOUR), NIGHT, World(LARGE))


def test_a_plan_holds_jobs_by_day() -> None:
    plan = plan_stages(by_day(), FEATURES)
    assert sizes(plan) == {"small": 2}
    why = f"it starts at night, from {stamp(18 * HOUR)} on"
    assert [(w.job_id, w.reason) for w in plan.waiting] == [("large", why), ("patient", why)]
    assert [(note.job_id, note.kind) for note in plan.notes] == [("large", HELD), ("patient", HELD)]
    assert plan.wake_s == 18 * HOUR
    night = plan_stages(replace(by_day(), now=19 * HOUR), FEATURES)
    assert (sizes(night), night.notes) == ({"large": 8}, ())
    usual = told(by_day(), NIGHT, World(Config().sections))
    assert sizes(plan_stages(usual, FEATURES)) == {"large": 8}


def test_a_step_that_fails_with_a_job_is_repeated_without_it() -> None:
    """So does the selector: it repeats a step for parts of the queue (`Round.only`)."""
    (night,) = NIGHT
    one = night.before(by_day())
    one = replace(one, queue=[*one.queue, *one.aside])
    rest = [request for request in one.queue if request.job_id != "large"]
    assert [waits.job_id for waits in night.after(one.only(rest)).plan.waiting] == ["patient"]
    assert [n.job_id for n in night.after(one).only(rest).plan.notes] == ["patient"]


def test_a_record_holds_settings_and_hints() -> None:
    asked = by_day()
    content = json.loads(json.dumps(record_round(asked, plan_stages(asked, FEATURES), FEATURES)))
    assert replay(read_round(content, FEATURES), FEATURES) == []
    del content["asked"]["night"]
    assert {one.job_id for one in replay(read_round(content, FEATURES), FEATURES)} == {
        *("large", "small")
    }


def test_a_simulation_does_the_same() -> None:
    jobs = [
        TraceJob("1", 10 * HOUR, 8, 50.0, "A"),
        TraceJob("2", 11 * HOUR, 4, 100.0, "A"),
        TraceJob("3", 11 * HOUR, 1, 100.0, "A", hints=JobHints({"night": "only"})),
    ]
    settings = SimSettings(policy="packed", sections=LARGE)
    result = simulate(Trace.of("t", jobs), Cluster.uniform(1, 8), settings)
    starts = dict(zip((job.job_id for job in result.trace.jobs), result.start_s, strict=True))
    assert starts == {"1": 18 * HOUR, "2": 11 * HOUR, "3": 18 * HOUR + 50.0}


def test_a_live_job_waits_and_is_told_why(slurm: SlurmFolder) -> None:
    """The hint of the comment, the setting of the file, the event once, the lines of explain."""
    with slurm.config.open("a") as config:
        config.write("[night]\nbegins = 20\n")
    slurm.write([parked(comment="night=only"), parked("8")], ["n1"])
    bench = RoundsBench(slurm, load_config(slurm.config))
    noon = bench.wall // 86_400 * 86_400 + 12 * HOUR
    for bench.wall in (noon, noon + 60):
        outcome = bench.rounds.run()
    assert "7" not in outcome.placed
    (event,) = slurm.events(HELD)
    assert (event.job_id, event.at, event.detail) == ("7", noon, {"until": noon + 8 * HOUR})
    bench.ledger.publish(force=True)
    shown = " ".join(gpu_aware("explain", "7", config=slurm.config).output.split())
    assert f"It waits for the night since {stamp(noon)}." in shown
    assert f"waits for the night, which begins at {stamp(noon + 8 * HOUR)}" in shown
    bench.wall = noon + 9 * HOUR
    assert "7" in bench.rounds.run().placed
    shown = " ".join(gpu_aware("explain", "7", config=slurm.config).output.split())
    assert "It waits for the night" not in shown
