-- +goose Up
CREATE TABLE orders (
    order_id      text   PRIMARY KEY,
    status        text   NOT NULL,
    last_sequence bigint NOT NULL
);

-- One row for each time that the work was done, and on purpose no natural key:
-- an event that is handled twice must be able to show.
CREATE TABLE pick_tasks (
    id               bigint      GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    event_id         text        NOT NULL,
    order_id         text        NOT NULL,
    sequence         bigint      NOT NULL,
    attempt          text        NOT NULL,
    event_created_at timestamptz NOT NULL,
    done_at          timestamptz NOT NULL DEFAULT clock_timestamp()
);

CREATE TABLE loyalty_points (
    id               bigint      GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    event_id         text        NOT NULL,
    customer         text        NOT NULL,
    points           int         NOT NULL,
    attempt          text        NOT NULL,
    event_created_at timestamptz NOT NULL,
    done_at          timestamptz NOT NULL DEFAULT clock_timestamp()
);

-- +goose Down
DROP TABLE loyalty_points;
DROP TABLE pick_tasks;
DROP TABLE orders;
