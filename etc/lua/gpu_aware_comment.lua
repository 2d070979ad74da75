--[[
The user's comment: --comment=class=A,bw=high, or "run 7 gpu:class=A". docs/comment.md describes the
grammar. slurm_gpu_aware/model/job_hints.py parses it, too: same result, same sentence. Both go by the
declarations of the keys (slurm_gpu_aware/model/job_hints.py), here rules.hints.
]]

local here = debug.getinfo(1, "S").source:match("^@(.*/)") or "./"
local base = dofile(here .. "gpu_aware_base.lua")
local rules = dofile(here .. "gpu_aware_rules.lua")
local set_of = base.set_of
local trim = base.trim
local split = base.split
local shown = base.shown

local C = { variable = rules.environment }

local KEYS, KNOWN_KEY = {}, {}
for number, hint in ipairs(rules.hints) do
    KEYS[number], KNOWN_KEY[hint.key] = hint.key, true
end
local LISTED = table.concat(KEYS, ", ")

local function number_in(text, least, most)
    local number = (text == "0" or text:find("^[1-9]%d*$")) and tonumber(text)
    return number and least <= number and number <= most and number or nil
end

local DAYS = { 31, 28, 31, 30, 31, 30, 31, 31, 30, 31, 30, 31 }

--- Whether a text is a local time: 2026-12-01T08:00, or with seconds. Years are 2000 to 2099.
local function is_time(text)
    local date, seconds = text:match("^(20%d%d%-%d%d%-%d%dT%d%d:%d%d)(.*)$")
    if not date or seconds ~= "" and not seconds:find("^:%d%d$") then
        return false
    end
    local year, month, day, hour, minute = date:match("(%d+)-(%d+)-(%d+)T(%d+):(%d+)")
    local days = DAYS[tonumber(month)] or 0
    if tonumber(month) == 2 and year % 4 == 0 then
        days = 29
    end
    return 1 <= tonumber(day) and tonumber(day) <= days and tonumber(hour) <= 23
        and tonumber(minute) <= 59 and (tonumber(seconds:sub(2)) or 0) <= 59
end

--- kind of a form -> function from the form and a text to the value; nil: the text has not this form
local READ = {}

function READ.whole(form, text)
    return number_in(text, form.least, form.most)
end

function READ.range(form, text)
    local first, last = text:match("^(%d+)%-(%d+)$")
    local least = number_in(first or text, form.least, form.most)
    local most = number_in(last or text, form.least, form.most)
    return least and most and least <= most and { least, most } or nil
end

function READ.name(form, text)
    return #text <= form.longest and text:match("^" .. form.pattern .. "$") or nil
end

function READ.duration(form, text)
    local count, unit = text:match("^(%d+)([a-z]+)$")
    local seconds = unit and form.units[unit]
    local number = seconds and number_in(count, 1, math.floor(form.most_s / seconds))
    return number and number * seconds or nil
end

function READ.time(_, text)
    return is_time(text) and text or nil
end

function READ.repeated(form, text)
    local count, each = text:match("^(%d+)x(.*)$")
    local number = count and READ.whole(form.count, count)
    local seconds = number and READ.duration(form.each, each)
    return seconds and { number, seconds } or nil
end

local function append(list, more)
    for _, value in ipairs(more) do
        list[#list + 1] = value
    end
    return list
end

--- {read = function from text to value (nil: not valid), valid = the valid ones in words}
local function reader(hint, conf)
    local words = append({}, hint.listed and conf[hint.listed] or {})
    if not hint.switch or conf[hint.switch] then
        append(words, hint.words or {})
    end
    local is_word = set_of(words)
    local function read(text)
        if is_word[text] then
            return text
        end
        for _, form in ipairs(hint.forms) do
            local value = READ[form.kind](form, text)
            if value then
                return value
            end
        end
    end
    return { read = read, valid = hint.says or table.concat(words, ", ") }
end

--- key -> its reader
local function readers(conf)
    local found = {}
    for _, hint in ipairs(rules.hints) do
        found[hint.key] = reader(hint, conf)
    end
    return found
end

local readers_of = setmetatable({}, { __mode = "k" }) -- configuration -> its readers

--- The part of a comment that may be ours: what follows the last "gpu:", or all of it.
local function part_of(text)
    local from, at = 0, text:find(rules.comment_mark, 1, true)
    while at do
        if at == 1 or text:find("^%s", at - 1) then
            from = at + #rules.comment_mark
        end
        at = text:find(rules.comment_mark, at + 1, true)
    end
    return text:sub(from)
end

--- The last word of a text; from its end, as a pattern would be quadratic in its length.
local function last_word(text)
    return (text:reverse():match("^[%w_-]*"):reverse())
end

--- Entries {key=, value=} of a text; whether all of them, and the first that has a key of ours.
local function entries_of(text)
    local entries, all, first = {}, true, nil
    for _, item in ipairs(split(text, ",")) do
        local key, value = item:match("^([^=]*)=(.*)$")
        key, value = trim(key or item), value and trim(value)
        local ours = value and KNOWN_KEY[key]
        local word = value and last_word(key) -- of "run 7 class"
        all, first = all and ours, first or (KNOWN_KEY[word] and word .. "=" .. value)
        entries[#entries + 1] = { key = key, value = value }
    end
    return entries, all, first
end

local function wrong(sentence, ...)
    return nil, rules.sentences[sentence]:format(...)
end

local function read(entries, conf)
    local hints, found, reader = {}, {}, readers_of[conf] or readers(conf)
    readers_of[conf] = reader
    for _, entry in ipairs(entries) do
        if found[entry.key] then
            return wrong("twice", entry.key)
        end
        found[entry.key] = entry.value
    end
    for _, key in ipairs(KEYS) do
        if found[key] then
            hints[key] = reader[key].read(found[key])
            if hints[key] == nil then
                return wrong("not_valid", key, shown(found[key]), reader[key].valid)
            end
        end
    end
    return hints
end

--- A comment without the mark of a test (gpu_aware_cli_filter.lua); whether it has one.
function C.without_mark(text)
    local length = text and #text - #rules.test_mark or -1
    if length < 0 or text:sub(length + 1) ~= rules.test_mark then
        return text, false
    elseif length == 0 then
        return nil, true
    elseif text:sub(length, length) ~= " " then
        return text, false
    end
    return text:sub(1, length - 1), true
end

--- Parse a comment. Returns a table of hints; nil if it is not ours; nil and a sentence if wrong;
--- nil, nil and a hint if it only looks like ours.
function C.parse(text, conf)
    if not text or #text > rules.max_text then
        return nil
    end
    local part = part_of(text)
    local entries, ours, first = entries_of(part)
    if ours then
        return read(entries, conf)
    end
    return nil, nil, first and rules.sentences.hint:format(shown(first), LISTED)
end

--- Parse the environment variable of a batch job, which is ours alone. Returns as C.parse does.
function C.parse_environment(text, conf)
    if not text then
        return nil
    end
    local entries, ours = entries_of(#text <= rules.max_text and text or "")
    if not ours then
        return wrong("foreign", shown(text), LISTED)
    end
    return read(entries, conf)
end

return C
