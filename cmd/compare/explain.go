package main

import (
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"github.com/delivered-twice/delivered-twice/internal/audit"
	"github.com/delivered-twice/delivered-twice/internal/cli"
	"github.com/delivered-twice/delivered-twice/internal/explain"
	"github.com/delivered-twice/delivered-twice/internal/nearest"
	"github.com/delivered-twice/delivered-twice/internal/trace"
)

func explainCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "explain DIR EVENT_ID",
		Short: "Tell the life of one event: who did what to it, and why it was lost or done twice",
		Args: func(_ *cobra.Command, args []string) error {
			if len(args) != 2 {
				return cli.Usage(errors.New("name a folder that a run has kept, and the id of an event"))
			}
			return nil
		},
		RunE: func(cmd *cobra.Command, args []string) error {
			cells, unaudited, err := keptCells(args[0])
			if err != nil {
				return err
			}
			text, err := explained(cells, args[1])
			if err != nil {
				return fmt.Errorf("%s: %w%s", args[0], err, unaudited)
			}
			_, err = cmd.OutOrStdout().Write(text)
			return err
		},
	}
	cli.Manual{OK: "the event is known, and its life is told"}.Of(cmd)
	return cmd
}

// keptCell is a folder with the traces of one lane under one fault.
type keptCell struct {
	explain.Cell
	name string // below the folder that was asked for
}

// keptCells reads every cell at or below dir, and says which have no effects: a run that
// breaks off does not look for any, and nothing can be told of what became of an event.
func keptCells(dir string) (cells []keptCell, unaudited string, err error) {
	if info, err := os.Stat(dir); err != nil || !info.IsDir() {
		return nil, "", fmt.Errorf("there is no folder %s: name one that a run has kept, such as runs/<time>", dir)
	}
	err = filepath.WalkDir(dir, func(path string, entry fs.DirEntry, err error) error {
		if err == nil && entry.IsDir() && entry.Name() == trace.ThirdParty {
			return filepath.SkipDir // it is read with the lane that has called it
		}
		if err != nil || !entry.IsDir() || entry.Name() != trace.Folder {
			return err
		}
		folder := filepath.Dir(path)
		if _, err := os.Stat(filepath.Join(folder, audit.EffectsFile)); errors.Is(err, fs.ErrNotExist) {
			unaudited += fmt.Sprintf("; %s has no %s: its run broke off before it looked for effects", folder, audit.EffectsFile)
			return filepath.SkipDir
		}
		cell, err := explain.Read(folder)
		if err != nil {
			return err
		}
		name, err := filepath.Rel(dir, folder)
		if err != nil {
			return err
		}
		cells = append(cells, keptCell{cell, name})
		return filepath.SkipDir
	})
	switch {
	case err != nil:
		return nil, "", err
	case len(cells) == 0 && unaudited != "":
		return nil, "", errors.New(strings.TrimPrefix(unaudited, "; "))
	case len(cells) == 0:
		return nil, "", fmt.Errorf("there are no traces in %s: a matrix keeps those of cells that held only with --keep", dir)
	}
	return cells, unaudited, nil
}

// explained tells the event's life in every cell, or that nothing is known of it
// anywhere.
func explained(cells []keptCell, eventID string) ([]byte, error) {
	if !slices.ContainsFunc(cells, func(c keptCell) bool { return c.Knows(eventID) }) {
		return nil, fmt.Errorf("nothing is known of event %q%s", eventID, suggestions(cells, eventID))
	}
	var text bytes.Buffer
	for i, c := range cells {
		if i > 0 {
			text.WriteByte('\n')
		}
		if c.name != "." {
			fmt.Fprintf(&text, "%s\n\n", c.name)
		}
		if err := c.Life(&text, eventID); err != nil {
			return nil, err
		}
	}
	return text.Bytes(), nil
}

// suggested is how many events with something to tell are suggested.
const suggested = 3

// suggestions names events that there is something to tell of: some that are lost,
// duplicated or reordered, and those whose ids are near the given one.
func suggestions(cells []keptCell, eventID string) string {
	var troubled, all []string
	for _, c := range cells {
		t, others := c.Events()
		troubled = append(troubled, t...)
		all = append(append(all, t...), others...)
	}
	text := ""
	slices.Sort(troubled)
	if ids := nearest.Names(eventID, slices.Compact(troubled), suggested); len(ids) > 0 {
		text = "; lost, duplicated or reordered: " + strings.Join(ids, ", ")
	}
	slices.Sort(all)
	return text + nearest.Hint(eventID, slices.Compact(all))
}
