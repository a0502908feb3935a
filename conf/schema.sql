-- The rules database of Sekisho. May be applied again at any time: it creates what is missing, adds the columns that a
-- smaller table lacks, and loses no row. PostgreSQL 13 or newer.
--
-- Gateways need SELECT on rate_limit_rule, and on api_key where it is used; nothing else.

BEGIN;
SET LOCAL client_min_messages = warning;

CREATE TABLE IF NOT EXISTS rate_limit_rule (
    id                BIGSERIAL PRIMARY KEY,
    tenant_id         VARCHAR(64) NOT NULL,          -- or '*': every tenant without a rule of its own
    route_id          VARCHAR(64) NOT NULL,          -- or '*': every route without a rule of its own
    capacity          INT         NOT NULL CHECK (capacity > 0),            -- tokens: the burst
    refill_per_second NUMERIC     NOT NULL CHECK (refill_per_second > 0),   -- tokens per second
    updated_at        TIMESTAMPTZ NOT NULL DEFAULT now()                    -- kept by a trigger
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
    ADD COLUMN IF NOT EXISTS comment TEXT,
    ADD COLUMN IF NOT EXISTS updated_at TIMESTAMPTZ NOT NULL DEFAULT now();

-- A shadow rule stands beside the enforcing one: unique is (tenant_id, route_id, mode). The older constraint over
-- (tenant_id, route_id) goes once the new one is there; one that a foreign key needs stays, with a warning.
DO $$
DECLARE
    older name;
BEGIN
    IF NOT EXISTS (SELECT FROM pg_constraint WHERE conrelid = 'rate_limit_rule'::regclass
                   AND conname = 'rate_limit_rule_tenant_id_route_id_mode_key') THEN
        ALTER TABLE rate_limit_rule
            ADD CONSTRAINT rate_limit_rule_tenant_id_route_id_mode_key UNIQUE (tenant_id, route_id, mode);
    END IF;
    FOR older IN
        SELECT conname FROM pg_constraint
        WHERE conrelid = 'rate_limit_rule'::regclass AND contype = 'u'
          AND (SELECT array_agg(attname ORDER BY attname) FROM pg_attribute
               WHERE attrelid = conrelid AND attnum = ANY (conkey)) = ARRAY['route_id', 'tenant_id']::name[]
    LOOP
        BEGIN
            EXECUTE format('ALTER TABLE rate_limit_rule DROP CONSTRAINT %I', older);
        EXCEPTION WHEN dependent_objects_still_exist THEN
            RAISE WARNING 'constraint % stays: a foreign key needs it, and no shadow rule can stand beside another', older;
        END;
    END LOOP;
END $$;

-- What changed, when and by whom: one row for each rule that was inserted, updated, deleted or truncated. An update that
-- changes nothing leaves none. Nobody but the owner can write here, whoever may write rules. To forget the oldest:
--   DELETE FROM rate_limit_rule_history WHERE at < now() - interval '1 year';
CREATE TABLE IF NOT EXISTS rate_limit_rule_history (
    id        BIGINT GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    at        TIMESTAMPTZ NOT NULL DEFAULT clock_timestamp(),
    who       TEXT        NOT NULL DEFAULT session_user,    -- the role that logged in
    role      TEXT,                                         -- the one it had taken with SET ROLE
    actor     TEXT,                                         -- for whom: SET sekisho.actor = 'alice@example.com'
    operation TEXT        NOT NULL,                         -- INSERT, UPDATE, DELETE or TRUNCATE
    tenant_id TEXT,                                         -- as it is now, or was last
    route_id  TEXT,
    mode      TEXT,
    old       JSONB,                                        -- the row before
    new       JSONB                                         -- the row after
);
CREATE INDEX IF NOT EXISTS rate_limit_rule_history_of_rule ON rate_limit_rule_history (tenant_id, route_id, id);

CREATE OR REPLACE FUNCTION rate_limit_rule_stamp() RETURNS trigger
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    IF to_jsonb(NEW) <> to_jsonb(OLD) THEN
        NEW.updated_at := clock_timestamp();
    END IF;
    RETURN NEW;
END $$;

-- With the rights of its owner: who may write rules need not, and must not, be able to write their history.
CREATE OR REPLACE FUNCTION rate_limit_rule_record() RETURNS trigger
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    before jsonb;
    after  jsonb;
    insertion text := format(
        'INSERT INTO %I.rate_limit_rule_history (role, actor, operation, tenant_id, route_id, mode, old, new)
         SELECT nullif(current_setting(''role''), ''none''), nullif(current_setting(''sekisho.actor'', true), ''''),
                $1, rule->>''tenant_id'', rule->>''route_id'', rule->>''mode'', old, new',
        TG_TABLE_SCHEMA);
BEGIN
    IF TG_OP = 'TRUNCATE' THEN
        EXECUTE insertion || format(' FROM (SELECT to_jsonb(r), to_jsonb(r), NULL::jsonb FROM %I.%I r) gone (rule, old, new)',
                                 TG_TABLE_SCHEMA, TG_TABLE_NAME)
            USING TG_OP;
        RETURN NULL;
    END IF;
    IF TG_OP <> 'INSERT' THEN
        before := to_jsonb(OLD);
    END IF;
    IF TG_OP <> 'DELETE' THEN
        after := to_jsonb(NEW);
    END IF;
    IF before IS DISTINCT FROM after THEN
        EXECUTE insertion || ' FROM (VALUES (coalesce($3, $2), $2, $3)) changed (rule, old, new)'
            USING TG_OP, before, after;
    END IF;
    RETURN NULL;
END $$;

-- Tells the gateways, at commit, of whom the rules have changed, on channel sekisho_rules. A payload is JSON:
--   {"tenant_id": "shop-a", "route_id": "orders"}     one pair
--   [{"tenant_id": …, "route_id": …}, …]              up to eight of them
--   {"all": true}                                     more than a thousand in one statement, or all of them
--   {"keys": true}                                    API keys
-- It never holds a rule: what counts is what the table says when it is read.
CREATE OR REPLACE FUNCTION rate_limit_rule_notify() RETURNS trigger
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    changed  jsonb[];
    payload  text;
BEGIN
    -- The longest that PostgreSQL takes has 7999 bytes: eight pairs of 64 characters each fit, however they are escaped.
    IF TG_OP = 'INSERT' THEN
        changed := ARRAY(SELECT DISTINCT jsonb_build_object('tenant_id', tenant_id, 'route_id', route_id)
                         FROM after LIMIT 1001);
    ELSIF TG_OP = 'DELETE' THEN
        changed := ARRAY(SELECT DISTINCT jsonb_build_object('tenant_id', tenant_id, 'route_id', route_id)
                         FROM before LIMIT 1001);
    ELSIF TG_OP = 'UPDATE' THEN
        changed := ARRAY(
            SELECT DISTINCT jsonb_build_object('tenant_id', rule->'tenant_id', 'route_id', rule->'route_id')
            FROM ((SELECT to_jsonb(b) FROM before b EXCEPT ALL SELECT to_jsonb(a) FROM after a)
                  UNION ALL
                  (SELECT to_jsonb(a) FROM after a EXCEPT ALL SELECT to_jsonb(b) FROM before b)) differs (rule)
            LIMIT 1001);
    END IF;
    IF TG_OP = 'TRUNCATE' OR cardinality(changed) > 1000 THEN
        PERFORM pg_notify('sekisho_rules', '{"all": true}');
        RETURN NULL;
    END IF;
    FOR payload IN
        SELECT CASE count(*) WHEN 1 THEN min(pair::text) ELSE jsonb_agg(pair ORDER BY nth)::text END
        FROM unnest(changed) WITH ORDINALITY AS pairs (pair, nth)
        GROUP BY (nth - 1) / 8 ORDER BY (nth - 1) / 8
    LOOP
        PERFORM pg_notify('sekisho_rules',
                          CASE WHEN octet_length(payload) < 8000 THEN payload ELSE '{"all": true}' END);
    END LOOP;
    RETURN NULL;
END $$;

DROP TRIGGER IF EXISTS rate_limit_rule_stamp ON rate_limit_rule;
CREATE TRIGGER rate_limit_rule_stamp BEFORE UPDATE ON rate_limit_rule
    FOR EACH ROW EXECUTE FUNCTION rate_limit_rule_stamp();

DROP TRIGGER IF EXISTS rate_limit_rule_record ON rate_limit_rule;
CREATE TRIGGER rate_limit_rule_record AFTER INSERT OR UPDATE OR DELETE ON rate_limit_rule
    FOR EACH ROW EXECUTE FUNCTION rate_limit_rule_record();
DROP TRIGGER IF EXISTS rate_limit_rule_record_truncate ON rate_limit_rule;
CREATE TRIGGER rate_limit_rule_record_truncate BEFORE TRUNCATE ON rate_limit_rule
    FOR EACH STATEMENT EXECUTE FUNCTION rate_limit_rule_record();

DROP TRIGGER IF EXISTS rate_limit_rule_notify_insert ON rate_limit_rule;
CREATE TRIGGER rate_limit_rule_notify_insert AFTER INSERT ON rate_limit_rule
    REFERENCING NEW TABLE AS after FOR EACH STATEMENT EXECUTE FUNCTION rate_limit_rule_notify();
DROP TRIGGER IF EXISTS rate_limit_rule_notify_update ON rate_limit_rule;
CREATE TRIGGER rate_limit_rule_notify_update AFTER UPDATE ON rate_limit_rule
    REFERENCING OLD TABLE AS before NEW TABLE AS after FOR EACH STATEMENT EXECUTE FUNCTION rate_limit_rule_notify();
DROP TRIGGER IF EXISTS rate_limit_rule_notify_delete ON rate_limit_rule;
CREATE TRIGGER rate_limit_rule_notify_delete AFTER DELETE ON rate_limit_rule
    REFERENCING OLD TABLE AS before FOR EACH STATEMENT EXECUTE FUNCTION rate_limit_rule_notify();
DROP TRIGGER IF EXISTS rate_limit_rule_notify_truncate ON rate_limit_rule;
CREATE TRIGGER rate_limit_rule_notify_truncate AFTER TRUNCATE ON rate_limit_rule
    FOR EACH STATEMENT EXECUTE FUNCTION rate_limit_rule_notify();

-- Known API keys, for identity.mode = "registered". Only the SHA-256 of a key is kept, as 64 hexadecimal digits:
--   INSERT INTO api_key (key_sha256, tenant_id) VALUES (encode(sha256('the key'), 'hex'), 'shop-a');
CREATE TABLE IF NOT EXISTS api_key (
    key_sha256 CHAR(64)    PRIMARY KEY CHECK (key_sha256 ~ '^[0-9A-Fa-f]{64}$'),
    tenant_id  VARCHAR(64) NOT NULL,
    comment    TEXT,
    created_at TIMESTAMPTZ NOT NULL DEFAULT now()
);

CREATE OR REPLACE FUNCTION api_key_notify() RETURNS trigger
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    PERFORM pg_notify('sekisho_rules', '{"keys": true}');
    RETURN NULL;
END $$;

DROP TRIGGER IF EXISTS api_key_notify ON api_key;
CREATE TRIGGER api_key_notify AFTER INSERT OR UPDATE OR DELETE OR TRUNCATE ON api_key
    FOR EACH STATEMENT EXECUTE FUNCTION api_key_notify();

COMMIT;
