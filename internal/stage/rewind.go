package stage

import (
	"context"
	"fmt"

	"github.com/twmb/franz-go/pkg/kadm"

	"github.com/delivered-twice/delivered-twice/internal/lane"
)

// Rewind sets the group's offsets back to the beginning of the input, as an operator
// would. The group must have been disbanded: its offsets can be set from outside only
// while nobody is in it. Offsets that a lane keeps elsewhere stay as they are. Behind a
// webhook it is the provider's operator who has everything sent again.
func (s *Stage) Rewind(ctx context.Context) error {
	if byWebhook(s.Lane) {
		s.Happened("every webhook was sent once more")
		return s.Send(ctx, s.Sent()...)
	}
	beginning := make(kadm.Offsets)
	for partition := range s.partitions() {
		beginning.AddOffset(s.Input, partition, 0, -1)
	}
	err := s.Await(ctx, "group "+s.Group+" to be rewound", func(ctx context.Context) (bool, error) {
		err := s.rewind(ctx, beginning)
		return err == nil, err
	})
	if err == nil {
		s.Happened("the offsets of the group were set back to the beginning")
	}
	return err
}

func (s *Stage) rewind(ctx context.Context, to kadm.Offsets) error {
	if s.Lane.Progress == lane.SharedRecords {
		altered, err := s.Admin.AlterShareGroupOffsets(ctx, s.Group, to)
		if err == nil {
			err = altered.Error()
		}
		if err != nil {
			return fmt.Errorf("alter the offsets of share group %s: %w", s.Group, err)
		}
		return nil
	}
	if err := s.Admin.CommitAllOffsets(ctx, s.Group, to); err != nil {
		return fmt.Errorf("set the offsets of group %s: %w", s.Group, err)
	}
	return nil
}
