package warehouse

import (
	"context"
	"database/sql"
	"embed"
	"errors"
	"fmt"
	"io/fs"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/jackc/pgx/v5/stdlib"
	"github.com/pressly/goose/v3"
)

//go:embed migrations/*.sql
var migrations embed.FS

// versionsTable is not goose's default, so that these migrations and those of
// another package can live in one schema.
const versionsTable = "warehouse_versions"

// Migrate creates the tables, or brings them up to date, in the schema that
// comes first in the search_path of databaseURL; that schema must exist. Calling
// it again does nothing, and of several processes that call it at once one does
// the work while the others wait for it.
func Migrate(ctx context.Context, databaseURL string) error {
	config, err := pgx.ParseConfig(databaseURL)
	if err != nil {
		return fmt.Errorf("migrate the warehouse tables: %w", err)
	}
	db := stdlib.OpenDB(*config)
	defer db.Close()

	files, err := fs.Sub(migrations, "migrations")
	if err != nil {
		return fmt.Errorf("migrate the warehouse tables: %w", err)
	}
	provider, err := goose.NewProvider(goose.DialectPostgres, db, files, goose.WithTableName(versionsTable))
	if err != nil {
		return fmt.Errorf("migrate the warehouse tables: %w", err)
	}
	lock, err := db.Conn(ctx)
	if err != nil {
		return fmt.Errorf("migrate the warehouse tables: %w", err)
	}
	defer lock.Close()
	if err := lockSchema(ctx, lock); err != nil {
		return fmt.Errorf("migrate the warehouse tables in database %q: %w", config.Database, err)
	}
	if _, err := provider.Up(ctx); err != nil {
		return fmt.Errorf("migrate the warehouse tables in database %q: %w", config.Database, err)
	}
	return nil
}

// lockSchema waits until no other process migrates the same schema, and keeps
// others out until the connection is closed. The server tells at once when the
// lock is free; goose's own lockers ask again every whole second at best, and
// leave the creation of goose's table outside.
func lockSchema(ctx context.Context, conn *sql.Conn) error {
	var schema sql.NullString
	if err := conn.QueryRowContext(ctx, `SELECT current_schema()`).Scan(&schema); err != nil {
		return err
	}
	if !schema.Valid {
		return errors.New("its search_path names no schema that exists: create the schema first")
	}
	_, err := conn.ExecContext(ctx, `SELECT pg_advisory_lock(hashtextextended($1, 0))`, versionsTable+" "+schema.String)
	if err != nil {
		return fmt.Errorf("wait for another process that migrates: %w", err)
	}
	return nil
}

// UpToDate says whether [Migrate] has nothing to do where pool connects to. It takes
// two short queries, and no connection of its own.
func UpToDate(ctx context.Context, pool *pgxpool.Pool) (bool, error) {
	files, err := migrations.ReadDir("migrations")
	if err != nil {
		return false, fmt.Errorf("look for migrations of the warehouse tables: %w", err)
	}
	// In the schema where Migrate would create it, and not anywhere in the path.
	var versions *string
	err = pool.QueryRow(ctx, `SELECT to_regclass(quote_ident(current_schema()) || '.`+versionsTable+`')::text`).Scan(&versions)
	if err != nil {
		return false, fmt.Errorf("look for the table %s: %w", versionsTable, err)
	}
	if versions == nil {
		return false, nil
	}
	var applied int
	err = pool.QueryRow(ctx, `SELECT count(*) FROM `+*versions+` WHERE version_id > 0 AND is_applied`).Scan(&applied)
	if err != nil {
		return false, fmt.Errorf("read the table %s: %w", versionsTable, err)
	}
	return applied >= len(files), nil
}
