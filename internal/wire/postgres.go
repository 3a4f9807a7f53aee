package wire

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"slices"
	"sync"

	"github.com/jackc/pgx/v5/pgproto3"
)

// Postgres stands in front of the PostgreSQL server at upstream (host:port).
// Requests to cancel a statement pass as well.
//
// Nobody needs to be listening there yet. An error is an address that is no
// host:port, or that no port could be opened.
func Postgres(upstream string) (*Proxy, error) {
	return newProxy([]string{upstream}, []Kind{Commit}, func(c *conn) {
		s := &postgres{
			conn:       c,
			statements: make(map[string]bool),
			portals:    make(map[string]bool),
			cycles:     []cycle{{}}, // logging in ends with a ReadyForQuery, too
		}
		readable, err := s.start()
		switch {
		case err != nil:
		case readable:
			c.both(s.forwardMessages, s.passAnswers)
		default:
			c.tunnel()
		}
	})
}

// postgres is a connection that speaks PostgreSQL's protocol (PostgreSQL manual,
// chapter "Frontend/Backend Protocol").
//
// It follows the extended protocol as well, where messages are sent ahead of their
// answers. What counts there is completions: the server answers each statement of a
// Query, and each Execute, with exactly one CommandComplete, EmptyQueryResponse or
// PortalSuspended, in order. After an error it skips everything up to the end of the
// cycle, which is a Query by itself or all that comes before a Sync, and it ends each
// cycle with a ReadyForQuery.
type postgres struct {
	*conn
	// statements and portals are the names of those that commit.
	statements, portals map[string]bool

	mu sync.Mutex
	// expected and done are the completions that were asked for and that came.
	expected, done int
	// cycles are those that were sent and not yet answered with a ReadyForQuery.
	cycles []cycle
	// commits are those that were sent and not yet answered.
	commits []pendingCommit
}

type cycle struct {
	expected int  // completions that were asked for when it was ended
	sync     bool // it was ended by a Sync
}

type pendingCommit struct {
	completion int // the one that answers it
	due
}

// Requests that a connection may begin with (PostgreSQL manual, section "Message
// Formats").
const (
	cancelRequest = 80877102
	sslRequest    = 80877103
	gssEncRequest = 80877104
)

// maxStartup is the most that PostgreSQL reads of a startup packet
// (MAX_STARTUP_PACKET_LENGTH in its sources).
const maxStartup = 10000

// start passes the beginning of a connection, up to and with its StartupMessage, and
// reports whether the rest can be read.
func (s *postgres) start() (readable bool, err error) {
	for {
		first, err := s.requests.Peek(1)
		if err != nil {
			return false, err
		}
		if first[0] == tlsHandshake { // without asking, since PostgreSQL 17
			return false, nil
		}
		head, err := s.requests.Peek(8)
		if err != nil {
			return false, err
		}
		size, code := int(binary.BigEndian.Uint32(head)), binary.BigEndian.Uint32(head[4:])
		switch {
		case size == 8 && (code == sslRequest || code == gssEncRequest):
			if err := s.requests.pass(size); err != nil {
				return false, err
			}
			if err := s.requests.to.Flush(); err != nil {
				return false, err
			}
			answer, err := s.answers.Peek(1)
			if err != nil {
				return false, err
			}
			if answer[0] != 'N' {
				return false, nil
			}
			if err := s.answers.pass(1); err != nil {
				return false, err
			}
			if err := s.answers.to.Flush(); err != nil {
				return false, err
			}
		case code>>16 == 3 && size > 8 && size <= maxStartup:
			packet, err := s.requests.Peek(size)
			if err != nil {
				return false, err
			}
			var startup pgproto3.StartupMessage
			if startup.Decode(packet[4:]) != nil {
				return false, nil
			}
			s.User, s.ApplicationName = startup.Parameters["user"], startup.Parameters["application_name"]
			return true, s.requests.pass(size)
		default: // a CancelRequest, or something for the server to refuse
			return false, nil
		}
	}
}

func (s *postgres) forwardMessages() error {
	for {
		if err := s.forwardMessage(); err != nil {
			return err
		}
	}
}

