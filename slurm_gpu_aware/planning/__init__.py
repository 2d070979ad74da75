"""Planning of one round: order, guaranteed prefix, placement, preemption, backfill."""
