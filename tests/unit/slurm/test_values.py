"""GRES lines of nodes and jobs: GPUs are read strictly, what shares or cuts them is noticed."""

from dataclasses import astuple

import pytest

from slurm_gpu_aware.errors import SourceError
from slurm_gpu_aware.slurm.gres import is_mig, parse_gres


def parsed(text: str) -> list[tuple[str, str | None, int, tuple[int, ...] | None]]:
    return [astuple(item)[:4] for item in parse_gres(text)]


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("(null)", []),
        ("gpu:2(S:0-1)", [("gpu", None, 2, None)]),
        ("gpu:1080:4(S:0)", [("gpu", "1080", 4, None)]),
        ("gpu:g1:1(IDX:1),gpu:2(IDX:N/A)", [("gpu", "g1", 1, (1,)), ("gpu", None, 2, ())]),
        ("gpu:a100:4(IDX:0-1,3,5)", [("gpu", "a100", 4, (0, 1, 3, 5))]),
        # A node that lacks a device: IDX counts what is there, the type tells which.
        ("gpu:g3:1(IDX:2)", [("gpu", "g3", 1, (3,))]),
        # GPUs that gres.conf gives no file for are only counted.
        ("gpu:a100(CNT:2)", [("gpu", "a100", 2, None)]),
        ("gpu:g2(CNT:1)", [("gpu", "g2", 1, (2,))]),
        ("gpu:no_consume:4", [("gpu", None, 4, None)]),
        ("gpu,gpu:a100", [("gpu", None, 1, None), ("gpu", "a100", 1, None)]),
    ],
)
def test_gpus(text: str, found: list[tuple[str, str | None, int, tuple[int, ...] | None]]) -> None:
    assert parsed(text) == found


@pytest.mark.parametrize(
    "other",
    [
        "tmp:512G",
        "ssd1:1",
        "nic:mlx5:2(S:0)",
        "VramPerGpu:no_consume:48G",
        "bandwidth:lustre:no_consume:4G",
        "gpu_mem:80G(CNT:81920)",
    ],
)
def test_what_is_no_gpu_is_passed_over(other: str) -> None:
    gpu = ("gpu", "g0", 1, (0,))
    assert parsed(f"gpu:g0:1(IDX:0),{other}") == [gpu]
    assert parsed(f"{other},gpu:g0:1(IDX:0)") == [gpu]


@pytest.mark.parametrize(
    ("sharing", "found", "parts"),
    [
        ("shard:32", ("shard", None, 32, None), ()),
        ("shard:g1:4(S:0-1)", ("shard", "g1", 4, None), ()),
        ("shard:0(0/8,0/8)", ("shard", None, 0, None), ((0, 8), (0, 8))),
        ("shard:3(-/8,3/8)", ("shard", None, 3, None), ((0, 8), (3, 8))),
        ("shard:g1:3(3/4)", ("shard", "g1", 3, None), ((3, 4),)),
        ("shard:(null):2(2/3,0/3)", ("shard", None, 2, None), ((2, 3), (0, 3))),
        ("shard:3(3/4,8)", ("shard", None, 3, None), ()),
        ("shard:1(1/2,x/2)", ("shard", None, 0, None), ()),
        ("shard", ("shard", None, 0, None), ()),
        ("mps:a100:100(50/100,50/100)", ("mps", None, 0, None), ()),
    ],
)
def test_what_shares_gpus_is_noticed(
    sharing: str, found: tuple[object, ...], parts: tuple[tuple[int, int], ...]
) -> None:
    assert parsed(f"gpu:2,{sharing}") == [("gpu", None, 2, None), found]
    assert parse_gres(f"gpu:2,{sharing}")[1].parts == parts


def test_untyped_gpus_beside_shards() -> None:
    assert parsed("gpu:(null):1(IDX:2)") == [("gpu", None, 1, (2,))]


@pytest.mark.parametrize("text", ["gpu:g1:many", "gpu:2(IDX:a)", "gpu:2G", "gpu:a b:1", "gpu:2("])
def test_gpus_that_cannot_be_understood(text: str) -> None:
    with pytest.raises(SourceError):
        parse_gres(f"tmp:1G,{text}")


@pytest.mark.parametrize(
    ("kind", "slices"),
    [
        ("1g.5gb", True),
        ("3g.20gb", True),
        ("1g.10gb+me", True),
        ("1c.3g.20gb", True),
        ("nvidia_a100_3g.20gb", True),
        ("nvidia_h100_80gb_hbm3_1g.10gb", True),
        ("a100_1g10gb", True),
        ("mig-small", True),
        (None, False),
        ("g0", False),
        ("a100", False),
        ("nvidia_h100_80gb_hbm3", False),
        ("nvidia_rtx_pro_6000_blackwell", False),
        ("tesla_v100-sxm2-16gb", False),
        ("migration", False),
    ],
)
def test_slices_of_a_gpu(kind: str | None, slices: bool) -> None:
    assert is_mig(kind) is slices
