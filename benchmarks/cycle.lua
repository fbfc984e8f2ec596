-- wrk script: enqueue, lease and complete, over and over. Each request carries BENCH_BATCH tasks; wrk tells us neither
-- which connection asks nor which one answers, so what is to do next is kept for the thread.
local batch = tonumber(os.getenv("BENCH_BATCH"))
local file = assert(io.open(os.getenv("BENCH_BODY"), "rb"))
local tasks = file:read("*a")
file:close()
local owner = tostring({}):gsub("[^%w]", "")
local waiting, held, sequence, threads = 0, {}, 0, {}
done_count = 0

local function post(route, body, headers)
  headers = headers or {}
  headers["Content-Type"] = "application/json"
  return wrk.format("POST", wrk.path .. route, headers, body)
end

function request()
  local report = table.remove(held)
  if report then return post(batch == 1 and "complete" or "settle-batch", report) end
  if waiting >= batch then
    waiting = waiting - batch
    sequence = sequence + 1
    return post("lease", '{"limit":' .. batch .. "}", { ["X-Lease-Owner"] = owner .. sequence })
  end
  return post(batch == 1 and "enqueue" or "enqueue-batch", tasks)
end

local function leased(body)
  local settlements, count = {}, 0
  for id, rest in body:gmatch('"id":(%d+),"taskClass"(.-)"failureCount"') do
    local by, expires = rest:match('"leaseOwner":"(%w+)","leaseExpires":(%d+)')
    count = count + 1
    if batch == 1 then
      held[#held + 1] = '{"taskID":' .. id .. ',"duration":1}'
    else
      settlements[count] = '{"taskID":' .. id .. ',"leaseOwner":"' .. by .. '","leaseExpires":' .. expires
        .. ',"outcome":"complete","duration":1}'
    end
  end
  if batch > 1 and count > 0 then held[#held + 1] = '{"settlements":[' .. table.concat(settlements, ",") .. "]}" end
  waiting = waiting + batch - count
end

function response(status, headers, body)
  if status ~= 200 then return end
  if body:find('"verdict"', 1, true) then
    for _ in body:gmatch('"verdict":"settled"') do done_count = done_count + 1 end
  elseif body:find('"result"', 1, true) then
    done_count = done_count + 1
  elseif body:sub(1, 9) == '{"data":[' and (body:sub(10, 10) == "]" or body:find('"leaseOwner":"', 1, true)) then
    leased(body)
  else
    waiting = waiting + batch
  end
end

function setup(thread) threads[#threads + 1] = thread end

function done()
  local total = 0
  for _, thread in ipairs(threads) do total = total + thread:get("done_count") end
  io.write("Tasks done: " .. total .. "\n")
end
