-- One token bucket: takes tokens for the requests that wait, leases tokens ahead, books what a gateway reports.
-- The same statements as src/bucket.rs, in the same order. Needs Redis 5.0 (effects replication) or newer.
--
-- KEYS[1]  the bucket, a hash: tokens (decimal), ts (milliseconds on Redis's clock), and only while leases are out
--          lease_a and lease_b: tokens leased or renewed in the generation of ts and in the one before.
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
-- tostring keeps 14 digits.

local GENERATION = 2000 -- milliseconds

local ARGV, call, format = ARGV, redis.call, string.format
local capacity, rate, last = tonumber(ARGV[1]), tonumber(ARGV[2]), 3 + 2 * tonumber(ARGV[3])
local prefetch, stash_generation, used, held, back, owed = 0, 0, 0, 0, 0, 0
if ARGV[last + 1] then
  prefetch, stash_generation = tonumber(ARGV[last + 1]), tonumber(ARGV[last + 2])
  used, held, back = tonumber(ARGV[last + 3]), tonumber(ARGV[last + 4]), tonumber(ARGV[last + 5])
  owed = tonumber(ARGV[last + 6])
end

local time = call('TIME')
local now = time[1] * 1000 + math.floor(time[2] / 1000)

-- 1. Read. A bucket that is absent starts full, and so does one whose fields are not numbers in range.
local healed = 0
local raw = redis.pcall('HMGET', KEYS[1], 'tokens', 'ts', 'lease_a', 'lease_b')
if raw.err then
  if not string.find(raw.err, 'WRONGTYPE', 1, true) then return raw end
  call('DEL', KEYS[1])
  raw, healed = { false, false, false, false }, 1
end

local function number(text)
  local value = text and tonumber(text)
  if value and value >= 0 and value <= 9007199254740992 then return value end
end

local tokens, ts = number(raw[1]), number(raw[2])
local lease_a, lease_b = number(raw[3] or '0'), number(raw[4] or '0')
if not (tokens and ts and lease_a and lease_b) then
  if raw[1] or raw[2] or raw[3] or raw[4] then healed = 1 end
  tokens, ts, lease_a, lease_b = capacity, now, 0, 0
end
if ts > now + GENERATION then ts, lease_a, lease_b = now, 0, 0 end -- the clock stepped back
now = math.max(now, ts)

-- 2. Refill, before the report: tokens spent since the last call count as out until now; and up to each generation
--    boundary under the leases of before it.
local function refill(moment)
  tokens = math.min(math.max(0, capacity - lease_a - lease_b), tokens + (moment - ts) * rate / 1000)
  ts = moment
end
local generation = math.floor(now / GENERATION)
local behind = generation - math.floor(ts / GENERATION)
while behind > 0 and lease_a + lease_b > 0 do
  refill((generation - behind + 1) * GENERATION)
  lease_a, lease_b, behind = 0, lease_a, behind - 1
end
refill(now)

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
    tokens = math.min(tokens + back, math.max(0, capacity - lease_a - lease_b - held))
  end
end
tokens = math.max(0, tokens - owed)

-- 4. Grant the longest prefix of the waiting costs that fits; only if all were granted, lease ahead.
local granted, refused = 0, nil
for i = 4, last, 2 do
  local cost, count = tonumber(ARGV[i]), tonumber(ARGV[i + 1])
  local fit = math.min(count, math.floor(tokens / cost))
  granted, tokens = granted + fit, math.max(0, tokens - fit * cost)
  if fit < count then
    refused = cost
    break
  end
end
local ahead = 0
if not refused then
  local room = math.floor(capacity / 2) - lease_a - lease_b - held
  ahead = math.max(0, math.min(prefetch, math.floor(tokens), room))
  tokens = tokens - ahead
end
lease_a = lease_a + held + ahead

-- 5. Write.
local tokens_text, ts_text = format('%.17g', tokens), format('%.0f', ts)
if lease_a + lease_b > 0 then
  call('HSET', KEYS[1], 'tokens', tokens_text, 'ts', ts_text,
    'lease_a', format('%.0f', lease_a), 'lease_b', format('%.0f', lease_b))
else
  call('HSET', KEYS[1], 'tokens', tokens_text, 'ts', ts_text)
  if raw[3] or raw[4] then call('HDEL', KEYS[1], 'lease_a', 'lease_b') end
end
local life = math.max(2 * GENERATION, math.ceil(2000 * capacity / rate))
call('PEXPIRE', KEYS[1], format('%.0f', life))

-- 6. Reply.
local need, wait = refused or 1, -1
if need <= capacity then wait = math.ceil(math.max(0, need - tokens) * 1000 / rate) end
return { granted, ahead, generation, known, math.floor(tokens), wait, healed }
