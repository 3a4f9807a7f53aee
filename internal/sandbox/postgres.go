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
	"syscall"
	"time"

	embeddedpostgres "github.com/fergusstrange/embedded-postgres"
)

// postgresMain is the role of the throwaway PostgreSQL cluster.
func postgresMain(ctx context.Context, _ []string) int {
	return host(ctx, "postgres", func(ctx context.Context, dir string) (service, error) {
		if err := isolate(); err != nil {
			return service{}, err
		}
		binaries := localBinaries()
		if binaries == "" {
			var err error
			if binaries, err = download(ctx, dir); err != nil {
				return service{}, fmt.Errorf("no PostgreSQL is installed here, and a download did not work: %w; install PostgreSQL, or give the address of one", err)
			}
		}
		c := cluster{dir: dir, binaries: binaries, password: rand.Text()}
		if err := c.initialize(ctx); err != nil {
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
// environment (PGDATA, PGOPTIONS, …).
func isolate() error {
	for _, variable := range os.Environ() {
		if name, _, _ := strings.Cut(variable, "="); strings.HasPrefix(name, "PG") {
			if err := os.Unsetenv(name); err != nil {
				return err
			}
		}
	}
	// On macOS the server refuses to start without a valid locale in the environment.
	return os.Setenv("LC_ALL", "C")
}

// cluster is a throwaway PostgreSQL cluster.
type cluster struct {
	dir      string // everything it writes is in here
	binaries string // the folder that holds bin/postgres
	password string
}

func (c cluster) binary(name string) string { return filepath.Join(c.binaries, "bin", name) }
func (c cluster) data() string              { return filepath.Join(c.dir, "data") }

// initialize fills the data folder. It need not outlive a crash of the machine, so
// nothing is synced.
func (c cluster) initialize(ctx context.Context) error {
	password := filepath.Join(c.dir, "password")
	if err := os.WriteFile(password, []byte(c.password), 0o600); err != nil {
		return err
	}
	initdb := exec.CommandContext(ctx, c.binary("initdb"), "-D", c.data(), "-U", "postgres", "--pwfile", password,
		"-A", "scram-sha-256", "--encoding", "UTF8", "--locale", "C", "--no-sync")
	initdb.SysProcAttr = &syscall.SysProcAttr{Setpgid: true} // it starts servers, which must end with it
	initdb.Cancel = func() error { return syscall.Kill(-initdb.Process.Pid, syscall.SIGKILL) }
	messages, err := initdb.CombinedOutput()
	if ctx.Err() != nil {
		return ctx.Err()
	}
	if err != nil {
		return fmt.Errorf("initdb: %w: %s", err, messages)
	}
	return os.Remove(password)
}

func (c cluster) start(ctx context.Context) (pg *postgresServer, err error) {
	err = OnFreePort(ctx, func(port int) error {
		pg = &postgresServer{binary: c.binary("postgres"), data: c.data(), port: port, url: c.url(port)}
		return pg.start(ctx)
	})
	return pg, err
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

// download puts PostgreSQL's binaries into a folder in dir, and returns that. The
// library that does so goes on to start a server, and cannot be interrupted.
func download(ctx context.Context, dir string) (string, error) {
	cache, err := downloadCache()
	if err != nil {
		return "", err
	}
	// Whatever the library leaves in the folder for temporary files is to go with dir.
	if err := os.Setenv("TMPDIR", dir); err != nil {
		return "", err
	}
	port, err := freePort()
	if err != nil {
		return "", err
	}
	binaries := filepath.Join(dir, "binaries")
	database := embeddedpostgres.NewDatabase(embeddedpostgres.DefaultConfig().
		Port(uint32(port)).
		BinariesPath(binaries).
		CachePath(cache).
		RuntimePath(filepath.Join(dir, "trial", "runtime")).
		DataPath(filepath.Join(dir, "trial", "data")).
		StartTimeout(time.Minute).
		StartParameters(map[string]string{"listen_addresses": "127.0.0.1", "unix_socket_directories": ""}).
		Logger(os.Stderr))
	started := make(chan error, 1)
	go func() { started <- database.Start() }()
	select {
	case err := <-started:
		if err != nil {
			return "", err
		}
		return binaries, database.Stop()
	case <-ctx.Done():
		if !isExecutable(filepath.Join(binaries, "bin", "pg_ctl")) {
			return "", ctx.Err() // still downloading: nothing runs that would have to be stopped
		}
		if err := <-started; err != nil {
			return "", errors.Join(ctx.Err(), err)
		}
		return "", errors.Join(ctx.Err(), database.Stop())
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
