-- Which lanes a lease may take from, and their rows in one order. A lane is `queue/class`; no queue has a slash.

-- What passes: classes, classes left out and queues that were asked for (false: all), and the pauses.
local function lane_filter(classes, without_classes, queues)
  local paused = set_of(call('SMEMBERS', PAUSES))
  classes, queues, without_classes = classes and set_of(classes), queues and set_of(queues), set_of(without_classes)
  local filter = {}
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
  if classes then
    filter.classes = {}
    for class in pairs(classes) do
      filter.classes[#filter.classes + 1] = class
    end
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

-- The first `wanted` rows of these kinds (kind -> the last score that counts) by score then id, without those to skip:
-- ids, and the place of each. A lane is read when its head is the next row, so one whose turn does not come costs
-- nothing; nor do lanes that do not pass, but for those that are named to be left out.
local function merge(bounds, wanted, filter, skip)
  local heap, ids, places, known = {}, {}, {}, {}
  local FEW = 8

  -- What was found where a head led to: nothing, or for a bound perhaps something that comes later.
  local function correct(heads, source)
    if source.empty then
      later('ZREM', heads.key, heads.head)
    elseif source.kind == 'W' and source.rows[2] and tonumber(source.rows[2]) > heads.score then
      later('ZADD', heads.key, source.rows[2], heads.head)
    end
  end

  local function add_lane(heads, kind, queue, class, alone)
    local place = kind .. ':' .. queue .. '/' .. class
    if known[place] then
      return
    end
    known[place] = true
    local chunk = alone and #heap == 0 and math.min(wanted - #ids, 1000) or FEW
    local source = source_of(P .. place, kind, bounds[kind], chunk)
    source.place = place
    if heads then
      correct(heads, source)
    end
    add(heap, source)
  end

  local function add_queue(heads, kind, queue)
    local key, classes = heads_key(kind, queue), filter.classes
    if classes and 3 * #classes < (try('ZCARD', key) or 0) then
      for _, class in ipairs(classes) do
        if filter.class(class) then
          add_lane(nil, kind, queue, class, #classes == 1)
        end
      end
      return
    end
    local source = source_of(key, kind, bounds[kind], FEW)
    source.queue, source.passes = queue, filter.class
    correct(heads, source)
    add(heap, source)
  end

  for kind, bound in pairs(bounds) do
    local source = source_of(heads_key(kind), kind, bound, FEW)
    source.passes = filter.queue
    add(heap, source)
  end
  while #ids < wanted and #heap > 0 do
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
      else
        add_queue(found, source.kind, name)
      end
    end
  end
  return ids, places
end
