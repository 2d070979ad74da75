"""The heap of events: their order, and which of them are void."""

from types import SimpleNamespace

from slurm_gpu_aware.simulator.active import EventClock, Kind


def popped(clock):
    found = []
    while (event := clock.pop()) is not None:
        found.append(event[:2])
    return found


def test_events_of_one_time_happen_in_the_order_of_their_kinds():
    clock, job = EventClock(None), SimpleNamespace(version=0, placed_s=1.0)
    for kind in (Kind.ROUND, Kind.CROSSING, Kind.ARRIVAL, Kind.TAKE, Kind.END):
        clock.add(5.0, kind, job)
    clock.add(4.0, Kind.ROUND)
    kinds = [Kind.END, Kind.TAKE, Kind.ARRIVAL, Kind.CROSSING, Kind.ROUND]
    assert popped(clock) == [(4.0, Kind.ROUND), *((5.0, kind) for kind in kinds)]


def test_an_end_is_void_once_the_pace_has_changed():
    clock, job = EventClock(None), SimpleNamespace(version=0)
    clock.add(5.0, Kind.END, job)
    job.version += 1
    clock.add(7.0, Kind.END, job)
    assert popped(clock) == [(7.0, Kind.END)]


def test_only_the_last_time_to_wake_counts_and_once():
    clock = EventClock(None)
    for time in (5.0, 9.0, 7.0, 7.0):
        clock.wake_at(time)
    assert popped(clock) == [(7.0, Kind.WAKE)]
    assert clock.wake_s is None
    clock.wake_at(8.0)
    clock.wake_at(None)
    assert popped(clock) == []
