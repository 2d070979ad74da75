"""Kernels on NumPy: right results pass, wrong ones do not; when a median is known well enough."""

import math

import numpy as np
import pytest
from numpy_engine import NumpyEngine, small_kernels, stuck_bit

from gpu_aware_profile.kernels import arrays
from gpu_aware_profile.kernels.arrays import WrongResultError
from gpu_aware_profile.kernels.classes import CLASSES, NEEDED_SHARE, Gemm, kernels_of
from gpu_aware_profile.kernels.program import Sampler, interval_ranks, relative_width

NAMES = [kernel.name for kernel in small_kernels(NumpyEngine())]


def kernel_named(name, engine):
    return next(kernel for kernel in small_kernels(engine) if kernel.name == name)


@pytest.mark.parametrize("name", NAMES)
def test_right_results_pass_and_repeat(name):
    engine = NumpyEngine()
    kernel = kernel_named(name, engine)
    first = Sampler(engine).prepare(kernel)
    kernel.launch()
    assert np.array_equal(first, kernel.result)
    assert kernel.work > 0


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize(
    ("where", "wrong"), [(-1, np.nan), (-1, np.inf), (-1, 1e4), (slice(None), 0)]
)
def test_a_wrong_number_and_zeros_are_found(name, where, wrong):
    kernel = kernel_named(name, NumpyEngine())
    kernel.launch()
    kernel.result.reshape(-1)[where] = wrong
    with pytest.raises(WrongResultError):
        kernel.check()


@pytest.mark.parametrize("precision", NumpyEngine.precisions)
def test_a_product_of_a_corrupted_input_is_wrong(precision):
    """One row of the product is of another matrix."""
    engine = NumpyEngine()
    kernel = Gemm(engine, 64, precision)
    kernel.launch()
    kernel.result[5] = kernel.result[6]
    with pytest.raises(WrongResultError, match="the product is off by"):
        kernel.check()


@pytest.mark.parametrize("name", ["gemm_fp32", "gemm_fp64", "triad", "pagerank"])
def test_one_bit_that_flips_in_timed_launches_is_found(name):
    engine = NumpyEngine(stuck_bit)
    sampler = Sampler(engine, least_s=0.0, most_s=0.1)
    kernel = kernel_named(name, engine)
    expected = sampler.prepare(kernel)
    with pytest.raises(WrongResultError, match=r"1 of \d+ numbers differ"):
        sampler.measure(kernel, expected, lambda event: None)


def test_inputs_are_equal_everywhere_and_uniform():
    values = arrays.uniform(np, (100_000,), 10, np.float32)
    assert values[:3].tolist() == arrays.uniform(np, (3,), 10, np.float32).tolist()
    assert values.min() >= -1
    assert values.max() < 1
    assert float(values.mean(dtype=np.float64)) == pytest.approx(0.0, abs=0.01)
    assert float(values.var(dtype=np.float64)) == pytest.approx(1 / 3, rel=0.01)
    double = arrays.uniform(np, (1000,), 10, np.float64)
    assert len({math.frexp(x)[0] * 2**53 % 2**20 for x in double}) > 900  # low bits are random


def test_rounding_to_the_inputs_of_tensor_cores():
    values = np.array([1.0, 1.0 + 2**-11, 1.0 + 3 * 2**-11, -1.0 - 2**-8], np.float32)
    tf32 = arrays.rounded(np, values, "tf32")
    assert tf32.tolist() == [1.0, 1.0 + 2**-10, 1.0 + 2**-9, -1.0 - 2**-8]
    bf16 = arrays.as_float64(np, arrays.rounded(np, values, "bf16"))
    assert bf16.tolist() == [1.0, 1.0, 1.0, -1.0 - 2**-7]
    assert arrays.rounded(np, values, "fp32") is values


def test_the_ranks_have_the_coverage():
    """Against tables of binomial intervals for the median (95%)."""
    known = {5: None, 6: (0, 5), 10: (1, 8), 20: (5, 14), 100: (39, 60)}
    assert {n: interval_ranks(n) for n in known} == known
    for n in (7, 25, 400, 1500):
        low, high = interval_ranks(n)
        inside = sum(math.comb(n, k) for k in range(low + 1, high + 1)) / 2**n
        assert inside >= 0.95
        assert inside - 2 * math.comb(n, low + 1) / 2**n < 0.95


def test_the_interval_covers_the_median_as_often_as_it_says():
    draw = np.random.default_rng(1).lognormal(0.0, 0.01, (2000, 30))
    low, high = interval_ranks(30)
    ordered = np.sort(draw, axis=1)
    covered = np.mean((ordered[:, low] <= 1.0) & (ordered[:, high] >= 1.0))
    assert 0.945 <= covered <= 0.985
    assert relative_width([1.0] * 5) == math.inf
    assert relative_width([1.0] * 30) == 0.0


