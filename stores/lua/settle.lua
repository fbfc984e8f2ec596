-- Writes outcomes in their order, a later one sees the earlier ones. use: base bell layout heads rows rules insert
--
-- In: now, floor of ids, 1 where work becomes leasable, outcomes (msgpack), then the follow-ups of all of them.
-- An outcome: id, owner (false: whoever holds it), expires, kind, and what the kind needs:
--   complete: duration, number of follow-ups    fail: duration, message, trace
--   retry: wait, max_attempts of the class (0: none), duration, message, trace
--   yield, unknown: wait                        release: nothing
-- Out: for each S (settled), R (replayed) or L (lost), and the head and the end of a row that has ended.
local floor, rings, outcomes = tonumber(ARGV[2]), ARGV[3] == '1', cmsgpack.unpack(ARGV[4])
local YIELD_FLOOR = 5
local RESULTS = { complete = 0, fail = 1 }

local ids = {}
for at, outcome in ipairs(outcomes) do
  ids[at] = outcome[1]
end
local rows = load(ids)
local followups, next_followup = {}, 5
local out = {}

-- Past the follow-ups of an outcome; those of a settled one are kept, to be inserted after all rows.
local function read_followups(count, parent)
  local tasks
  tasks, next_followup = new_tasks(next_followup, count, parent and parent.priority)
  if parent then
    for _, task in ipairs(tasks) do
      followups[#followups + 1] = task
    end
  end
end

local function wait(row, owner, seconds)
  give_back(row, owner, math.min(now + seconds, U32))
end

local function retry(row, outcome)
  local maximum = rest_of(row.body)[4]
  if maximum == 0 then
    maximum = outcome[6]
  end
  local last = maximum > 0 and row.failures + 1 >= maximum
  remember(row, last and 'failure' or 'retry', outcome[7], outcome[8], outcome[9])
  row.failures = row.failures + 1
  if last then
    archive(row, 1, '0')
    return
  end
  row.failed_at = now
  wait(row, '(retry)', outcome[5])
end

local function settle(row, outcome)
  local kind = outcome[4]
  if kind ~= 'release' then
    row.lost = 0
  end
  if kind == 'complete' then
    archive(row, 0, outcome[5])
  elseif kind == 'fail' then
    remember(row, 'failure', outcome[5], outcome[6], outcome[7])
    archive(row, 1, '0')
  elseif kind == 'retry' then
    retry(row, outcome)
  elseif kind == 'yield' then
    wait(row, '(yield)', math.max(outcome[5], YIELD_FLOOR))
  elseif kind == 'unknown' then
    wait(row, '(unknown)', outcome[5])
  else
    give_back(row, nil, nil)
  end
end

-- Whether this is the end that the row came to before, by the same holder.
local function is_repeat(row, outcome)
  local owner, expires = outcome[2], outcome[3]
  return owner and row and not row.active and row.result == RESULTS[outcome[4]]
    and row.owner == owner and not is_sentinel(owner)
    and (expires == '' or (row.expires ~= nil and format('%010d', row.expires) == expires))
end

for _, outcome in ipairs(outcomes) do
  local row, owner = rows[outcome[1]], outcome[2]
  local valid
  if owner then
    valid = is_held(row, owner, outcome[3])
  else
    valid = row and row.active
  end
  if outcome[4] == 'complete' then
    read_followups(outcome[6], valid and row)
  end
  if valid then
    settle(row, outcome)
    out[#out + 1] = 'S'
    if row.active then
      show_nothing(out, 2)
    else
      show_ended(out, row)
    end
  elseif is_repeat(row, outcome) then
    out[#out + 1] = 'R'
    show_ended(out, row)
  else
    out[#out + 1] = 'L'
    show_nothing(out, 2)
  end
end

if #followups > 0 and not insert(followups, floor) then
  return redis.error_reply('FULL no task ids left')
end
write()
if rings then
  ring()
end
return out
