-- The filter's copy of the configuration, written by `gpu-aware setup`: data, a table without calls.
-- Touch job_submit.lua after a change, so that slurmctld reads it.
return {
    -- Application classes, most sensitive to variability first (site.classes).
    classes = { "A", "B", "C" },
    -- Policies that users may name with place= (placement.allowed).
    policies = { "eft", "pal+mapa", "pal", "pm-first", "packed", "mapa-preserve", "topo-aware" },
    -- place=off is allowed (placement.allow_off).
    place_off = true,
    -- Slurm's commands mark --test-only (setup.cli_filter).
    cli_filter = false,
    -- ScronParameters of slurm.conf enables scrontab; if not, its mark is forged, and refused.
    scrontab = true,
    -- sbatch -M has a choice of clusters: it asks each, and submits to one.
    several_clusters = true,
    -- Partitions that are managed; empty: all (site.partitions).
    partitions = {},
    -- Partitions with nodes that have no GPUs: --exclusive without GPUs is not parked there. Absent:
    -- not known, and nowhere.
    partitions_with_others = {},
    -- Of these, those without any node with GPUs: there such a job wakes no selector.
    partitions_without_gpus = {},
    -- The gate (gate.licence, gate.reservation).
    licence = "gpuaware",
    reservation = "gpuaware_gate",
    -- One byte per parked job is appended here and wakes the selector (events.submit_file).
    submit_file = "/var/spool/slurm-gpu-aware/submitted",
    -- GPU models that requests may name as GRES types: gpu:a100:2 becomes feature gpu_a100.
    models = {},
    -- GRES types of GPUs that stay in requests: only the node is chosen (placement.gpus).
    types = {},
    -- All GRES types of GPUs on nodes: a job that asks for one waits, Slurm refuses any other at once.
    node_types = {},
    -- Park GPU jobs with a comment that is not ours, too (site.park_uncommented).
    park_uncommented = true,
    -- GPUs of the largest node; a larger --gpus must spread evenly over nodes.
    max_gpus_per_node = 8,
    -- CPUs and memory of the largest node with GPUs: a larger request is left to Slurm,
    -- which refuses it at once. Absent: not known.
    -- max_cpus_per_node = 64,
    -- max_memory_mb_per_node = 512000,
    -- Shards of the GPU with the most of them. Absent: not known.
    -- max_shards_per_gpu = 8,
    -- User ids of SlurmUser and operators; they, and root, may change every job.
    operators = {},
}
