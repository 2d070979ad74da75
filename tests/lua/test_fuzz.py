"""100,000 comments through the real filter: nothing raises, nothing is changed on refusal."""

import random

import pytest
from luafilter import ERROR, SUCCESS, MakeFilter

from slurm_gpu_aware.features.hints import HINTS

COMMENTS = 100_000
PIECES = [
    b"class=A", b"bw=high", b"gpus=2", b"gpus=1-4", b"place=pal", b"place=off", b"freq=max",
    b"model=bert", b"pattern=ring", b",", b",", b",", b"=", b" ", b"\t", b"\n", b"\r\n", b"'", b'"',
    b"`id`", b"$(reboot)", b"${HOME}", b";rm -rf /", b"|", b"&", b"\\", b"%s%n%d", b"%00", b"\x00",
    b"\x1b[31m", b"\xff\xfe", "é".encode(), "日本".encode(), b"]]", b"--[[", b"\\0", b"class",
    b"class=", b"=A", b"move=90s", b"gpuaware/1;", b"1e309", b"nan", b"-0",
]  # fmt: skip

DRIVER = b"""
return function(filter, harness, comment)
    local job, values, writes = harness.job({
        tres_per_node = "gres/gpu:2", script = "x", comment = comment })
    harness.messages, harness.log = {}, {}
    local raised = not pcall(function() rc = filter.submit(job, nil, 1000) end)
    local written = #writes
    local record = { licenses = "gpuaware:1", admin_comment = "gpuaware/1;tn=gres/gpu:2" }
    local update = harness.job({ comment = comment, num_tasks = 2 })
    local modified = filter.modify(update, harness.job(record), nil, 1000)
    return rc, written, #harness.messages, #harness.log, raised, modified,
        harness.messages[1] or "", values.comment
end
"""


def comments(rng: random.Random) -> bytes:
    kind = rng.random()
    if kind < 0.02:  # 10 kB
        return (rng.choice(PIECES) * 10_240)[:10_240]
    if kind < 0.3:
        return rng.randbytes(rng.randrange(60))
    if kind < 0.5:
        key = rng.choice(HINTS).key.encode()
        return key + b"=" + rng.choice(PIECES) + rng.randbytes(rng.randrange(4))
    return b"".join(rng.choices(PIECES, k=rng.randrange(1, 9)))


@pytest.mark.parametrize("seed", [20260701])
def test_no_comment_does_harm(make_filter: MakeFilter, seed: int) -> None:
    filter_ = make_filter()
    filter_.module[b"conf"][b"submit_file"] = None
    drive = filter_.lua.execute(DRIVER)
    rng = random.Random(seed)
    verdicts = {SUCCESS: 0, ERROR: 0}
    for _ in range(COMMENTS):
        comment = comments(rng)
        rc, writes, messages, log, raised, modified, sentence, kept = drive(
            filter_.module, filter_.harness, comment
        )
        assert not raised, comment
        assert log == 0, comment
        assert kept == comment.split(b"\x00")[0] or kept == comment
        if rc == ERROR:
            assert (writes, modified) == (0, ERROR), comment
            assert messages >= 1
            assert sentence.startswith(b"gpu-aware: "), comment
            assert all(32 <= c <= 126 for c in sentence), comment
            assert len(sentence) < 250, comment
        else:
            assert writes in (0, 2), comment
        verdicts[rc] += 1
    assert min(verdicts.values()) > COMMENTS // 20, verdicts
