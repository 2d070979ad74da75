"""What the product name of a GPU says: its model, its NVLinks, and the board of the model."""

from __future__ import annotations

import re

NVLINK_GBPS = {1: 20.0, 2: 25.0, 3: 25.0, 4: 25.0, 5: 50.0, 6: 100.0}
"""Generation of NVLink -> GB/s of one link in one direction."""
_NVLINK_5 = re.compile("g?b[123]00")
_VENDOR_WORDS = {"nvidia", "tesla", "quadro", "geforce", "graphics", "device", "gpu"}
_VENDOR_WORDS |= {"hgx", "dgx", "grid", "amd", "instinct"}
_SERIES_WORDS = {"rtx", "gtx", "titan", "pro", "cmp"}
_VARIANT_WORDS = {"ti", "super", "ada", "nvl", "maxq", "laptop", "d", "v2"}


def model_word(name: str) -> str | None:
    """Return the short name of a model: ``Tesla V100-SXM2-16GB`` is ``v100``.

    It is the first word that is neither the vendor's nor a product line's, up to its first hyphen,
    with a leading ``rtx``, ``gtx``, ``titan``, ``cmp`` or ``pro``, because a number alone is not
    specific, and with words that name another chip or limit: ``RTX 6000 Ada Generation`` is
    ``rtx6000ada``.
    """
    plain = name.lower().replace("max-q", "maxq")
    heads = [re.sub(r"[^a-z0-9]", "", word.partition("-")[0]) for word in plain.split()]
    words = [head for head in heads if head and head not in _VENDOR_WORDS]
    end = next((i + 1 for i, word in enumerate(words) if word not in _SERIES_WORDS), len(words))
    variants = [word for word in words[end:] if word in _VARIANT_WORDS]
    return "".join(words[:end] + variants) or None


def nvlink_gbps(model: str | None) -> float:
    """GB/s of one NVLink of a model in one direction; of an unknown one that of NVLink 2 to 4."""
    newest = 5 if _NVLINK_5.match(model or "") else 4
    return NVLINK_GBPS[1 if model == "p100" else newest]


_BOARD = re.compile(
    r"pcie|(?P<sxm>sxm)\d?|nvl|fhhl|lc|sff|hbm\w{1,3}|3e|server|workstation|(?P<size>\d{1,4})gi?b?"
)


def board_of(name: str | None) -> str:
    """Form and memory as far as a product name has them: ``A100-PCIE-40GB`` is ``40gb pcie``."""
    words = map(_BOARD.fullmatch, re.split(r"[^a-z0-9]+", (name or "").lower()[:200]))
    return " ".join(
        sorted({f"{m['size']}gb" if m["size"] else m["sxm"] or m[0] for m in words if m})
    )
