package outbox

import (
	"context"
	"fmt"

	"github.com/jackc/pgx/v5/pgxpool"
)

// UpToDate says whether [Migrate] has nothing to do where pool connects to. It takes
// two short queries and no connection of its own, which counts for a process that is
// started often.
func UpToDate(ctx context.Context, pool *pgxpool.Pool) (bool, error) {
	files, err := migrations.ReadDir("migrations")
	if err != nil {
		return false, fmt.Errorf("outbox: look for migrations: %w", err)
	}
	// In the schema where Migrate would create it, and not anywhere in the path.
	var versions *string
	err = pool.QueryRow(ctx, `SELECT to_regclass(quote_ident(current_schema()) || '.`+versionsTable+`')::text`).Scan(&versions)
	if err != nil {
		return false, fmt.Errorf("outbox: look for the table %s: %w", versionsTable, err)
	}
	if versions == nil {
		return false, nil
	}
	var applied int
	err = pool.QueryRow(ctx, `SELECT count(*) FROM `+*versions+` WHERE version_id > 0 AND is_applied`).Scan(&applied)
	if err != nil {
		return false, fmt.Errorf("outbox: read the table %s: %w", versionsTable, err)
	}
	return applied >= len(files), nil
}
