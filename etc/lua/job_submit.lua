--[[
job_submit.lua for a site that has none: GPU placement and nothing else. A site that has its own
keeps it, see the head of gpu_aware.lua. Check a change with `luac -p` before you install it:
slurmctld does not start with a script that has a syntax error.
]]

local here = debug.getinfo(1, "S").source:match("^@(.*/)") or "/etc/slurm/"

function slurm_job_submit()
    return slurm.SUCCESS
end

function slurm_job_modify()
    return slurm.SUCCESS
end

local loaded, gpu_aware = pcall(dofile, here .. "gpu_aware.lua")
if loaded then
    gpu_aware.join()
else
    slurm.log_error("%s", "gpu_aware: GPU jobs pass unmodified: " .. tostring(gpu_aware))
end

return slurm.SUCCESS
