//go:build !fast

package pgxstore_test

import (
	"context"
	"fmt"
	"net"
	"os"
	"os/exec"
	"os/user"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"

	"github.com/sekali/sekali/store"
	"github.com/sekali/sekali/store/pgxstore"
)

// private is a server of a test's own, for what only the server's
// configuration can bring about.
type private struct {
	t    *testing.T
	bin  string
	data string
	port int
	as   *syscall.SysProcAttr
}

// startPrivate starts a server from the programs of a local installation. As
// root it runs as the user postgres, for the server refuses root.
func startPrivate(t *testing.T) *private {
	t.Helper()
	p := &private{t: t, bin: programs(t)}
	root, err := os.MkdirTemp("", "sekali-pg")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(root) })
	if os.Getuid() == 0 {
		p.as = postgresUser(t, root)
	}
	p.data = filepath.Join(root, "data")
	p.run("initdb", "-D", p.data, "-A", "trust", "-U", "postgres", "-E", "UTF8", "--no-sync")
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	p.port = listener.Addr().(*net.TCPAddr).Port
	_ = listener.Close()
	p.configure(fmt.Sprintf("port = %d\nlisten_addresses = '127.0.0.1'\nunix_socket_directories = ''\nfsync = off\n", p.port))
	p.ctl("start")
	t.Cleanup(func() { p.ctl("stop", "-m", "immediate") })
	return p
}

func programs(t *testing.T) string {
	t.Helper()
	if path, err := exec.LookPath("initdb"); err == nil {
		if real, err := filepath.EvalSymlinks(path); err == nil {
			return filepath.Dir(real)
		}
	}
	found, _ := filepath.Glob("/usr/lib/postgresql/*/bin/initdb")
	if len(found) == 0 {
		t.Fatal("initdb is not found: this test needs a server of its own; install the package postgresql")
	}
	return filepath.Dir(found[len(found)-1])
}

func postgresUser(t *testing.T, home string) *syscall.SysProcAttr {
	t.Helper()
	u, err := user.Lookup("postgres")
	if err != nil {
		t.Fatal(err)
	}
	uid, _ := strconv.Atoi(u.Uid)
	gid, _ := strconv.Atoi(u.Gid)
	if err := os.Chown(home, uid, gid); err != nil {
		t.Fatal(err)
	}
	return &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: uint32(uid), Gid: uint32(gid)}}
}

func (p *private) run(name string, args ...string) {
	p.t.Helper()
	cmd := exec.Command(filepath.Join(p.bin, name), args...)
	cmd.SysProcAttr, cmd.Dir = p.as, filepath.Dir(p.data)
	// A file, not a pipe: the server inherits it and keeps it open.
	out, err := os.Create(filepath.Join(filepath.Dir(p.data), name+".out"))
	if err != nil {
		p.t.Fatal(err)
	}
	defer out.Close()
	cmd.Stdout, cmd.Stderr = out, out
	if err := cmd.Run(); err != nil {
		said, _ := os.ReadFile(out.Name())
		p.t.Fatalf("%s %s: %v\n%s", name, strings.Join(args, " "), err, said)
	}
}

func (p *private) ctl(args ...string) {
	p.t.Helper()
	p.run("pg_ctl", append([]string{"-D", p.data, "-w"}, args...)...)
}

func (p *private) configure(lines string) {
	p.t.Helper()
	f, err := os.OpenFile(filepath.Join(p.data, "postgresql.conf"), os.O_APPEND|os.O_WRONLY, 0)
	if err == nil {
		_, err = f.WriteString(lines)
	}
	if err != nil {
		p.t.Fatal(err)
	}
	_ = f.Close()
}

func (p *private) url() string {
	return fmt.Sprintf("postgres://postgres@127.0.0.1:%d/postgres?sslmode=disable", p.port)
}

// localOnly are connections that wait for no standby.
var localOnly = param("synchronous_commit", "local")

func TestACommitWithoutItsStandbyIsUnknown(t *testing.T) {
	p := startPrivate(t)
	ctx := context.Background()
	// The pool looks on; what it writes need not wait.
	pool := poolOn(t, p.url(), schemaTable, localOnly)
	p.configure("synchronous_standby_names = 'nobody'\n")
	p.ctl("reload")
	waitUntil(t, pool, "SELECT current_setting('synchronous_standby_names') = 'nobody'")
	waiting := newPoolBeside(t, pool, param("synchronous_commit", "on"))
	s := pgxstore.New(waiting)
	for i, c := range []struct{ name, handler, end string }{
		{"cancelled", sell, "pg_cancel_backend"},
		{"cancelled, in a session that hides warnings", sell + "; SET client_min_messages = error", "pg_cancel_backend"},
		{"terminated", sell, "pg_terminate_backend"},
	} {
		t.Run(c.name, func(t *testing.T) {
			tx := begin(t, s, claimOf(c.name), store.Fresh)
			mustExec(t, tx, c.handler)
			pid := tx.Conn().PgConn().PID()
			done := make(chan error, 1)
			go func() { done <- s.Commit(ctx, tx) }()
			waitUntil(t, pool, "SELECT wait_event = 'SyncRep' FROM pg_stat_activity WHERE pid = $1", pid)
			value[bool](t, pool, "SELECT "+c.end+"($1)", pid)
			wantError(t, <-done, store.ErrCommitUnknown)
			local := pgxstore.New(pool)
			rollBack(t, local, begin(t, local, claimOf(c.name), store.Duplicate))
			wantFound(t, pool, i+1, i+1)
		})
	}
}

func TestAReplicaIsNeverAsked(t *testing.T) {
	p := startPrivate(t)
	pool := poolOn(t, p.url(), schemaTable)
	s := pgxstore.New(pool)
	commit(t, s, begin(t, s, claimOf("k"), store.Fresh))
	signal := filepath.Join(p.data, "standby.signal")
	if err := os.WriteFile(signal, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if p.as != nil {
		if err := os.Chown(signal, int(p.as.Credential.Uid), int(p.as.Credential.Gid)); err != nil {
			t.Fatal(err)
		}
	}
	pool.Reset()
	p.ctl("restart")
	for name, call := range map[string]func() error{
		"Seen":  func() error { _, err := s.Seen(context.Background(), claimOf("k")); return err },
		"Begin": func() error { _, _, err := s.Begin(context.Background(), claimOf("k")); return err },
	} {
		if err := call(); err == nil || s.Classify(err) != store.ClassUnavailable {
			t.Errorf("%s: the error is %v", name, err)
		}
	}
	pool.Reset()
	if err := os.Remove(signal); err != nil {
		t.Fatal(err)
	}
	p.ctl("restart", "-m", "immediate")
	rollBack(t, s, begin(t, s, claimOf("k"), store.Duplicate))
}
