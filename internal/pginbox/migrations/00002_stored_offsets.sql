-- +goose Up

-- How far each handler has got in each partition. Every claim of a partition draws a
-- new fence, and who writes must know it: a former owner knows an old one. The fence
-- is drawn from a sequence and not counted in its row, so that it never comes again,
-- even where somebody deletes the row to begin anew.
CREATE TABLE stored_offsets (
    handler     text   COLLATE "C" NOT NULL,
    topic       text   COLLATE "C" NOT NULL,
    partition   int    NOT NULL,
    next_offset bigint NOT NULL, -- of the first record that is not done
    fence       bigint NOT NULL GENERATED ALWAYS AS IDENTITY,
    PRIMARY KEY (handler, topic, partition)
);

-- +goose Down
DROP TABLE stored_offsets;