class Scripted:
    """An engine whose samples are given; one launch takes 10 ms."""

    xp = np

    def __init__(self, samples):
        self._samples = iter(samples)
        self.asked = 0

    def seconds(self, launch, count):
        launch()
        self.asked += 1
        return next(self._samples) * count

    def peak(self, what):
        return 4.0


class Nothing:
    name, work, unit, limit = "nothing", 1e10, "TFLOP/s", "fp32"
    result = np.zeros(1)

    def launch(self):
        pass


def sampled(times, **options):
    engine = Scripted([0.01, *times])
    sampler = Sampler(engine, **options)
    return sampler.measure(Nothing(), np.zeros(1), lambda event: None), engine.asked - 1


def test_a_steady_kernel_ends_after_the_least_time():
    found, asked = sampled([0.01] * 1000, least_s=0.5, most_s=3.0)
    assert asked == 50
    assert found.time.value_ms == pytest.approx(10.0)
    assert (found.time.rate, found.time.share) == (pytest.approx(1.0), pytest.approx(0.25))
    assert (found.samples, found.spread) == (50, 0.0)


def test_a_restless_kernel_ends_at_the_limit():
    times = np.random.default_rng(2).normal(0.01, 0.003, 1000)
    assert 300 <= sampled(times, least_s=0.5, most_s=3.0)[1] <= 320


def test_a_noisy_kernel_is_repeated_until_its_interval_is_narrow():
    times = np.random.default_rng(3).normal(0.01, 0.0002, 1000)
    found, asked = sampled(times, least_s=0.2, most_s=10.0, width=0.005)
    # Width is 2 x 1.96 x 1.25 sigma / sqrt(n): 2% noise needs 400.
    assert 200 <= asked <= 800
    assert found.time.value_ms == pytest.approx(10.0, rel=0.005)


@pytest.mark.parametrize("gib", [8, 16, 32, 64, 128])
def test_sizes_follow_the_memory_and_fit(gib):
    class Sizes(NumpyEngine):
        memory_bytes = gib << 30

    made = []

    class Recorded:
        def __init__(self, engine, *sizes, **named):
            made.append((type(self).__name__, *sizes, *named.values()))

    needed = {"A": 0, "B": 0, "C": 0}
    names = ("Gemm", "Convolution", "TransformerBlock", "PageRank", "Triad")
    with pytest.MonkeyPatch.context() as patch:
        for name in names:
            patch.setattr(f"gpu_aware_profile.kernels.classes.{name}", type(name, (Recorded,), {}))
        for app_class in CLASSES:
            made.clear()
            kernels_of(app_class, Sizes())
            # Each is made while those before it keep their arrays.
            made_bytes = [BYTES[name](*sizes) for name, *sizes in made]
            kept = [KEPT.get(name, lambda *sizes: 0)(*sizes) for name, *sizes in made]
            kept = [k or m for k, m in zip(kept, made_bytes, strict=True)]
            needed[app_class] = max(sum(kept[:i]) + m for i, m in enumerate(made_bytes))
            ranks = [4 * sizes[0] for name, *sizes in made if name == "PageRank"]
            assert all(size > CACHES_MB[gib] << 20 for size in ranks)
    assert max(needed.values()) <= NEEDED_SHARE * Sizes.memory_bytes
    assert min(needed.values()) > 1 << 28


BYTES = {
    # Inputs, output, its copy, and float64 copies while it is checked.
    "Gemm": lambda n, precision: (
        n * n * {"bf16": 12, "fp64": 32}.get(precision, 16)
        + (n * n * 8 if precision == "fp64" else 0)
    ),
    "Convolution": lambda batch, side, c: 4 * batch * side**2 * c * (9 + 1 + 2) + 36 * c * c,
    "TransformerBlock": lambda b, length, width: (
        4 * b * length * width * 20 + 4 * b * length**2 * (width // 64) * 3 + 12 * width**2 * 12
    ),
    "PageRank": lambda vertices: vertices * (16 * 20 + 40),
    "Triad": lambda length: 8 * length * 7,
}
KEPT = {"PageRank": lambda vertices: vertices * (16 * 4 + 24)}
"""Less than while it is made."""
CACHES_MB = {8: 36, 16: 72, 32: 96, 64: 126, 128: 126}
"""Largest cache of the cards of a size: RTX 4070, RTX 4090, L40S, RTX PRO 6000, B200."""
