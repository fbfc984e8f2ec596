-- Which lanes a lease may take from, and their rows in one order. A lane is `queue/class`; no queue has a slash.

-- Whether a lane passes: classes, classes left out and queues that were asked for (false: all), and the pauses.
local function lane_filter(classes, without_classes, queues)
  local paused = set_of(call('SMEMBERS', PAUSES))
  classes, queues, without_classes = classes and set_of(classes), queues and set_of(queues), set_of(without_classes)
  return function(lane)
    local slash = string.find(lane, '/', 1, true)
    if not slash then
      return false
    end
    local queue, class = sub(lane, 1, slash - 1), sub(lane, slash + 1)
    return not paused['all:'] and not paused['class:' .. class] and not paused['queue:' .. queue]
      and (not classes or classes[class]) and not without_classes[class] and (not queues or queues[queue])
  end
end

-- The places that hold rows of these lanes, as sources for `merge`: ready ones, and those with a time.
local function sources_of(passes, patience)
  local ready, timed, known = {}, {}, {}
  for _, place in ipairs(call('SMEMBERS', PLACES)) do
    local kind, lane = sub(place, 1, 1), sub(place, 3)
    if known[lane] == nil then
      known[lane] = passes(lane) or false
    end
    if known[lane] and kind == 'R' then
      ready[#ready + 1] = { place = place, bound = U32 }
    elseif known[lane] and is_place(place) then
      timed[#timed + 1] = { place = place, bound = now - grace_of(kind, patience) }
    end
  end
  return ready, timed
end

-- Move a source to its next row; false: it has no more within its bound.
local function advance(source)
  source.at = source.at + 2
  if source.at > #source.rows then
    if #source.rows < 2 * source.chunk then
      return false
    end
    source.rank = source.rank + source.chunk
    source.chunk = math.min(source.chunk * 4, 1000)
    source.rows = call('ZRANGE', P .. source.place, source.rank, source.rank + source.chunk - 1, 'WITHSCORES')
    source.at = 1
    if #source.rows == 0 then
      return false
    end
  end
  source.id, source.score = source.rows[source.at], tonumber(source.rows[source.at + 1])
  return source.score <= source.bound
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

-- The first `wanted` rows of all sources by score then id, without those to skip: ids, and the place of each.
-- Each source is read as far as it is needed, so what stands behind costs nothing.
local function merge(sources, wanted, skip)
  local heap, ids, places = {}, {}, {}
  for _, source in ipairs(sources) do
    source.chunk = #sources == 1 and math.min(wanted, 1000) or 8
    source.rank, source.at = 0, -1
    source.rows = try('ZRANGE', P .. source.place, 0, source.chunk - 1, 'WITHSCORES') or {}
    proven[P .. source.place] = #source.rows > 0
    if #source.rows > 0 and advance(source) then
      heap[#heap + 1] = source
    end
  end
  for at = math.floor(#heap / 2), 1, -1 do
    sift_down(heap, at)
  end
  while #ids < wanted and #heap > 0 do
    local source = heap[1]
    if not skip[source.id] then
      ids[#ids + 1] = source.id
      places[#places + 1] = source.place
    end
    if not advance(source) then
      heap[1] = heap[#heap]
      heap[#heap] = nil
    end
    if #heap > 1 then
      sift_down(heap, 1)
    end
  end
  return ids, places
end
