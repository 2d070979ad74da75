--[[
Changes of a gated job by its owner (scontrol update).

A changed job stays behind the gate, or returns there, in the same update. To the user's fields the
filter adds
- the record of the changed request at the end of Extra, as only the selector may write AdminComment.
  Slurm sets Extra before all that tells a job's size, so it tells that the update was applied, maybe in
  part;
- the gate's licence, rules.changed_licences times. Slurm sets licences last, so this number tells
  that the whole update was applied.
The selector (slurm_gpu_aware/gate/gated_job.py) gives the job the request, then moves the record to
AdminComment and asks for the licence once. No other update may come in between (C.interferes).

A bound job keeps its nodes and GPUs until then: the fields of BINDING are taken out of the update and
stand in the record only. If Slurm refuses the rest half-way, the job can start nowhere else. Where
Slurm chooses its nodes, partition, features and reservation are refused, which cannot be taken out; at
the open gate also what makes the job larger (time limit, memory): the licence comes behind it.
]]

local here = debug.getinfo(1, "S").source:match("^@(.*/)") or "./"
local base = dofile(here .. "gpu_aware_base.lua")
local comment = dofile(here .. "gpu_aware_comment.lua")
local defer = dofile(here .. "gpu_aware_defer.lua")
local forbidden = dofile(here .. "gpu_aware_forbidden.lua")
local request = dofile(here .. "gpu_aware_request.lua")
local rules = dofile(here .. "gpu_aware_rules.lua")
local settings = dofile(here .. "gpu_aware_settings.lua")
local sizes = dofile(here .. "gpu_aware_sizes.lua")
local unsupported = dofile(here .. "gpu_aware_unsupported.lua")
local text_of = base.text_of

local C = {}

-- Fields that change a request, and for numbers the value that means "not given".
local U16, U32 = 65534, 4294967294
local BINDING = {
    { "req_nodes" },
    { "exc_nodes" },
    { "tres_per_node" },
    { "tres_per_job" },
    { "tres_per_task" },
    { "tres_per_socket" },
    { "tres_freq" },
    { "cpus_per_tres" },
    { "min_nodes", U32 },
    { "max_nodes", U32 },
    { "min_cpus", U32 },
    { "max_cpus", U32 },
    { "num_tasks", U32 },
    { "cpus_per_task", U16 },
    { "pn_min_cpus", U16 },
}
local OTHERS = {
    { "partition" },
    { "features" },
    { "licenses" },
    { "reservation" },
    { "extra" },
    { "tres_bind" },
    { "mem_per_tres" },
    { "prefer" },
    { "batch_features" },
    { "burst_buffer" },
    { "time_limit", U32 },
    { "time_min", U32 },
    { "min_mem_per_node" },
    { "min_mem_per_cpu" },
    { "ntasks_per_node", U16 },
    { "ntasks_per_socket", U16 },
    { "ntasks_per_core", U16 },
    { "ntasks_per_tres", U16 },
    { "sockets_per_node", U16 },
    { "cores_per_socket", U16 },
    { "threads_per_core", U16 },
    { "core_spec", U16 },
    { "thread_spec", U16 },
    { "contiguous", U16 },
    { "shared", U16 },
    { "req_switch", U32 },
    { "pn_min_tmp_disk", U32 },
    { "bitflags", 0 }, -- RESET_LIC_TASK alone takes all licences from a job
}
local NUMBERS = base.set_of(base.split(
    "num_tasks cpus_per_task ntasks_per_node ntasks_per_tres sockets_per_node min_cpus", " "))
local AGAIN = "; cancel the job and submit it again"
local ON_ITS_WAY = "gpu-aware: this job is on its way back to the queue; try again in some seconds"
local BACK_S = 120 -- a requeued job without a record after this time is none of the selector's
local COMPLETING = 32768 -- of job_state: JOB_COMPLETING
local PARKS_S = 10 -- time in which the selector parks a requeued job, by its rounds

