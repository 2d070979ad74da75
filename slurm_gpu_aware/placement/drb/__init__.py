"""Dynamic recursive bipartition for topology-aware placement (Amaral et al., SC'17)."""
