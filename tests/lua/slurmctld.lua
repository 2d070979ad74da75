-- What slurmctld gives to job_submit.lua, as src/lua/slurm_lua.c and job_submit_lua.c make it:
-- tables whose fields live behind __index and __newindex, C strings, NO_VAL for unset numbers.

local harness = {}

local STRINGS, NUMBERS = {}, {}
for name in ([[account admin_comment array_inx batch_features burst_buffer clusters comment cpus_per_tres dependency exc_nodes extra
    features licenses mem_per_tres name partition prefer qos req_nodes reservation script tres_bind
    tres_freq tres_per_job tres_per_node tres_per_socket tres_per_task wckey]]):gmatch("%S+") do
    STRINGS[name] = true
end
for name, unset in pairs({
    min_nodes = 4294967294, max_nodes = 4294967294, num_tasks = 4294967294, min_cpus = 4294967294,
    max_cpus = 4294967294, pn_min_cpus = 65534, het_job_offset = 4294967294, time_limit = 4294967294,
    cpus_per_task = 65534, ntasks_per_node = 65534, ntasks_per_tres = 65534, shared = 65534,
    contiguous = 65534, sockets_per_node = 65534, cores_per_socket = 65534,
    threads_per_core = 65534, ntasks_per_core = 65534, ntasks_per_socket = 65534,
    req_switch = 4294967294, pn_min_tmp_disk = 4294967294, time_min = 4294967294,
    immediate = 0, priority = 4294967294, user_id = 1000, begin_time = 0, array_job_id = 0,
    core_spec = 65534, thread_spec = 65534, job_state = 0, requeue = 65534, restart_cnt = 0,
    submit_time = os.time(),
}) do
    NUMBERS[name] = unset
end

-- Tests take libraries away from the filter; this side keeps its own.
local pairs, type, tostring, format = pairs, type, tostring, string.format
local gsub = string.gsub
local spread = table.unpack or unpack

local function c_string(text)
    return (gsub(text, "%z.*", ""))
end

--- The global "slurm" of one run; messages and log lines are collected.
function harness.reset()
    harness.messages, harness.log = {}, {}
    slurm = {
        SUCCESS = 0, ERROR = -1, FAILURE = -1, NO_VAL = 4294967294,
        user_msg = function(text) harness.messages[#harness.messages + 1] = c_string(text) end,
        error = function(text) harness.log[#harness.log + 1] = c_string(text) end,
    }
    slurm.log_user = function(...) slurm.user_msg(format(spread({ ... }))) end
    slurm.log_error = function(...) slurm.error(format(spread({ ... }))) end
    slurm.log_info = slurm.log_error
end

local function environment_of(values, writes)
    return setmetatable({}, {
        __index = function(_, name) return values[name] end,
        __newindex = function(_, name, value)
            assert(type(value) == "string" or type(value) == "number", "string expected")
            writes[#writes + 1] = "environment." .. name
            values[name] = tostring(value)
        end,
    })
end

--- A job_desc (or job_rec). `fail_at`: assigning this field raises, as a bad value would.
function harness.job(fields, environment, fail_at)
    local values, writes = {}, {}
    for name, value in pairs(fields) do
        values[name] = type(value) == "string" and c_string(value) or value
    end
    local env = environment and environment_of(environment, writes)
    local job = setmetatable({}, {
        __index = function(_, name)
            if name == "environment" then return env end
            if values[name] ~= nil then return values[name] end
            return NUMBERS[name]
        end,
        __newindex = function(_, name, value)
            writes[#writes + 1] = name
            if name == fail_at and value ~= "" then error("bad argument to " .. name) end
            if NUMBERS[name] then
                assert(type(value) == "number", "number expected")
                values[name] = value
                return
            end
            assert(STRINGS[name], "unrecognized field: " .. name)
            assert(type(value) == "string" or type(value) == "number", "string expected")
            value = c_string(tostring(value))
            values[name] = value ~= "" and value or nil
        end,
    })
    return job, values, writes
end

harness.reset()
return harness
