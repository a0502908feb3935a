-- The rules database of Sekisho. May be applied again at any time: it creates what is missing, adds the columns that a
-- smaller table lacks, and loses no row. PostgreSQL 13 or newer.

BEGIN;

CREATE TABLE IF NOT EXISTS rate_limit_rule (
    id                BIGSERIAL PRIMARY KEY,
    tenant_id         VARCHAR(64) NOT NULL,          -- or '*': every tenant without a rule of its own
    route_id          VARCHAR(64) NOT NULL,          -- or '*': every route without a rule of its own
    capacity          INT         NOT NULL CHECK (capacity > 0),            -- tokens: the burst
    refill_per_second NUMERIC     NOT NULL CHECK (refill_per_second > 0),   -- tokens per second
    updated_at        TIMESTAMPTZ NOT NULL DEFAULT now(),
    UNIQUE (tenant_id, route_id)
);

-- 100 a minute is no whole number a second.
DO $$
BEGIN
    IF (SELECT atttypid <> 'numeric'::regtype FROM pg_attribute
        WHERE attrelid = 'rate_limit_rule'::regclass AND attname = 'refill_per_second') THEN
        ALTER TABLE rate_limit_rule ALTER COLUMN refill_per_second TYPE NUMERIC;
    END IF;
END $$;

ALTER TABLE rate_limit_rule
    -- Tokens one request takes; NULL: the route's cost.
    ADD COLUMN IF NOT EXISTS cost INT CHECK (cost >= 1),
    -- What to do when the store does not answer; NULL: limiter.on_store_failure.
    ADD COLUMN IF NOT EXISTS on_store_failure TEXT CHECK (on_store_failure IN ('local', 'open', 'closed')),
    ADD COLUMN IF NOT EXISTS shards SMALLINT NOT NULL DEFAULT 1 CHECK (shards BETWEEN 1 AND 100),
    ADD COLUMN IF NOT EXISTS mode TEXT NOT NULL DEFAULT 'enforce' CHECK (mode IN ('enforce', 'shadow')),
    ADD COLUMN IF NOT EXISTS enabled BOOLEAN NOT NULL DEFAULT true,
    ADD COLUMN IF NOT EXISTS comment TEXT;

-- Known API keys, for identity.mode = "registered". Only the SHA-256 of a key is kept, as 64 hexadecimal digits:
--   INSERT INTO api_key (key_sha256, tenant_id) VALUES (encode(sha256('the key'), 'hex'), 'shop-a');
CREATE TABLE IF NOT EXISTS api_key (
    key_sha256 CHAR(64)    PRIMARY KEY CHECK (key_sha256 ~ '^[0-9A-Fa-f]{64}$'),
    tenant_id  VARCHAR(64) NOT NULL,
    comment    TEXT,
    created_at TIMESTAMPTZ NOT NULL DEFAULT now()
);

COMMIT;