--- Is a field of an update given? A 32 bit number may be 65534.
local function is_set(value, unset)
    if type(value) == "number" then
        return value ~= (unset or U32)
    end
    return type(value) == "string"
end

local function is_pending(record)
    return (base.number32(record.job_state) or 0) % 256 == 0
end

local function is_completing(record)
    return math.floor((base.number32(record.job_state) or 0) / COMPLETING) % 2 == 1
end

--- The phase of a job by the selector's marker; nil: it waits.
local function phase_of(record)
    local text = base.is_record(record.admin_comment) and record.admin_comment or ""
    return text:match(";sel=(%l+):%d+:%d+$")
end

--- Has the selector bound a job to nodes?
local function is_bound(record)
    local phase = phase_of(record)
    return phase == "prepared" or phase == "released"
end

--- Number of the gate's licence for which a job asks.
local function gate_count(record, conf)
    local licences = text_of(record.licenses)
    if not forbidden.names_licence(licences, conf.licence) then -- nor in a list that is too long
        return 0
    end
    for item in licences:gmatch("[^,;|&()]+") do
        local name, count = base.trim(item):match("^([^:=@*]*)[:=*]?(%d*)")
        if name == conf.licence then
            return tonumber(count) or 1
        end
    end
    return 0
end

--- Those of three texts that are there, with commas between them.
local function joined(...)
    local items, given = {}, { ... }
    for i = 1, 3 do
        items[#items + 1] = given[i]
    end
    return table.concat(items, ",")
end

-- Extra: the user's items, our clock, the record of a change ----------------------------------------

--- (user's items, our clock, record) of a job's Extra; nil for what is not there.
local function extra_parts(record)
    local text = text_of(record.extra) or ""
    local at = text:find(rules.record, 1, true)
    local note = at and text:sub(at)
    local own, clock = {}, nil
    for item in (at and text:sub(1, at - 1) or text):gmatch("[^,]+") do
        if base.trim(item):find(rules.extra_clock, 1, true) == 1 then
            clock = item
        else
            own[#own + 1] = item
        end
    end
    return #own > 0 and table.concat(own, ",") or nil, clock, note
end

--- The request that a record holds, in the fields of a submission; nil: it cannot be read.
local FIELD = {}
for _, entry in ipairs(rules.record_keys) do
    FIELD[entry[1]] = entry[2]
end
local function original_of(text)
    if not text or text:sub(1, #rules.record_version) ~= rules.record_version then
        return nil
    end
    local original = {}
    for key, value in text:sub(#rules.record_version + 1):gmatch("(%l+)=([^;]*)") do
        local field = FIELD[key]
        value = value:gsub("%%(%x%x)", function(hex)
            return string.char(tonumber(hex, 16))
        end)
        if field == "nodes" then
            local least, most = value:match("^(%d+)-?(%d*)$")
            original.min_nodes, original.max_nodes = tonumber(least), tonumber(most)
        elseif field == "min_cpus_node" then
            original.pn_min_cpus = tonumber(value)
        elseif field then
            original[field] = NUMBERS[field] and tonumber(value) or value
        end
    end
    original.shared = original.exclusive and 0 or nil
    original.script = not original.interactive and "#!" or nil
    return original
end

-- The changed request -------------------------------------------------------------------------------

--- A job's request with the changes of an update.
local function merged(job, record, original)
    local view, given = {}, {}
    for name, value in pairs(original) do
        view[name] = value
    end
    for _, fields in ipairs({ BINDING, OTHERS }) do
        for _, field in ipairs(fields) do
            local name = field[1]
            if is_set(job[name], field[2]) then
                view[name], given[name] = job[name], true
            end
        end
    end
    view.partition = text_of(view.partition) or record.partition
    if original.memory and not given.min_mem_per_node and not given.min_mem_per_cpu then
        view.min_mem_per_cpu = record.min_mem_per_cpu
        view.min_mem_per_node = record.min_mem_per_node or not view.min_mem_per_cpu and 1 or nil
    end
    if not given.min_cpus and (given.num_tasks or given.cpus_per_task or given.min_nodes) then
        local tasks = math.max(base.number32(view.num_tasks) or 1, base.number32(view.min_nodes) or 1)
        view.min_cpus = tasks * math.max(base.number16(view.cpus_per_task) or 1, 1)
    end
    return view, given
end

local function changes(given)
    for _ in pairs(given) do
        return true
    end
    return false
end

--- Does an update change the request of a job?
local function changes_request(update, record)
    local _, given = merged(update, record, {})
    given.bitflags = nil -- scontrol always sets some (USE_DEFAULT_PART, ...), even to hold a job
    return changes(given)
end

--- Does it change the request or the comment?
local function asks(update, record)
    return type(update.comment) == "string" or changes_request(update, record)
end

--- Does a request ask for a GPU, or for a part of one?
local function has_gpus(view)
    local parts, besides = request.gpu_request(view)
    return parts[1] ~= nil or besides.sharing or besides.uncounted or false
end

--- Does an update take all GPUs from a request? Slurm clears the text, and keeps the GPUs that it has
--- read from it. `before`, `after`: the request without and with the update.
local TRES = { "tres_per_node", "tres_per_job", "tres_per_task", "tres_per_socket" }
local function takes_gpus(update, before, after)
    local given = false
    for _, name in ipairs(TRES) do
        given = given or is_set(update[name])
    end
    return given and has_gpus(before) and not has_gpus(after)
end

--- Set the model's feature in `new`, and the request without a model type. Returns (model, reason to
--- leave the job to Slurm).
local function set_model(view, given, original, parts, new)
    local typed = given.tres_per_node or given.tres_per_job
    typed = typed or given.tres_per_task or given.tres_per_socket
    if original.model and not given.features then
        view.features = request.without_model(original.features, original.model)
        new.features = view.features
    end
    local model = original.model
    if typed then
        model = parts[1].type and parts[1].type:lower()
    end
    if not model then
        return nil, nil
    end
    local fine
    if parts[1].type then
        fine = request.model_changes(view, parts, new)
    else
        new.features = request.with_model(view.features, model)
        fine = new.features
    end
    return model, not fine and "a model together with groups or mixtures in --constraint" or nil
end

--- Would a job that is bound be able to start elsewhere if Slurm refused the rest of its update? Not if
--- the selector has chosen its nodes.
local function gets_away(given, record, original)
    local elsewhere = given.partition or given.features or given.reservation
    local chosen = text_of(record.req_nodes) and not original.req_nodes or forbidden.index_type(record)
    return elsewhere and original.left and is_bound(record) and not chosen
end

--- Would an update make a job larger, by fields that stay in the update of a bound one?
local function grows(update, record)
    local limit = record.time_limit
    limit = is_set(limit, U32) and limit or 0
    local more = is_set(update.time_limit, U32) and update.time_limit > limit
    for _, name in ipairs({ "min_mem_per_node", "min_mem_per_cpu" }) do
        local now, before = update[name], record[name]
        more = more or is_set(now) and (now == 0 or not is_set(before) or now > before)
    end
    return more or is_set(update.threads_per_core, U16) or text_of(update.mem_per_tres) ~= nil
end

--- May a job get GPUs in managed partitions, if it has whole nodes? A record does not show --exclusive.
local function may_be_whole(record, part_list, conf)
    local _, some = settings.is_managed(record, part_list, conf)
    local view = setmetatable({ shared = 0 }, { __index = record })
    return some and (settings.takes_gpus(view, part_list, conf))
end

--- What becomes of an update of a pending gated job: {refuse=, text=, new=, changed=}. `new`: fields
--- to assign. `changed`: the selector must read the job.
local function decide(job, record, part_list, conf)
    local own, clock, note = extra_parts(record)
    local recorded = original_of(text_of(record.admin_comment))
    local original = note and original_of(note) or recorded
    local view, given = merged(job, record, original or {})
    if not original or original.partial then
        given.time_limit, given.time_min = nil, nil
        local text = "gpu-aware: the record of this job cannot be read" .. AGAIN
        return changes(given) and { refuse = true, text = text } or {}
    end
    local says = type(job.comment) == "string"
    local hints, sentence = comment.parse(text_of(says and job.comment or record.comment), conf)
    if not hints and not sentence and original.environment then
        hints = comment.parse_environment(original.environment, conf)
    end
    if original.left == rules.whole_nodes and not has_gpus(view) then
        hints, sentence = nil, nil -- they are about GPUs
    end
    local bare = request.bare_entry(job)
    if bare then
        return { refuse = true, text = rules.sentences.bare:format(base.shown(bare)) }
    end
    local parts, besides = request.gpu_request(view)
    sentence = says and sentence or parts[1] and sizes.outside(hints, parts[1], view)
    if not sentence and says and not original.resizable then
        sentence = sizes.too_late(hints) -- its environment still has the number
    end
    if sentence then
        return { refuse = true, text = sentence }
    elseif not changes(given) and not (hints and says and hints.place == "off") then
        return {}
    elseif (text_of(view.licenses) or ""):find("|", 1, true) then
        return { refuse = true, text = "gpu-aware: licences with | do not go with the gate" .. AGAIN }
    elseif gets_away(given, record, original) or gate_count(record, conf) == 0 and grows(job, record) then
        return { refuse = true, text = rules.sentences.starts }
    end
    local new, reason, model, tasks = {}, nil, nil, nil
    -- Slurm may have refused the GPUs of the note: then those of the record must stay.
    local unsure = note and recorded and gate_count(record, conf) ~= rules.changed_licences
    local kept = unsure and takes_gpus(job, recorded, (merged(job, record, recorded)))
    if kept or takes_gpus(job, original, view) then
        return { refuse = true, text = rules.sentences.gpus_kept }
    elseif not parts[1] then
        reason = besides.sharing and "shards that are not of one GPU of the selector's choice"
            or original.left
            or "--ntasks-per-gpu without a number of GPUs"
    elseif not settings.is_managed(view, part_list, conf) then
        reason = "its partition is not managed"
    else
        reason = unsupported.reason(view, parts, besides, hints, conf)
    end
    if not reason and original.left ~= "place=off" then
        reason = original.left -- the record does not hold all that made it so
    end
    if not reason and original.resizable then
        local _, fixed = sizes.rule(hints, parts[1], view, conf)
        if fixed then
            return { refuse = true, text = fixed }
        end
        tasks = sizes.tasks_with(parts[1], view, conf)
    end
    if not reason then
        model, reason = set_model(view, given, original, parts, new)
        if new.features and gets_away({ features = true }, record, original) then
            return { refuse = true, text = rules.sentences.starts }
        end
    end
    view.left, new.begin_time = reason, tonumber(original.begin_s)
    local text = request.admin_comment(view, new, model, original.environment, tasks)
    new.begin_time = nil
    if given.extra then
        own = text_of(job.extra)
    end
    new.extra = joined(own, clock, text)
    if not text or #new.extra > rules.max_text then
        return { refuse = true, text = "gpu-aware: the changed request is too long to be recorded" .. AGAIN }
    end
    local gate = string.format("%s:%d", conf.licence, rules.changed_licences)
    new.licenses = joined(text_of(view.licenses), gate)
    if is_bound(record) then
        for _, field in ipairs(BINDING) do
            new[field[1]] = is_set(job[field[1]], field[2]) and (field[2] or "") or nil
        end
    end
    -- No text: scontrol would print it instead of Slurm's own reason for a refusal.
    return { new = new, changed = true }
end

--- Was a requeued job requeued just now? The selector parks it within seconds, unless it never was parked.
local function comes_back(record, within_s)
    -- Slurm sets its submission anew, and delays it, only when it has ended on all its nodes.
    local since = not is_completing(record) and base.number32(record.submit_time)
    return not since or os.time() - since < (within_s or BACK_S)
end

--- Was a job requeued since the selector last marked it? It is parked again within seconds.
local function is_again(record)
    local restarts = (text_of(record.admin_comment) or ""):match(";sel=%l+:(%d+):%d+$")
    return (base.number32(record.restart_cnt) or 0) > (tonumber(restarts) or 0)
end

--- Would an update end the delay that Slurm sets at a requeue?
local function starts_sooner(update)
    return (base.number32(update.begin_time) or 0) ~= 0
end

--- Would it release a held job (scontrol release)?
local function lets_go(update)
    return is_set(update.priority) and update.priority ~= 0
end

--- What becomes of an update of a job that was requeued and has no record: the selector, which took
--- it from the running job, returns it in a second and restores the request then. GPUs of an index
--- type, for which no user asks, tell such a job. Of any other GPU job only the start time counts:
--- Slurm delays requeued jobs, so that the selector parks it before Slurm may start it.
local function decide_back(job, record)
    local touches = starts_sooner(job) or asks(job, record) and forbidden.index_type(record)
    if not touches or not comes_back(record) then
        return {}
    end
    return { refuse = true, text = ON_ITS_WAY }
end

--- What becomes of an update by which the owner of a requeued GPU job lets it go (scontrol release), before
--- the selector has parked it: its licences put it back at the gate, as Slurm could start it at once.
--- An update that changes more is for `decide`, or too early; nil: it is none of these.
local function released_again(update, record, conf)
    local own = text_of(record.licenses)
    if not (is_again(record) and lets_go(update)) or gate_count(record, conf) > 0 or (own or ""):find("|", 1, true) then
        return nil
    elseif asks(update, record) and is_bound(record) then
        return nil
    elseif asks(update, record) then
        return { refuse = true, text = comes_back(record) and ON_ITS_WAY or rules.sentences.opened }
    end
    local licenses = request.gated(own, conf)
    return licenses and { new = { licenses = licenses }, changed = true }
end

-- Arrays and heterogeneous jobs -----------------------------------------------------------------------

-- An update of either reaches the filter once for each record, with the fields that the filter has
-- assigned for the record before.
local last = nil

--- Number that the records of one array, or the components of one job, have in common; 0: it is alone.
local function group_of(record)
    local array = base.number32(record.array_job_id) or 0
    return array > 0 and array or base.number32(record.het_job_id) or 0
end

--- The update as its user gave it; whether the filter has seen it with another record.
local function as_given(job, record, uid)
    local view = base.read_once(job)
    local again = last
        and group_of(record) > 0
        and last.uid == uid
        and last.group == group_of(record)
        and last.licenses == job.licenses
        and last.extra == job.extra
    for name, value in pairs(again and last.before or {}) do
        job[name] = value or ""
        view[name] = value
    end
    return view, again
end

local function remember(job, record, uid, new)
    local before = {}
    for name in pairs(new) do
        before[name] = job[name] or false -- false: not given
    end
    last = { uid = uid, group = group_of(record), before = before }
    last.licenses, last.extra = new.licenses, new.extra
end

--- Is a job, with these fields in place of those of its record, a GPU job of a managed partition? GPUs
--- that Slurm has counted from tasks (--ntasks-per-gpu) stand in no text of the request.
local function is_managed_gpu_job(fields, record, part_list, conf, or_whole)
    local view = setmetatable(fields, { __index = record })
    local _, some = settings.is_managed(view, part_list, conf)
    if not some then
        return false
    end
    local counted = (text_of(record.tres_fmt_req_str) or ""):find("gres/gpu[:=]")
    return has_gpus(view) or counted ~= nil or or_whole and settings.takes_gpus(view, part_list, conf) or false
end

--- The same, or one that gets GPUs with whole nodes. A record does not show --exclusive.
local function is_for_the_gate(fields, record, part_list, conf)
    return is_managed_gpu_job(fields, record, part_list, conf, true)
end

--- Would an update end the delay of a job that was requeued just now, and that may get whole nodes
--- with their GPUs?
local function may_pass(update, record, part_list, conf)
    local starts = lets_go(update) or starts_sooner(update)
    return starts and comes_back(record, PARKS_S) and may_be_whole(record, part_list, conf)
end

--- Begin time in place of that of an update, for a waiting job that passes the gate; nil: as it says.
local function begins_later(update, record, part_list, conf)
    local passes = starts_sooner(update) and is_for_the_gate({}, record, part_list, conf)
    return passes and defer.behind_guard({ begin_time = base.number32(update.begin_time) }, conf) or nil
end

--- The refusal of an update by which a waiting job that is not at the gate would become such a job; or,
--- where it is one and stays so, ask for something else, and pass those that wait there: Slurm keeps what no
--- node can have as long as a hold or a limit holds it. A later component of a heterogeneous job
--- (`follows`) waits with the first. nil: it may be updated.
local function passes_by(update, record, part_list, conf, follows)
    local view, given = merged(update, record, {})
    setmetatable(view, { __index = record })
    local moved = given.partition and update.partition ~= record.partition or nil
    local refusal = moved and rules.sentences.moved_in:format(base.shown(update.partition))
        or rules.sentences.gpus_later
    if takes_gpus(update, record, view) then
        return rules.sentences.gpus_kept
    elseif not is_for_the_gate(view, record, part_list, conf) then
        -- No reservation guards the first job against it yet
        local enters = moved and may_be_whole(view, part_list, conf) and not may_be_whole(record, part_list, conf)
        return enters and defer.jobs_wait(conf) and rules.sentences.moved_whole:format(base.shown(update.partition))
            or nil
    elseif not is_for_the_gate({}, record, part_list, conf) then
        return refusal
    elseif follows then
        return nil
    end
    given.partition = moved
    given.bitflags, given.extra, given.time_limit, given.time_min = nil, nil, nil, nil
    return changes(given) and rules.sentences.opened or nil
end

--- What is wrong with the comment that a running job gets: it counts when the job is requeued. nil: nothing.
local function wrong_later(update, record, part_list, conf)
    if type(update.comment) ~= "string" or not is_managed_gpu_job({}, record, part_list, conf) then
        return nil
    end
    local hints, wrong = comment.parse(text_of(update.comment), conf)
    local parts, each = request.gpu_request(record), 0
    for _, part in ipairs(parts) do -- an index type for each GPU of a node
        if not part.count then -- Slurm counts it otherwise
            return wrong
        end
        each = each + part.count
    end
    if wrong or not parts[1] then
        return wrong
    end
    return sizes.outside(hints, setmetatable({ count = each }, { __index = parts[1] }), record)
end

local function is_test(job)
    local _, marked = comment.without_mark(text_of(job.comment))
    return marked
end

--- Was a job submitted as a test, and held for that? Released, it would pass the gate. In a job that waits
--- there, or has a record, the mark came later, from an operator. A later component (`follows`) starts only
--- with the first.
local function is_held_test(record, conf, follows)
    local ours = follows or base.is_record(record.admin_comment) or gate_count(record, conf) > 0
    return is_pending(record) and record.priority == 0 and is_test(record) and not ours
end

--- Decide about an update by an ordinary user: {refuse=, text=, new=, changed=} (see decide).
function C.decide(job, record, part_list, uid, conf)
    local update, again = as_given(job, record, uid)
    local wrong = forbidden.too_long(update) or forbidden.trespass(update, conf)
    if wrong then
        return { refuse = true, text = wrong }
    end
    local follows = (base.number32(record.het_job_offset) or 0) > 0
    local marked = conf.cli_filter and (is_test(update) and rules.sentences.marked
        or is_held_test(record, conf, follows) and rules.sentences.test_held)
    if marked then
        return { refuse = true, text = marked }
    end
    local bound = is_bound(record)
    local requeued = is_pending(record) and (base.number32(record.restart_cnt) or 0) > 0
    local has_record = base.is_record(record.admin_comment) -- until a round has seen the job run
    local ours = has_record or forbidden.index_type(record)
    local back = requeued and (ours or is_for_the_gate({}, record, part_list, conf))
    -- Without a phase the first component stands at the gate, and is read, for all.
    local counts = not follows or again and phase_of(record)
    local early = has_record and back and not follows and is_again(record) and gate_count(record, conf) == 0
    if early and starts_sooner(update) and comes_back(record) then
        return { refuse = true, text = ON_ITS_WAY }
    end
    local verdict = back and not follows and released_again(update, record, conf)
    if not verdict and is_pending(record) and (bound or gate_count(record, conf) > 0) and counts then
        verdict = decide(update, record, part_list, conf)
    end
    if verdict then
        if verdict.new then
            remember(update, record, uid, verdict.new)
        end
        return verdict
    end
    wrong = not is_pending(record) and wrong_later(update, record, part_list, conf)
    if wrong then
        return { refuse = true, text = wrong }
    end
    if requeued and not has_record then
        verdict = back and decide_back(update, record) or {}
        if verdict.refuse or may_pass(update, record, part_list, conf) then
            return { refuse = true, text = ON_ITS_WAY }
        end
    end
    if is_pending(record) and has_record and (phase_of(record) or not follows) then
        -- Its gate is open for good: another request would pass the jobs that wait.
        if changes_request(update, record) then
            return { refuse = true, text = rules.sentences.opened }
        end
    elseif is_pending(record) then
        wrong = passes_by(update, record, part_list, conf, follows)
        if wrong then
            local soon = back and not follows and comes_back(record)
            return { refuse = true, text = soon and ON_ITS_WAY or wrong }
        end
        local begin = begins_later(update, record, part_list, conf)
        if begin then
            return { new = { begin_time = begin }, changed = true }
        end
    end
    local _, clock = extra_parts(record)
    if clock and bound and type(update.extra) == "string" then
        return { new = { extra = joined(text_of(update.extra), clock) } }
    end
    return {}
end

--- An AdminComment as the filter wrote it, without the selector's marker and state.
local function unmarked(text)
    local version, rest = rules.record_version, text:gsub(";sel=%l+:%d+:%d+$", "")
    if rest:sub(1, #version) ~= version then
        return rest
    end
    return version .. rest:sub(#version + 1):gsub("^st=[^;]*;?", "")
end

local function but_features(text)
    return (text:gsub(";feat=[^;]*", ""))
end

--- Has its owner changed a pending job at the gate since the selector last read it?
local function is_changed(record, conf)
    local count = gate_count(record, conf)
    local _, _, note = extra_parts(record)
    return is_pending(record) and (count == rules.changed_licences or count > 0 and note ~= nil)
end

--- Would an update of the selector or an operator undo a change that the selector has not read? One
--- that writes none of record and Extra, and the licences as they are, leaves it open. Only an update
--- that writes record, Extra and licences together settles it: with the record of the change, or, where that cannot be, with the present one. Any other record was read before the owner
--- changed the job once more. Features do not count: the job shows those that Slurm has accepted, a
--- record of a refused update may name others. Without a record in Extra there is no such change:
--- Slurm has taken one out that it then refused.
function C.interferes(job, record, conf)
    if not is_changed(record, conf) then
        return false
    end
    local written = 0
    for _, name in ipairs({ "admin_comment", "extra", "licenses" }) do
        written = written + (type(job[name]) == "string" and 1 or 0)
    end
    if written == 1 and gate_count(job, conf) == rules.changed_licences then
        return false
    end
    local touches = written > 0
    for _, field in ipairs(BINDING) do
        touches = touches or is_set(job[field[1]], field[2])
    end
    if not touches or written < 3 then
        return touches
    end
    local _, _, note = extra_parts(record)
    local settled = text_of(job.admin_comment)
    local present = unmarked(text_of(record.admin_comment) or "")
    settled = settled and but_features(settled)
    return note ~= nil and settled ~= but_features(note) and settled ~= but_features(present)
end

return C
