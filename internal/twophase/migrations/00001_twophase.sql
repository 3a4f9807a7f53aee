-- +goose Up

-- Who runs as a transactional id. Each incarnation draws the next fence, and only the
-- last one may decide.
CREATE TABLE transactional_ids (
    transactional_id text   COLLATE "C" PRIMARY KEY,
    fence            bigint NOT NULL
);

-- Transactions whose work is committed here, and which are therefore to be committed in
-- Kafka: the row is the decision. It is removed when Kafka has committed, or replaced by
-- the next decision.
CREATE TABLE decided_transactions (
    transactional_id text        COLLATE "C" PRIMARY KEY,
    producer_id      bigint      NOT NULL,
    producer_epoch   smallint    NOT NULL,
    group_id         text        COLLATE "C" NOT NULL,
    next_offsets     jsonb       NOT NULL, -- of the group once it is committed, by topic and partition
    output_topic     text,                 -- where a record is that was produced in it;
    output_partition int,                  -- NULL where none was
    output_offset    bigint,
    event_ids        bytea[]     NOT NULL, -- as received: an id may hold any bytes
    decided_at       timestamptz NOT NULL DEFAULT clock_timestamp()
);

-- Decisions that Kafka could not be made to follow: the work of these events is here,
-- their output and their offsets are not in Kafka.
CREATE TABLE lost_transactions (
    id               bigint      GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    transactional_id text        NOT NULL,
    producer_id      bigint      NOT NULL,
    producer_epoch   smallint    NOT NULL,
    group_id         text        NOT NULL,
    next_offsets     jsonb       NOT NULL,
    output_topic     text,
    output_partition int,
    output_offset    bigint,
    event_ids        bytea[]     NOT NULL,
    decided_at       timestamptz NOT NULL,
    cause            text        NOT NULL,
    found_at         timestamptz NOT NULL DEFAULT clock_timestamp()
);

-- +goose Down
DROP TABLE lost_transactions;
DROP TABLE decided_transactions;
DROP TABLE transactional_ids;
