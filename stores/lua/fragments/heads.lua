-- The heads of lanes and queues: how the first row of a kind is found without asking every lane for its own.
--
-- For each kind of place (layout.lua) a tree of sorted sets. At the bottom are the places, `kind:queue/class`. The set
-- heads:<kind>:<queue> holds the first row of each of the queue's places, heads:<kind> the first row of each of these
-- sets. A member is the id of that row and the name of what it stands first in (a class, or a queue); its score is the
-- row's. So the first of heads:<kind> is the first row of all, the members are all there is, and what is empty is not.
--
-- The kind W changes with every lease and every end, and is looked for when a worker has died. There a member names no
-- row, and its score is a bound: nothing below it comes due earlier. It is lowered when a row enters, and raised by the
-- lease that looks below in vain (lanes.lua). It stands before all rows of its second, so that it is looked below before
-- any of them is taken: no task has this id.
--
-- Beside the tree, the set `lanes` has class and queue of each lane in which a row stands, all of one score: who asks for
-- a class finds its lanes there, however many queues have none. A lane may stay in it as long as its bound does.
local KINDS = { 'R', 'D', 'B', 'H', 'W' }
local ID_SIZE = 10

local function name_of(head)
  return sub(head, ID_SIZE + 1)
end

-- Kind, queue and class of a place.
local function parts_of(place)
  return string.match(place, '^(.):([^/]*)/(.*)$')
end

-- Kind and queue of the heads of a queue's lanes; nil: the name is of something else.
local function queue_of(name)
  return string.match(name, '^heads:([RDBHW]):(.*)$')
end

-- The first and the last a class may have there, as a range by name.
local function lanes_of(class)
  return '[' .. class .. '\0', '(' .. class .. '\1'
end

-- Whether a row stands in one of the places of a lane.
local function holds_rows(queue, class)
  local keys = {}
  for at, kind in ipairs(KINDS) do
    keys[at] = P .. kind .. ':' .. queue .. '/' .. class
  end
  return call('EXISTS', unpack(keys)) > 0
end

-- The first member of a set and its score; nil: it is empty.
local function first_of(key)
  local found = call('ZRANGE', key, 0, 0, 'WITHSCORES')
  proven[key] = true
  return { member = found[1], score = found[2] }
end

-- The member of the set above that stands for this first member.
local function head_for(member, name)
  return format('%-10.10s', member) .. name
end

-- The names of all places of these kinds that hold a row.
local function places_of(kinds)
  local places, seen = {}, {}
  for _, kind in ipairs(kinds) do
    for _, of_queue in ipairs(try('ZRANGE', heads_key(kind), 0, -1) or {}) do
      local queue = name_of(of_queue)
      for _, of_lane in ipairs(try('ZRANGE', heads_key(kind, queue), 0, -1) or {}) do
        local place = kind .. ':' .. queue .. '/' .. name_of(of_lane)
        if not seen[place] then
          seen[place] = true
          places[#places + 1] = place
        end
      end
    end
  end
  return places
end

-- Take lanes without rows out of the set; what stays there too long does no harm.
local function forget_lanes(members)
  for _, member in ipairs(members) do
    try('ZREM', LANES, member)
  end
end

-- ---- changes

local watched, watched_queues, lowest = {}, {}, {}

local function watch_queue(kind, queue)
  local key = heads_key(kind, queue)
  if not watched_queues[key] then
    watched_queues[key] = { first = first_of(key), kind = kind, queue = queue }
    expect(heads_key(kind), 'zset')
  end
end

-- The lowest of the scores that will enter a place of the kind W.
local function watch_bound(key, place, queue, added)
  if not added then
    return
  end
  for at = 1, #added, 2 do
    lowest[place] = math.min(lowest[place] or added[at], added[at])
  end
  expect(heads_key('W', queue), 'zset')
  expect(heads_key('W'), 'zset')
end

-- Before the first write: what stands first in those of these sets that are places, or heads. Of a key of another type
-- the script ends here. `adds`: the keys have the scores and members that are added to them.
local function watch(keys, adds)
  for key, values in pairs(keys) do
    local name = sub(key, #P + 1)
    local kind, queue = queue_of(name)
    if is_place(name) then
      kind, queue = parts_of(name)
      if kind == 'W' then
        watch_bound(key, name, queue, adds and values)
      elseif not watched[name] then
        watched[name] = first_of(key)
      end
      if kind ~= 'W' and adds and not watched[name].member then
        expect(LANES, 'zset')
      end
    end
    if kind and kind ~= 'W' then
      watch_queue(kind, queue)
    end
  end
end

-- Have the set above hold what is the first of this one now; whether there is one.
local function follow_first(key, was, above, name)
  local first = first_of(key)
  if first.member == was.member and first.score == was.score then
    return first.member
  end
  if was.member then
    call('ZREM', above, head_for(was.member, name))
  end
  if first.member then
    call('ZADD', above, first.score, head_for(first.member, name))
  end
  return first.member
end

-- After the last write.
local function follow_heads()
  local fresh, left = {}, {}
  for place, was in pairs(watched) do
    local kind, queue, class = parts_of(place)
    local holds = follow_first(P .. place, was, heads_key(kind, queue), class)
    if holds and not was.member then
      fresh[#fresh + 1] = 0
      fresh[#fresh + 1] = lane_member(queue, class)
    elseif was.member and not holds and not lowest['W' .. sub(place, 2)] and not holds_rows(queue, class) then
      left[#left + 1] = lane_member(queue, class)
    end
  end
  spread('ZADD', LANES, fresh)
  forget_lanes(left)
  for key, was in pairs(watched_queues) do
    follow_first(key, was.first, heads_key(was.kind), was.queue)
  end
  for place, bound in pairs(lowest) do
    local kind, queue, class = parts_of(place)
    call('ZADD', heads_key(kind, queue), 'LT', bound, BOUND .. class)
    call('ZADD', heads_key(kind), 'LT', bound, BOUND .. queue)
  end
  watched, watched_queues, lowest = {}, {}, {}
end
