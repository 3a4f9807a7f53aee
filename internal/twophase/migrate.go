package twophase

import (
	"context"
	"embed"
	"fmt"
	"io/fs"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/stdlib"
	"github.com/pressly/goose/v3"
)

//go:embed migrations/*.sql
var migrations embed.FS

// versionsTable is not goose's default, so that these migrations and those of
// another package can live in one schema.
const versionsTable = "twophase_versions"

// Migrate creates the tables, or brings them up to date, in the schema that comes
// first in the search_path of databaseURL; that schema must exist. Calling it again does
// nothing, in a few milliseconds. Of several processes that call it at once one does the
// work and the others wait.
func Migrate(ctx context.Context, databaseURL string) error {
	config, err := pgx.ParseConfig(databaseURL)
	if err != nil {
		return fmt.Errorf("twophase: migrate: %w", err)
	}
	// Waiting for the lock inside the server takes exactly as long as it must, and
	// the lock ends with its connection, however that ends. goose's own locker asks
	// again every whole second, and looks for pending migrations without the lock.
	conn, err := pgx.ConnectConfig(ctx, config)
	if err != nil {
		return fmt.Errorf("twophase: migrate: %w", err)
	}
	defer conn.Close(context.WithoutCancel(ctx))
	var schema *string
	if err := conn.QueryRow(ctx, `SELECT current_schema()`).Scan(&schema); err != nil {
		return fmt.Errorf("twophase: migrate: %w", err)
	}
	if schema == nil {
		return fmt.Errorf("twophase: migrate: the search_path of database %q names no schema that exists: create the schema first", config.Database)
	}
	if _, err := conn.Exec(ctx, `SELECT pg_advisory_lock(hashtextextended($1, 0))`, versionsTable+" "+*schema); err != nil {
		return fmt.Errorf("twophase: migrate: wait for another process that migrates: %w", err)
	}

	files, err := fs.Sub(migrations, "migrations")
	if err != nil {
		return fmt.Errorf("twophase: migrate: %w", err)
	}
	db := stdlib.OpenDB(*config)
	defer db.Close()
	provider, err := goose.NewProvider(goose.DialectPostgres, db, files, goose.WithTableName(versionsTable))
	if err != nil {
		return fmt.Errorf("twophase: migrate: %w", err)
	}
	if _, err := provider.Up(ctx); err != nil {
		return fmt.Errorf("twophase: migrate schema %q of database %q: %w", *schema, config.Database, err)
	}
	return nil
}
