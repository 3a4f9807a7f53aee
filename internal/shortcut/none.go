package shortcut

// None works, and acknowledges then: at least once.
//
// Nothing is lost: what is acknowledged is committed. Whatever is delivered again is
// done again. A death before committed costs nothing, the transaction is rolled back;
// a death after committed and before acknowledged duplicates the batch, and so does a
// COMMIT whose answer is lost, a rebalance before the acknowledgement, an event that
// its publisher sent twice, and an offset that is set back.
const None Guard = "none"
