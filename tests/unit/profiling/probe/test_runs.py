"""Runs of several GPUs: order, telemetry, and GPUs that fail."""

import threading

import pytest

from gpu_aware_profile.backends.timing import Reading, SickGpuError
from gpu_aware_profile.devices.driver import EccErrors, Event, Sample
from gpu_aware_profile.probe.runs import Measurement, ReadableGpu, Wanted
from gpu_aware_profile.probe.telemetry import Telemetry, Window, power_w
from slurm_gpu_aware.errors import DeviceError, SourceError

SAMPLE = Sample(1000.0, 800.0, 100.0, 50.0, frozenset())


class Card:
    """A device without a driver."""

    def __init__(self):
        self.ecc = EccErrors(0, 0)
        self.lost = False

    def _check(self):
        if self.lost:
            raise DeviceError("nvmlDeviceGetX", "GPU is lost", lost=True)

    def sample(self):
        self._check()
        return SAMPLE

    def energy_j(self):
        self._check()
        return 5.0

    def ecc_errors(self):
        self._check()
        return self.ecc


class Scripted:
    """A backend that calls ``act(run, control)`` and gives 10 ms."""

    name = "scripted"
    classes = ("A",)

    def __init__(self, act=lambda run, control: None):
        self.act = act
        self.runs = []

    def measure(self, run, control):
        self.runs.append((run.slot, run.app_class, run.neighbours, run.number))
        with control.window():
            self.act(run, control)
        return Reading(10.0)


class Node:
    def __init__(self, act=lambda run, control: None, gpus=3):
        self.cards = [Card() for _ in range(gpus)]
        self.gpus = [
            ReadableGpu(i, card, {"uuid": f"GPU-{i}", "pci": f"pci{i}"}, ())
            for i, card in enumerate(self.cards)
        ]
        self.faults = []
        self.events = []
        self.stopped = threading.Event()
        self.backend = Scripted(act)
        self.measurement = Measurement(
            *(self.gpus, self.backend, "VISIBLE", self.faults, self._events),
            Wanted(warm_up_s=0.0, stopped=self.stopped),
        )

    def _events(self):
        found, self.events = self.events, []
        return found

    def idle(self, classes=("A",), runs=1):
        return [row["index"] for row in self.measurement.idle(classes, runs)]

    def loaded(self, classes=("A",), runs=1):
        return [row["index"] for row in self.measurement.loaded(classes, runs)]


def test_the_runs_of_a_gpu_lie_far_apart():
    node = Node(gpus=2)
    rows = node.measurement.idle(["A", "B"], 2)
    order = [(0, "A"), (0, "B"), (1, "A"), (1, "B")]
    assert node.backend.runs == [(*gpu, "idle", n) for n in range(2) for gpu in order]
    assert len(rows) == 8
    assert rows[0]["power_w"] == 100.0
    assert rows[0]["energy_j"] == pytest.approx(1.0)


def test_loaded_gpus_are_measured_at_the_same_time():
    meeting = threading.Barrier(3, timeout=60)  # broken unless all three are inside at once
    node = Node(lambda run, control: meeting.wait())
    assert node.loaded(runs=2) == [0, 1, 2] * 2


def test_gpus_wait_for_each_other_before_and_after_the_measured_part():
    warm, measured = set(), set()
    seen = []

    def act(run, control):
        warm.add(run.slot)
        control.warm_up()
        seen.append(len(warm))
        measured.add(run.slot)
        control.company().wait(60)
        seen.append(len(measured))

    assert Node(act).loaded() == [0, 1, 2]
    assert seen == [3] * 6


def test_gpus_do_not_wait_for_one_that_failed():
    def act(run, control):
        if run.slot == 1:
            raise SourceError("crashed")
        control.warm_up()
        assert control.company().wait(60)

    node = Node(act)
    assert node.loaded() == [0, 2]
    assert node.faults == [{"index": 1, "call": "timing", "error": "crashed"}]


def test_a_gpu_that_is_lost_between_two_runs_costs_only_its_own_times():
    def act(run, control):
        node.cards[1].lost = node.cards[1].lost or (run.number == 1 and run.slot == 0)

    node = Node(act)
    assert node.idle(runs=3) == [0, 1, 2, 0, 2, 0, 2]
    assert node.loaded() == [0, 2]
    assert node.faults == [{"index": 1, "call": "nvmlDeviceGetX", "error": "GPU is lost"}]


def test_a_sick_gpu_is_not_measured_again():
    def act(run, control):
        if run.slot == 2:
            raise SickGpuError("wrong")

    node = Node(act)
    assert node.idle(["A", "B"], runs=2) == [0, 0, 1, 1] * 2
    assert [run for run in node.backend.runs if run[0] == 2] == [(2, "A", "idle", 0)]
    assert node.faults == [{"index": 2, "call": "result", "error": "wrong"}]


def test_an_error_of_every_run_is_listed_once():
    def act(run, control):
        raise SourceError("no such class")

    node = Node(act)
    assert node.idle(runs=3) == []
    assert [fault["index"] for fault in node.faults] == [0, 1, 2]


