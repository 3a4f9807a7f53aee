// Package shortcut holds the guards that people use where the inbox is meant: each
// keeps an event from being done twice, or from being lost, in some situations and
// not in others. They are here to be broken; what to use instead is package pginbox.
//
// They take the same handlers, pass named steps through the same hook, keep poison
// out and wait outages out in the same manner, so that what a trial shows is due to
// the guard alone:
//
//   - [AckFirst] acknowledges, then works.
//   - [None] works, then acknowledges.
//   - [Shape] does the same, and relies on writes that are harmless twice.
//   - [Memory] remembers ids in the process.
//   - [SelectFirst] asks Postgres whether the id is there, and inserts it if not.
//   - [Redis] claims the id in Redis before it works.
//
// All handlers work on a batch in one transaction, one after the other, so an event is
// done by all of them or by none, and one mark stands for all, where the guard keeps
// any. A handler that is added later gets none of the events that were done before.
package shortcut
