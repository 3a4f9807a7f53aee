package main

import (
	"bytes"
	"cmp"
	"errors"
	"fmt"
	"io/fs"
	"path/filepath"
	"slices"
	"strings"

	"github.com/agnivade/levenshtein"
	"github.com/spf13/cobra"

	"github.com/delivered-twice/delivered-twice/internal/cli"
	"github.com/delivered-twice/delivered-twice/internal/explain"
	"github.com/delivered-twice/delivered-twice/internal/trace"
)

func explainCommand() *cobra.Command {
	return &cobra.Command{
		Use:   "explain DIR EVENT_ID",
		Short: "Tell the life of one event: who did what to it, and why it was lost or done twice",
		Args: func(_ *cobra.Command, args []string) error {
			if len(args) != 2 {
				return cli.Usage(errors.New("name a folder that a run has kept, and the id of an event"))
			}
			return nil
		},
		RunE: func(cmd *cobra.Command, args []string) error {
			cells, err := keptCells(args[0])
			if err != nil {
				return err
			}
			text, err := explained(cells, args[1])
			if err != nil {
				return fmt.Errorf("%s: %w", args[0], err)
			}
			_, err = cmd.OutOrStdout().Write(text)
			return err
		},
	}
}

// keptCell is a folder with the traces of one lane under one fault.
type keptCell struct {
	explain.Cell
	name string // below the folder that was asked for
}

// keptCells reads every cell at or below dir.
func keptCells(dir string) (cells []keptCell, err error) {
	err = filepath.WalkDir(dir, func(path string, entry fs.DirEntry, err error) error {
		if err != nil || !entry.IsDir() || entry.Name() != trace.Folder {
			return err
		}
		folder := filepath.Dir(path)
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
	if err != nil {
		return nil, err
	}
	if len(cells) == 0 {
		return nil, fmt.Errorf("there is no folder %q in %s or below it: name a folder that a run has kept", trace.Folder, dir)
	}
	return cells, nil
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

// suggested is how many ids of each kind are suggested.
const suggested = 3

// suggestions names events that there is something to tell of: some that are lost,
// duplicated or reordered, and those whose ids are nearest to the given one.
func suggestions(cells []keptCell, eventID string) string {
	var troubled, all []string
	for _, c := range cells {
		t, others := c.Events()
		troubled = append(troubled, t...)
		all = append(append(all, t...), others...)
	}
	text := ""
	if nearest := nearestIDs(eventID, troubled); len(nearest) > 0 {
		text += "; lost, duplicated or reordered: " + strings.Join(nearest, ", ")
	}
	if nearest := nearestIDs(eventID, all); len(nearest) > 0 {
		text += "; nearest: " + strings.Join(nearest, ", ")
	}
	return text
}

// nearestIDs are those that take the fewest edits to become id.
func nearestIDs(id string, ids []string) []string {
	slices.Sort(ids)
	ids = slices.Compact(ids)
	distance := make(map[string]int, len(ids))
	for _, other := range ids {
		distance[other] = levenshtein.ComputeDistance(id, other)
	}
	slices.SortStableFunc(ids, func(a, b string) int { return cmp.Compare(distance[a], distance[b]) })
	return ids[:min(suggested, len(ids))]
}
