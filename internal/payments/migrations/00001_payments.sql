-- +goose Up

-- Names are compared as bytes (COLLATE "C"): the indexes stay valid when the
-- operating system's collations change, which would otherwise let a key in twice.
CREATE TABLE charges (
    id              text        COLLATE "C" PRIMARY KEY,
    client_id       text        COLLATE "C" NOT NULL,
    amount          bigint      NOT NULL, -- in the currency's smallest unit
    currency        text        NOT NULL,
    description     text,
    metadata        jsonb       NOT NULL,
    failure_code    text,                 -- NULL where the charge succeeded
    failure_message text,
    created_at      timestamptz NOT NULL
);

CREATE TABLE emails (
    id         text        COLLATE "C" PRIMARY KEY,
    client_id  text        COLLATE "C" NOT NULL,
    recipient  text        NOT NULL,
    subject    text        NOT NULL,
    body       text        NOT NULL,
    metadata   jsonb       NOT NULL,
    created_at timestamptz NOT NULL
);

CREATE TABLE idempotency_keys (
    client_id    text        COLLATE "C" NOT NULL,
    idem_key     text        COLLATE "C" NOT NULL,
    request_hash bytea       NOT NULL, -- SHA-256 of method, path and parameters
    status       smallint,             -- NULL while in flight, which only its own transaction sees
    headers      jsonb,
    body         bytea,
    created_at   timestamptz NOT NULL DEFAULT now(),
    PRIMARY KEY (client_id, idem_key)
);

-- For the purge, which walks the rows from the oldest on.
CREATE INDEX idempotency_keys_created_at ON idempotency_keys (created_at);

-- What was accepted, a row for each time. Nothing ever removes one: this is what an
-- audit believes.
CREATE TABLE ledger (
    id          bigint      GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    object      text        NOT NULL, -- 'charge' or 'email'
    object_id   text        COLLATE "C" NOT NULL,
    client_id   text        COLLATE "C" NOT NULL,
    idem_key    text        COLLATE "C", -- NULL where none was sent
    event_id    text        COLLATE "C", -- the request's metadata[event_id]
    attempt     text        COLLATE "C", -- the request's metadata[attempt]
    accepted_at timestamptz NOT NULL DEFAULT clock_timestamp()
);

-- +goose Down
DROP TABLE ledger;
DROP TABLE idempotency_keys;
DROP TABLE emails;
DROP TABLE charges;
