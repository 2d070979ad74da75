--[[
job_submit.lua for a site that has none: GPU placement and nothing else. A site that has its own
keeps it, see the head of gpu_aware.lua. Check a change with `luac -p` before installing it: with a
script that has a syntax error slurmctld does not start.
]]

local here = debug.getinfo(1, "S").source:match("^@(.*/)") or "/etc/slurm/"
local loaded, gpu_aware = pcall(dofile, here .. "gpu_aware.lua")
if not loaded then
    slurm.log_error("%s", "gpu_aware: GPU jobs pass unmodified: " .. tostring(gpu_aware))
end

function slurm_job_submit(job_desc, part_list, submit_uid)
    if loaded and gpu_aware.submit(job_desc, part_list, submit_uid) ~= slurm.SUCCESS then
        return slurm.ERROR
    end
    return slurm.SUCCESS
end

function slurm_job_modify(job_desc, job_rec, part_list, modify_uid)
    if loaded and gpu_aware.modify(job_desc, job_rec, part_list, modify_uid) ~= slurm.SUCCESS then
        return slurm.ERROR
    end
    return slurm.SUCCESS
end

return slurm.SUCCESS
