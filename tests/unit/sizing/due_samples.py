"""Speeds, distributions and an oracle of the tests of jobs with due dates."""

import numpy as np
from hypothesis import strategies as st
from parametric_work import beta, piecewise, weibull, with_atom
from scipy.optimize import linprog, minimize, minimize_scalar

from slurm_gpu_aware.features.due_dates.work import empirical, uniform
from slurm_gpu_aware.features.sizes.speeds import Speeds


def node_power(gpus, width, on_w, idle_w=0.0):
    """Power of a node of ``width`` GPUs of which so many are in use (STS, section III)."""
    return gpus * on_w + (width - gpus) * idle_w


def speeds_like(count, base=2.0, exponent=0.7, on_w=300.0, idle_w=0.0):
    """Sizes 1 to ``count``, with speeds ``base * k ** exponent``."""
    gpus = np.arange(1.0, count + 1)
    return Speeds(gpus, base * gpus**exponent, node_power(gpus, count, on_w, idle_w))


def with_share(speeds, share):
    """The same and a share of one GPU, on which a job takes 1.1 times as long."""
    return Speeds(
        np.concatenate(([share], speeds.gpus)),
        np.concatenate(([speeds.speed[0] / 1.1], speeds.speed)),
        np.concatenate(([share * speeds.power[0]], speeds.power)),
    )


@st.composite
def speeds_of_any_kind(draw):
    """Of all shapes: concave or not, with idle power or none."""
    count = draw(st.integers(1, 8))
    steps = draw(st.lists(st.floats(0.05, 3), min_size=count, max_size=count))
    idle_w = draw(st.sampled_from([0.0, 25.0, 100.0]))
    gpus = np.arange(1.0, count + 1)
    return Speeds(gpus, np.cumsum(steps) + 0.5, node_power(gpus, count, 300.0, idle_w))


concave_speeds = st.builds(
    speeds_like,
    st.integers(2, 8),
    st.floats(0.5, 5),
    st.floats(0.3, 0.95),
    idle_w=st.sampled_from([0.0, 20.0]),
)
smooth = st.one_of(
    st.builds(lambda most: uniform(most, most), st.floats(10, 200)),
    st.builds(weibull, st.floats(10, 200), st.floats(5, 400), st.floats(0.5, 3)),
    st.builds(beta, st.floats(10, 200), st.floats(0.8, 5), st.floats(0.8, 5)),
)
with_atoms = st.builds(with_atom, smooth, st.floats(0.01, 0.9))
cases = st.lists(st.floats(1, 100), min_size=1, max_size=12)
stepwise = st.builds(empirical, cases, st.floats(40, 120))


@st.composite
def pieces(draw):
    """Straight pieces with flat parts and jumps."""
    widths = draw(st.lists(st.sampled_from([0.0, 1.0, 5.0, 20.0]), min_size=2, max_size=6))
    falls = draw(st.lists(st.floats(0, 1), min_size=len(widths), max_size=len(widths)))
    levels = 1 - np.cumsum(falls) / (sum(falls) + 0.2)
    return piecewise([0, *np.cumsum(widths) + 1, 130], [1, *levels.clip(0, 1), 0])


any_work = st.one_of(smooth, with_atoms, stepwise, pieces())


def time_left(work, speeds, share):
    """A time between the least and the most that the job can take."""
    amount = work.most - work.done
    least, most = amount / speeds.speed[-1], amount / speeds.undominated.speed[0]
    return least + share * (most - least)


def survival(work, at):
    return float(work.survival(np.array([at]))[0])


def cost_by_linear_program(work, levels, speeds, left):
    """Optimum if P(W > w) is ``levels[i]`` from ``work[i]`` to ``work[i + 1]``: any mixture."""
    widths = np.diff(work)
    cost = np.outer(levels, speeds.power / speeds.speed).ravel()
    blocks = np.kron(np.eye(len(widths)), np.ones(len(speeds.speed)))
    time = np.tile(1 / speeds.speed, len(widths))[None]
    found = linprog(cost, time, [left], blocks, widths, method="highs")
    assert found.status == 0, found.message
    return found.fun


def cost_by_descent(work, speeds, left):
    """Optimum over the points of change, by sequential quadratic programming."""
    count = len(speeds.speed)
    unit_cost, unit_time = speeds.power / speeds.speed, 1 / speeds.speed
    scale = work.most - work.done
    gain = np.diff(unit_cost)

    def cost(x):
        area = work.integral(np.append(work.done + x * scale, work.most))
        return float(unit_cost[-1] * area[-1] - gain @ area[:-1]) / base

    def slope(x):
        return -gain * work.survival((work.done + x * scale).clip(None, work.most)) * scale / base

    base = float(unit_cost[0] * work.mean_left)
    order = np.eye(count - 1, count, 1)[:, 1:] - np.eye(count - 1)
    time = -np.diff(unit_time) * scale
    limits = [
        {
            "type": "ineq",
            "fun": lambda x: (left - scale * unit_time[-1] - time @ x) / left,
            "jac": lambda x: -time / left,
        },
    ]
    if count > 2:
        limits.append(
            {"type": "ineq", "fun": lambda x: (order @ x)[:-1], "jac": lambda x: order[:-1]}
        )
    best = np.inf
    for share in (0.0, 0.5, 0.9):
        start = np.full(count - 1, share * (left - scale * unit_time[-1]) / time.sum())
        found = minimize(
            cost,
            start.clip(0, 1),
            jac=slope,
            method="SLSQP",
            bounds=[(0, 1)] * (count - 1),
            constraints=limits,
            options={"ftol": 1e-15, "maxiter": 500},
        )
        kept = found.x.clip(0, 1)
        if limits[0]["fun"](kept) > -1e-9:
            best = min(best, cost(kept) * base)
    return best


def cost_by_duality(work, speeds, left):
    """Least cost of all mixtures of sizes, whatever the distribution: the Lagrange dual.

    With a price of time all work at some level of P(W > w) is cheapest at one size. No plan costs
    less than the best price says, so a plan of that cost is optimal.
    """
    unit_cost, unit_time = speeds.power / speeds.speed, 1 / speeds.speed
    slow, fast = np.triu_indices(len(unit_cost), 1)
    rise, gain = unit_cost[fast] - unit_cost[slow], unit_time[slow] - unit_time[fast]
    gain, rise = gain[rise > 0], rise[rise > 0]

    def least(price):
        levels = np.sort(price * gain / rise)[::-1]
        low, high = np.full(len(levels), work.done), np.full(len(levels), work.most)
        for _ in range(60):  # where P(W > w) falls below each level
            middle = (low + high) / 2
            above = work.survival(middle) >= levels
            low, high = np.where(above, middle, low), np.where(above, high, middle)
        ends = np.concatenate(([work.done], low, [work.most]))
        areas, amounts = np.diff(work.integral(ends)), np.diff(ends)
        cost = np.outer(areas, unit_cost) + price * np.outer(amounts, unit_time)
        return cost.min(axis=1).sum() - price * left

    most = 1.01 * max((rise / gain).max(initial=0.0), 1e-9)
    found = minimize_scalar(
        lambda price: -least(price), bounds=(0, most), method="bounded", options={"xatol": 1e-13}
    )
    return max(-found.fun, least(0.0), least(most))
