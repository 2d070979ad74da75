"""What the GPUs of running jobs should be set to, by orders and by their jobs' starts."""

from __future__ import annotations

from collections.abc import Mapping

from slurm_gpu_aware.clocks.accounts import Account
from slurm_gpu_aware.node_orders import Order, Orders

Target = tuple[str, int, int]
"""(job, MHz, W; 0: the default clock, the site's own power limit)."""


def target_of(order: Order, account: Account) -> Target:
    """What an order says for a GPU; without a limit that of the job's start counts."""
    limit_w = account.asked[1] if order.limit_w is None else order.limit_w
    return account.job_id, order.mhz, limit_w


def kept_low(orders: Orders, accounts: Mapping[int, Account]) -> dict[int, Target]:
    """GPU -> of the order and the start of the job that holds it the lower clock and limit."""
    kept = {}
    for order in orders.orders:
        for index in order.gpus:
            account = accounts.get(index)
            if account is not None and account.job_id == str(order.job):
                _, *ordered = target_of(order, account)
                mhz, limit_w = (
                    min(filter(None, both), default=0)
                    for both in zip(ordered, account.asked, strict=True)
                )
                kept[index] = (account.job_id, mhz, limit_w)
    return kept
