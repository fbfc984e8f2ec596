-- Which lanes a lease may take from, and their rows in one order. A lane is `queue/class`; no queue has a slash.

local function list_of(set)
  local list = {}
  for value in pairs(set) do
    list[#list + 1] = value
  end
  return list
end

-- The classes that do not pass though all are asked for.
local function left_out_of(without_classes, paused)
  local list = list_of(without_classes)
  for pause in pairs(paused) do
    list[#list + 1] = string.match(pause, '^class:(.*)$')
  end
  table.sort(list)
  return list
end

-- Where the lanes of these classes are in the set of all lanes.
local function ranges_of_classes(classes)
  local ranges = {}
  for at, class in ipairs(classes) do
    ranges[at] = { lanes_of(class) }
  end
  return ranges
end

-- Where all others are. In whatever order these classes come: beside what is theirs, nothing is in none of the ranges.
local function ranges_between(classes)
  local ranges, from = {}, '-'
  for at, class in ipairs(classes) do
    local first, last = lanes_of(class)
    ranges[at] = { from, '(' .. sub(first, 2) }
    from = '[' .. sub(last, 2)
  end
  ranges[#ranges + 1] = { from, '+' }
  return ranges
end

-- What passes: classes, classes left out and queues that were asked for (false: all), and the pauses.
local function lane_filter(classes, without_classes, queues)
  local paused = set_of(call('SMEMBERS', PAUSES))
  classes, queues, without_classes = classes and set_of(classes), queues and set_of(queues), set_of(without_classes)
  local filter, ranges = {}, nil
  function filter.queue(queue)
    return not paused['all:'] and not paused['queue:' .. queue] and (not queues or queues[queue])
  end
  function filter.class(class)
    return not paused['class:' .. class] and not without_classes[class] and (not classes or classes[class])
  end
  function filter.lane(lane)
    local slash = string.find(lane, '/', 1, true)
    return slash and filter.queue(sub(lane, 1, slash - 1)) and filter.class(sub(lane, slash + 1))
  end
  filter.classes, filter.queues = classes and list_of(classes), queues and list_of(queues)
  function filter.ranges()
    if not ranges then
      ranges = classes and ranges_of_classes(filter.classes) or ranges_between(left_out_of(without_classes, paused))
    end
    return ranges
  end
  return filter
end

-- ---- sources: sorted sets that are read as far as they are needed. Those of heads lead to others.

local function source_of(key, kind, bound, chunk)
  local rows = try('ZRANGE', key, 0, chunk - 1, 'WITHSCORES')
  local source = { key = key, kind = kind, bound = bound, chunk = chunk, rank = 0, at = -1 }
  source.rows, source.empty = rows or {}, rows and #rows == 0
  proven[key] = #source.rows > 0
  return source
end

-- Move a source to its next row that passes; false: it has no more within its bound.
local function advance(source)
  if source.over then
    return false
  end
  repeat
    source.at = source.at + 2
    if source.at > #source.rows then
      if #source.rows < 2 * source.chunk then
        return false
      end
      source.rank = source.rank + source.chunk
      source.chunk = math.min(source.chunk * 4, 1000)
      source.rows = call('ZRANGE', source.key, source.rank, source.rank + source.chunk - 1, 'WITHSCORES')
      source.at = 1
      if #source.rows == 0 then
        return false
      end
    end
    source.id, source.score = source.rows[source.at], tonumber(source.rows[source.at + 1])
    if source.score > source.bound then
      return false
    end
    if source.passes then
      source.head, source.id, source.name = source.id, sub(source.id, 1, ID_SIZE), name_of(source.id)
    end
  until not source.passes or source.passes(source.name)
  return true
end

local function is_before(one, other)
  return one.score < other.score or (one.score == other.score and one.id < other.id)
end

-- Put the source at `at` where it belongs among those below it.
local function sift_down(heap, at)
  local source, size = heap[at], #heap
  while true do
    local child = 2 * at
    if child > size then
      break
    end
    if child < size and is_before(heap[child + 1], heap[child]) then
      child = child + 1
    end
    if not is_before(heap[child], source) then
      break
    end
    heap[at] = heap[child]
    at = child
  end
  heap[at] = source
end

-- Add a source, if it has a row, and put it where it belongs among those above it.
local function add(heap, source)
  if not advance(source) then
    return
  end
  local at = #heap + 1
  while at > 1 and is_before(source, heap[math.floor(at / 2)]) do
    heap[at] = heap[math.floor(at / 2)]
    at = math.floor(at / 2)
  end
  heap[at] = source
end

-- Move the first source on, and put it where it belongs now.
local function step(heap)
  if not advance(heap[1]) then
    heap[1] = heap[#heap]
    heap[#heap] = nil
  end
  if #heap > 1 then
    sift_down(heap, 1)
  end
end

-- ---- the merge

local RAISES, FEW, VAIN = 250, 8, 16

-- Bounds that this call has raised. At RAISES it looks no further, so that it does not hold up the server.
local raised = 0

-- The lanes of the classes that pass, out of the set of all lanes; nil: they are more than `most`.
local function passing_lanes(filter, most)
  local members, room = {}, most
  local function read(first, last)
    local found = try('ZRANGEBYLEX', LANES, first, last, 'LIMIT', 0, room + 1)
    for _, member in ipairs(found or {}) do
      members[#members + 1] = member
    end
    room = found and room - #found or -1
    return room >= 0
  end
  for _, range in ipairs(filter.ranges()) do
    if not read(range[1], range[2]) then
      return nil
    end
  end
  return members
end

-- The first `wanted` rows of these kinds (kind -> the last score that counts) by score then id, without those to skip:
-- ids, and the place of each. A lane is read when its head is the next row, so one whose turn does not come costs
-- nothing. Lanes that do not pass cost nothing either where the queues or classes that pass are few; else they are met
-- in the order of their heads. After RAISES bounds the rows are not all that there are.
local function merge(bounds, wanted, filter, skip)
  local heap, ids, places, known = {}, {}, {}, {}
  local tops, vain, next_try = {}, {}, {}

  -- What was found where a head led to: nothing, or for a bound perhaps something that comes later.
  local function correct(heads, source, queue, class)
    if source.empty then
      later('ZREM', heads.key, heads.head)
      if class and not holds_rows(queue, class) then
        later('ZREM', LANES, lane_member(queue, class))
      end
    elseif source.kind == 'W' and source.rows[2] and tonumber(source.rows[2]) > heads.score then
      later('ZADD', heads.key, source.rows[2], heads.head)
    else
      return
    end
    raised = raised + 1
  end

  local function add_lane(heads, kind, queue, class, alone)
    local place = kind .. ':' .. queue .. '/' .. class
    if known[place] then
      return true
    end
    known[place] = true
    local chunk = alone and #heap == 0 and math.min(wanted - #ids, 1000) or FEW
    local source = source_of(P .. place, kind, bounds[kind], chunk)
    source.place = place
    if heads then
      correct(heads, source, queue, class)
    end
    return add(heap, source)
  end

  -- Whether something of the queue passes.
  local function add_queue(heads, kind, queue)
    local key, classes, found = heads_key(kind, queue), filter.classes, false
    if classes and 3 * #classes < (try('ZCARD', key) or 0) then
      for _, class in ipairs(classes) do
        if filter.class(class) then
          found = add_lane(nil, kind, queue, class, #classes == 1) or found
        end
      end
      return found
    end
    local source = source_of(key, kind, bounds[kind], FEW)
    source.queue, source.passes = queue, filter.class
    if heads then
      correct(heads, source)
    end
    return add(heap, source)
  end

  -- Where queue after queue has nothing that passes: go to the lanes that pass, if they are few. They are asked for
  -- seldom, so that asking costs no more than going on. A lane that was met before is known.
  local function leave_queues(kind)
    vain[kind] = (vain[kind] or 0) + 1
    if tops[kind].over or vain[kind] < (next_try[kind] or VAIN) then
      return
    end
    next_try[kind] = 4 * vain[kind]
    local members = #filter.ranges() <= next_try[kind] and passing_lanes(filter, next_try[kind])
    if not members then
      return
    end
    tops[kind].over = true
    for _, member in ipairs(members) do
      local class, queue = string.match(member, '^(.*)%z(.*)$')
      if class and filter.class(class) and filter.queue(queue) then
        add_lane(nil, kind, queue, class)
      end
    end
  end

  for kind, bound in pairs(bounds) do
    local queues = filter.queues
    if queues and (#queues == 1 or 3 * #queues < (try('ZCARD', heads_key(kind)) or 0)) then
      for _, queue in ipairs(queues) do
        if filter.queue(queue) then
          add_queue(nil, kind, queue)
        end
      end
    else
      local source = source_of(heads_key(kind), kind, bound, FEW)
      source.passes, tops[kind] = filter.queue, source
      add(heap, source)
    end
  end
  while #ids < wanted and #heap > 0 and raised < RAISES do
    local source = heap[1]
    if source.place then
      if not skip[source.id] then
        ids[#ids + 1] = source.id
        places[#places + 1] = source.place
      end
      step(heap)
    else
      local found = { key = source.key, head = source.head, score = source.score }
      local name = source.name
      step(heap)
      if source.queue then
        add_lane(found, source.kind, source.queue, name, true)
      elseif not add_queue(found, source.kind, name) then
        leave_queues(source.kind)
      end
    end
  end
  return ids, places
end
