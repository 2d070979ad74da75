--[[
gpu_aware.lua: the filter of slurm-gpu-aware inside slurmctld.

It parks GPU jobs behind a gate (a licence that a reservation holds), so that the selector can
choose their exact GPUs, and prevents ordinary users from opening that gate. A site's own
job_submit.lua loads it with two lines, after its functions and before its "return":

    local loaded, gpu_aware = pcall(dofile, "/etc/slurm/gpu_aware.lua")
    if loaded then gpu_aware.join() end

The configuration, gpu_aware_conf.lua, and the other gpu_aware_*.lua lie beside this file. All are
read once, when slurmctld (re)loads job_submit.lua: touch job_submit.lua after changing one.

Rules: after any error here the job passes unmodified, and the log says why. A job is changed only
after the decision is complete: all fields or none. No call here blocks.
Runs on Lua 5.1 to 5.4.
]]

local M = {}

local here = debug.getinfo(1, "S").source:match("^@(.*/)") or "./"
local base = dofile(here .. "gpu_aware_base.lua")
local comment = dofile(here .. "gpu_aware_comment.lua")
local defer = dofile(here .. "gpu_aware_defer.lua")
local forbidden = dofile(here .. "gpu_aware_forbidden.lua")
local unsupported = dofile(here .. "gpu_aware_unsupported.lua")
local request = dofile(here .. "gpu_aware_request.lua")
local settings = dofile(here .. "gpu_aware_settings.lua")
local number32 = base.number32
local text_of = base.text_of
local names_licence = forbidden.names_licence

-- Fields of a gated job that an ordinary user may not change: field, its name in scontrol, and for
-- numbers the value that means "not given".
local U16, U32 = 65534, 4294967294
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
    { "min_nodes", "NumNodes", U32 },
    { "max_nodes", "NumNodes", U32 },
    { "min_cpus", "NumCPUs", U32 },
    { "max_cpus", "NumCPUs", U32 },
    { "pn_min_cpus", "MinCPUsNode", U16 },
    { "pn_min_tmp_disk", "MinTmpDiskNode", U32 },
    { "num_tasks", "NumTasks", U32 },
    { "cpus_per_task", "CPUsPerTask", U16 },
    { "ntasks_per_node", "NtasksPerNode", U16 },
    { "ntasks_per_socket", "NtasksPerSocket", U16 },
    { "ntasks_per_core", "NtasksPerCore", U16 },
    { "ntasks_per_tres", "NtasksPerTRES", U16 },
    { "sockets_per_node", "ReqSockets", U16 },
    { "cores_per_socket", "ReqCores", U16 },
    { "threads_per_core", "ReqThreads", U16 },
    { "core_spec", "CoreSpec", U16 },
    { "thread_spec", "ThreadSpec", U16 },
    { "contiguous", "Contiguous", U16 },
    { "req_switch", "Switches", U32 },
    { "shared", "OverSubscribe", U16 },
    { "partition", "Partition" },
    { "features", "Features" },
    { "prefer", "Prefer" },
    { "batch_features", "BatchFeatures" },
    { "burst_buffer", "BurstBuffer" },
    { "reservation", "ReservationName" },
    { "extra", "Extra" },
    { "admin_comment", "AdminComment" },
}

local function log_error(format, ...)
    pcall(function(...)
        slurm.log_error("%s", "gpu_aware: " .. string.format(format, ...))
    end, ...)
end

--- Print a sentence to the user of sbatch, salloc, srun or scontrol.
local function tell(text)
    if not pcall(function()
        slurm.log_user("%s", text)
    end) then
        pcall(function()
            slurm.user_msg(text)
        end)
    end
end

M.read_conf = settings.read_conf

--- Use a configuration; nil: jobs pass unmodified, because of `problem`.
function M.configure(conf, problem)
    M.conf, M.problem = conf, problem
    if not conf then
        log_error("GPU jobs pass unmodified: %s", tostring(problem))
    end
end

-- Submission -------------------------------------------------------------------------------------

--- gpus=MIN-MAX must contain the number of Slurm's options: the job's GPUs if the selector is down.
local function gpus_sentence(hints, part, job)
    local range = hints and hints.gpus
    local total = range and request.shape(job, part).total
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

--- Are all partitions of a job managed? A job that names none goes to the default one.
local function is_managed(job, part_list, conf)
    if not conf.managed then
        return true
    end
    local names = text_of(job.partition)
    if not names then
        for name, part in pairs(part_list or {}) do
            if number32(part.flag_default) == 1 then
                names = name
            end
        end
    end
    for name in (names or ""):gmatch("[^,]+") do
        if not conf.managed[name] then
            return false
        end
    end
    return names ~= nil
end

