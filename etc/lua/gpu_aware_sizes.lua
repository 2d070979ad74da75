--[[
Sizes: jobs that may get another number of GPUs than Slurm's options say (gpus=MIN-MAX).

The selector writes GPUs, tasks and CPUs anew for another size (slurm_gpu_aware/gate/resizing.py).
srun inside must follow, so only forms of request are allowed of which nothing stands in the job's
environment but what can be made empty here.
]]

local here = debug.getinfo(1, "S").source:match("^@(.*/)") or "./"
local base = dofile(here .. "gpu_aware_base.lua")
local request = dofile(here .. "gpu_aware_request.lua")
local rules = dofile(here .. "gpu_aware_rules.lua")
local number16 = base.number16
local number32 = base.number32
local text_of = base.text_of

local S = {}

local function shown(range)
    return range[1] == range[2] and string.format("%d", range[1])
        or string.format("%d-%d", range[1], range[2])
end

--- The range of gpus=MIN-MAX; nil: there is none, or it is one number.
local function range_of(hints)
    local range = hints and hints.gpus
    return range and range[1] < range[2] and range or nil
end

--- gpus=MIN-MAX must contain the number of Slurm's options: the job's GPUs if the selector is down.
function S.outside(hints, part, job)
    local range = hints and hints.gpus
    local total = range and request.shape(job, part).total
    if not total or (range[1] <= total and total <= range[2]) then
        return nil
    end
    return rules.sentences.gpus_outside:format(shown(range), total, total)
end

--- What becomes of the tasks with another number of GPUs: "gpus": as many more or fewer, "nodes": they
--- stay; or nil and the option that does not allow another number.
function S.tasks_with(part, job, conf)
    local size = request.shape(job, part)
    local tasks = number32(job.num_tasks)
    if not text_of(job.script) then
        return nil, "salloc and srun"
    elseif number16(job.shared) == 0 then
        return nil, "--exclusive"
    elseif part.form == "socket" then
        return nil, "--gpus-per-socket"
    elseif part.form == "task" and part.count ~= 1 then
        return nil, "--gpus-per-task of more than 1"
    elseif (size.per_node or 0) > (part.form == "task" and 0 or 1) then
        return nil, "--ntasks-per-node (--ntasks works)"
    elseif not size.total then
        return nil, "a number of nodes that is not fixed"
    elseif size.per_gpu or part.form == "task" then
        return "gpus"
    elseif size.per_node or not tasks or tasks == 1 or tasks ~= size.total and tasks == size.nodes then
        local widest = conf.max_gpus_per_node
        if not size.nodes and widest and size.total > widest then
            return nil, "GPUs of several nodes without --nodes"
        end
        return "nodes"
    elseif tasks == size.total then
        return "gpus"
    end
    return nil, "--ntasks that is neither 1 nor the number of GPUs or nodes"
end

--- The rule for the tasks of a job with gpus=MIN-MAX (nil: it has none), or nil and a refusal.
function S.rule(hints, part, job, conf)
    local range = range_of(hints)
    if not range then
        return nil
    end
    local rule, option = S.tasks_with(part, job, conf)
    if rule then
        return rule
    end
    local total = request.shape(job, part).total
    local valid = total and string.format("gpus=%d", total) or "no gpus="
    return nil, rules.sentences.gpus_fixed:format(shown(range), option, valid)
end

--- The refusal of a range that comes after the submission; nil: there is no range.
function S.too_late(hints)
    local range = range_of(hints)
    return range and rules.sentences.gpus_late:format(shown(range))
end

--- The variables of a batch job by which srun would ask for the old number, with their new values.
-- srun takes an empty value as none; a step without them gets all GPUs of the job.
function S.environment(job)
    local environment = {}
    for _, name in ipairs(rules.sized_environment) do
        if job.environment and text_of(job.environment[name]) then
            environment[name] = ""
        end
    end
    return environment
end

return S
