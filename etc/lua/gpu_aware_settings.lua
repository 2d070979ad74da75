--[[
The configuration that `gpu-aware setup` writes beside the filter (gpu_aware_conf.lua), checked when
it is read.
]]

local here = debug.getinfo(1, "S").source:match("^@(.*/)") or "./"
local base = dofile(here .. "gpu_aware_base.lua")
local number16, number32, set_of, text_of = base.number16, base.number32, base.set_of, base.text_of
local rules = dofile(here .. "gpu_aware_rules.lua")

local S = {}

local function names_ok(list, pattern, least)
    if type(list) ~= "table" or #list < least then
        return false
    end
    for _, name in ipairs(list) do
        if type(name) ~= "string" or #name > rules.max_name or not name:find("^" .. pattern .. "$") then
            return false
        end
    end
    return true
end

--- Check a configuration table. Returns it with defaults, or nil and the reason.
local function checked(raw)
    if type(raw) ~= "table" then
        return nil, "it does not return a table"
    end
    local conf = {
        classes = raw.classes,
        policies = raw.policies or {},
        place_off = raw.place_off ~= false,
        cli_filter = raw.cli_filter == true,
        scrontab = raw.scrontab ~= false,
        several_clusters = raw.several_clusters ~= false,
        licence = raw.licence or rules.licence,
        reservation = raw.reservation or rules.reservation,
        submit_file = raw.submit_file,
        models = raw.models or {},
        types = raw.types or {},
        node_types = raw.node_types or {},
        partitions = raw.partitions or {},
        partitions_with_others = raw.partitions_with_others,
        partitions_without_gpus = raw.partitions_without_gpus or {},
        park_uncommented = raw.park_uncommented ~= false,
        max_gpus_per_node = raw.max_gpus_per_node,
        max_cpus_per_node = raw.max_cpus_per_node,
        max_memory_mb_per_node = raw.max_memory_mb_per_node,
        max_shards_per_gpu = raw.max_shards_per_gpu,
        operators = raw.operators or {},
    }
    if not names_ok(conf.classes, rules.name, 1) then
        return nil, "classes: expected a list of names, at least one"
    elseif not names_ok(conf.policies, rules.policy, 0) then
        return nil, "policies: expected a list of policy names"
    elseif not names_ok({ conf.licence, conf.reservation }, rules.name, 2) then
        return nil, "licence, reservation: expected plain names"
    elseif not names_ok(conf.partitions, "[^%s,]+", 0) then
        return nil, "partitions: expected a list of names"
    elseif not names_ok(conf.partitions_with_others or {}, "[^%s,]+", 0) then
        return nil, "partitions_with_others: expected a list of names"
    elseif not names_ok(conf.partitions_without_gpus, "[^%s,]+", 0) then
        return nil, "partitions_without_gpus: expected a list of names"
    elseif not names_ok(conf.models, rules.feature, 0) then
        return nil, "models: expected a list of lower case names"
    elseif not names_ok(conf.types, rules.feature, 0) then
        return nil, "types: expected a list of lower case names"
    elseif not names_ok(conf.node_types, "[!-~]+", 0) then
        return nil, "node_types: expected a list of names"
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
        return nil, "max_gpus_per_node: expected a number from 1 to " .. rules.index_types
    end
    for _, key in ipairs({ "max_cpus_per_node", "max_memory_mb_per_node", "max_shards_per_gpu" }) do
        if conf[key] ~= nil and (type(conf[key]) ~= "number" or conf[key] < 1) then
            return nil, key .. ": expected a number from 1"
        end
    end
    conf.model_set, conf.type_set = set_of(conf.models), set_of(conf.types)
    conf.type_sums = {}
    for _, name in ipairs(conf.node_types) do -- as Slurm spells them
        conf.type_sums[base.type_sum(name)] = name
    end
    conf.admins = set_of(conf.operators)
    conf.managed = #conf.partitions > 0 and set_of(conf.partitions) or nil
    conf.with_others = conf.partitions_with_others and set_of(conf.partitions_with_others)
    conf.without_gpus = set_of(conf.partitions_without_gpus)
    conf.admins[0] = true
    return conf
end

--- Read a configuration file in an empty environment: it is data. Returns nil and the reason if wrong.
function S.read_conf(path)
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

--- The partitions of a job, with commas between them; one that names none goes to the default one.
--- nil: there is none, or the text is so long that Slurm itself refuses it.
local function partitions_of(job, part_list)
    local names = text_of(job.partition)
    if not names then
        for name, part in pairs(part_list or {}) do
            if number32(part.flag_default) == 1 then
                names = name
            end
        end
    end
    return names and #names <= rules.max_text and names or nil
end

--- Are (all, some) partitions of a job managed?
function S.is_managed(job, part_list, conf)
    if not conf.managed then
        return true, true
    end
    local names = partitions_of(job, part_list)
    local all, some = names ~= nil, false
    for name in (names or ""):gmatch("[^,]+") do
        all = all and conf.managed[name] or false
        some = some or conf.managed[name] or false
    end
    return all, some
end

--- May a job get whole nodes with all their GPUs, though it asks for none: by an option, or in a partition
--- with OverSubscribe=EXCLUSIVE? And has one of its partitions nodes without GPUs as well? Neither where the
--- configuration does not name those.
function S.takes_gpus(job, part_list, conf)
    if not conf.with_others then
        return false, false
    end
    local whole = number16(job.shared) == 0 or number16(job.core_spec) ~= nil -- also 0
        or number16(job.thread_spec) ~= nil
    local others, gpus = false, false
    for name in (partitions_of(job, part_list) or ""):gmatch("[^,]+") do
        local part = part_list and part_list[name]
        whole = whole or part ~= nil and number16(part.max_share) == 0
        others = others or conf.with_others[name] or false
        gpus = gpus or not conf.without_gpus[name]
    end
    return whole and gpus, others
end

return S
