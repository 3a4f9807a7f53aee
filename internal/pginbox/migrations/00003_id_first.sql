-- +goose Up

-- The id comes first: two ids differ in their first bytes, two rows seldom in their
-- handler. An insert compares one column instead of two, and the handlers of one event
-- meet in one page of the index instead of touching one each.
ALTER TABLE processed_messages
    DROP CONSTRAINT processed_messages_pkey,
    ADD PRIMARY KEY (event_id, handler);

ALTER TABLE processed_keys
    DROP CONSTRAINT processed_keys_pkey,
    ADD PRIMARY KEY (event_key, handler_id);

-- +goose Down
ALTER TABLE processed_keys
    DROP CONSTRAINT processed_keys_pkey,
    ADD PRIMARY KEY (handler_id, event_key);

ALTER TABLE processed_messages
    DROP CONSTRAINT processed_messages_pkey,
    ADD PRIMARY KEY (handler, event_id);
