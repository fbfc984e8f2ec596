-- Looks for changes, and asks to be told of the next one (bell.lua). use: base layout heads
--
-- In: now, patience, the last second up to which rows coming due were told (empty: this one).
-- Out: the version, the seconds and microseconds of the clock, and when the next row comes due (-1: none).
local patience, told = tonumber(ARGV[2]), tonumber(ARGV[3]) or now
told = math.min(told, now)

-- Not a command that needs memory: a full server must still wake its workers.
call('DEL', P .. 'quiet')
local next_due = -1

-- Note when the first row of a set after the last one that was told of comes due.
local function look_after(key, grace)
  local after = '(' .. format('%d', told - grace)
  local first = try('ZRANGEBYSCORE', key, after, '+inf', 'WITHSCORES', 'LIMIT', 0, 1) or {}
  local moment = first[2] and tonumber(first[2]) + grace
  if moment and (next_due < 0 or moment < next_due) then
    next_due = moment
  end
end

-- The heads in a set of these that were told of: they hide what stands behind them, so there one looks below.
local function told_of(key, grace)
  return try('ZRANGEBYSCORE', key, '-inf', format('%d', told - grace)) or {}
end

for _, kind in ipairs({ 'D', 'B', 'H', 'W' }) do
  local grace = grace_of(kind, patience)
  look_after(heads_key(kind), grace)
  for _, of_queue in ipairs(told_of(heads_key(kind), grace)) do
    local queue = name_of(of_queue)
    look_after(heads_key(kind, queue), grace)
    for _, of_lane in ipairs(told_of(heads_key(kind, queue), grace)) do
      look_after(P .. kind .. ':' .. queue .. '/' .. name_of(of_lane), grace)
    end
  end
end
local clock = call('TIME')
return { tonumber(try('GET', P .. 'version') or 0) or 0, now, tonumber(clock[2]), next_due }
