--[[
GPU jobs whose GPUs Slurm chooses ("left to Slurm"), and the reasons for the user. They wait at the
gate for their turn like all others; a few forms cannot.
]]

local here = debug.getinfo(1, "S").source:match("^@(.*/)") or "./"
local base = dofile(here .. "gpu_aware_base.lua")
local request = dofile(here .. "gpu_aware_request.lua")
local rules = dofile(here .. "gpu_aware_rules.lua")
local number32 = base.number32
local number16 = base.number16
local text_of = base.text_of
local shown = base.shown

local L = {}

local SPREAD_JOB = 256 -- of job_desc.bitflags: slurm.SPREAD_JOB

local FORM_OPTIONS = {
    node = "--gres",
    job = "--gpus",
    task = "--gpus-per-task",
    socket = "--gpus-per-socket",
}

--- Can `total` be spread evenly over a node count that the request and the widest node allow?
-- Up to the root only, and for small numbers only: users choose them (2147483647), and slurmctld
-- waits for the filter.
local function even_split(total, least, most, widest)
    if total > rules.max_gpus then
        return false
    end
    local start = math.max(least or 1, widest and math.ceil(total / widest) or 1)
    local stop = math.min(most or start, total)
    local function allowed(count)
        return start <= count and count <= stop
    end
    for count = 1, math.floor(math.sqrt(total)) do
        if total % count == 0 and (allowed(count) or allowed(total / count)) then
            return true
        end
    end
    return false
end

--- GPUs and their tasks: both in total or both on each node, whichever the request fixes; nil: its
--- tasks are not counted, false: they depend on the nodes that it gets.
local function gpus_and_tasks(size)
    if size.per_gpu then
        return 1, size.per_gpu
    elseif size.on_node and size.per_node then
        return size.on_node, size.per_node
    elseif not (size.tasks or size.per_node) then
        return nil
    end
    local tasks = size.tasks or (size.nodes and size.per_node * size.nodes)
    return tasks and tasks > 0 and size.total or false, tasks
end

--- Why --cpus-per-gpu cannot be rewritten; nil if it can, or is not there.
local function cpus_per_gpu_reason(job, part, size)
    local text = text_of(job.cpus_per_tres)
    if not text then
        return nil
    end
    local cpus = request.gpu_entries(text)
    if #cpus ~= 1 or not cpus[1].count or cpus[1].type then
        return "--cpus-per-gpu with a type"
    end
    local own = number16(job.cpus_per_task) or 0
    -- Slurm's commands fill in the CPUs of a task whose GPUs are known.
    if own > 0 and not (part.form == "task" and own == cpus[1].count * part.count) then
        return "--cpus-per-gpu together with --cpus-per-task"
    end
    local gpus, tasks = gpus_and_tasks(size)
    if gpus == false or gpus and (cpus[1].count * gpus) % tasks ~= 0 then
        return "--cpus-per-gpu with tasks that do not share the CPUs evenly"
    end
    return nil
end

--- Why no node has the CPUs or the memory that a request wants on one; nil if one has.
-- salloc and srun would wait behind the gate for a request that Slurm refuses at once.
local function too_large_reason(job, part, size, conf)
    local task = number16(job.cpus_per_task) or 1
    local gpus = size.on_node or (part.form == "job" and 1 or part.count)
    local cpus_of_gpu = request.gpu_entries(text_of(job.cpus_per_tres))[1]
    local memory_of_gpu = request.gpu_entries(text_of(job.mem_per_tres))[1]
    local tasks = math.max(number16(job.ntasks_per_node) or 1, gpus * (size.per_gpu or 0))
    local cpus = math.max(task * tasks, number16(job.pn_min_cpus) or 1)
    if cpus_of_gpu and cpus_of_gpu.count then
        cpus = cpus_of_gpu.count * gpus
    end
    local memory = number32(job.min_mem_per_node) or 0
    if memory_of_gpu and memory_of_gpu.count then
        memory = memory_of_gpu.count * gpus
    elseif number32(job.min_mem_per_cpu) then
        memory = number32(job.min_mem_per_cpu) * task
    end
    if conf.max_cpus_per_node and cpus > conf.max_cpus_per_node then
        return "more CPUs than a node has"
    elseif conf.max_memory_mb_per_node and memory > conf.max_memory_mb_per_node then
        return "more memory than a node has"
    end
    return nil
end

--- Why the GPUs of a multi-node request cannot be the same number on each node; nil if they can.
local function uneven_reason(part, size, conf)
    local widest = conf.max_gpus_per_node
    if size.on_node then
        -- salloc and srun would wait behind the gate for a request that Slurm refuses at once.
        if widest and size.on_node > widest then
            return "more GPUs than a node has"
        end
    elseif part.form == "job" then
        if not even_split(part.count, size.least, size.most, widest) then
            return "GPUs that do not spread evenly over the nodes"
        end
    elseif part.form == "task" then
        if not size.tasks or size.tasks < 1 then
            return "--gpus-per-task without --ntasks"
        end
        local per_node = widest and math.floor(widest / part.count)
        if per_node == 0 or not even_split(size.tasks, size.least, size.most, per_node) then
            return "tasks that do not spread evenly over the nodes"
        end
    end
    return nil
end

--- Slurm counts the tasks anew, --ntasks-per-node on each node, when a job is changed.
local function uneven_tasks(size)
    return size.tasks
        and size.per_node
        and size.tasks ~= size.per_node * (size.nodes or math.floor(size.tasks / size.per_node))
end

local function has_flag(job, flag)
    local flags = type(job.bitflags) == "number" and job.bitflags or 0
    return math.floor(flags / flag) % 2 == 1
