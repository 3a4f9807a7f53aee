package kafkatx

import (
	"errors"
	"fmt"

	"github.com/twmb/franz-go/pkg/kerr"
)

// ErrFenced is wrapped by the error of [Engine.Run] when another process has
// joined the group as the same instance: one of the two must have another name.
var ErrFenced = errors.New("another process runs as the same instance of the group")

// fatalError returns err, told to a person, if another try cannot mend it, and
// nil otherwise.
func fatalError(c Config, err error) error {
	switch {
	case errors.Is(err, kerr.FencedInstanceID):
		return fmt.Errorf("kafkatx: group %s, instance %s: %w: stop one of them, or give it another instance name", c.Group, c.Instance, ErrFenced)
	case errors.Is(err, kerr.InvalidTransactionTimeout):
		return fmt.Errorf("kafkatx: the transaction timeout of %v is above the broker's transaction.max.timeout.ms: lower it: %w", c.TransactionTimeout, err)
	case errors.Is(err, kerr.InvalidSessionTimeout):
		return fmt.Errorf("kafkatx: the session timeout of %v is outside the broker's group.min.session.timeout.ms and group.max.session.timeout.ms: %w", c.SessionTimeout, err)
	case errors.Is(err, kerr.InconsistentGroupProtocol), errors.Is(err, kerr.GroupIDNotFound):
		return fmt.Errorf("kafkatx: group %s is in use by consumers of another kind: choose another group: %w", c.Group, err)
	}
	for _, fatal := range []error{
		kerr.SaslAuthenticationFailed,
		kerr.TopicAuthorizationFailed,
		kerr.GroupAuthorizationFailed,
		kerr.ClusterAuthorizationFailed,
		kerr.TransactionalIDAuthorizationFailed,
		kerr.InvalidGroupID,
		kerr.InvalidTopicException,
		kerr.GroupMaxSizeReached,
		kerr.UnsupportedVersion,
		errNoEpochs,
	} {
		if errors.Is(err, fatal) {
			return fmt.Errorf("kafkatx: group %s, instance %s: %w", c.Group, c.Instance, err)
		}
	}
	return nil
}

// refused says that the broker, or the client before it, will never take this
// record: the record's fault, not the infrastructure's.
func refused(err error) bool {
	return errors.Is(err, kerr.MessageTooLarge) ||
		errors.Is(err, kerr.RecordListTooLarge) ||
		errors.Is(err, kerr.InvalidRecord) ||
		errors.Is(err, kerr.InvalidTimestamp)
}
