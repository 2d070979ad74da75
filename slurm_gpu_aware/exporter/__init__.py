"""Exporter of metrics for Prometheus: the list of them, their sources, the page that is served."""
