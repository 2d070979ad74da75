--[[
GPU requests in all of Slurm's forms: what is asked, whether the selector can rewrite it to exact
GPUs, and how it is recorded when the job is parked.
]]

local here = debug.getinfo(1, "S").source:match("^@(.*/)") or "./"
local base = dofile(here .. "gpu_aware_base.lua")
local number32 = base.number32
local number16 = base.number16
local text_of = base.text_of
local trim = base.trim
local split = base.split
local shown = base.shown

local R = {}

local PREFIX = "gpuaware/1;"

--[[
Which forms of a request are parked: those that the selector can rewrite to exact GPUs so that
srun inside the job still works (slurm_gpu_aware/slurm/rewrite.py has a row for each). Whatever is
not in this table is left to Slurm. Keys: form of the request / batch (a script) or interactive
(salloc, srun: Slurm does not tell us which).
  cpus_per_gpu  may come with --cpus-per-gpu
  other_gres    may come with other GRES in the same option
]]
R.FORMS = {
    ["node/batch"] = { cpus_per_gpu = true, other_gres = true },
    ["job/batch"] = { cpus_per_gpu = true, other_gres = false },
    ["task/batch"] = { cpus_per_gpu = false, other_gres = false },
    ["node/interactive"] = { cpus_per_gpu = false, other_gres = true },
}

local SPREAD_JOB = 256 -- of job_desc.bitflags: slurm.SPREAD_JOB

local FORM_FIELDS = {
    node = "tres_per_node",
    job = "tres_per_job",
    task = "tres_per_task",
    socket = "tres_per_socket",
}
local FORM_OPTIONS = {
    node = "--gres",
    job = "--gpus",
    task = "--gpus-per-task",
    socket = "--gpus-per-socket",
}
local FORM_ORDER = { "node", "job", "task", "socket" }

-- What the planner cannot evaluate node by node (slurm_gpu_aware/slurm/features.py).
local NOT_UNDERSTOOD = "[^A-Za-z0-9_.:=+&|,() -]"

-- Environment of a batch job in which sbatch hands the GPU type on to srun inside the job.
local TYPED_ENVIRONMENT = {
    "SLURM_GPUS",
    "SLURM_GPUS_PER_NODE",
    "SLURM_GPUS_PER_TASK",
    "SLURM_GPUS_PER_SOCKET",
    "SLURM_TRES_PER_TASK",
}

