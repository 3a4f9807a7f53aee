-- +goose Up

-- Every insert would have to go into it, and only the purge looks at it, which can as
-- well read the table now and then.
DROP INDEX processed_messages_seen_at;
DROP INDEX processed_keys_seen_at;

-- +goose Down
CREATE INDEX processed_messages_seen_at ON processed_messages (seen_at);
CREATE INDEX processed_keys_seen_at ON processed_keys (seen_at);
