"""What ``explain`` and ``report`` say on energy."""

import json
import time
from pathlib import Path

from commands import gpu_aware, succeeded
from store_samples import decision

from slurm_gpu_aware.features.energy.accounts import JobEnergy
from slurm_gpu_aware.features.energy.text import energy_text
from slurm_gpu_aware.store.database import open_store
from slurm_gpu_aware.store.ledger import Ledger


def test_words() -> None:
    assert energy_text(None) == ""
    assert energy_text(JobEnergy(3.6e6, 7200.0, 1).to_json()) == "1 kWh, 500 W per GPU"
    assert energy_text(JobEnergy(36_000.0, 360.0, 2).to_json()) == (
        "10 Wh in 2 runs, 100 W per GPU"
    )
    part = JobEnergy(36_000.0, 360.0, 1, ("n2: GPU 0: reset",))
    assert energy_text(part.to_json()) == (
        "at least 10 Wh, 100 W per GPU (not known: n2: GPU 0: reset)"
    )
    assert energy_text(JobEnergy(0.0, 0.0, 1, ("n2: lost",)).to_json()) == "not known (n2: lost)"


def printed(folder: Path, *args: str) -> str:
    config = folder / "config.toml"
    config.write_text(f'[store]\npath = "{folder}/store.db"\n')
    done = succeeded(gpu_aware(*args, config=config))
    return done.stdout


def test_explain_and_report_show_what_the_ledger_has(tmp_path: Path) -> None:
    now = time.time()
    with open_store(tmp_path / "store.db") as store:
        ledger = Ledger(store)
        times = {"submitted_at": now - 900.0, "decided_at": now - 800.0, "outcome_at": now}
        asked = {"class": "A", "gpus": 2}
        ledger.add_decision(decision("7", user="alice", asked=asked, state="ended", **times))
        started = {"gpus": {"n1": [0, 1]}, "restarts": 0}
        ledger.add_event("7", "started", started, now - 700.0)
        detail = {"node": "n1", "restarts": 0, "gpus": [0, 1], "seconds": 600.0}
        ledger.add_event("7", "energy", {**detail, "energy_j": 7.2e5}, now - 100.0)
    assert "energy" in printed(tmp_path, "explain", "7")
    assert "0.2 kWh, 600 W per GPU" in printed(tmp_path, "explain", "7")
    assert json.loads(printed(tmp_path, "explain", "7", "--json"))["energy"]["energy_j"] == 7.2e5
    shown = printed(tmp_path, "report")
    for row in (
        ["user", "alice", "1", "1", "0.3", "0.200", "600"],
        ["class", "A", "1", "1", "0.3", "0.200", "600"],
    ):
        assert row in [line.split() for line in shown.splitlines()]
    alone = printed(tmp_path, "report", "--energy")
    assert alone.startswith("Energy of the GPUs")
    assert alone in shown
    values = json.loads(printed(tmp_path, "report", "--energy", "--json"))
    assert values.keys() == {"days", "energy", "clocks"}
    (first, *_) = json.loads(printed(tmp_path, "report", "--json"))["energy"]
    assert (first["by"], first["name"], first["kwh"]) == ("user", "alice", 0.2)