--- Read one TRES list. Returns the GPU entries {type=, count=} (count nil: not understood) and
--- what else stands in it: others (any), cpu (cpu=N of --cpus-per-task), sharing (shard, mps).
function R.gpu_entries(text)
    local gpus, rest = {}, {}
    for _, item in ipairs(split(text or "", ",")) do
        local entry = trim(item):gsub("^gres[/:]", "")
        local name, tail = entry:match("^([^:=]*)(.*)$")
        if name == "gpu" then
            local body = tail:sub(2)
            local kind, count = body:match("^([^:=]+)[:=](%w+)$")
            if tail == "" then
                kind, count = nil, "1"
            elseif body:find("^%d+[kKmMgGtTpP]?$") then
                kind, count = nil, body
            elseif not kind then
                kind, count = body, "1"
            end
            if count:find("^0+$") == nil then
                local plain = count:find("^%d+$") and #count <= 5
                gpus[#gpus + 1] = { type = kind, count = plain and tonumber(count) or nil }
            end
        elseif name == "shard" or name == "mps" then
            rest.sharing = true
        elseif name == "cpu" then
            rest.cpu = true
        elseif name ~= "" then
            rest.others = true
        end
    end
    return gpus, rest
end

--- All GPU parts of a request: list of {form=, type=, count=, rest=}, and whether shards or MPS.
function R.gpu_request(job)
    local parts, sharing = {}, false
    for _, form in ipairs(FORM_ORDER) do
        local gpus, rest = R.gpu_entries(text_of(job[FORM_FIELDS[form]]))
        sharing = sharing or rest.sharing
        for _, gpu in ipairs(gpus) do
            gpu.form, gpu.rest = form, rest
            parts[#parts + 1] = gpu
        end
    end
    return parts, sharing
end

function R.index_type(parts)
    for _, part in ipairs(parts) do
        -- What stands behind the index (g1:, g1:1:x) may mean nothing to Slurm, or the same GPU.
        local index = part.type and (part.type:match("^g%d+$") or part.type:match("^(g%d+)[^%w]"))
        if index then
            return index
        end
    end
    return nil
end

--- Can `total` be spread evenly over a node count that the request and the widest node allow?
local function even_split(total, least, most, widest)
    local start = math.max(least or 1, widest and math.ceil(total / widest) or 1)
    for count = start, math.min(most or start, total) do
        if total % count == 0 then
            return true
        end
    end
    return false
end

--- Numbers of a request: nodes, tasks, GPUs in total (nil where the request leaves it open).
function R.shape(job, part)
    local least, most = number32(job.min_nodes), number32(job.max_nodes)
    most = most and most > 0 and most or nil
    local nodes = least and least == most and least or nil
    local tasks, per_node = number32(job.num_tasks), number16(job.ntasks_per_node)
    per_node = per_node and per_node > 0 and per_node or nil
    if not tasks and per_node and nodes then
        tasks = per_node * nodes
    end
    local total
    if part.form == "node" then
        local one = part.count and (nodes or (not most and (least or 1) == 1 and 1))
        total = one and part.count * one or nil
    elseif part.form == "job" then
        total = part.count
    elseif part.form == "task" and part.count and tasks then
        total = part.count * tasks
    end
    return { least = least, most = most, nodes = nodes, tasks = tasks, per_node = per_node, total = total }
end

--- Why --cpus-per-gpu cannot be rewritten; nil if it can, or is not there.
local function cpus_per_gpu_reason(job, form, size)
    local text = text_of(job.cpus_per_tres)
    if not text then
        return nil
    end
    local cpus = R.gpu_entries(text)
    if not form.cpus_per_gpu or #cpus ~= 1 or not cpus[1].count or cpus[1].type then
        return "--cpus-per-gpu in this form"
    end
    local own = number16(job.cpus_per_task)
    if own and own > 0 then
        return "--cpus-per-gpu together with --cpus-per-task"
    end
    if size.tasks or size.per_node then
        local tasks = size.tasks or (size.nodes and size.per_node * size.nodes)
        if not tasks or tasks < 1 or not size.total or (cpus[1].count * size.total) % tasks ~= 0 then
            return "--cpus-per-gpu with tasks that do not share the CPUs evenly"
        end
    end
    return nil
end

--- Why no node can hold the CPUs or the memory that a request wants on one; nil if one can.
-- salloc and srun would wait at the gate for what Slurm refuses at once.
local function too_large_reason(job, part, conf)
    local task = number16(job.cpus_per_task) or 1
    local gpus = part.form == "job" and 1 or part.count
    local cpus_of_gpu = R.gpu_entries(text_of(job.cpus_per_tres))[1]
    local memory_of_gpu = R.gpu_entries(text_of(job.mem_per_tres))[1]
    local cpus = math.max(task * (number16(job.ntasks_per_node) or 1), number16(job.pn_min_cpus) or 1)
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
    if part.form == "node" then
        -- salloc and srun would wait at the gate for what Slurm refuses at once.
        if widest and part.count > widest then
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

--- Why a GPU job is left to Slurm, in words that complete a sentence; nil if it can be parked.
function R.left_reason(job, parts, sharing, wishes, conf)
    local offset = number32(job.het_job_offset)
    if offset then
        return "a heterogeneous job"
    elseif job.cron_job == true then
        return "a scrontab job"
    elseif wishes and wishes.place == "off" then
        return "place=off"
    elseif sharing then
        return "shards and MPS share GPUs"
    elseif #parts > 1 then
        return "several GPU requests in one job"
    end
    local part = parts[1]
    local script = text_of(job.script) ~= nil
    local option = FORM_OPTIONS[part.form]
    local form = R.FORMS[part.form .. (script and "/batch" or "/interactive")]
    if not form then
        return option .. (script and "" or " with salloc or srun (--gres works)")
    elseif not part.count then
        return "a GPU count that is no plain number"
    elseif part.type and not conf.model_set[part.type:lower()] then
        return "GPU type " .. shown(part.type)
    elseif part.rest.others and not form.other_gres then
        return option .. " together with other TRES"
    elseif (number16(job.ntasks_per_tres) or 0) > 0 then
        return "--ntasks-per-gpu"
    elseif (number16(job.ntasks_per_socket) or 0) > 0 then
        return "--ntasks-per-socket"
    elseif has_flag(job, SPREAD_JOB) then
        return "--spread-job"
    elseif (number16(job.shared) or 0) > 0 then
        return "--oversubscribe and --exclusive=user|mcs|topo"
    elseif (text_of(job.tres_bind) or ""):find("ma[ps]k?_gpu") then
        -- It names GPUs by number: which ones the job has must stay as on plain Slurm.
        return "--gpu-bind by GPU number"
    elseif (number16(job.immediate) or 0) > 0 then
        return "--immediate"
    elseif (text_of(job.licenses) or ""):find("|", 1, true) then
        return "licences with |"
    elseif (text_of(job.features) or ""):find(NOT_UNDERSTOOD) then
        return "counts, brackets or negation in --constraint"
    end
    local size = R.shape(job, part)
    if not script and math.max(size.least or 1, size.most or 1) > 1 then
        -- A direct srun --gpus-per-node is refused after typing per node, srun -n1 in a salloc
        -- after typing per job, and Slurm does not tell us which of the two asks.
        return "several nodes with salloc or srun"
    elseif uneven_tasks(size) then
        return "--ntasks that is no multiple of --ntasks-per-node"
    end
    return too_large_reason(job, part, conf)
        or cpus_per_gpu_reason(job, form, size)
        or uneven_reason(part, size, conf)
end

--- Add a feature to a constraint. Returns nil where "and" cannot be added without changing it.
local function with_feature(constraint, feature)
    constraint = text_of(constraint)
    if not constraint then
        return feature
    end
    -- Only plain conjunctions and plain alternatives: groups and mixtures bind in ways of their own.
    if not constraint:find("[|()]") then
        return constraint .. "&" .. feature
    elseif not constraint:find("[&,()]") then
        return "(" .. constraint .. ")&" .. feature
    end
    return nil
end

-- Parking ----------------------------------------------------------------------------------------

local function percent(text)
    return (
        text:gsub("[^A-Za-z0-9_.:/=,+*@-]", function(char)
            return string.format("%%%02X", char:byte())
        end)
    )
end

--- The AdminComment of a job (slurm_gpu_aware/slurm/admin_comment.py reads it).
function R.admin_comment(job, new, model)
    local entries = {}
    local function add(key, value)
        if type(value) == "number" then
            entries[#entries + 1] = string.format("%s=%d", key, value)
        elseif text_of(value) then
            entries[#entries + 1] = key .. "=" .. percent(value)
        end
    end
    local function now(field)
        return new[field] or job[field]
    end
    local least, most = number32(job.min_nodes), number32(job.max_nodes)
    most = most and most > 0 and most or nil
    local nodes = (least or most) and string.format("%d", least or 1)
    if nodes and most then
        nodes = string.format("%s-%d", nodes, most)
    end
    local per_node = number16(job.ntasks_per_node)
    local site = text_of(job.admin_comment)
    add("tn", now("tres_per_node"))
    add("tj", now("tres_per_job"))
    add("tt", now("tres_per_task"))
    add("ts", now("tres_per_socket"))
    add("tb", job.tres_bind)
    add("cg", job.cpus_per_tres)
    add("mg", job.mem_per_tres)
    add("nn", nodes)
    add("lic", job.licenses)
    add("feat", now("features"))
    add("rn", job.req_nodes)
    add("xn", job.exc_nodes)
    add("nt", number32(job.num_tasks))
    add("cpt", number16(job.cpus_per_task))
    add("tpn", per_node and per_node > 0 and per_node)
    add("mc", number32(job.min_cpus))
    add("tf", job.tres_freq)
    add("mt", model)
    add("ex", number16(job.shared) == 0 and "1")
    add("ia", not text_of(job.script) and "1")
    add("ac", site and site:sub(1, 9) ~= "gpuaware/" and site)
    return PREFIX .. table.concat(entries, ";")
end

--- Take the model out of a TRES list: gres/gpu:a100:2 -> gres/gpu:2, gres/gpu:a100=2 -> gres/gpu=2.
local function without_type(text, kind)
    local items = split(text, ",")
    for i, item in ipairs(items) do
        local head, found, tail = item:match("^(.*gpu)[:=]([^:=]+)(.*)$")
        if found == kind then
            items[i] = head .. tail
        end
    end
    return table.concat(items, ",")
end

--- In the environment the value may start with the type: a100:2.
local function without_type_in_environment(value, kind)
    if value == kind then
        return "1"
    elseif value:sub(1, #kind + 1) == kind .. ":" then
        return value:sub(#kind + 2)
    end
    return without_type(value, kind)
end

--- Changes that turn a model type into a feature; nil where the constraint does not allow it.
function R.model_changes(job, part, new)
    local kind = part.type
    local features = with_feature(job.features, "gpu_" .. kind:lower())
    if not features then
        return nil
    end
    local field = FORM_FIELDS[part.form]
    new[field], new.features = without_type(job[field], kind), features
    local environment = {}
    for _, name in ipairs(TYPED_ENVIRONMENT) do
        local value = text_of(job.script) and job.environment and job.environment[name]
        if text_of(value) then
            local changed = without_type_in_environment(value, kind)
            environment[name] = changed ~= value and changed or nil
        end
    end
    return environment
end

--- The same for a job that is left to Slurm, since no node has the model as a GRES type once its
--- GPUs are indexed. What srun itself asks for a step cannot be changed, so only scripts and --gres.
--- Returns (changes, environment), or nil: the request stays as it is.
function R.left_changes(job, parts, sharing, conf)
    local part = parts[1]
    if
        sharing
        or #parts > 1
        or not (part.type and part.count and conf.model_set[part.type:lower()])
        or not (text_of(job.script) or part.form == "node")
        or (text_of(job.features) or ""):find(NOT_UNDERSTOOD)
    then
        return nil
    end
    local new = {}
    local environment = R.model_changes(job, part, new)
    return environment and new, environment
end

return R