end

--- The first option that bounds a job's nodes in a way that the planner does not check: it would
--- choose the same impossible node again and again. nil: there is none. An option that a version of
--- Slurm does not show here (24.11: core_spec), the selector finds in the job's record
--- (slurm_gpu_aware/slurm/read_jobs.py).
local function unsupported_bound(job, form)
    for _, bound in ipairs(rules.unsupported_bounds) do
        local field, option, bits = bound[1], bound[2], bound[3]
        local value = job[field]
        if type(value) == "string" then
            value = text_of(value) and 1
        else
            value = (bits == 32 and number32 or number16)(value)
        end
        local planned = form == "socket" and option == rules.sockets_per_node
        -- --core-spec=0 takes the cores that the site keeps for the system.
        if value and not planned and (value > 0 or field:find("_spec$")) then
            return option
        end
    end
    return nil
end

--- Why a GPU job cannot wait at the gate, in words that complete a sentence; nil: it can. And whether it
--- may begin some seconds later; of several clusters sbatch would choose the one without a filter.
function L.passes_gate(job, conf)
    local clusters = conf.several_clusters and text_of(job.clusters) or ""
    if (number32(job.het_job_offset) or 0) > 0 then
        return "a heterogeneous job" -- its first component waits at the gate for all
    elseif job.cron_job == true then
        return "a scrontab job" -- nothing can change it; where there are none, it is refused before
    elseif clusters:find(",", 1, true) or clusters == "all" then
        -- sbatch asks each cluster first where the job can start (REQUEST_JOB_WILL_RUN).
        return "several clusters in --clusters"
    elseif (number16(job.immediate) or 0) > 0 then
        return "--immediate" -- Slurm refuses it at a closed gate
    elseif (text_of(job.licenses) or ""):find("|", 1, true) then
        return "licences with |", true -- no other licence can stand beside them
    end
    return nil
end

--- Does Slurm refuse a job at once that is left to it for this reason? At the gate it would wait. A GPU
--- type that is no model of ours, or one that cannot become a feature, may be on some nodes.
function L.is_refused(reason)
    return reason:find("^more %a+ than a node has$") ~= nil
        or reason:find("^GPU type ") ~= nil
        or reason:find("with a GPU type with salloc or srun", 1, true) ~= nil
end

--- Why a GPU job is left to Slurm, in words that complete a sentence; nil if it can be placed.
function L.reason(job, parts, besides, hints, conf)
    if number32(job.het_job_offset) then
        return "a heterogeneous job"
    elseif hints and hints.place == "off" then
        return "place=off"
    elseif besides.sharing then
        return "shards and MPS share GPUs"
    elseif besides.uncounted then
        return "--ntasks-per-gpu without a number of GPUs"
    elseif #parts == 0 then
        return rules.whole_nodes -- also what no node can have: held, it could be made to fit, and pass
    elseif #parts > 1 then
        return "several GPU requests in one job"
    end
    local part = parts[1]
    local script = text_of(job.script) ~= nil
    local option = FORM_OPTIONS[part.form]
    local is_model = part.type and conf.model_set[part.type:lower()]
    if not part.count then
        return "a GPU count that is no plain number"
    elseif part.type and not is_model and not conf.type_set[part.type:lower()] then
        return "GPU type " .. shown(part.type)
    elseif is_model and not script and part.form ~= "node" then
        -- The client asks for the type again in its steps.
        return option .. " with a GPU type with salloc or srun (--gres works)"
    elseif besides.others then
        return option .. " together with other TRES"
    elseif (number16(job.ntasks_per_socket) or 0) > 0 then
        return "--ntasks-per-socket"
    elseif has_flag(job, SPREAD_JOB) then
        return "--spread-job"
    elseif (number16(job.shared) or 0) > 0 then
        return "--oversubscribe and --exclusive=user|mcs|topo"
    elseif (text_of(job.tres_bind) or ""):find("ma[ps]k?_gpu") then
        -- It names GPUs by number, so the job must get the GPUs that plain Slurm would choose.
        return "--gpu-bind by GPU number"
    elseif (text_of(job.features) or ""):find(request.NOT_UNDERSTOOD) then
        return "counts, brackets or negation in --constraint"
    elseif unsupported_bound(job, part.form) then
        return unsupported_bound(job, part.form)
    end
    local size = request.shape(job, part)
    if uneven_tasks(size) then
        return "--ntasks that is no multiple of --ntasks-per-node"
    elseif size.per_gpu and (size.per_node or part.form == "task") then
        return "--ntasks-per-gpu together with " .. (size.per_node and "--ntasks-per-node" or option)
    elseif part.form == "socket" and not size.on_node then
        return "--gpus-per-socket without --sockets-per-node"
    end
    return too_large_reason(job, part, size, conf)
        or cpus_per_gpu_reason(job, part, size)
        or uneven_reason(part, size, conf)
end

--- Why a job is left to Slurm, for its user.
function L.sentence(reason, job, parts, conf)
    local text = "gpu-aware: this job is left to Slurm, which chooses its GPUs: " .. reason
    if reason == rules.whole_nodes then
        text = "gpu-aware: this job waits for its turn like GPU jobs: " .. reason
    end
    local part = parts[1] or {}
    local model = part.type and part.type:lower()
    if not text_of(job.script) and part.form ~= "node" and conf.model_set[model] then
        -- srun asks for the type again in its own step, so the request cannot be changed.
        text = text
            .. string.format("; where it finds no GPU type %s, ask for the model with", model)
            .. string.format(" --constraint=gpu_%s and for GPUs without a type", model)
    end
    return text
end

return L
