"""Forward pass of a transformer block: matrix products, softmax, layer norm.

Pre-norm block of [1]_: y = x + attention(norm(x)); z = y + W2 relu(W1 norm(y)).

References
----------
.. [1] R. Xiong et al., "On Layer Normalization in the Transformer Architecture", ICML 2020.
"""

from __future__ import annotations

import math
from typing import Any

from gpu_aware_profile.kernels.arrays import Array, Engine, check_close, uniform

_HEAD = 64
_TOLERANCE = {"fp32": 1e-3, "tf32": 5e-2}
"""Of outputs of size 1; products in tf32 have 11 bits."""


def _norm(xp: Any, x: Array) -> Array:
    """Layer norm of each row, without scale and shift."""
    centred = x - x.mean(axis=-1, keepdims=True)
    variance = (centred * centred).mean(axis=-1, keepdims=True)
    centred *= 1.0 / xp.sqrt(variance + 1e-5)
    return centred


def _softmax(xp: Any, scores: Array) -> Array:
    """Softmax of each row, in place."""
    scores -= scores.max(axis=-1, keepdims=True)
    xp.exp(scores, out=scores)
    scores /= scores.sum(axis=-1, keepdims=True)
    return scores


class TransformerBlock:
    """A block of ``width`` channels on ``batch`` sequences of ``length`` tokens; a `Kernel`."""

    name = "transformer_block"
    unit = "TFLOP/s"
    limit = None

    def __init__(self, engine: Engine, batch: int, length: int, width: int) -> None:
        xp = engine.xp
        self._engine = engine
        self._batch, self._length, self._width = batch, length, width
        self._precision = "tf32" if "tf32" in engine.precisions else "fp32"
        self._x = uniform(xp, (batch * length, width), 50, xp.float32)
        scale = math.sqrt(3.0 / width)  # weights of variance 1 / width keep the size
        self._weights = [
            scale * uniform(xp, shape, 60 + number, xp.float32)
            for number, shape in enumerate(
                [(width, 3 * width), (width, width), (width, 4 * width), (4 * width, width)]
            )
        ]
        tokens = batch * length
        self.work = 2.0 * tokens * (12 * width**2 + 2 * length * width)
        self.result = xp.empty_like(self._x)

    def launch(self) -> None:
        """Compute the block."""
        engine = self._engine

        def product(a: Array, b: Array, transposed: bool = False) -> Array:
            shape = (*a.shape[:-1], b.shape[-2] if transposed else b.shape[-1])
            out = engine.xp.empty(shape, a.dtype)
            engine.matmul(a, b, out, self._precision, transposed)
            return out

        self.result = self._block(self._x, self._batch, self._weights, product)

    def _block(self, x: Array, batch: int, weights: list[Array], product: Any) -> Array:
        xp = self._engine.xp
        length, width = self._length, self._width
        heads = width // _HEAD
        joined = product(_norm(xp, x), weights[0]).reshape(batch, length, 3, heads, _HEAD)
        q, k, v = xp.ascontiguousarray(joined.transpose(2, 0, 3, 1, 4)).reshape(
            3, batch * heads, length, _HEAD
        )
        scores = product(q, k, transposed=True)
        scores *= 1.0 / math.sqrt(_HEAD)
        mixed = product(_softmax(xp, scores), v).reshape(batch, heads, length, _HEAD)
        mixed = xp.ascontiguousarray(mixed.transpose(0, 2, 1, 3)).reshape(batch * length, width)
        y = product(mixed, weights[1])
        y += x
        hidden = product(_norm(xp, y), weights[2])
        xp.maximum(hidden, 0.0, out=hidden)
        z = product(hidden, weights[3])
        z += y
        return z

    def check(self) -> None:
        """Compare the last sequence with the block in float64. Raises WrongResultError."""
        xp = self._engine.xp

        def product(a: Array, b: Array, transposed: bool = False) -> Array:
            return a @ (b.swapaxes(-1, -2) if transposed else b)

        last = self._x[-self._length :].astype(xp.float64)
        weights = [weight.astype(xp.float64) for weight in self._weights]
        expected = self._block(last, 1, weights, product)
        found = self.result[-self._length :].astype(xp.float64)
        check_close(xp, "the block", found, expected, _TOLERANCE[self._precision])
