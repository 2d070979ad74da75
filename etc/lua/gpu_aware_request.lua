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
-- (slurm_gpu_aware/admission/fitting.py).
R.NOT_UNDERSTOOD = "[^A-Za-z0-9_.:=+&|,() -]"

-- How much of a script is searched for a GPU type, and how often its name may occur there.
local MAX_SCRIPT, MAX_FOUND = 65536, 1000

-- Options with which shards are left to Slurm.
local BESIDE_SHARDS = {
    "tres_per_job",
    "tres_per_socket",
    "cpus_per_tres",
    "mem_per_tres",
    "tres_bind",
    "tres_freq",
}

-- Ends of a count (suffix_mult), in any case. Slurm multiplies modulo 2^64, so 2066035336255469781kb is 8.
local SUFFIXES = base.set_of(split(",k,kb,kib,m,mb,mib,g,gb,gib,t,tb,tib,p,pb,pib", ","))

--- Is a text a number of GPUs to Slurm, not a type?
local function is_count(text)
    local suffix = text:match("^%d+(%a*)$")
    return suffix and SUFFIXES[suffix:lower()] or false
end

--- Read one TRES list. Returns the GPU entries {type=, count=} (count nil: not understood) and
--- what else it contains: sharing (shard, mps), others (any, but for cpu=N of --cpus-per-task).
function R.gpu_entries(text)
    local gpus, rest = {}, {}
    for item in (text or ""):gmatch("[^,]+") do
        -- As in slurm_get_next_tres, "gres" may stand anywhere in an entry.
        local entry = trim(item:match("gres[/:]?(.*)$") or item)
        local name, tail = entry:match("^([^:=]*)(.*)$")
        if name == "gpu" then
            local body = tail:sub(2)
            local kind, count = body:match("^([^:=]+)[:=](%w+)$")
            if tail == "" then
                kind, count = nil, "1"
            elseif is_count(body) then
                kind, count = nil, body
            elseif not kind then
                kind, count = body, "1"
            end
            local none = count:find("^0+%a*$") or body:find("^[:=]+0+%a*$") -- 0k and gpu::0, too
            if not none then
                local plain = count:find("^%d+$") and #count <= 5
                gpus[#gpus + 1] = { type = kind, count = plain and tonumber(count) or nil }
            end
        elseif (name == "shard" or name == "mps") and not tail:find("^.*[:=]0+$") then
            rest.sharing = true
        elseif name ~= "" and name ~= "cpu" then
            rest.others = true
        end
    end
    return gpus, rest
end

--- The first entry for GPUs, or parts of them, that is none of a GRES to Slurm: gpu:1. Slurm finds that in
--- an update when it has set all else. nil: there is none.
function R.bare_entry(update)
    for _, form in ipairs(FORM_ORDER) do
        for item in (text_of(update[FORM_FIELDS[form]]) or ""):gmatch("[^,]+") do
            local gpus, rest = R.gpu_entries(item)
            if (gpus[1] or rest.sharing) and not item:find("gres", 1, true) then
                return item
            end
        end
    end
    return nil
end

--- Number of shards of a job that asks for shards of one GPU and for nothing that goes with GPUs, in a
--- batch script on one node; nil: another job. The selector chooses the GPU.
local function shards_of(job)
    local count = (text_of(job.tres_per_node) or ""):match("^gres[/:]shard[:=](%d+)$")
    local least, most = number32(job.min_nodes) or 1, number32(job.max_nodes) or 0
    for _, field in ipairs(BESIDE_SHARDS) do
        if text_of(job[field]) then
            return nil
        end
    end
    local per_task = (text_of(job.tres_per_task) or "cpu=1"):match("^cpu[:=]%d+$") -- -c
    local whole = number16(job.shared) == 0 or (number16(job.ntasks_per_tres) or 0) > 0
    if least > 1 or most > 1 or not per_task or whole or not text_of(job.script) then
        return nil
    end
    count = count and #count <= 5 and tonumber(count)
    return count and count > 0 and count or nil
end

--- All GPU parts of a request: list of {form=, type=, count=, shards=}, and what else is asked in these
--- options: sharing (shards or MPS), others; uncounted: GPUs of which the number is not there. Shards of one GPU are a part of it.
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
    -- Slurm counts the GPUs of --ntasks-per-gpu after the filter.
    local by_tasks = (number16(job.ntasks_per_tres) or 0) > 0
    besides.uncounted = by_tasks and #parts == 0 and not besides.sharing
    local shards = besides.sharing and #parts == 0 and shards_of(job)
    if shards then
        parts[1], besides.sharing = { form = "node", count = 1, shards = shards }, nil
    end
    return parts, besides
end

--- Numbers of a request: nodes, tasks, GPUs on each node and in total (nil where the request leaves
--- it open).
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
    local sockets, on_node = number16(job.sockets_per_node) or 0, nil
    if part.form == "node" then
        on_node = part.count
    elseif part.form == "socket" and part.count and sockets > 0 then
        on_node = part.count * sockets
    end
    if on_node then
        local one = nodes or (not most and (least or 1) == 1 and 1)
        total = one and on_node * one or nil
    elseif part.form == "job" then
        total = part.count
    elseif part.form == "task" and part.count and tasks then
        total = part.count * tasks
    end
    local per_gpu = number16(job.ntasks_per_tres)
    per_gpu = per_gpu and per_gpu > 0 and per_gpu or nil
    return {
        least = least,
        most = most,
        nodes = nodes,
        tasks = tasks,
        per_node = per_node,
        per_gpu = per_gpu,
        on_node = on_node,
        total = total,
    }
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

--- A constraint with a model's feature; nil where it cannot be added.
function R.with_model(constraint, model)
    return with_feature(constraint, "gpu_" .. model)
end

--- A constraint without the model's feature that with_model added to it.
function R.without_model(constraint, model)
    local own = (constraint or ""):sub(1, -#("&gpu_" .. model) - 1)
    if R.with_model(own, model) ~= constraint then
        own = own:match("^%((.*)%)$") or constraint
    end
    return own
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
--- `tasks`: what becomes of its tasks with another number of GPUs (gpu_aware_sizes.lua).
function R.admin_comment(job, new, model, variable, tasks)
    local least, most = number32(job.min_nodes), number32(job.max_nodes)
    most = most and most > 0 and most or nil
    local nodes = (least or most) and string.format("%d", least or 1)
    if nodes and most then
        nodes = string.format("%s-%d", nodes, most)
    end
    local per_node, per_gpu = number16(job.ntasks_per_node), number16(job.ntasks_per_tres)
    local values = {
        nodes = nodes or "",
        num_tasks = number32(job.num_tasks) or "",
        cpus_per_task = number16(job.cpus_per_task) or "",
        ntasks_per_node = new.ntasks_per_node or per_node and per_node > 0 and per_node or "",
        ntasks_per_tres = not number32(job.het_job_offset) and per_gpu and per_gpu > 0 and per_gpu or "",
        sockets_per_node = number16(job.sockets_per_node) or "",
        min_cpus = number32(job.min_cpus) or "",
        min_cpus_node = number16(job.pn_min_cpus) or "",
        memory = (number32(job.min_mem_per_node) or number32(job.min_mem_per_cpu)) and "1" or "",
        model = model or "",
        exclusive = number16(job.shared) == 0 and "1" or "",
        interactive = text_of(job.script) and "" or "1",
        begin_s = new.begin_time or "",
        environment = variable or "",
        resizable = tasks or "",
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

--- Licences of a job with the gate's.
function R.gated(licences, conf)
    local own = text_of(licences)
    return (own and own .. "," or "") .. conf.licence .. ":1"
end

--- Write the tasks of a component with --ntasks-per-gpu by node, where it asks for GPUs in one way and
--- their number on each node is known. Slurm 24.11 else counts them anew in each update, as nodes times
--- tasks per GPU, and one that repeated them would be of all components.
function R.component_tasks(job, parts, new)
    local size = number32(job.het_job_offset) and #parts == 1 and R.shape(job, parts[1]) or {}
    local on_node = size.on_node or size.nodes and size.total and size.total / size.nodes
    local whole = on_node and on_node % 1 == 0 and not size.per_node
    local tasks = whole and size.per_gpu and number16(size.per_gpu * on_node)
    if tasks then
        new = new or {}
        new.ntasks_per_node = tasks
    end
    return new
end

--- Park a job that is left to Slurm: fields in `new`. What is too long for the record is not in it; the
--- record of a part says so.
function R.park_left(job, new, reason, begin_time, conf)
    new.begin_time = begin_time
    local own = job.admin_comment
    local view = setmetatable({ left = reason }, { __index = job })
    new.admin_comment = R.admin_comment(view, new)
    if not new.admin_comment then
        local only = { left = reason, partial = "1", admin_comment = own, script = job.script }
        new.admin_comment = R.admin_comment(only, { begin_time = begin_time })
            or R.admin_comment({ left = reason, partial = "1", script = job.script }, {})
    end
    new.licenses = R.gated(job.licenses, conf)
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

--- Does a script itself ask for a GPU type, as in "srun --gres=gpu:a100:1"? Comments, and with them the
--- #SBATCH lines, do not count. Bounded: slurmctld waits for the filter.
local function script_names(script, kind)
    script = script:sub(1, MAX_SCRIPT)
    local at, stop = 0, 0
    for _ = 1, MAX_FOUND do
        at, stop = script:find(kind, stop + 1, true)
        if not at then
            return false
        end
        local before = script:sub(math.max(1, at - 24), at - 1)
        local asks = before:find("gpus?[%w-]*[:= ]$") or before:find("-G ?$")
        if asks and not script:find("^[%w._-]", stop + 1) then
            local line = script:sub(math.max(1, at - rules.max_text), at - 1):match("[^\n]*$")
            if line:sub(1, 1) ~= "#" then
                return true
            end
        end
    end
    return true
end

--- The variables of a batch job in which srun would find this GPU type, with their new values.
local function untyped_environment(job, kind)
    local environment = {}
    for _, name in ipairs(rules.typed_environment) do
        local value = text_of(job.script) and job.environment and job.environment[name]
        if text_of(value) and #value <= rules.max_text then
            local changed = without_type_in_environment(value, kind)
            environment[name] = changed ~= value and changed or nil
        end
    end
    return environment
end

function R.is_typed(parts)
    for _, part in ipairs(parts) do
        if part.type then
            return true
        end
    end
    return false
end

--- The only GPU type in a request; nil: there is none, or there are several.
local function only_type(parts)
    local kind
    for _, part in ipairs(parts) do
        if part.type and kind and part.type ~= kind then
            return nil
        end
        kind = kind or part.type
    end
    return kind
end

--- Changes that turn a model type into a feature: fields in `new`, and the environment; nil where the
--- constraint does not allow it.
function R.model_changes(job, parts, new)
    local kind = only_type(parts)
    local features = kind and with_feature(job.features, "gpu_" .. kind:lower())
    if not features then
        return nil
    end
    new.features = features
    for _, part in ipairs(parts) do
        local field = FORM_FIELDS[part.form]
        new[field] = without_type(job[field], kind)
    end
    return untyped_environment(job, kind)
end

--- Can a job that is left to Slurm ask for a feature instead of its type? The request of srun for its
--- own step cannot be changed, so only scripts and --gres.
local function may_change(job, parts, besides, conf)
    for _, part in ipairs(parts) do
        if not part.count or not (text_of(job.script) or part.form == "node") then
            return false
        end
    end
    local kind = only_type(parts)
    return conf.model_set[kind:lower()]
        and not besides.sharing
        and not (text_of(job.features) or ""):find(R.NOT_UNDERSTOOD)
end

--- The same for a job that is left to Slurm: an indexed node does not have the model as a GRES type.
--- Returns (fields, environment). Without fields the request keeps its type. Its environment loses the
--- type nevertheless, so that `gpu-aware setup --roll` can change the request of the pending job;
--- unless the script names the type: srun refuses a step with a type and a variable without.
function R.left_changes(job, parts, besides, conf)
    local kind = only_type(parts)
    if not kind then
        return nil, nil
    end
    if may_change(job, parts, besides, conf) then
        local new = {}
        local environment = R.model_changes(job, parts, new)
        if environment then
            return new, environment
        end
    end
    local script = text_of(job.script)
    return nil, script and not script_names(script, kind) and untyped_environment(job, kind) or nil
end

return R
