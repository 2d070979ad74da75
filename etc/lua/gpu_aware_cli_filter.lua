--[[
gpu_aware_cli_filter.lua: marks tests (--test-only) for the filter in slurmctld, which then does not
park them, so that sbatch and srun answer as without slurm-gpu-aware. Slurm itself shows job_submit no
difference between a test and a submission.

Optional. It runs in Slurm's commands, on the user's host, and needs no other file of ours:

- Copy it to every host that has sbatch or srun, as cli_filter.lua beside slurm.conf. A site's own
  cli_filter.lua loads it instead, at its end (before a "return" outside of all functions):

    pcall(dofile, "/etc/slurm/gpu_aware_cli_filter.lua")

- Then, and not before, set CliFilterPlugins=lua in slurm.conf: without the file every sbatch, salloc
  and srun of a host fails.

The comment of a test gets the mark at its end. Nothing else is changed, and after an error here the
command goes on as it is. Runs on Lua 5.1 to 5.4.
]]

local MARK = "gpu:test-only" -- test_mark of gpu_aware_rules.lua
local MAX_COMMENT = 1024 -- Slurm refuses a longer one

local function mark(options)
    local comment = options["comment"] or ""
    if options["test-only"] ~= "set" or #comment > MAX_COMMENT then
        return
    end
    local marked = comment == "" and MARK or comment .. " " .. MARK
    options["comment"] = #marked <= MAX_COMMENT and marked or MARK
end

local function accept()
    return slurm.SUCCESS
end

slurm_cli_setup_defaults = slurm_cli_setup_defaults or accept
slurm_cli_post_submit = slurm_cli_post_submit or accept

local own = slurm_cli_pre_submit or accept

function slurm_cli_pre_submit(options, offset)
    local result = own(options, offset)
    pcall(mark, options)
    return result
end

return slurm.SUCCESS
