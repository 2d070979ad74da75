--[[
A begin time some seconds ahead, for batch jobs that arrive while others wait in the holding pool, and
for those that pass the gate: by then the selector guards the GPUs that are kept for the first job.

Slurm's main scheduler tries each new job on every node of its partition before it checks the gate's
licence: 15 ms on 2,000 nodes, with slurmctld's locks held. It does not try a job
that may not begin yet, and by then the selector has put it in the holding pool, or placed it and let
it begin at once. The selector writes beside submit_file until when jobs wait there, and renews the
time while it runs. Lua does not see --deadline.
]]

local here = debug.getinfo(1, "S").source:match("^@(.*/)") or "./"
local text_of = dofile(here .. "gpu_aware_base.lua").text_of

local D = {}

local SOON_S = 10 -- several rounds of the selector
local GUARD_S = 5 -- the round that the submission starts
local LONGEST_S = 3600 -- the selector writes no later time

--- Time until which new jobs are deferred; nil: none are. "r+" and seeking: see append_byte.
local function until_s(path)
    local file = io.open(path, "r+")
    if not file then
        return nil
    end
    local number = file:seek("set", 0) and file:read("*n")
    file:close()
    return type(number) == "number" and number or nil
end

--- Is it a batch job that nothing else holds?
local function may_begin_later(job, conf)
    return conf.submit_file
        and (job.begin_time or 0) == 0
        and not text_of(job.dependency)
        and not text_of(job.reservation)
        and job.priority ~= 0 -- --hold
        and text_of(job.script)
end

--- Begin time to give to a job that is parked now; nil: none.
function D.begin_time(job, conf)
    if not may_begin_later(job, conf) then
        return nil
    end
    local now, last = os.time(), until_s(conf.submit_file .. ".defer")
    return last and now < last and last < now + LONGEST_S and now + SOON_S or nil
end

--- Begin time to give to a job that passes the gate; nil: none.
function D.behind_guard(job, conf)
    return may_begin_later(job, conf) and os.time() + GUARD_S or nil
end

return D
