-- One token bucket: takes tokens for the requests that wait, leases tokens ahead, books what a gateway reports.
-- The same statements as src/bucket.rs, in the same order. Needs Redis 5.0 (effects replication) or newer.
--
-- KEYS[1]  the bucket, a hash: tokens (decimal), ts (milliseconds on Redis's clock), and only while one is not 0
--          lease_a and lease_b: tokens leased or renewed in the generation of ts and in the one before, and
--          room_until: nothing is leased shortly before that moment (milliseconds), to make room for a dear request.
-- ARGV     1 capacity (tokens)   2 refill (tokens per second)
--          3 pairs of demand, then as many pairs: the requests that wait, in order, as cost (tokens), how many of that cost
--          and only from a gateway that leases, after the last pair:
--          prefetch wanted (tokens), generation of the gateway's stash, and its tokens: used since the last report,
--          still held, given back; and tokens admitted without the bucket while it did not answer, taken off it
-- Reply    1 requests granted    2 tokens leased ahead          3 generation
--          4 stash known (1, 0)  5 whole tokens left            6 milliseconds until the next cost fits, -1 never
--          7 healed (1 if the key held something that is not a bucket, 0)
--
-- Integers are written with %.0f and floats with %.17g: Redis 7.2.0-7.2.4 prints some integers in exponent form, and
-- tostring keeps 14 digits. What stands in one line is there for speed: a function or a table costs as much as a field.

local GENERATION = 2000 -- milliseconds, as these
local ROOM, LATE, BACK = 2000, 1500, 250
local LARGEST = 9007199254740992

local ARGV, call, tonumber, format = ARGV, redis.call, tonumber, string.format
local floor, ceil, max, min = math.floor, math.ceil, math.max, math.min
local capacity, rate, last = tonumber(ARGV[1]), tonumber(ARGV[2]), 3 + 2 * tonumber(ARGV[3])
local prefetch, stash_generation, used, held, back, owed = 0, 0, 0, 0, 0, 0
if ARGV[last + 1] then
  prefetch, stash_generation = tonumber(ARGV[last + 1]), tonumber(ARGV[last + 2])
  used, held, back = tonumber(ARGV[last + 3]), tonumber(ARGV[last + 4]), tonumber(ARGV[last + 5])
  owed = tonumber(ARGV[last + 6])
end

local time = call('TIME')
local now = time[1] * 1000 + floor(time[2] / 1000)

-- 1. Read. A bucket that is absent starts full, and so does one whose fields are not numbers in range.
local healed = 0
local raw = redis.pcall('HMGET', KEYS[1], 'tokens', 'ts', 'lease_a', 'lease_b', 'room_until')
if raw.err then
  if not string.find(raw.err, 'WRONGTYPE', 1, true) then return raw end
  call('DEL', KEYS[1])
  raw, healed = { false, false, false, false, false }, 1
end
local tokens, ts, lease_a, lease_b, room_until = tonumber(raw[1]), tonumber(raw[2]), 0, 0, 0
local whole = tokens and tokens >= 0 and tokens <= LARGEST and ts and ts >= 0 and ts <= LARGEST
local leased = raw[3] or raw[4] or raw[5]
if leased then
  lease_a, lease_b, room_until = tonumber(raw[3] or 0), tonumber(raw[4] or 0), tonumber(raw[5] or 0)
  whole = whole and lease_a and lease_a >= 0 and lease_a <= LARGEST and lease_b and lease_b >= 0 and lease_b <= LARGEST
    and room_until and room_until >= 0 and room_until <= LARGEST
end
if not whole then
  if raw[1] or raw[2] or leased then healed = 1 end
  tokens, ts, lease_a, lease_b, room_until = capacity, now, 0, 0, 0
end
if ts > now + GENERATION then ts, lease_a, lease_b, room_until = now, 0, 0, 0 end -- the clock stepped back
now = max(now, ts)

-- 2. Refill, before the report: tokens spent since the last call count as out until now; and up to each generation
--    boundary under the leases of before it.
local generation = floor(now / GENERATION)
local boundary = (floor(ts / GENERATION) + 1) * GENERATION
while boundary <= now and lease_a + lease_b > 0 do
  tokens = min(max(0, capacity - lease_a - lease_b), tokens + (boundary - ts) * rate / 1000)
  ts, lease_a, lease_b, boundary = boundary, 0, lease_a, boundary + GENERATION
end
tokens = min(max(0, capacity - lease_a - lease_b), tokens + (now - ts) * rate / 1000)

-- 3. The report.
local known = 1
local out = used + held + back
if out > 0 then
  if stash_generation == generation and lease_a >= out then
    lease_a = lease_a - out
  elseif stash_generation == generation - 1 and lease_b >= out then
    lease_b = lease_b - out
  else
    known, held, back = 0, 0, 0 -- expired, or a bucket born since
  end
  if known == 1 then
    tokens = min(tokens + back, max(0, capacity - lease_a - lease_b - held))
  end
end
lease_a = lease_a + held
tokens = max(0, tokens - owed)

-- 4. Grant the longest prefix of the waiting costs that fits.
local granted, refused = 0, nil
for i = 4, last, 2 do
  local cost, count = tonumber(ARGV[i]), tonumber(ARGV[i + 1])
  local fit = min(count, floor(tokens / cost))
  granted, tokens = granted + fit, max(0, tokens - fit * cost)
  if fit < count then
    refused = cost
    break
  end
end

-- 5. Lease ahead, only if all were granted, and not while room is made for a dear request.
if now >= room_until then room_until = 0 end
local ahead = 0
if prefetch > 0 and not refused and not (room_until > 0 and room_until - now <= ROOM) then
  ahead = max(0, min(prefetch, floor(tokens), floor(capacity / 2) - lease_a - lease_b))
  tokens, lease_a = tokens - ahead, lease_a + ahead
end

-- 6. The wait. A request for which leases leave no room fits when gateways have spent them or given them back; from
--    shortly before until LATE after that (clients are told whole seconds) nothing is leased.
local need, wait = refused or 1, -1
if need <= capacity then wait = ceil(max(0, need - tokens) * 1000 / rate) end
if refused and need <= capacity and need > capacity - lease_a - lease_b then
  wait = wait + BACK
  room_until = now + wait + LATE
end

-- 7. Write.
local tokens_text, ts_text = format('%.17g', tokens), format('%.0f', now)
if lease_a + lease_b + room_until > 0 then
  call('HSET', KEYS[1], 'tokens', tokens_text, 'ts', ts_text, 'lease_a', format('%.0f', lease_a),
    'lease_b', format('%.0f', lease_b), 'room_until', format('%.0f', room_until))
else
  call('HSET', KEYS[1], 'tokens', tokens_text, 'ts', ts_text)
  if leased then call('HDEL', KEYS[1], 'lease_a', 'lease_b', 'room_until') end
end
call('PEXPIRE', KEYS[1], format('%.0f', max(2 * GENERATION, ceil(2000 * capacity / rate))))

-- 8. Reply.
return { granted, ahead, generation, known, floor(tokens), wait, healed }
