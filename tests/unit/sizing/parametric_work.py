"""Work with parametric distributions, which have exact answers: Weibull, beta, pieces, atoms."""

from dataclasses import dataclass, replace

import numpy as np
from scipy.special import betaincc, betainccinv, gamma, gammainc

from slurm_gpu_aware.features.due_dates.work import Pieces, WorkDistribution
from slurm_gpu_aware.model.arrays import FloatArray


@dataclass(frozen=True)
class Weibull:
    """S(w) = exp(-(w / scale)^shape); shape 1: exponential."""

    scale: float
    shape: float = 1.0

    def survival(self, work: FloatArray) -> FloatArray:
        return np.exp(-((work / self.scale) ** self.shape))

    def inverse(self, level: FloatArray) -> FloatArray:
        with np.errstate(divide="ignore"):
            hazard: FloatArray = -np.log(level.clip(0, 1))
        found: FloatArray = self.scale * hazard ** (1 / self.shape)
        return found

    def integral(self, work: FloatArray) -> FloatArray:
        power = 1 / self.shape
        below: FloatArray = gammainc(power, (work / self.scale) ** self.shape)
        return self.scale * float(gamma(1 + power)) * below


@dataclass(frozen=True)
class Beta:
    """W / most has the distribution Beta(a, b)."""

    a: float
    b: float
    most: float

    def survival(self, work: FloatArray) -> FloatArray:
        found: FloatArray = betaincc(self.a, self.b, (work / self.most).clip(0, 1))
        return found

    def inverse(self, level: FloatArray) -> FloatArray:
        found: FloatArray = self.most * betainccinv(self.a, self.b, level.clip(0, 1))
        return found

    def integral(self, work: FloatArray) -> FloatArray:
        share = (work / self.most).clip(0, 1)
        mean = self.a / (self.a + self.b)
        ended = mean * (1 - betaincc(self.a + 1, self.b, share))
        found: FloatArray = self.most * (share * betaincc(self.a, self.b, share) + ended)
        return found


def truncated(shape, most):
    """Distribution of W given that W <= most."""
    beyond = float(shape.survival(np.array([most]))[0])
    return WorkDistribution(shape, 1 / (1 - beyond), -beyond / (1 - beyond), 0.0, most)


def weibull(most, scale, shape=1.0):
    """Weibull, of shape 1 exponential with mean ``scale``, truncated at ``most``."""
    return truncated(Weibull(scale, shape), most)


def beta(most, a, b):
    """W / most has the distribution Beta(a, b)."""
    return truncated(Beta(a, b, most), most)


def piecewise(work, survival):
    """P(W > w) by straight pieces between points, from work 0 to the most; equal works: a jump."""
    points = Pieces(np.array(work, dtype=float), np.array(survival, dtype=float))
    return WorkDistribution(points, 1.0, 0.0, 0.0, float(points.work[-1]))


def with_atom(work, share):
    """The same with a further probability that all the work is done."""
    kept = 1 - share
    return replace(work, factor=kept * work.factor, offset=kept * work.offset + share)
