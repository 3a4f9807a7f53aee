package matrix

// BrokerSettings are for brokers that are started for a matrix. They change nothing
// that is claimed; they shorten what would be waited for: the lock on a record of a
// share group whose holder is gone, the abort of a transaction that has timed out, the
// week after which a transactional id is forgotten.
func BrokerSettings() map[string]string {
	return map[string]string{
		"transactional.id.expiration.ms":                              "15000",
		"transaction.remove.expired.transaction.cleanup.interval.ms":  "1000",
		"transaction.abort.timed.out.transaction.cleanup.interval.ms": "500",

		"group.share.session.timeout.ms":          "2000",
		"group.share.min.session.timeout.ms":      "1000",
		"group.share.heartbeat.interval.ms":       "500",
		"group.share.min.heartbeat.interval.ms":   "500",
		"group.share.record.lock.duration.ms":     "2000",
		"group.share.min.record.lock.duration.ms": "1000",
		"share.record.lock.sweep.interval.ms":     "200", // of the embedded Kafka
		"group.share.max.delivery.count.limit":    "10",
	}
}
