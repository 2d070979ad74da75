"""PAL's walk over the cells of the L x V matrix, written out."""

from slurm_gpu_aware.model.cluster import Cluster
from slurm_gpu_aware.placement.level_views import level_views, score_table


def traversal(cluster: Cluster, app_class: str) -> list[tuple[str, float, float]]:
    """Return the L x V matrix of a class in the order of the walk: (level, V, L x V).

    Ascending in the product; equal products tighter level first. ``len(levels) * bins`` rows.
    """
    table = score_table(cluster, app_class)
    cells = [
        (level.penalty * float(value), position, level.name, float(value))
        for position, level in enumerate(level_views(cluster, app_class))
        for value in table.values
    ]
    return [(name, value, product) for product, _, name, value in sorted(cells)]
