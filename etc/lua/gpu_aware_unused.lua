--[[
What a request says and what plays no part, told at submission: of jobs of shards.
]]

local here = debug.getinfo(1, "S").source:match("^@(.*/)") or "./"
local rules = dofile(here .. "gpu_aware_rules.lua")

local U = {}

--- The keys of a comment that mean nothing for a job of shards; nil: there are none.
local function keys_of(hints)
    local found = {}
    for _, hint in ipairs(rules.hints) do
        local value = not hint.of_shards and hints and hints[hint.key] or nil
        if value ~= nil and value ~= hint.none then
            found[#found + 1] = hint.key .. "="
        end
    end
    return #found > 0 and table.concat(found, ", ") or nil
end

--- The sentences on what plays no part in a request of `parts`, as a list.
function U.sentences(hints, parts, conf)
    local texts, shards = {}, parts[1] and parts[1].shards
    if not shards then
        return texts
    end
    local keys, most = keys_of(hints), conf.max_shards_per_gpu
    if keys then
        texts[#texts + 1] = rules.sentences.of_shards:format(keys)
    end
    if most and shards > most then
        texts[#texts + 1] = rules.sentences.many_shards:format(shards, most)
    end
    return texts
end

return U
