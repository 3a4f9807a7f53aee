package sandbox

import (
	"cmp"
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"

	embeddedpostgres "github.com/fergusstrange/embedded-postgres"
)

// postgresMain is the role of the throwaway PostgreSQL cluster.
func postgresMain(ctx context.Context, _ []string) int {
	return host(ctx, "postgres", func(ctx context.Context, dir string) (service, error) {
		c := cluster{dir: dir, binaries: localBinaries(), password: rand.Text()}
		if c.binaries == "" {
			c.binaries, c.download = filepath.Join(dir, "binaries"), true
			var err error
			if c.cache, err = downloadCache(); err != nil {
				return service{}, err
			}
		}
		if err := isolate(dir); err != nil {
			return service{}, err
		}
		pg, err := c.start(ctx)
		if err != nil {
			return service{}, err
		}
		return service{
			announcement: announcement{Address: pg.url, Nodes: []int{postgresNode}},
			servers:      map[int]server{postgresNode: pg},
			end:          pg.end,
		}, nil
	})
}

// postgresNode stands for the cluster's only server.
const postgresNode = 0

// isolate makes the process deaf to the PostgreSQL settings of the user's
// environment (PGDATA, PGOPTIONS, …), and sends whatever the libraries leave in
// the folder for temporary files to dir.
func isolate(dir string) error {
	for _, variable := range os.Environ() {
		if name, _, _ := strings.Cut(variable, "="); strings.HasPrefix(name, "PG") {
			if err := os.Unsetenv(name); err != nil {
				return err
			}
		}
	}
	// On macOS the server refuses to start without a valid locale in the
	// environment; C also keeps messages in the language we look for.
	return errors.Join(os.Setenv("LC_ALL", "C"), os.Setenv("TMPDIR", dir))
}

// cluster is a throwaway PostgreSQL cluster.
type cluster struct {
	dir      string // everything it writes is in here
	binaries string // the folder that holds bin/postgres
	download bool   // whether binaries is still to be filled
	cache    string // where a download is kept
	password string
}

// start fills the data folder and starts a server on it. The library that does the
// former starts a server, too, but a detached one, which could outlive us.
func (c cluster) start(ctx context.Context) (*postgresServer, error) {
	err := onFreePort(ctx, func(port int) error {
		return c.prepare(ctx, embeddedpostgres.NewDatabase(c.config(port)))
	})
	if err != nil {
		return nil, err
	}
	var pg *postgresServer
	err = onFreePort(ctx, func(port int) error {
		pg = &postgresServer{
			binary: filepath.Join(c.binaries, "bin", "postgres"),
			data:   c.data(),
			port:   port,
			url:    c.url(port),
		}
		return pg.start(ctx)
	})
	return pg, err
}

func (c cluster) data() string { return filepath.Join(c.dir, "data") }

// parameters are the server's settings beside its port. A matrix runs hundreds of
// members, and each holds some connections.
var parameters = map[string]string{
	"listen_addresses":        "127.0.0.1",
	"unix_socket_directories": "",
	"fsync":                   "on",
	"track_commit_timestamp":  "on",
	"max_connections":         "500",
}

func (c cluster) config(port int) embeddedpostgres.Config {
	return embeddedpostgres.DefaultConfig().
		Port(uint32(port)).
		Password(c.password).
		Locale("C").
		Encoding("UTF8").
		BinariesPath(c.binaries).
		CachePath(c.cache).
		RuntimePath(filepath.Join(c.dir, "runtime")).
		DataPath(c.data()).
		StartTimeout(time.Minute).
		Logger(os.Stderr).
		StartParameters(parameters)
}

func (c cluster) url(port int) string {
	u := url.URL{
		Scheme:   "postgres",
		User:     url.UserPassword("postgres", c.password),
		Host:     loopback(port),
		Path:     "/postgres",
		RawQuery: "sslmode=disable",
	}
	return u.String()
}

// prepare starts the database, which cannot be interrupted, and stops it again.
func (c cluster) prepare(ctx context.Context, database *embeddedpostgres.EmbeddedPostgres) error {
	started := make(chan error, 1)
	go func() { started <- database.Start() }()
	select {
	case err := <-started:
		if err != nil && c.download {
			return fmt.Errorf("no PostgreSQL is installed here, and a download did not work: %w; install PostgreSQL, or give the address of one", err)
		}
		if err != nil {
			return err
		}
		return database.Stop()
	case <-ctx.Done():
		if !isExecutable(filepath.Join(c.binaries, "bin", "pg_ctl")) {
			return ctx.Err() // still downloading: nothing runs that would have to be stopped
		}
		if err := <-started; err != nil {
			return errors.Join(ctx.Err(), err)
		}
		return errors.Join(ctx.Err(), database.Stop())
	}
}

// localBinaries is the folder that holds the bin folder of an installed
// PostgreSQL that this user can run, or "" if there is none. What PATH names comes
// first, then the newest of the places that packages install to.
func localBinaries() string {
	var folders []string
	if ctl, err := exec.LookPath("pg_ctl"); err == nil {
		// Often a link, alone among other commands, into the folder we look for.
		if ctl, err = filepath.EvalSymlinks(ctl); err == nil {
			folders = append(folders, filepath.Dir(ctl))
		}
	}
	if bindir, err := exec.Command("pg_config", "--bindir").Output(); err == nil {
		folders = append(folders, strings.TrimSpace(string(bindir)))
	}
	folders = append(folders, installedFolders()...)
	for _, folder := range folders {
		if filepath.Base(folder) == "bin" &&
			isExecutable(filepath.Join(folder, "pg_ctl")) &&
			isExecutable(filepath.Join(folder, "initdb")) &&
			isExecutable(filepath.Join(folder, "postgres")) {
			return filepath.Dir(folder)
		}
	}
	return ""
}

// firstNumber finds the major version in a folder's name.
var firstNumber = regexp.MustCompile(`\d+`)

// installedFolders are the bin folders of packaged PostgreSQL versions, newest first.
func installedFolders() []string {
	var found []string
	for _, pattern := range []string{
		"/usr/lib/postgresql/*/bin",          // Debian, Ubuntu
		"/usr/pgsql-*/bin",                   // Red Hat, Fedora
		"/opt/homebrew/opt/postgresql*/bin",  // Homebrew on Apple silicon
		"/usr/local/opt/postgresql*/bin",     // Homebrew on Intel
		"/Applications/Postgres.app/*/*/bin", // Contents/Versions/16
	} {
		folders, _ := filepath.Glob(pattern) // fails only on a malformed pattern
		found = append(found, folders...)
	}
	major := func(folder string) int {
		n, _ := strconv.Atoi(firstNumber.FindString(folder)) // a name without a version sorts last
		return n
	}
	slices.SortStableFunc(found, func(a, b string) int { return cmp.Compare(major(b), major(a)) })
	return found
}

func isExecutable(file string) bool {
	_, err := exec.LookPath(file)
	return err == nil
}
