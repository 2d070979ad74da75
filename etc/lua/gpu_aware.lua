--[[
gpu_aware.lua: the filter of slurm-gpu-aware inside slurmctld.

It parks GPU jobs behind a gate (a licence that a reservation holds), so that the selector can
choose their exact GPUs, and keeps ordinary users from opening that gate themselves. A site's own
job_submit.lua loads it with one line at the top and calls it with one line in each function:

    local loaded, gpu_aware = pcall(dofile, "/etc/slurm/gpu_aware.lua")

    -- last in slurm_job_submit, before its own "return slurm.SUCCESS":
    if loaded and gpu_aware.submit(job_desc, part_list, submit_uid) ~= slurm.SUCCESS then return slurm.ERROR end

    -- the same in slurm_job_modify:
    if loaded and gpu_aware.modify(job_desc, job_rec, part_list, modify_uid) ~= slurm.SUCCESS then return slurm.ERROR end

The configuration, gpu_aware_conf.lua, lies beside this file and is read once, when slurmctld
(re)loads job_submit.lua: touch job_submit.lua after changing it.

Rules: any error of ours lets the job go on as if we were not there, and the log says why. A job
is changed only after everything was decided, all fields or none. Nothing here waits for anything.
Runs on Lua 5.1 to 5.4.
]]

local M = {}

local PREFIX = "gpuaware/1;"
local MAX_COMMENT = 1024 -- Slurm refuses longer comments, and longer AdminComments
local KEYS = { "class", "bw", "pattern", "gpus", "freq", "model", "place" }
local BANDWIDTHS = { "high", "low" }
local PATTERNS = { "ring", "tree", "ring+tree", "all-to-all", "none" }
local MHZ_MIN, MHZ_MAX = 100, 10000

--[[
Which forms of a request are parked: those that the selector can rewrite to exact GPUs so that
srun inside the job still works (slurm_gpu_aware/slurm/rewrite.py has a row for each). Whatever is
not in this table is left to Slurm. Keys: form of the request / batch (a script) or interactive
(salloc, srun: Slurm does not tell us which).
  cpus_per_gpu  may come with --cpus-per-gpu
  other_gres    may come with other GRES in the same option
]]
M.FORMS = {
    ["node/batch"] = { cpus_per_gpu = true, other_gres = true },
    ["job/batch"] = { cpus_per_gpu = true, other_gres = false },
    ["task/batch"] = { cpus_per_gpu = false, other_gres = false },
    ["node/interactive"] = { cpus_per_gpu = false, other_gres = true },
}

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

-- Environment of a batch job in which sbatch hands the GPU type on to srun inside the job.
local TYPED_ENVIRONMENT = {
    "SLURM_GPUS",
    "SLURM_GPUS_PER_NODE",
    "SLURM_GPUS_PER_TASK",
    "SLURM_GPUS_PER_SOCKET",
    "SLURM_TRES_PER_TASK",
}

-- What an ordinary user may not change in a job of ours: field, its name in scontrol.
local GUARDED = {
    { "licenses", "Licenses" },
    { "req_nodes", "ReqNodeList" },
    { "exc_nodes", "ExcNodeList" },
    { "tres_per_node", "TresPerNode (Gres)" },
    { "tres_per_job", "TresPerJob" },
    { "tres_per_task", "TresPerTask" },
    { "tres_per_socket", "TresPerSocket" },
    { "tres_freq", "TresFreq" },
    { "tres_bind", "TresBind" },
    { "cpus_per_tres", "CpusPerTres" },
    { "mem_per_tres", "MemPerTres" },
    { "min_nodes", "NumNodes" },
    { "max_nodes", "NumNodes" },
    { "min_cpus", "NumCPUs" },
    { "max_cpus", "NumCPUs" },
    { "num_tasks", "NumTasks" },
    { "cpus_per_task", "CPUsPerTask" },
    { "ntasks_per_node", "NtasksPerNode" },
    { "shared", "OverSubscribe" },
    { "partition", "Partition" },
    { "features", "Features" },
    { "reservation", "ReservationName" },
    { "extra", "Extra" },
    { "admin_comment", "AdminComment" },
}

