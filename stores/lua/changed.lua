-- Looks for changes, and asks to be told of the next one (bell.lua). use: base layout
--
-- In: now, patience, the last second up to which rows coming due were told (empty: this one).
-- Out: the version, the seconds and microseconds of the clock, and when the next row comes due (-1: none).
local patience, told = tonumber(ARGV[2]), tonumber(ARGV[3]) or now
told = math.min(told, now)

-- Not a command that needs memory: a full server must still wake its workers.
call('DEL', P .. 'quiet')
local next_due = -1
for _, place in ipairs(call('SMEMBERS', PLACES)) do
  local kind = sub(place, 1, 1)
  if kind ~= 'R' then
    local grace = grace_of(kind, patience)
    local after = '(' .. format('%d', told - grace)
    local first = try('ZRANGEBYSCORE', P .. place, after, '+inf', 'WITHSCORES', 'LIMIT', 0, 1) or {}
    local moment = first[2] and tonumber(first[2]) + grace
    if moment and (next_due < 0 or moment < next_due) then
      next_due = moment
    end
  end
end
local clock = call('TIME')
return { tonumber(try('GET', P .. 'version') or 0) or 0, now, tonumber(clock[2]), next_due }
