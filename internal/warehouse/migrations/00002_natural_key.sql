-- +goose Up

-- A pick task that is written by its natural key (the instalment of an order) is
-- there once; one that is not must still be able to show twice. Rows outside the
-- index's condition cost the index nothing.
ALTER TABLE pick_tasks ADD COLUMN once boolean NOT NULL DEFAULT false;

CREATE UNIQUE INDEX pick_tasks_natural_key ON pick_tasks (order_id, sequence) WHERE once;

-- +goose Down
DROP INDEX pick_tasks_natural_key;
ALTER TABLE pick_tasks DROP COLUMN once;
