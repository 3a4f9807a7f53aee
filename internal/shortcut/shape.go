package shortcut

// Shape is [None] with handlers that write only what is harmless twice: an order's
// status is set, not advanced; a row is inserted under a natural key, ON CONFLICT DO
// NOTHING. It is for the handlers to see to that, and the guard can't check it.
//
// Such writes hold against every death and every redelivery, without a row to keep
// and to purge. It stops at writes that accumulate, such as points that are added: no
// shape makes those harmless, and they are duplicated as under None. It also stops
// where two events are rightly equal by their natural key (the second is taken for a
// repetition of the first), and where an old absolute write comes after a newer one.
const Shape Guard = "shape"
