--[[
gpu_aware.lua: the filter of slurm-gpu-aware inside slurmctld.

It parks GPU jobs behind a gate (a licence that a reservation holds), so that the selector can
choose their exact GPUs, and prevents ordinary users from opening that gate. A site's own
job_submit.lua loads it with two lines at the end of the file, before a "return" outside of all
functions if it has one:

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
local change = dofile(here .. "gpu_aware_change.lua")
local comment = dofile(here .. "gpu_aware_comment.lua")
local defer = dofile(here .. "gpu_aware_defer.lua")
local due = dofile(here .. "gpu_aware_due.lua")
local forbidden = dofile(here .. "gpu_aware_forbidden.lua")
local unsupported = dofile(here .. "gpu_aware_unsupported.lua")
local request = dofile(here .. "gpu_aware_request.lua")
local rules = dofile(here .. "gpu_aware_rules.lua")
local settings = dofile(here .. "gpu_aware_settings.lua")
local sizes = dofile(here .. "gpu_aware_sizes.lua")
local unused = dofile(here .. "gpu_aware_unused.lua")
local number32 = base.number32
local text_of = base.text_of

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

--- The sentence for a job that says move= and cannot be moved; nil: it can, or says nothing.
local function stays(job, hints)
    local move = hints and hints.move
    local movable = text_of(job.script) and job.requeue ~= 0 and not text_of(job.array_inx)
    if move and move ~= "no" and not movable then
        return rules.sentences.stays:format(move == "ok" and move or move .. "s")
    end
end

--- Decide about a submission. Returns {refuse=, text=, new=, environment=}; empty: untouched.
local function decide_submit(job, part_list, uid, conf)
    local wrong = forbidden.too_long(job) or not conf.admins[uid] and forbidden.trespass(job, conf)
    if wrong then
        return { refuse = true, text = wrong }
    end
    local parts, besides = request.gpu_request(job)
    local leader = number32(job.het_job_offset) == 0 -- only here can a heterogeneous job be gated
    local asks = #parts > 0 or besides.sharing or besides.uncounted
    local whole, others = settings.takes_gpus(job, part_list, conf)
    whole = not asks and whole
    asks = asks or whole or leader
    local all, some = settings.is_managed(job, part_list, conf)
    if not asks or forbidden.index_type(job) or forbidden.licence_option(job, conf.licence) then
        return {}
    end
    --- Slurm chooses the GPUs, at once.
    local function left(text)
        local new, environment = request.left_changes(job, parts, besides, conf)
        new = request.component_tasks(job, parts, new)
        return { text = text, new = new, environment = environment }
    end
    --- Slurm chooses the GPUs when the job's turn comes.
    local function parked(reason, text)
        local verdict = left(text)
        local new = verdict.new or {}
        request.park_left(job, new, reason, defer.begin_time(job, conf), conf)
        verdict.new, verdict.parked = new, true
        return verdict
    end
    if not some and not leader then
        return left()
    end
    if job.cron_job == true and not conf.scrontab then
        return { refuse = true, text = rules.sentences.no_scrontab } -- no command of Slurm sends it
    end
    local text, is_test = comment.without_mark(text_of(job.comment))
    is_test = is_test and conf.cli_filter -- else a user has typed the mark
    local hints, sentence, hint = comment.parse(text, conf)
    local variable = nil
    if not hints and not sentence and text_of(job.script) and job.environment then
        variable = text_of(job.environment[comment.variable])
        hints, sentence = comment.parse_environment(variable, conf)
    end
    if whole then
        hints, sentence, hint = nil, nil, nil -- they are about GPUs
    end
    local texts = unused.sentences(hints, parts, conf)
    if hints and parts[1] and parts[1].shards then
        hints.gpus = nil -- a part of one GPU
    end
    sentence = sentence or parts[1] and sizes.outside(hints, parts[1], job)
    if sentence then
        return { refuse = true, text = sentence }
    end
    hint = not hints and hint or nil
    local reason, later = unsupported.passes_gate(job, conf)
    if reason or is_test then -- Slurm tests at once where the job can start, with closed gate
        reason = reason or #parts > 0 and unsupported.reason(job, parts, besides, hints, conf)
        reason = not whole and reason
        local verdict = left(reason and unsupported.sentence(reason, job, parts, conf) or hint)
        verdict.new = verdict.new or {}
        verdict.new.begin_time = later and not is_test and defer.behind_guard(job, conf) or nil
        if is_test then -- Slurm tests a held job as it does others, and a real one must not start
            verdict.new.priority = 0
        end
        verdict.wakes = true
        return verdict
    elseif not hints and not whole and not conf.park_uncommented then
        return parked("a job without a comment of ours", hint)
    elseif #conf.models + #conf.types == 0 and not hints and request.is_typed(parts) then
        -- Before there are models, types are as they were: no news for the user.
        return parked("a GPU type", hint)
    end
    reason = unsupported.reason(job, parts, besides, hints, conf)
    reason = reason or not all and "a partition that is not managed"
    if reason then
        local quiet = #parts == 0 and not hints and not besides.uncounted
        quiet = quiet and (reason ~= rules.whole_nodes or others) -- those it gets at any time
        texts[#texts + 1] = not quiet and unsupported.sentence(reason, job, parts, conf) or hint
        local text = #texts > 0 and table.concat(texts, "\n") or nil
        local of_node = reason:find("GPU type ", 1, true) and forbidden.index_type(job, conf.type_sums)
        if unsupported.is_refused(reason) and not of_node then -- Slurm takes a type that nodes have
            local verdict = left(text)
            verdict.wakes = true
            return verdict
        end
        return parked(reason, text)
    end
    local tasks, fixed = sizes.rule(hints, parts[1], job, conf)
    if fixed then
        return { refuse = true, text = fixed }
    end
    local new, environment, model = {}, {}, nil
    if parts[1].type and conf.model_set[parts[1].type:lower()] then
        model = parts[1].type:lower()
        environment = request.model_changes(job, parts, new)
        if not environment then
            reason = "a model together with groups or mixtures in --constraint"
            return parked(reason, unsupported.sentence(reason, job, parts, conf))
        end
    end
    for name, value in pairs(tasks and sizes.environment(job) or {}) do
        environment[name] = value
    end
    new.begin_time = defer.begin_time(job, conf)
    new.admin_comment = request.admin_comment(job, new, model, variable, tasks)
    if not new.admin_comment then
        reason = "a request too long to be recorded"
        return parked(reason, unsupported.sentence(reason, job, parts, conf))
    end
    new.licenses = request.gated(job.licenses, conf)
    texts[#texts + 1] = hint
    texts[#texts + 1] = not parts[1].shards and stays(job, hints) or nil
    texts[#texts + 1] = not parts[1].shards and due.impossible(hints, parts[1], job, conf) or nil
    local text = #texts > 0 and table.concat(texts, "\n") or nil
    return { new = new, environment = environment, parked = true, text = text }
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
        for name, value in pairs(environment) do
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
    apply(job, verdict.new or {}, verdict.environment or {})
    if verdict.text and (number32(job.het_job_offset) or 0) == 0 then -- components: say it once
        tell(verdict.text)
    end
    if (verdict.parked or verdict.wakes) and conf.submit_file then
        pcall(append_byte, conf.submit_file)
    end
    return success()
end

local function modify(job, record, part_list, uid)
    local conf = M.conf
    if not conf then
        return success()
    elseif conf.admins[uid] and change.interferes(job, record, conf) then
        return refusal("gpu-aware: its owner has just changed this job; try again in some seconds")
    end
    local verdict = conf.admins[uid] and {} or change.decide(job, record, part_list, uid, conf)
    if verdict.refuse then
        return refusal(verdict.text)
    end
    apply(job, verdict.new or {}, {})
    if verdict.changed and conf.submit_file then
        pcall(append_byte, conf.submit_file)
    end
    return success()
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
    return guarded("modify", modify, job_desc, job_rec, part_list, modify_uid)
end

--- Whether root, SlurmUser or an operator changes a job that has, or gets, a record of ours.
local function steers(job, record, _, uid)
    local conf = M.conf
    local marked = tostring(job.admin_comment) .. " " .. tostring(record.admin_comment)
    return conf and conf.admins[uid] and marked:find("gpuaware/", 1, true) ~= nil
end

--- Append our functions to the script's own slurm_job_submit and slurm_job_modify (globals).
--- The site's functions run first, with their own return codes and errors; ours see accepted jobs.
--- Only for the selector's changes of our jobs a refusal does not count: it is meant for users, and
--- no GPU job would start.
function M.join()
    local function followed(own, ours, overrules)
        return function(...)
            local result
            if own and overrules and overrules(...) then
                pcall(own, ...)
            elseif own then
                result = own(...)
            end
            if result ~= nil and result ~= slurm.SUCCESS then
                return result
            end
            return ours(...)
        end
    end
    slurm_job_submit = followed(slurm_job_submit, M.submit)
    slurm_job_modify = followed(slurm_job_modify, M.modify, steers)
end

M.configure(M.read_conf(here .. "gpu_aware_conf.lua"))

return M