-- Small helpers ---------------------------------------------------------------------------------

local function set_of(list)
    local set = {}
    for _, value in ipairs(list) do
        set[value] = true
    end
    return set
end

local KNOWN_KEY = set_of(KEYS)

--- A number that Slurm means: nil for NO_VAL, INFINITE and their 64 bit forms.
local function number32(value)
    if type(value) ~= "number" or value ~= value or value < 0 or value >= 4294967294 then
        return nil
    end
    return math.floor(value)
end

--- The same for fields of 8 and 16 bits.
local function number16(value)
    value = number32(value)
    if value and value >= 65534 then
        return nil
    end
    return value
end

--- A string that is there; nil for nil and "".
local function text_of(value)
    if type(value) ~= "string" or value == "" then
        return nil
    end
    return value
end

--- Without the blanks at both ends. By hand: a pattern would be quadratic in a run of blanks.
local function trim(text)
    local first, last = text:find("[^ \t]"), #text
    if not first then
        return ""
    end
    while text:find("^[ \t]", last) do
        last = last - 1
    end
    return text:sub(first, last)
end

local function split(text, separators)
    local parts, from = {}, 1
    while true do
        local at = text:find(separators, from)
        if not at then
            parts[#parts + 1] = text:sub(from)
            return parts
        end
        parts[#parts + 1] = text:sub(from, at - 1)
        from = at + 1
    end
end

--- A user's text as it may stand in a sentence: printable ASCII, at most 40 characters.
local function shown(text)
    local plain = text:sub(1, 40):gsub("[^ -~]", "?")
    return #text > 40 and plain .. "..." or plain
end

local function log_error(format, ...)
    pcall(function(...)
        slurm.log_error("%s", "gpu_aware: " .. string.format(format, ...))
    end, ...)
end

--- Give a sentence to the user; reaches sbatch, salloc, srun and scontrol.
local function tell(text)
    if not pcall(function()
        slurm.log_user("%s", text)
    end) then
        pcall(function()
            slurm.user_msg(text)
        end)
    end
end

-- Configuration ---------------------------------------------------------------------------------

local function names_ok(list, pattern, least)
    if type(list) ~= "table" or #list < least then
        return false
    end
    for _, name in ipairs(list) do
        if type(name) ~= "string" or #name > 64 or not name:find(pattern) then
            return false
        end
    end
    return true
end

local NAME = "^[A-Za-z][A-Za-z0-9_-]*$"

--- Check a configuration table. Returns it with defaults, or nil and the reason.
local function checked(raw)
    if type(raw) ~= "table" then
        return nil, "it does not return a table"
    end
    local conf = {
        classes = raw.classes,
        policies = raw.policies or {},
        licence = raw.licence or "gpuaware",
        reservation = raw.reservation or "gpuaware_gate",
        submit_file = raw.submit_file,
        models = raw.models or {},
        park_uncommented = raw.park_uncommented ~= false,
        max_gpus_per_node = raw.max_gpus_per_node,
        operators = raw.operators or {},
    }
    if not names_ok(conf.classes, NAME, 1) then
        return nil, "classes: expected a list of names, at least one"
    elseif not names_ok(conf.policies, "^[a-z][a-z0-9+_-]*$", 0) then
        return nil, "policies: expected a list of policy names"
    elseif not names_ok({ conf.licence, conf.reservation }, NAME, 2) then
        return nil, "licence, reservation: expected plain names"
    elseif not names_ok(conf.models, "^[a-z0-9][a-z0-9_.-]*$", 0) then
        return nil, "models: expected a list of lower case names"
    elseif type(conf.operators) ~= "table" then
        return nil, "operators: expected a list of user ids"
    end
    for _, model in ipairs(conf.models) do
        if model:find("^g%d+$") then
            return nil, "models: " .. model .. " is the GRES type of a GPU index"
        end
    end
    for _, uid in ipairs(conf.operators) do
        if type(uid) ~= "number" then
            return nil, "operators: expected user ids, which are numbers"
        end
    end
    local file = conf.submit_file
    if file ~= nil and (type(file) ~= "string" or file:sub(1, 1) ~= "/") then
        return nil, "submit_file: expected an absolute path"
    end
    local widest = conf.max_gpus_per_node
    if widest ~= nil and (type(widest) ~= "number" or widest < 1 or widest > 1024) then
        return nil, "max_gpus_per_node: expected a number from 1 to 1024"
    end
    conf.model_set, conf.admins = set_of(conf.models), set_of(conf.operators)
    conf.admins[0] = true
    return conf
end

--- Read a configuration file in an empty environment: it is data. Returns nil and why if wrong.
function M.read_conf(path)
    local chunk, problem
    if setfenv then
        chunk, problem = loadfile(path)
        if chunk then
            setfenv(chunk, {})
        end
    else
        chunk, problem = loadfile(path, "t", {})
    end
    if not chunk then
        return nil, path .. ": " .. tostring(problem)
    end
    local ran, raw = pcall(chunk)
    if not ran then
        return nil, path .. ": " .. tostring(raw)
    end
    local fine, conf, reason = pcall(checked, raw)
    if not fine then
        return nil, path .. ": " .. tostring(conf)
    end
    return conf, reason and path .. ": " .. reason
end

--- Use a configuration; nil: jobs pass unmodified, because of `problem`.
function M.configure(conf, problem)
    M.conf, M.problem = conf, problem
    if not conf then
        log_error("GPU jobs pass unmodified: %s", tostring(problem))
    end
end

-- The user's comment (docs/comment.md; slurm_gpu_aware/slurm/comment.py is its twin) ---------------

local function one_of(valid, extra)
    local names = {}
    for _, name in ipairs(valid) do
        names[#names + 1] = name
    end
    names[#names + 1] = extra
    local set = set_of(names)
    return function(text)
        return set[text] and text or nil
    end, table.concat(names, ", ")
end

local COUNT = "^[1-9]%d?%d?%d?%d?$"

local function read_gpus(text)
    if text:find(COUNT) then
        return { tonumber(text), tonumber(text) }
    end
    local least, most = text:match("^([1-9]%d*)%-([1-9]%d*)$")
    if not least or #least > 5 or #most > 5 or tonumber(least) > tonumber(most) then
        return nil
    end
    return { tonumber(least), tonumber(most) }
end

local function read_freq(text)
    if text == "auto" or text == "max" then
        return text
    end
    if not text:find(COUNT) or tonumber(text) < MHZ_MIN or tonumber(text) > MHZ_MAX then
        return nil
    end
    return tonumber(text)
end

local function read_model(text)
    if #text > 64 or not text:find("^[A-Za-z0-9][A-Za-z0-9._-]*$") then
        return nil
    end
    return text
end

--- key -> function from text to value (nil: not valid), sentence of the valid ones
local function readers(conf)
    local function reader(read, valid)
        return { read = read, valid = valid }
    end
    return {
        class = reader(one_of(conf.classes, "auto")),
        bw = reader(one_of(BANDWIDTHS)),
        pattern = reader(one_of(PATTERNS)),
        gpus = reader(read_gpus, "a number such as 4, or a range such as 2-8"),
        freq = reader(
            read_freq,
            string.format("auto, max, or MHz from %d to %d", MHZ_MIN, MHZ_MAX)
        ),
        model = reader(read_model, "a name of letters, digits, '.', '_' and '-', at most 64"),
        place = reader(one_of(conf.policies, "off")),
    }
end

--- Parse a comment. Returns a table of wishes; nil if it is not ours; nil and a sentence if wrong.
function M.parse_comment(text, conf)
    local entries, ours = {}, false
    for _, item in ipairs(split(text or "", ",")) do
        local key, value = item:match("^([^=]*)=(.*)$")
        key, value = trim(key or item), value and trim(value)
        entries[#entries + 1] = { key = key, value = value }
        ours = ours or (value and KNOWN_KEY[key])
    end
    if not ours then
        return nil
    end
    local keys = table.concat(KEYS, ", ")
    if #text > MAX_COMMENT then
        return nil,
            string.format(
                "gpu-aware: the comment is longer than %d characters; shorten it",
                MAX_COMMENT
            )
    end
    local found = {}
    for _, entry in ipairs(entries) do
        local key, value = entry.key, entry.value
        if not value then
            return nil,
                "gpu-aware: comment entry '"
                    .. shown(key)
                    .. "' is not key=value; valid keys: "
                    .. keys
        elseif not KNOWN_KEY[key] then
            return nil,
                "gpu-aware: comment key '" .. shown(key) .. "' is not known; valid keys: " .. keys
        elseif found[key] then
            return nil, "gpu-aware: comment key '" .. key .. "' is given twice; give it once"
        end
        found[key] = value
    end
    local wishes, reader = {}, readers(conf)
    for _, key in ipairs(KEYS) do
        if found[key] then
            wishes[key] = reader[key].read(found[key])
            if wishes[key] == nil then
                return nil,
                    "gpu-aware: "
                        .. key
                        .. "="
                        .. shown(found[key])
                        .. " is not valid; valid: "
                        .. reader[key].valid
            end
        end
    end
    return wishes
end

-- Requests --------------------------------------------------------------------------------------

--- Read one TRES list. Returns the GPU entries {type=, count=} (count nil: not understood) and
--- what else stands in it: others (any), cpu (cpu=N of --cpus-per-task), sharing (shard, mps).
local function gpu_entries(text)
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
local function gpu_request(job)
    local parts, sharing = {}, false
    for _, form in ipairs(FORM_ORDER) do
        local gpus, rest = gpu_entries(text_of(job[FORM_FIELDS[form]]))
        sharing = sharing or rest.sharing
        for _, gpu in ipairs(gpus) do
            gpu.form, gpu.rest = form, rest
            parts[#parts + 1] = gpu
        end
    end
    return parts, sharing
end

local function index_type(parts)
    for _, part in ipairs(parts) do
        if part.type and part.type:find("^g%d+$") then
            return part.type
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
local function shape(job, part)
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
    local cpus = gpu_entries(text)
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

--- Why the GPUs of a multi-node request cannot be the same number on each node; nil if they can.
local function uneven_reason(part, size, conf)
    local widest = conf.max_gpus_per_node
    if part.form == "job" then
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

--- Why a GPU job is left to Slurm, in words that complete a sentence; nil if it can be parked.
local function left_reason(job, parts, sharing, wishes, conf)
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
    local form = M.FORMS[part.form .. (script and "/batch" or "/interactive")]
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
    elseif (number16(job.shared) or 0) > 0 then
        return "--oversubscribe and --exclusive=user|mcs|topo"
    elseif (number16(job.immediate) or 0) > 0 then
        return "--immediate"
    elseif (text_of(job.licenses) or ""):find("|", 1, true) then
        return "licences with |"
    end
    local size = shape(job, part)
    return cpus_per_gpu_reason(job, form, size) or uneven_reason(part, size, conf)
end

--- Add a feature to a constraint. Returns nil where "and" cannot be added without changing it.
local function with_feature(constraint, feature)
    constraint = text_of(constraint)
    if not constraint then
        return feature
    end
    -- A plain conjunction only: counts, alternatives and groups bind in ways of their own.
    if constraint:find("[^A-Za-z0-9_.:=/&,+-]") then
        return nil
    end
    return constraint .. "&" .. feature
end

-- Parking ---------------------------------------------------------------------------------------

local function percent(text)
    return (
        text:gsub("[^A-Za-z0-9_.:/=,+*@-]", function(char)
            return string.format("%%%02X", char:byte())
        end)
    )
end

--- The AdminComment of a job (slurm_gpu_aware/slurm/admin_comment.py reads it).
local function admin_comment(job, new, model)
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
local function model_changes(job, part, new)
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

--- Does a licence list name the gate's licence?
local function names_licence(licences, licence)
    for _, item in ipairs(split(text_of(licences) or "", "[,;|&()]")) do
        if trim(item):match("^[^:=@*]*") == licence then
            return true
        end
    end
    return false
end

local function names_reservation(reservations, name)
    for _, item in ipairs(split(text_of(reservations) or "", ",")) do
        if trim(item) == name then
            return true
        end
    end
    return false
end

--- The user asks for what is ours alone: our licence, the gate's reservation, an index.
local function trespass(job, parts, conf)
    if names_licence(job.licenses, conf.licence) then
        return "gpu-aware: licence "
            .. conf.licence
            .. " is the gate of GPU placement, not for jobs to ask for; remove it from --licenses"
    elseif names_reservation(job.reservation, conf.reservation) then
        return "gpu-aware: reservation "
            .. conf.reservation
            .. " is the gate of GPU placement, not for jobs; name another with --reservation"
    end
    local index = index_type(parts)
    if index then
        local models = #conf.models > 0 and " or a model: " .. table.concat(conf.models, ", ") or ""
        return "gpu-aware: GPU type "
            .. shown(index)
            .. " names one GPU of a node, which is chosen for you; ask for a number of GPUs (gpu:1)"
            .. models
    end
    return nil
end

--- gpus=MIN-MAX must hold what Slurm's options ask for: with that the job starts if we are away.
local function gpus_sentence(wishes, part, job)
    local range = wishes and wishes.gpus
    local total = range and shape(job, part).total
    if not total or (range[1] <= total and total <= range[2]) then
        return nil
    end
    local text = range[1] == range[2] and string.format("%d", range[1])
        or string.format("%d-%d", range[1], range[2])
    return string.format(
        "gpu-aware: gpus=%s does not hold the %d GPUs that Slurm's options ask for;"
            .. " valid: a number or range with %d in it",
        text,
        total,
        total
    )
end

local function left(reason)
    return {
        text = "gpu-aware: this job is left to Slurm, which picks its GPUs: " .. reason,
    }
end

--- Decide about a submission. Returns {refuse=, text=, new=, environment=}; empty: untouched.
local function decide_submit(job, uid, conf)
    local parts, sharing = gpu_request(job)
    local admin = conf.admins[uid]
    local wrong = not admin and trespass(job, parts, conf)
    if wrong then
        return { refuse = true, text = wrong }
    elseif #parts == 0 or index_type(parts) or names_licence(job.licenses, conf.licence) then
        return {}
    end
    local wishes, sentence = M.parse_comment(text_of(job.comment), conf)
    sentence = sentence or gpus_sentence(wishes, parts[1], job)
    if sentence then
        return { refuse = true, text = sentence }
    elseif not wishes and not conf.park_uncommented then
        return {}
    end
    local reason = left_reason(job, parts, sharing, wishes, conf)
    if reason then
        return left(reason)
    end
    local new, environment, model = {}, {}, nil
    if parts[1].type then
        model = parts[1].type:lower()
        environment = model_changes(job, parts[1], new)
        if not environment then
            return left("a model together with alternatives or counts in --constraint")
        end
    end
    new.admin_comment = admin_comment(job, new, model)
    if #new.admin_comment > MAX_COMMENT then
        return left("a request too long to be recorded")
    end
    local own = text_of(job.licenses)
    new.licenses = (own and own .. "," or "") .. conf.licence .. ":1"
    return { new = new, environment = environment, parked = true }
end

--- Assign all fields, or none: whatever fails, what was assigned before is put back.
local function apply(job, new, environment)
    local done = {}
    local function assign(target, name, value)
        done[#done + 1] = { target, name, target[name] }
        target[name] = value
    end
    local fine, problem = pcall(function()
        for name, value in pairs(new) do
            assign(job, name, value)
        end
        for name, value in pairs(environment or {}) do
            assign(job.environment, name, value)
        end
    end)
    if fine then
        return
    end
    for i = #done, 1, -1 do
        pcall(function()
            done[i][1][done[i][2]] = done[i][3] or ""
        end)
    end
    error(problem, 0)
end

--- Wake the selector: one more byte in a regular file. "r+" never blocks, not even on a FIFO, and
--- a FIFO cannot seek; "a" is tried only where nothing is there yet. Failing is harmless.
local function append_byte(path)
    local file, _, code = io.open(path, "r+")
    if not file and code == 2 then
        file = io.open(path, "a")
    end
    if not file then
        return
    end
    local size = file:seek("end")
    if size and size > 1048576 then
        size = file:seek("set", 0)
    end
    if size then
        file:write(".")
    end
    file:close()
end

-- Modifying -------------------------------------------------------------------------------------

local function is_set(value)
    if type(value) == "number" then
        return number16(value) ~= nil or (number32(value) or 0) > 65535
    end
    return type(value) == "string"
end

local function is_ours(record, conf)
    local comment = text_of(record.admin_comment)
    return names_licence(record.licenses, conf.licence)
        or (comment ~= nil and comment:sub(1, 9) == "gpuaware/")
end

--- Decide about an update by an ordinary user. Returns the sentence of a refusal, or nil.
local function decide_modify(job, record, conf)
    local wrong = trespass(job, gpu_request(job), conf)
    if wrong or not is_ours(record, conf) then
        return wrong
    end
    for _, field in ipairs(GUARDED) do
        if is_set(job[field[1]]) then
            return "gpu-aware: "
                .. field[2]
                .. " of this job is managed by GPU placement; ask an operator to change it,"
                .. " or cancel the job and submit it again"
        end
    end
    local wishes, sentence = M.parse_comment(text_of(job.comment), conf)
    local parts = names_licence(record.licenses, conf.licence) and gpu_request(record) or {}
    return sentence or (parts[1] and gpus_sentence(wishes, parts[1], record))
end

-- What slurmctld's script calls -----------------------------------------------------------------

local function success()
    return slurm.SUCCESS or 0
end

local function refusal(text)
    tell(text)
    return slurm.ERROR or -1
end

local function submit(job, uid)
    local conf = M.conf
    if not conf then
        log_error("job of uid %s passes unmodified: %s", tostring(uid), tostring(M.problem))
        return success()
    end
    local verdict = decide_submit(job, uid, conf)
    if verdict.refuse then
        return refusal(verdict.text)
    end
    if verdict.new then
        apply(job, verdict.new, verdict.environment)
    end
    if verdict.text then
        tell(verdict.text)
    end
    if verdict.parked and conf.submit_file then
        pcall(append_byte, conf.submit_file)
    end
    return success()
end

local function modify(job, record, uid)
    local conf = M.conf
    if not conf or conf.admins[uid] then
        return success()
    end
    local sentence = decide_modify(job, record, conf)
    return sentence and refusal(sentence) or success()
end

--- Call for a result of ours; an error inside is logged and the job goes on.
local function guarded(what, call, ...)
    local fine, result = pcall(call, ...)
    if not fine then
        log_error("%s: job goes on unmodified: %s", what, tostring(result))
        return type(slurm) == "table" and slurm.SUCCESS or 0
    end
    return result
end

--- In slurm_job_submit. Returns slurm.SUCCESS, or slurm.ERROR if the job must be refused.
function M.submit(job_desc, part_list, submit_uid)
    return guarded("submit", submit, job_desc, submit_uid)
end

--- In slurm_job_modify. Returns slurm.SUCCESS, or slurm.ERROR if the change must be refused.
function M.modify(job_desc, job_rec, part_list, modify_uid)
    return guarded("modify", modify, job_desc, job_rec, modify_uid)
end

local here = debug.getinfo(1, "S").source:match("^@(.*/)") or "./"
M.configure(M.read_conf(here .. "gpu_aware_conf.lua"))

return M
