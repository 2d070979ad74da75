--[[
Requests that an ordinary user may not make: the gate's licence and reservation, a clock, the GPU of
an index, or shards of it. All texts of a job are parsed as Slurm parses them, so that no spelling passes.

Lengths are checked first: slurmctld waits for the filter, and applies its own limits afterwards.
- A text that is parsed (PARSED) is refused, and a comment is not read, if it is longer
  than Slurm's own limit. Slurm itself would refuse all of these but licences, and licences that are
  not parsed are not checked.
- A text that is only copied into the record of a parked job (node lists, AdminComment) may be longer:
  the job is left to Slurm (gpu_aware_request.lua).
- Of all other texts only the presence is checked.
]]

local here = debug.getinfo(1, "S").source:match("^@(.*/)") or "./"
local base = dofile(here .. "gpu_aware_base.lua")
local rules = dofile(here .. "gpu_aware_rules.lua")
local text_of = base.text_of
local trim = base.trim
local shown = base.shown

local F = {}

local MAX_TEXT = rules.max_text

-- Texts of a job that are parsed, here or in the other files, and their options.
local PARSED = {
    { "licenses", "--licenses" },
    { "reservation", "--reservation" },
    { "extra", "--extra" },
    { "tres_per_node", "--gres" },
    { "tres_per_job", "--gpus" },
    { "tres_per_task", "--tres-per-task" },
    { "tres_per_socket", "--gpus-per-socket" },
    { "cpus_per_tres", "--cpus-per-gpu" },
    { "mem_per_tres", "--mem-per-gpu" },
    { "tres_bind", "--gpu-bind" },
    { "tres_freq", "--gpu-freq" },
    { "features", "--constraint" },
}
-- The texts in which Slurm looks for GRES types.
local TYPED = {
    "tres_per_node",
    "tres_per_job",
    "tres_per_task",
    "tres_per_socket",
    "cpus_per_tres",
    "mem_per_tres",
}

--- Why a job or an update is refused for the length of a text; nil: it is not.
function F.too_long(job)
    for _, field in ipairs(PARSED) do
        if #(text_of(job[field[1]]) or "") > MAX_TEXT then
            return string.format(
                "gpu-aware: %s is longer than %d characters; shorten it",
                field[2],
                MAX_TEXT
            )
        end
    end
    return nil
end

-- Licences and reservations -----------------------------------------------------------------------

--- Does a licence list name this licence? False for a list that is too long: ours never is.
function F.names_licence(licences, licence)
    licences = text_of(licences)
    if not licences or #licences > MAX_TEXT or not licences:find(licence, 1, true) then
        return false
    end
    for item in licences:gmatch("[^,;|&()]+") do
        if trim(item):match("^[^:=@*]*") == licence then
            return true
        end
    end
    return false
end

--- The option with which a job asks for a licence; nil: with none. Slurm takes licences out of
-- tres_per_task after us (_set_tot_license_req): the word may stand anywhere, "/" may follow it.
function F.licence_option(job, licence)
    if F.names_licence(job.licenses, licence) then
        return "--licenses"
    end
    for item in (text_of(job.tres_per_task) or ""):gmatch("license[/:]?([^,]*)") do
        if F.names_licence(item, licence) then
            return "--tres-per-task"
        end
    end
    return nil
end

--- The reservation of a list that is ours: the gate's, or one of the holding pool.
local POOL = rules.holding_pool .. "_"
local function our_reservation(reservations, gate)
    for item in (text_of(reservations) or ""):gmatch("[^,]+") do
        local name = trim(item)
        if name == gate or (name .. "_"):sub(1, #POOL) == POOL then
            return name
        end
    end
    return nil
end

-- The GPU of an index -----------------------------------------------------------------------------

local COLON, EQUALS = (":="):byte(1, 2)
local WEIGHTS = base.type_weights

-- Sum -> index type.
local INDEX_TYPE = {}
for index = 0, rules.index_types - 1 do
    local name = string.format("g%d", index)
    INDEX_TYPE[base.type_sum(name)] = name
end

--- The GRES type at the start of "TYPE:COUNT" that is one of these to Slurm: (type, which one); nil: there
--- is none. `types`: sum -> type. Where the type ends depends on what follows, so each end is tried.
--- Whether C's char is signed depends on the machine, so both sums are compared.
local function type_in(text, types)
    local signed, unsigned = 0, 0
    for i = 1, #text + 1 do
        local byte, weight = text:byte(i), WEIGHTS[(i - 1) % 4]
        if not byte or byte == COLON or byte == EQUALS then
            local same = types[signed % 4294967296] or types[unsigned % 4294967296]
            if same then
                return text:sub(1, i - 1), same
            end
        end
        byte = byte or 0
        signed = signed + (byte < 128 and byte or byte - 256) * weight
        unsigned = unsigned + byte * weight
    end
    return nil
end

-- GRES of which a type names a GPU, and what to ask for instead.
local OF_GPUS = {
    gpu = "a number of GPUs (gpu:1)",
    shard = "a number of shards (shard:1)",
    mps = "MPS without a type (mps:1)",
}

--- The type of a GPU, or of its shards or MPS, in a job's request that is an index type to Slurm:
--- (type, index type, GRES); nil: there is none. As in slurm_get_next_tres, "gres" may stand anywhere
--- in an entry. `types`: sum -> other types to look for instead.
function F.index_type(job, types)
    for _, field in ipairs(TYPED) do
        for item in (text_of(job[field]) or ""):gmatch("[^,]+") do
            local gres, typed = trim(item:match("gres[/:]?(.*)$") or item):match("^(%l+)[:=](.*)$")
            local kind, index = type_in(OF_GPUS[gres] and typed or "", types or INDEX_TYPE)
            if kind then
                return kind, index, gres
            end
        end
    end
    return nil
end

-- All together ------------------------------------------------------------------------------------

--- Why a job or an update of a user is refused, as a sentence; nil: it is allowed.
-- The caller has checked the lengths.
function F.trespass(job, conf)
    for _, licence in ipairs({ conf.licence, rules.holding_pool }) do
        local option = F.licence_option(job, licence)
        if option then
            return "gpu-aware: licence "
                .. licence
                .. " is the gate of GPU placement, not for jobs to ask for; remove it from "
                .. option
        end
    end
    local reservation = our_reservation(job.reservation, conf.reservation)
    if reservation then
        return "gpu-aware: reservation "
            .. reservation
            .. " is the gate of GPU placement, not for jobs; name another with --reservation"
    elseif base.is_record(job.admin_comment) then
        return "gpu-aware: an AdminComment gpuaware/... is GPU placement's own record; remove it"
    elseif (text_of(job.extra) or ""):find(rules.record, 1, true) then
        return "gpu-aware: gpuaware/... in Extra is GPU placement's own record; remove it"
    elseif (text_of(job.extra) or ""):find(rules.extra_clock, 1, true) then
        return "gpu-aware: freq= in --extra is how GPU placement sets clocks; ask with"
            .. " --comment=freq=MHz"
    end
    local kind, index, gres = F.index_type(job)
    if kind then
        local same = kind ~= index and ", to Slurm the same as " .. index .. "," or ""
        local instead = OF_GPUS[gres]
        if gres == "gpu" and #conf.models > 0 then
            instead = instead .. " or a model: " .. table.concat(conf.models, ", ")
        end
        return "gpu-aware: "
            .. (gres == "gpu" and "GPU" or gres)
            .. " type "
            .. shown(kind)
            .. same
            .. " names one GPU of a node, which is chosen for you; ask for "
            .. instead
    end
    return nil
end

return F
