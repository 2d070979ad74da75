-- Helpers of gpu_aware.lua: strings, and numbers of Slurm's fields.

local here = debug.getinfo(1, "S").source:match("^@(.*/)") or "./"
local rules = dofile(here .. "gpu_aware_rules.lua")

local B = {}

function B.set_of(list)
    local set = {}
    for _, value in ipairs(list) do
        set[value] = true
    end
    return set
end

--- The number of a field; nil for NO_VAL, INFINITE and their 64 bit forms.
function B.number32(value)
    if type(value) ~= "number" or value ~= value or value < 0 or value >= 4294967294 then
        return nil
    end
    return math.floor(value)
end

--- The same for fields of 8 and 16 bits.
function B.number16(value)
    value = B.number32(value)
    if value and value >= 65534 then
        return nil
    end
    return value
end

--- The text of a field; nil for nil and "".
function B.text_of(value)
    if type(value) ~= "string" or value == "" then
        return nil
    end
    return value
end

--- Is an AdminComment the record of a parked job?
function B.is_record(text)
    return type(text) == "string" and text:sub(1, #rules.record) == rules.record
end

-- Slurm compares GRES types by a sum of their bytes, modulo 2^32 (gres_build_id): xfUUwfUUxfUU is g3.
B.type_weights = { [0] = 1, 256, 65536, 16777216 }
function B.type_sum(name)
    local sum = 0
    for i = 1, #name do
        sum = sum + name:byte(i) * B.type_weights[(i - 1) % 4]
    end
    return sum % 4294967296
end

--- A job that reads each field from Slurm only once: Slurm copies a text at each access, and a script
--- may have megabytes.
function B.read_once(job)
    return setmetatable({}, {
        __index = function(fields, name)
            fields[name] = job[name]
            return rawget(fields, name)
        end,
    })
end

--- The text without blanks at both ends. A pattern would be quadratic in a run of blanks.
function B.trim(text)
    local first, last = text:find("[^ \t]"), #text
    if not first then
        return ""
    end
    while text:find("^[ \t]", last) do
        last = last - 1
    end
    return text:sub(first, last)
end

function B.split(text, separators)
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

--- A user's text for a sentence: printable ASCII, shortened.
function B.shown(text)
    local plain = text:sub(1, rules.max_shown):gsub("[^ -~]", "?")
    return #text > rules.max_shown and plain .. "..." or plain
end

return B
