"""Classes for ``class=auto``: what a user gave to jobs of the same name, then account."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from make import slurm_job

from slurm_gpu_aware.admission.hints import class_of, given_class
from slurm_gpu_aware.config.settings import Config
from slurm_gpu_aware.gate.admin_comment import OriginalRequest
from slurm_gpu_aware.gate.gated_job import GatedJob
from slurm_gpu_aware.model import class_history
from slurm_gpu_aware.model.class_history import AskedClass, ClassHistory, GivenClass
from slurm_gpu_aware.model.job_phase import JobPhase
from slurm_gpu_aware.slurm.records import SlurmJob

TRAIN = GivenClass("alice", "A", 100.0, "train", "bio", "7")
OTHER = GivenClass("alice", "C", 200.0, "graph", "bio", "8")


def training(comment: str | None = "class=auto", **more: object) -> SlurmJob:
    usual = {"name": "train", "account": "bio", "submit_s": 1000.0}
    return slurm_job(comment=comment, **{**usual, **more})


def class_for(job: SlurmJob, history: ClassHistory, config: Config | None = None) -> AskedClass:
    return class_of(job, OriginalRequest(tres_per_node="gres/gpu:1"), config or Config(), history)


def test_the_name_goes_before_the_account_and_the_newest_counts() -> None:
    history = ClassHistory([TRAIN, OTHER])
    assert class_for(training(), history) == AskedClass("A", "name", TRAIN)
    assert class_for(training(name="new"), history) == AskedClass("C", "account", OTHER)
    newer = replace(TRAIN, app_class="B", at=300.0, job_id="9")
    history.note(newer)
    history.note(TRAIN)  # read again: it is not newer now
    assert class_for(training(), history).like == newer
    assert class_for(training(name="new"), history).app_class == "B"


def test_no_class_comes_from_a_later_job() -> None:
    """It would change under a job that waits, and `explain` would name a job of the future."""
    later = [replace(TRAIN, app_class="C", at=1001.0 + i, job_id=str(90 + i)) for i in range(9)]
    history = ClassHistory([TRAIN, *later])
    assert class_for(training(), history).like == TRAIN
    assert class_for(training(submit_s=1003.0), history).like == later[0]
    assert class_for(training(submit_s=2000.0), history).like == later[-1]
    same_second = replace(TRAIN, app_class="C", at=1000.0, job_id="8")
    assert class_for(training(), ClassHistory([same_second])).source == "nothing"  # it is job 7


def test_what_was_stored_counts_until_a_job_says_otherwise() -> None:
    history = ClassHistory([TRAIN, GivenClass("alice", "C", 150.0, "train")])
    found = class_for(training(), history)
    assert (found.app_class, found.words) == ("C", "C, stored for the user's jobs of this name")
    history.note(replace(TRAIN, at=160.0, job_id="9"))
    assert class_for(training(), history).words == "A, as the user's job 9 of the same name"


@pytest.mark.parametrize("user", ["bob", "", "alic", "alice "])
def test_no_other_user_sets_a_class(user: str) -> None:
    history = ClassHistory([replace(TRAIN, user=user), replace(OTHER, user=user)])
    found = class_for(training(), history)
    assert (found.app_class, found.source) == ("B", "nothing")
    assert found.words == "B, the site's default, as no job like it had a class"


@pytest.mark.parametrize(
    ("comment", "environment", "defaults", "app_class", "source"),
    [
        ("class=C", None, {}, "C", "given"),
        ("class=auto", None, {}, "A", "name"),
        (None, None, {}, "B", "site"),
        (None, "class=auto", {}, "A", "name"),
        (None, "class=C", {"user": {"alice": "class=auto"}}, "C", "given"),
        (None, None, {"user": {"alice": "class=auto"}}, "A", "name"),
        (None, None, {"account": {"bio": "class=C"}}, "C", "site"),
        # The first of comment and defaults that has a class decides.
        (None, None, {"user": {"alice": "class=C"}, "account": {"bio": "class=auto"}}, "C", "site"),
        ("bw=high", None, {"account": {"bio": "class=auto"}}, "A", "name"),
    ],
)
def test_auto_comes_from_comment_environment_or_defaults(
    comment: str | None,
    environment: str | None,
    defaults: dict[str, dict[str, str]],
    app_class: str,
    source: str,
) -> None:
    config = Config(site=replace(Config().site, defaults=defaults))
    original = OriginalRequest(tres_per_node="gres/gpu:1", environment=environment)
    found = class_of(training(comment), original, config, ClassHistory([TRAIN]))
    assert (found.app_class, found.source) == (app_class, source)
    assert (found.words == "") == (source in ("given", "site"))


def test_without_history_the_defaults_behind_auto_count() -> None:
    config = Config(site=replace(Config().site, defaults={"account": {"bio": "class=C"}}))
    assert class_for(training(), ClassHistory(), config) == AskedClass("C", "nothing")


def test_a_class_that_the_site_no_longer_has_does_not_count() -> None:
    history = ClassHistory([replace(TRAIN, app_class="D")])
    assert class_for(training(), history).source == "nothing"


@pytest.mark.parametrize(
    ("comment", "environment", "given"),
    [
        ("class=C", None, "C"),
        ("text gpu:class=C", None, "C"),
        (None, "class=C", "C"),
        ("class=auto", None, None),
        ("bw=low", "class=C", None),  # the comment goes first
        ("class=Q", None, None),
        (None, None, None),
    ],
)
def test_only_what_the_user_named_is_given(
    comment: str | None, environment: str | None, given: str | None
) -> None:
    """A default of the site, ``user`` included, is no word of the user."""
    config = Config(site=replace(Config().site, defaults={"user": {"alice": "class=A"}}))
    original = OriginalRequest(tres_per_node="gres/gpu:1", environment=environment)
    record = training(comment, submit_s=5.0)
    found = given_class(GatedJob(record, original, None, JobPhase.WAITING), config)
    assert (found and found.app_class) == given
    if found is not None:
        assert found == GivenClass("alice", given or "", 5.0, "train", "bio", record.id)


def test_a_user_displaces_only_own_names(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(class_history, "_KEPT_OF_USER", 4)
    monkeypatch.setattr(class_history, "_ALL_KEPT", 8)
    history = ClassHistory([replace(TRAIN, user="bob")])
    for number in range(100):
        history.note(GivenClass("alice", "C", float(number), f"n{number}", "bio"))
    assert len(history) == 6
    assert history.of("bob", "train", "") is not None
    assert history.of("alice", "n0", "") is None
    assert history.of("alice", "n99", "") is not None
    for number in range(3):
        history.note(GivenClass(f"u{number}", "C", 1.0, "x" * 5000, "y" * 5000))
    assert len(history) <= 8
    assert history.of("bob", "train", "") is None  # longest without a job
    assert history.of("u2", "x" * 4000, "") is not None  # the first 128 characters count


@given(
    st.lists(
        st.tuples(
            st.sampled_from(["u", "v"]),
            st.sampled_from(["A", "B", "C"]),
            st.integers(0, 9),
            st.sampled_from(["", "m", "n"]),
            st.sampled_from(["", "a", "b"]),
        ),
        max_size=12,
    ),
    st.randoms(use_true_random=False),
)
def test_the_order_of_reading_does_not_matter_but_for_equal_times(
    rows: list[tuple[str, str, int, str, str]], random: st.DrawFn
) -> None:
    rows = list({row[2]: row for row in rows}.values())  # one per time
    given = [GivenClass(u, c, float(at), n, a) for u, c, at, n, a in rows]
    shuffled = list(given)
    random.shuffle(shuffled)  # type: ignore[attr-defined]
    histories = ClassHistory(given), ClassHistory(shuffled)
    for user in ("u", "v"):
        for name in ("", "m", "n", "o"):
            for account in ("", "a", "b"):
                found, again = (history.of(user, name, account) for history in histories)
                assert found == again
                own = [g for g in given if g.user == user]
                same = [g for g in own if name and g.name == name] or [
                    g for g in own if account and g.account == account
                ]
                newest = max(same, key=lambda g: g.at, default=None)
                assert (found and found[1]) == newest