def test_a_run_with_an_xid_has_no_time():
    def act(run, control):
        if (run.slot, run.number) == (1, 0):
            node.events = [Event("pci1", "xid", "XID 48: double bit ECC error")]

    node = Node(act)
    assert node.idle(runs=2) == [0, 2, 0, 1, 2]
    assert node.faults == [{"index": 1, "call": "xid", "error": "XID 48: double bit ECC error"}]


def test_an_event_of_an_unknown_gpu_is_one_of_the_node():
    node = Node()
    node.events = [Event("elsewhere", "xid", "XID 79")]
    assert node.idle() == [0, 1, 2]
    assert node.faults == [{"index": None, "call": "xid", "error": "XID 79"}]


def test_a_run_with_uncorrected_memory_errors_has_no_time():
    def act(run, control):
        if (run.slot, run.number) == (0, 0):
            node.cards[0].ecc = EccErrors(7, 2)
        if run.slot == 1:
            node.cards[1].ecc = EccErrors(9, 0)  # corrected ones do no harm

    node = Node(act, gpus=2)
    assert node.idle(runs=2) == [1, 0, 1]
    assert [fault["error"] for fault in node.faults] == ["2 uncorrected memory errors during a run"]
    assert [gpu.record["ecc_corrected"] for gpu in node.gpus] == [7, 9]


def test_nothing_begins_after_a_signal():
    def act(run, control):
        node.stopped.set()
        raise SourceError("ended by the signal")

    node = Node(act)
    assert node.idle(runs=3) == []
    assert len(node.backend.runs) == 1
    assert node.faults == []


def test_no_run_begins_after_the_time_limit():
    node = Node(gpus=2)
    node.measurement.wanted = Wanted(limit_s=-1.0)
    assert node.idle(runs=3) == []
    assert node.faults == [{"index": None, "call": "time limit", "error": "it left out some runs"}]


def test_power_comes_from_the_counter_if_the_window_is_long():
    assert power_w(Window((SAMPLE,), 2.0, 500.0)) == 250.0
    assert power_w(Window((SAMPLE,), 0.1, 500.0)) == 100.0  # the counter is too coarse
    assert power_w(Window((SAMPLE,), 2.0, None)) == 100.0
    assert power_w(Window((), 2.0, None)) is None


def test_power_over_several_windows_keeps_energy_the_product_of_power_and_time():
    telemetry = Telemetry(Card())
    telemetry.windows = [Window((), 1.0, 100.0), Window((), 1.0, 400.0)]
    found = telemetry.conditions(value_ms=500.0)
    assert found["power_w"] == pytest.approx(200.0)
    assert found["energy_j"] == pytest.approx(100.0)


def thermometer(readings):
    """Telemetry of a card, with one sample per second of these temperatures."""
    clock = iter(range(1000))
    card = Card()
    telemetry = Telemetry(card, now=lambda: float(next(clock)))
    card.sample = lambda: SAMPLE._replace(temperature_c=next(readings))
    return telemetry


def test_the_warm_up_ends_when_the_temperature_stays():
    rising = [40 + 2 * t for t in range(10)] + [60] * 10
    telemetry = thermometer(iter(rising))
    steady = []
    for _ in rising:
        telemetry.take()
        steady.append(telemetry.steady(0.0))
    assert steady.index(True) == 15  # since 10 s it is at 60
    assert all(steady[15:])


def test_the_temperature_of_the_idle_gpu_is_not_taken_for_that_of_the_warm_one():
    telemetry = thermometer(iter([30] * 15 + [30 + 4 * t for t in range(1, 8)] + [58] * 8))
    steady = []
    for _ in range(30):
        telemetry.take()
        steady.append(telemetry.steady(14.0))  # its work begins at 14 s
    assert steady.index(True) == 26  # since 21 s it is at 58


def test_a_gpu_that_is_lost_is_not_warmed_up():
    telemetry = thermometer(iter([40, 50]))
    telemetry.take()
    telemetry.fault = DeviceError("nvmlDeviceGetX", "GPU is lost", lost=True)
    assert telemetry.steady(0.0)


def test_a_gpu_without_a_thermometer_is_warm_at_once():
    telemetry = thermometer(iter([None]))
    assert not telemetry.steady(0.0)
    telemetry.take()
    assert telemetry.steady(0.0)


def test_a_sample_that_began_before_the_window_is_not_of_it():
    begun, go_on = threading.Event(), threading.Event()
    card = Card()

    def idle_sample():
        card.sample = lambda: SAMPLE
        begun.set()
        assert go_on.wait(60)
        return SAMPLE._replace(power_w=10.0)

    card.sample = idle_sample
    with Telemetry(card) as telemetry:
        assert begun.wait(60)
        threading.Timer(0.05, go_on.set).start()
        with telemetry.window():
            pass
    assert {sample.power_w for sample in telemetry.windows[0].samples} == {100.0}