// forwardMessage forwards one message: its type, its size in four bytes, which
// includes themselves, and its body.
func (s *postgres) forwardMessage() error {
	r := s.requests
	kind, size, err := message(r)
	if err != nil {
		return err
	}
	switch kind {
	case 'Q', 'P': // Query, Parse
		whole, err := r.take(1 + size)
		if err != nil {
			return err
		}
		if kind == 'P' {
			var parse pgproto3.Parse
			if parse.Decode(whole[5:]) == nil {
				_, commit := statements(parse.Query)
				mark(s.statements, parse.Name, commit > 0)
			}
			_, err = r.to.Write(whole)
			return err
		}
		var query pgproto3.Query
		if query.Decode(whole[5:]) != nil { // the server's to refuse
			query.String = ""
		}
		count, commit := statements(query.String)
		return s.execute(count, commit, true, func() error {
			_, err := r.to.Write(whole)
			return err
		})
	case 'E': // Execute
		names, err := s.names(size)
		if err != nil {
			return err
		}
		commit := 0
		if s.portals[names[0]] {
			commit = 1
		}
		return s.execute(1, commit, false, func() error { return r.pass(1 + size) })
	case 'B': // Bind
		names, err := s.names(size)
		if err != nil {
			return err
		}
		mark(s.portals, names[0], s.statements[names[1]])
	case 'S', 'F': // Sync, FunctionCall
		s.mu.Lock()
		s.cycles = append(s.cycles, cycle{s.expected, kind == 'S'})
		s.mu.Unlock()
	}
	return r.pass(1 + size)
}

// message looks at the type and the size of the next message.
func message(s *stream) (kind byte, size int, err error) {
	p, err := s.Peek(5)
	if err != nil {
		return 0, 0, err
	}
	n := int32(binary.BigEndian.Uint32(p[1:]))
	if n < 4 {
		return 0, 0, fmt.Errorf("a message of %d bytes", n)
	}
	return p[0], int(n), nil
}

// names looks at the two names that the next message, of the given size, may begin
// with.
func (s *postgres) names(size int) (names [2]string, err error) {
	p, err := s.requests.Peek(1 + min(size, window-1))
	if err != nil {
		return names, err
	}
	first, rest, _ := bytes.Cut(p[5:], []byte{0})
	second, _, _ := bytes.Cut(rest, []byte{0})
	return [2]string{string(first), string(second)}, nil
}

// mark remembers whether what the name stands for commits.
func mark(names map[string]bool, name string, commits bool) {
	if commits {
		names[name] = true
	} else {
		delete(names, name)
	}
}

// execute forwards a message that makes the server execute the given number of
// statements, of which the one numbered commit commits, if that is not 0.
func (s *postgres) execute(count, commit int, endsCycle bool, forward func() error) error {
	var d due
	if commit > 0 {
		d = s.count(Commit, true)
	}
	if err := d.at(BeforeForward, s.requests); err != nil {
		return err
	}
	s.mu.Lock()
	if d.awaits() {
		s.commits = append(s.commits, pendingCommit{s.expected + commit, d})
	}
	s.expected += count
	if endsCycle {
		s.cycles = append(s.cycles, cycle{expected: s.expected})
	}
	s.mu.Unlock()
	if err := forward(); err != nil {
		return err
	}
	return d.at(AfterForward, s.requests)
}

func (s *postgres) passAnswers() error {
	var told []pendingCommit // answered in the current cycle
	for {
		kind, size, err := message(s.answers)
		if err != nil {
			return err
		}
		answered := s.answeredBy(kind)
		for _, commit := range answered {
			if err := commit.at(BeforeAnswer, s.answers); err != nil {
				return err
			}
		}
		told = append(told, answered...)
		if err := s.answers.pass(1 + size); err != nil {
			return err
		}
		if kind != 'Z' {
			continue
		}
		// Only now do most clients tell their callers that it was answered.
		for _, commit := range told {
			if err := commit.at(AfterAnswer, s.answers); err != nil {
				return err
			}
		}
		told = nil
	}
}

// answeredBy returns the commits that are answered by the server's next message, of
// the given type.
func (s *postgres) answeredBy(kind byte) []pendingCommit {
	switch kind {
	case 'C', 'I', 's', 'E', 'G', 'Z':
	default: // such as a DataRow, of which there are many
		return nil
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	upTo := s.done
	switch kind {
	case 'C', 'I', 's': // CommandComplete, EmptyQueryResponse, PortalSuspended
		s.done++
		upTo = s.done
	case 'E': // ErrorResponse
		upTo = s.expected
		if len(s.cycles) > 0 {
			upTo = s.cycles[0].expected
		}
	case 'G': // CopyInResponse: a Sync that was sent ahead of the data is ignored
		if len(s.cycles) > 0 && s.cycles[0].sync {
			s.cycles = slices.Delete(s.cycles, 0, 1)
		}
	case 'Z': // ReadyForQuery
		if len(s.cycles) > 0 {
			s.done = s.cycles[0].expected
			s.cycles = slices.Delete(s.cycles, 0, 1)
		}
		upTo = s.done
	}
	n := 0
	for n < len(s.commits) && s.commits[n].completion <= upTo {
		n++
	}
	answered := slices.Clone(s.commits[:n])
	s.commits = slices.Delete(s.commits, 0, n)
	return answered
}
