"""Topology-aware placement by dynamic recursive bipartition (Amaral et al., SC'17)."""
