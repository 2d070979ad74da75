--[[
GPU requests in all of Slurm's forms: GPUs, nodes and tasks, and the record of a parked job.
]]

local here = debug.getinfo(1, "S").source:match("^@(.*/)") or "./"
local base = dofile(here .. "gpu_aware_base.lua")
local rules = dofile(here .. "gpu_aware_rules.lua")
local number32 = base.number32
local number16 = base.number16
local text_of = base.text_of
local trim = base.trim
local split = base.split

local R = {}

local FORM_FIELDS = {
    node = "tres_per_node",
    job = "tres_per_job",
    task = "tres_per_task",
    socket = "tres_per_socket",
}
local FORM_ORDER = { "node", "job", "task", "socket" }

-- Characters of constraints that the planner cannot evaluate node by node
-- (slurm_gpu_aware/admission/eligible.py).
R.NOT_UNDERSTOOD = "[^A-Za-z0-9_.:=+&|,() -]"

-- Variables of a batch job in which sbatch passes the GPU type to srun inside the job.
local TYPED_ENVIRONMENT = {
    "SLURM_GPUS",
    "SLURM_GPUS_PER_NODE",
    "SLURM_GPUS_PER_TASK",
    "SLURM_GPUS_PER_SOCKET",
    "SLURM_TRES_PER_TASK",
}

--- Read one TRES list. Returns the GPU entries {type=, count=} (count nil: not understood) and
--- what else it contains: sharing (shard, mps), others (any, but for cpu=N of --cpus-per-task).
function R.gpu_entries(text)
    local gpus, rest = {}, {}
    for item in (text or ""):gmatch("[^,]+") do
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
        elseif name ~= "" and name ~= "cpu" then
            rest.others = true
        end
    end
    return gpus, rest
end

--- All GPU parts of a request: list of {form=, type=, count=}, and what else is asked in these
--- options: sharing (shards or MPS), others.
function R.gpu_request(job)
    local parts, besides = {}, {}
    for _, form in ipairs(FORM_ORDER) do
        local gpus, rest = R.gpu_entries(text_of(job[FORM_FIELDS[form]]))
        besides.sharing = besides.sharing or rest.sharing
        besides.others = besides.others or rest.others
        for _, gpu in ipairs(gpus) do
            gpu.form = form
            parts[#parts + 1] = gpu
        end
    end
    return parts, besides
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

--- Add a feature to a constraint. Returns nil where "and" cannot be added without changing it.
local function with_feature(constraint, feature)
    constraint = text_of(constraint)
    if not constraint then
        return feature
    end
    -- Only plain conjunctions and plain alternatives: groups and mixtures have rules of their own.
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
        text:gsub("[^" .. rules.record_safe .. "]", function(char)
            return string.format("%%%02X", char:byte())
        end)
    )
end

--- The AdminComment of a job (slurm_gpu_aware/gate/admin_comment.py reads it); nil: too long.
function R.admin_comment(job, new, model, variable)
    local least, most = number32(job.min_nodes), number32(job.max_nodes)
    most = most and most > 0 and most or nil
    local nodes = (least or most) and string.format("%d", least or 1)
    if nodes and most then
        nodes = string.format("%s-%d", nodes, most)
    end
    local per_node = number16(job.ntasks_per_node)
    local values = {
        nodes = nodes or "",
        num_tasks = number32(job.num_tasks) or "",
        cpus_per_task = number16(job.cpus_per_task) or "",
        ntasks_per_node = per_node and per_node > 0 and per_node or "",
        min_cpus = number32(job.min_cpus) or "",
        min_cpus_node = number16(job.pn_min_cpus) or "",
        memory = (number32(job.min_mem_per_node) or number32(job.min_mem_per_cpu)) and "1" or "",
        model = model or "",
        exclusive = number16(job.shared) == 0 and "1" or "",
        interactive = text_of(job.script) and "" or "1",
        begin_s = new.begin_time or "",
        environment = variable or "",
        admin_comment = base.is_record(job.admin_comment) and "" or text_of(job.admin_comment) or "",
    }
    local entries, bytes = {}, 0
    for _, entry in ipairs(rules.record_keys) do
        local key, field = entry[1], entry[2]
        local value = values[field] or new[field] or job[field] -- a text of Slurm's if not above
        if type(value) == "number" then
            entries[#entries + 1] = string.format("%s=%d", key, value)
        elseif text_of(value) then
            bytes = bytes + #value
            if bytes <= rules.max_record then -- a node list may have megabytes
                entries[#entries + 1] = key .. "=" .. percent(value)
            end
        end
    end
    local record = rules.record_version .. table.concat(entries, ";")
    return bytes <= rules.max_record and #record <= rules.max_record and record or nil
end

--- Remove the model from a TRES list: gres/gpu:a100:2 -> gres/gpu:2, gres/gpu:a100=2 -> gres/gpu=2.
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
        if text_of(value) and #value <= rules.max_text then
            local changed = without_type_in_environment(value, kind)
            environment[name] = changed ~= value and changed or nil
        end
    end
    return environment
end

--- The same for a job that is left to Slurm: an indexed node does not have the model as a GRES type.
--- The request of srun for its own step cannot be changed, so only scripts and --gres.
--- Returns (changes, environment), or nil: the request stays as it is.
function R.left_changes(job, parts, besides, conf)
    local part = parts[1]
    if
        besides.sharing
        or #parts > 1
        or not (part.type and part.count and conf.model_set[part.type:lower()])
        or not (text_of(job.script) or part.form == "node")
        or (text_of(job.features) or ""):find(R.NOT_UNDERSTOOD)
    then
        return nil
    end
    local new = {}
    local environment = R.model_changes(job, part, new)
    return environment and new, environment
end

return R
