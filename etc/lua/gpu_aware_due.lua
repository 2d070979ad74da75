--[[
Due dates that cannot be met, told at submission.

What earlier runs of a job's name took at least is in a file of its user, which the selector writes
beside submit_file (slurm_gpu_aware/features/due_dates/shortest_runs.py): a line for each name, its first
bytes in hex, the least seconds, the least GPU-seconds. It is read for jobs with due= only. A file
that is missing, too large or not of this form says nothing.
]]

local here = debug.getinfo(1, "S").source:match("^@(.*/)") or "./"
local base = dofile(here .. "gpu_aware_base.lua")
local request = dofile(here .. "gpu_aware_request.lua")
local rules = dofile(here .. "gpu_aware_rules.lua")

local D = {}

--- Seconds until a due date.
local function time_left(due)
    if type(due) == "number" then
        return due
    end
    local year, month, day, hour, min, sec = due:match("(%d+)-(%d+)-(%d+)T(%d+):(%d+):?(%d*)")
    sec = tonumber(sec) or 0
    local at = { year = year, month = month, day = day, hour = hour, min = min, sec = sec }
    return os.time(at) - os.time()
end

--- Least seconds, and least GPU-seconds, of earlier runs of the job's user and name; nil: not known.
--- "r+" and seeking: see append_byte in gpu_aware.lua.
local function shortest_run(job, conf)
    local user, name = base.number32(job.user_id), base.text_of(job.name)
    if not conf.submit_file or not user or not name then
        return nil
    end
    local path = string.format("%s%s/%d", conf.submit_file, rules.runs_folder, user)
    local file = io.open(path, "r+")
    if not file then
        return nil
    end
    local text = file:seek("set", 0) and file:read(rules.max_runs_bytes + 1)
    file:close()
    if not text or #text > rules.max_runs_bytes then
        return nil
    end
    local key = name:sub(1, rules.max_run_name):gsub(".", function(char)
        return string.format("%02x", char:byte())
    end)
    local _, last = ("\n" .. text):find("\n" .. key .. " ", 1, true)
    local seconds, gpu_seconds = text:match("^(%d+) (%d+)\n", last or #text + 1)
    return tonumber(seconds), tonumber(gpu_seconds)
end

--- The sentence for a job that cannot be in time even if all GPUs that it may get make it as many
--- times faster: neither with all that it may do (its epochs, or its time limit) nor in any earlier
--- run; where no run is known, nor after one epoch.
local function too_late(hints, part, job, conf)
    local total, epochs = request.shape(job, part).total, hints.epochs
    if not total then
        return nil
    end
    local range, left = hints.gpus or { total, total }, time_left(hints.due)
    local most, limit = range[2], base.number32(job.time_limit)
    local whole = epochs and epochs[1] * epochs[2] * total or limit and limit * 60 * range[1]
    local seconds, gpu_seconds = shortest_run(job, conf)
    if seconds and gpu_seconds then
        -- with fewer GPUs than it had a run is no shorter, but may need fewer GPU-seconds
        local least = math.min(seconds, gpu_seconds / most)
        local late = whole and left < whole / most and left < least
        return late and rules.sentences.no_run:format(math.floor(least), most) or nil
    elseif epochs and left < epochs[2] * total / most then
        return rules.sentences.no_epoch:format(epochs[2], most)
    end
end

--- The sentence for a job whose due date has passed or cannot be met; nil: it has none, it may be
--- met, or nothing is known.
function D.impossible(hints, part, job, conf)
    local due = hints and hints.due
    if not due then
        return nil
    elseif type(due) == "string" and due < os.date("%Y-%m-%dT%H:%M") then
        return rules.sentences.late:format(due)
    end
    local fine, sentence = pcall(too_late, hints, part, job, conf)
    return fine and sentence or nil
end

return D
