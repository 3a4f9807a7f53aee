// Package webhook receives events that a provider pushes over HTTP, and does their
// work once: [Receiver] is the other kind of source for the inbox of package pginbox.
// [Sender] is the provider's side.
//
// # The problem
//
// A provider posts an event and waits for a 2xx. Where none comes in time it posts the
// event again, for hours or for days. A receiver that answers first and works
// afterwards loses what it had in hand when it dies. One that works first and answers
// afterwards gets the event again when it dies in between, when the answer is lost, or
// when it was only slow: in the last case while the first delivery is still being
// worked on.
//
// # How
//
// It is the inbox again, with a status code for an acknowledgement:
//
//	POST, signature, id → one transaction: id first, then the work → COMMIT → 200
//
// An event that was done before finds its row, and the answer is 200 at once: the
// provider wants to stop, not to know. One that is being worked on waits for that
// transaction. An event that no handler can take becomes a dead letter, and the answer
// is 200 as well, because sending it again would change nothing. What the sender is
// to send again gets 503 with Retry-After; what it must not send again as it is, a 4xx.
//
// Requests that arrive while others are being worked on share a transaction, so that a
// burst costs a few commits and not one an event.
//
// # Which event it is
//
// The id that the provider gave it: in the body ([Stripe]) or in a header ([GitHub]).
// Where there is none, the SHA-256 of the body as it was received. A body that was
// decoded and encoded again is another text with another hash: JSON has no order of
// keys, no rule for blanks, and several spellings for one number. That is also why a
// signature is checked on the raw body, and before anything else is done with it.
//
// # Where it stops
//
//   - A webhook keeps no order. What failed comes again later than what came after it.
//   - What comes again after its inbox row was purged is done again. A provider's own
//     retries end after some days; somebody who presses "resend" may come much later.
//   - The id of GitHub is in a header that the signature does not cover, and there is no
//     timestamp: who has recorded a delivery can send it again under another id.
//   - Without a signature anybody is the provider.
//   - TLS is left to what stands in front, and so are senders that are slow on purpose:
//     a body that trickles in takes one of [Options].MaxInHand for up to 10 s, before
//     anybody can know whether it is signed.
package webhook
