package sandbox

import (
	"errors"
	"fmt"
	"os"
	"os/user"
	"path/filepath"
	"strconv"
	"syscall"

	"github.com/delivered-twice/delivered-twice/internal/process"
)

// asUnprivilegedUser makes cmd run as user postgres, or nobody, if we are root:
// PostgreSQL refuses to run as root (PostgreSQL manual, section 19.1).
func asUnprivilegedUser(cmd *process.Cmd) error {
	cmd.Dir = "/" // the folder we are in may be closed to that user
	if os.Geteuid() != 0 {
		return nil
	}
	account, err := user.Lookup("postgres")
	if err != nil {
		if account, err = user.Lookup("nobody"); err != nil {
			return fmt.Errorf("PostgreSQL cannot run as root, and there is no user postgres or nobody to run it as: %w", err)
		}
	}
	uid, err := strconv.ParseUint(account.Uid, 10, 32)
	if err != nil {
		return fmt.Errorf("id of user %s: %w", account.Username, err)
	}
	gid, err := strconv.ParseUint(account.Gid, 10, 32)
	if err != nil {
		return fmt.Errorf("group of user %s: %w", account.Username, err)
	}
	cmd.SysProcAttr.Credential = &syscall.Credential{Uid: uint32(uid), Gid: uint32(gid)}
	if !writableForAll(os.TempDir()) {
		cmd.Env = append(os.Environ(), "TMPDIR=/tmp")
	}
	return nil
}

// writableForAll reports whether every user can reach the folder dir and create
// files in it.
func writableForAll(dir string) bool {
	dir, err := filepath.EvalSymlinks(dir)
	if err != nil {
		return false
	}
	need := os.FileMode(0o003)
	for {
		info, err := os.Stat(dir)
		if err != nil || info.Mode()&need != need {
			return false
		}
		parent := filepath.Dir(dir)
		if parent == dir {
			return true
		}
		dir, need = parent, 0o001
	}
}

// downloadCache is a folder that survives this process and that nobody else can
// write to: in the user's cache folder or, for a user without one, in a folder for
// temporary files, the one that outlives a restart of the machine if there is one
// (Filesystem Hierarchy Standard, section 5.15).
func downloadCache() (string, error) {
	var candidates []string
	if caches, err := os.UserCacheDir(); err == nil {
		candidates = append(candidates, filepath.Join(caches, "delivered-twice", "postgres"))
	}
	uid := os.Geteuid()
	for _, folder := range []string{"/var/tmp", os.TempDir()} {
		candidates = append(candidates, filepath.Join(folder, fmt.Sprintf("delivered-twice-cache-%d", uid)))
	}
	var errs []error
	for _, dir := range candidates {
		if err := os.MkdirAll(dir, 0o700); err != nil {
			errs = append(errs, err)
			continue
		}
		info, err := os.Stat(dir)
		if err != nil {
			errs = append(errs, err)
			continue
		}
		if owner, ok := info.Sys().(*syscall.Stat_t); !ok || int(owner.Uid) != uid || info.Mode()&0o022 != 0 {
			errs = append(errs, fmt.Errorf("%s can be written to by others", dir))
			continue
		}
		return dir, nil
	}
	return "", fmt.Errorf("no folder for downloads: %w", errors.Join(errs...))
}
