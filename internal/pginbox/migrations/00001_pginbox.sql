-- +goose Up

-- Which handler has done which event, for ids kept as text. Ids are compared as
-- bytes (COLLATE "C"): it is fast, and the index stays valid when the operating
-- system's collations change, which would otherwise let an id in twice.
CREATE TABLE processed_messages (
    handler  text        COLLATE "C" NOT NULL,
    event_id text        COLLATE "C" NOT NULL,
    seen_at  timestamptz NOT NULL DEFAULT now(),
    PRIMARY KEY (handler, event_id)
);

-- For the purge, which walks the rows from the oldest on. A btree and not a BRIN
-- index: a BRIN index knows no order, and loses its grip once new rows fill the
-- space of purged ones.
CREATE INDEX processed_messages_seen_at ON processed_messages (seen_at);

-- The same for 16-byte keys. Handlers are numbered so that a row stays short.
CREATE TABLE inbox_handlers (
    id   smallint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    name text     COLLATE "C" NOT NULL UNIQUE
);

CREATE TABLE processed_keys (
    handler_id smallint    NOT NULL, -- no foreign key: it would cost a lookup a row
    event_key  uuid        NOT NULL,
    seen_at    timestamptz NOT NULL DEFAULT now(),
    PRIMARY KEY (handler_id, event_key)
);

CREATE INDEX processed_keys_seen_at ON processed_keys (seen_at);

-- What could not be handled. A record holds any bytes, NUL included, in its header
-- names too; text and jsonb do not, so everything of the record's own is bytea.
CREATE TABLE dead_letters (
    id            bigint      GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    handler       text        NOT NULL,
    event_id      bytea       NOT NULL, -- as received
    topic         text        NOT NULL,
    partition     int         NOT NULL,
    record_offset bigint      NOT NULL,
    record_key    bytea,                -- NULL where the record has none
    record_value  bytea,                -- NULL for a tombstone
    header_names  bytea[]     NOT NULL,
    header_values bytea[]     NOT NULL, -- one for each name; NULL where it has none
    error         text        NOT NULL,
    attempts      int         NOT NULL, -- 0: the id alone ruled the event out
    created_at    timestamptz NOT NULL DEFAULT now()
);

-- +goose Down
DROP TABLE dead_letters;
DROP TABLE processed_keys;
DROP TABLE inbox_handlers;
DROP TABLE processed_messages;
