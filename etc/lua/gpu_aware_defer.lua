--[[
A begin time some seconds ahead, for batch jobs that arrive while others wait in the holding pool, and
for jobs that pass the gate: by then the selector guards the GPUs that are kept for the first job.

Slurm's main scheduler tries each new job on every node of its partition before it checks the gate's
licence: 15 ms on 2,000 nodes, with slurmctld's locks held. It does not try a job
that may not begin yet, and by then the selector has put it in the holding pool, or placed it and let
it begin at once. The selector writes beside submit_file until when jobs wait there, and at the gate, and
renews the time while it runs. Lua does not see --deadline.
]]

local here = debug.getinfo(1, "S").source:match("^@(.*/)") or "./"
local base = dofile(here .. "gpu_aware_base.lua")
local text_of, number16 = base.text_of, base.number16

local D = {}

local SOON_S = 10 -- several rounds of the selector
local GUARD_S = 5 -- the round that the submission starts
local LONGEST_S = 3600 -- the selector writes no later time

--- Is a time still ahead that the selector wrote? "r+" and seeking: see append_byte.
local function is_ahead(path)
    local file = io.open(path, "r+")
    if not file then
        return false
    end
    local last = file:seek("set", 0) and file:read("*n")
    file:close()
    local now = os.time()
    return type(last) == "number" and now < last and last < now + LONGEST_S
end

--- Begin time to give to a job that is parked now; nil: none.
function D.begin_time(job, conf)
    local deferred = conf.submit_file
        and text_of(job.script)
        and (job.begin_time or 0) == 0
        and not text_of(job.dependency)
        and not text_of(job.reservation)
        and job.priority ~= 0 -- --hold
    return deferred and is_ahead(conf.submit_file .. ".defer") and os.time() + SOON_S or nil
end

--- Do jobs wait at the gate?
function D.jobs_wait(conf)
    return conf.submit_file ~= nil and is_ahead(conf.submit_file .. ".waiting")
end

--- Begin time to give to a job that passes the gate, while jobs wait there; nil: none.
function D.behind_guard(job, conf)
    local soon = os.time() + GUARD_S
    local may = (job.begin_time or 0) < soon and (number16(job.immediate) or 0) == 0
    return may and D.jobs_wait(conf) and soon or nil
end

return D