--- Decide about a submission. Returns {refuse=, text=, new=, environment=}; empty: untouched.
local function decide_submit(job, part_list, uid, conf)
    local wrong = forbidden.too_long(job) or not conf.admins[uid] and forbidden.trespass(job, conf)
    if wrong then
        return { refuse = true, text = wrong }
    end
    local parts, besides = request.gpu_request(job)
    if #parts == 0 or forbidden.index_type(job) or forbidden.licence_option(job, conf.licence) then
        return {}
    end
    if not is_managed(job, part_list, conf) then
        local new, environment = request.left_changes(job, parts, besides, conf)
        return { new = new, environment = environment }
    end
    local hints, sentence, hint = comment.parse(text_of(job.comment), conf)
    local variable = nil
    if not hints and not sentence and text_of(job.script) and job.environment then
        variable = text_of(job.environment[comment.variable])
        hints, sentence = comment.parse_environment(variable, conf)
    end
    sentence = sentence or gpus_sentence(hints, parts[1], job)
    if sentence then
        return { refuse = true, text = sentence }
    elseif not hints and not conf.park_uncommented then
        return { text = hint }
    end
    local function left(reason)
        local new, environment = request.left_changes(job, parts, besides, conf)
        local text = "gpu-aware: this job is left to Slurm, which chooses its GPUs: " .. reason
        return { text = text, new = new, environment = environment }
    end
    local reason = unsupported.reason(job, parts, besides, hints, conf)
    if reason then
        return left(reason)
    end
    local new, environment, model = {}, {}, nil
    if parts[1].type then
        model = parts[1].type:lower()
        environment = request.model_changes(job, parts[1], new)
        if not environment then
            return left("a model together with groups or mixtures in --constraint")
        end
    end
    new.begin_time = defer.begin_time(job, conf)
    new.admin_comment = request.admin_comment(job, new, model, variable)
    if not new.admin_comment then
        return left("a request too long to be recorded")
    end
    local own = text_of(job.licenses)
    new.licenses = (own and own .. "," or "") .. conf.licence .. ":1"
    return { new = new, environment = environment, parked = true, text = not hints and hint or nil }
end

--- Assign all fields, or none: after a failure the earlier assignments are undone.
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
--- a FIFO cannot seek; "a" is tried only where no file exists yet. A failure is harmless.
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

-- Modification -----------------------------------------------------------------------------------

--- Is a field of an update given? A 32 bit number may be 65534.
local function is_set(value, unset)
    if type(value) == "number" then
        return value ~= (unset or U32)
    end
    return type(value) == "string"
end

local function is_ours(record, conf)
    return names_licence(record.licenses, conf.licence)
        or base.is_record(record.admin_comment)
end

--- Decide about an update by an ordinary user. Returns the sentence of a refusal, or nil.
local function decide_modify(job, record, conf)
    local wrong = forbidden.too_long(job) or forbidden.trespass(job, conf)
    if wrong or not is_ours(record, conf) then
        return wrong
    end
    for _, field in ipairs(GUARDED) do
        if is_set(job[field[1]], field[3]) then
            return "gpu-aware: "
                .. field[2]
                .. " cannot be changed in this job, GPU placement manages it; ask an operator,"
                .. " or cancel the job and submit it again"
        end
    end
    local hints, sentence = comment.parse(text_of(job.comment), conf)
    if hints and hints.place == "off" then
        return "gpu-aware: place=off can be asked only at submission;"
            .. " cancel the job and submit it again"
    end
    local parts = names_licence(record.licenses, conf.licence) and request.gpu_request(record) or {}
    return sentence or (parts[1] and gpus_sentence(hints, parts[1], record))
end

-- Functions for slurmctld's script ---------------------------------------------------------------

local function success()
    return slurm.SUCCESS or 0
end

local function refusal(text)
    tell(text)
    return slurm.ERROR or -1
end

local function submit(job, part_list, uid)
    local conf = M.conf
    if not conf then
        if forbidden.too_long(job) or #request.gpu_request(job) > 0 then
            log_error("job of uid %s passes unmodified: %s", tostring(uid), tostring(M.problem))
        end
        return success()
    end
    local verdict = decide_submit(base.read_once(job), part_list, uid, conf)
    if verdict.refuse then
        return refusal(verdict.text)
    end
    if verdict.new then
        apply(job, verdict.new, verdict.environment)
    end
    if verdict.text and (number32(job.het_job_offset) or 0) == 0 then -- components: say it once
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

--- Call a function of the filter; after an error, which is logged, the job passes unmodified.
local function guarded(what, call, ...)
    local fine, result = pcall(call, ...)
    if not fine then
        log_error("%s: job passes unmodified: %s", what, tostring(result))
        return type(slurm) == "table" and slurm.SUCCESS or 0
    end
    return result
end

--- In slurm_job_submit. Returns slurm.SUCCESS, or slurm.ERROR if the job must be refused.
function M.submit(job_desc, part_list, submit_uid)
    return guarded("submit", submit, job_desc, part_list, submit_uid)
end

--- In slurm_job_modify. Returns slurm.SUCCESS, or slurm.ERROR if the change must be refused.
function M.modify(job_desc, job_rec, part_list, modify_uid)
    return guarded("modify", modify, job_desc, job_rec, modify_uid)
end

--- Append our functions to the script's own slurm_job_submit and slurm_job_modify (globals).
-- The site's functions run first, with their own return codes and errors; ours see accepted jobs.
function M.join()
    local function followed(own, ours)
        return function(...)
            local result = own and own(...)
            if result ~= nil and result ~= slurm.SUCCESS then
                return result
            end
            return ours(...)
        end
    end
    slurm_job_submit = followed(slurm_job_submit, M.submit)
    slurm_job_modify = followed(slurm_job_modify, M.modify)
end

M.configure(M.read_conf(here .. "gpu_aware_conf.lua"))

return M
