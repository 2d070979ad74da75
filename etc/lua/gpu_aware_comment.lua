--[[
The user's comment: --comment=class=A,bw=high. The grammar of docs/comment.md, of which
slurm_gpu_aware/model/job_hints.py is the twin: same verdict and same sentence for every comment.
]]

local here = debug.getinfo(1, "S").source:match("^@(.*/)") or "./"
local base = dofile(here .. "gpu_aware_base.lua")
local set_of = base.set_of
local trim = base.trim
local split = base.split
local shown = base.shown

local C = {}

local MAX_COMMENT = base.MAX_TEXT -- Slurm refuses longer ones
local KEYS = { "class", "bw", "pattern", "gpus", "freq", "model", "place" }
local BANDWIDTHS = { "high", "low" }
local PATTERNS = { "ring", "tree", "ring+tree", "all-to-all", "none" }
local MHZ_MIN, MHZ_MAX = 100, 10000
local KNOWN_KEY = set_of(KEYS)

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

local readers_of = setmetatable({}, { __mode = "k" }) -- configuration -> its readers

--- Parse a comment. Returns a table of wishes; nil if it is not ours; nil and a sentence if wrong.
function C.parse(text, conf)
    text = text or ""
    if #text > MAX_COMMENT then
        return nil,
            string.format(
                "gpu-aware: the comment is longer than %d characters; shorten it",
                MAX_COMMENT
            )
    end
    local entries, ours = {}, false
    for _, item in ipairs(split(text, ",")) do
        local key, value = item:match("^([^=]*)=(.*)$")
        key, value = trim(key or item), value and trim(value)
        entries[#entries + 1] = { key = key, value = value }
        ours = ours or (value and KNOWN_KEY[key])
    end
    if not ours then
        return nil
    end
    local keys = table.concat(KEYS, ", ")
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
    local wishes, reader = {}, readers_of[conf] or readers(conf)
    readers_of[conf] = reader
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

return C
