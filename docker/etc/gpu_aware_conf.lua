-- The filter's copy of the configuration of the container cluster (on a site `gpu-aware setup` writes it).
return {
  classes = { "A", "B", "C" },
  policies = { "eft", "pal+mapa", "pal", "pm-first", "packed", "mapa-preserve", "topo-aware" },
  licence = "gpuaware",
  reservation = "gpuaware_gate",
  submit_file = "/var/spool/slurm-gpu-aware/submitted",
  models = { "v100" },
  partitions_with_others = {},
  partitions_without_gpus = {},
  park_uncommented = true,
  cli_filter = true,
  several_clusters = false,
  scrontab = false,
  max_gpus_per_node = 4,
  max_cpus_per_node = 16,
  max_memory_mb_per_node = 64000,
  operators = { 0, 64030 },
}
