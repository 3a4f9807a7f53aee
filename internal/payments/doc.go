// Package payments is the third party: an HTTP API in the form of Stripe's, which
// takes charges and sends emails, and takes each of them once for an Idempotency-Key.
//
// # What a key promises
//
// For one client and one key, within the retention (24 hours), the work is done at
// most once, and every retry gets the first answer again: status, headers and body,
// and Idempotent-Replayed: true on top. The charge, its line in the ledger, the key
// and the answer are committed in one transaction, so there is no moment at which a
// crash could leave one of them without the others. Two clients may use the same key.
//
// A retry that comes while the first request is being worked on is told so at once,
// with 409 and Retry-After. The row of the key can't tell it: it is uncommitted, and
// whoever inserts the same key waits until it is not (PostgreSQL manual, "Index
// Uniqueness Checks"). So before it looks at the table, a request takes an advisory
// lock on the key, or hears that another has it. The lock belongs to the transaction,
// and ends with it: by commit, by rollback, when the process dies, and, by
// idle_in_transaction_session_timeout, when the process stands still. There is nothing
// that could be left behind and would have to be cleared away.
//
// # Where it ends
//
// A key that comes again after its retention is a new key, and charges again. A
// request without a key is done as often as it is sent.
package payments
