-- +goose Up

-- What is to be published, written in the transaction of the work. A row is pending
-- until it is stamped: published, or refused by Kafka for what it is. A record holds
-- any bytes, NUL included, in its header names too, so everything of the record's own
-- is bytea.
CREATE TABLE outbox (
    id            bigint      NOT NULL GENERATED ALWAYS AS IDENTITY,
    -- Rows of one key are in one shard. Computed here, so that whoever writes a row,
    -- in whatever language, gets the same. Without a key there is no order to keep.
    shard         smallint    NOT NULL GENERATED ALWAYS AS ((get_byte(sha256(coalesce(record_key, event_id)), 0) % 32)::smallint) STORED,
    event_id      bytea       NOT NULL,
    topic         text        NOT NULL, -- by Kafka's rule; any other would be refused
    record_key    bytea,                -- NULL where the record has none
    record_value  bytea,                -- NULL for a tombstone
    header_names  bytea[]     NOT NULL DEFAULT '{}',
    header_values bytea[]     NOT NULL DEFAULT '{}', -- one for each name; NULL where it has none
    record_time   timestamptz,          -- NULL: when it is published
    created_at    timestamptz NOT NULL DEFAULT now(),
    published_at  timestamptz,
    refused_at    timestamptz,
    refusal       text,                 -- why
    -- Not the id alone: in that index the planner would look for a shard's first pending
    -- rows, and walk over all that are published.
    PRIMARY KEY (shard, id),
    -- The length apart: counted in the pattern, it would cost more than all the rest of
    -- an UPDATE.
    CONSTRAINT outbox_topic CHECK (topic ~ '^[a-zA-Z0-9._-]+$' AND length(topic) <= 249 AND topic NOT IN ('.', '..'))
);

-- What is pending, and nothing else, in the order in which a relay takes it.
CREATE INDEX outbox_pending ON outbox (shard, id) WHERE published_at IS NULL AND refused_at IS NULL;
-- For the purge, which walks the rows from the oldest stamp on.
CREATE INDEX outbox_published_at ON outbox (published_at) WHERE published_at IS NOT NULL;
-- For whoever looks after what was refused: mostly empty.
CREATE INDEX outbox_refused ON outbox (id) WHERE refused_at IS NOT NULL;

-- What relays lock: who has a shard's row has its pending rows.
CREATE TABLE outbox_shards (
    shard smallint PRIMARY KEY
);
INSERT INTO outbox_shards SELECT generate_series(0, 31);

-- Relays are told when a transaction with rows has committed. Channels belong to the
-- database and not to a schema, so the name has the schema in it, as a hash because a
-- name has at most 63 bytes.
-- +goose StatementBegin
CREATE FUNCTION outbox_wake() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    PERFORM pg_notify('outbox_' || md5(TG_TABLE_SCHEMA), '');
    RETURN NULL;
END
$$;
-- +goose StatementEnd
CREATE TRIGGER outbox_wake AFTER INSERT ON outbox FOR EACH STATEMENT EXECUTE FUNCTION outbox_wake();

-- +goose Down
DROP TABLE outbox_shards;
DROP TABLE outbox;
DROP FUNCTION outbox_wake;
