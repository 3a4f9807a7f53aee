package audit

import (
	"fmt"
	"path/filepath"

	"github.com/delivered-twice/delivered-twice/internal/jsonl"
)

// EffectsFile is the file in a kept folder that has what was found, one [Effect] a
// line.
const EffectsFile = "effects.jsonl"

// WriteEffects keeps what was found in dir, which must exist, in place of what was
// kept there before.
func WriteEffects(dir string, effects []Effect) error {
	if err := jsonl.Write(filepath.Join(dir, EffectsFile), effects); err != nil {
		return fmt.Errorf("keep the effects: %w", err)
	}
	return nil
}

// ReadEffects reads what [WriteEffects] has kept in dir.
func ReadEffects(dir string) ([]Effect, error) {
	effects, err := jsonl.Read[Effect](filepath.Join(dir, EffectsFile))
	if err != nil {
		return nil, fmt.Errorf("read the effects: %w", err)
	}
	return effects, nil
}
