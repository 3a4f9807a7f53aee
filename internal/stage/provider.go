package stage

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"net"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	"github.com/delivered-twice/delivered-twice/internal/cli"
	"github.com/delivered-twice/delivered-twice/internal/lane"
	"github.com/delivered-twice/delivered-twice/internal/order"
	"github.com/delivered-twice/delivered-twice/internal/sandbox"
	"github.com/delivered-twice/delivered-twice/internal/webhook"
)

const (
	// receivers is how many instances have an address to which webhooks are sent.
	receivers = 2
	// senders is how many webhooks are under way at the same time.
	senders = 2 * Batch
	// senderTimeout is how long a sender waits for an answer, unless a fault says
	// otherwise, and answerWithin how long a member takes for it at most.
	senderTimeout = 2 * time.Second
	answerWithin  = 1500 * time.Millisecond
)

// provider publishes events by webhook: in the background, each until a member says
// that it is done.
type provider struct {
	secret    webhook.Secret
	addresses []string // by instance
	sending   context.Context
	stop      context.CancelFunc
	slots     chan struct{}
	work      sync.WaitGroup
	left      atomic.Int64 // not known to be done

	mu       sync.Mutex
	senders  []*webhook.Sender
	everyone *webhook.Sender
	failed   error
}

// newProvider draws an address for each instance, at which all its incarnations listen:
// there a sender comes back to it.
func newProvider() (*provider, error) {
	p := &provider{secret: webhook.Secret(rand.Text()), slots: make(chan struct{}, senders)}
	for range receivers {
		port, err := sandbox.FixedPort()
		if err != nil {
			return nil, err
		}
		p.addresses = append(p.addresses, net.JoinHostPort("127.0.0.1", strconv.Itoa(port)))
	}
	p.sending, p.stop = context.WithCancel(context.Background())
	var err error
	p.everyone, err = p.sender(senderTimeout, p.addresses...)
	return p, err
}

// sender returns one that sends to the addresses in turn.
func (p *provider) sender(timeout time.Duration, addresses ...string) (*webhook.Sender, error) {
	var urls []string
	for _, address := range addresses {
		urls = append(urls, "http://"+address+"/")
	}
	s, err := webhook.NewSender(webhook.SenderOptions{
		URLs:       urls,
		Scheme:     webhook.Stripe,
		Secret:     p.secret,
		Timeout:    timeout,
		FirstPause: 5 * time.Millisecond,
		MaxPause:   200 * time.Millisecond,
	})
	if err != nil {
		return nil, err
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	p.senders = append(p.senders, s)
	return s, nil
}

// post sends one body in the background.
func (p *provider) post(s *webhook.Sender, id string, body []byte) {
	p.left.Add(1)
	p.work.Go(func() {
		select {
		case p.slots <- struct{}{}:
			defer func() { <-p.slots }()
		case <-p.sending.Done():
			return
		}
		if err := s.Send(p.sending, id, body); err != nil {
			p.fail(err)
			return
		}
		p.left.Add(-1)
	})
}

func (p *provider) fail(err error) {
	if p.sending.Err() != nil {
		return
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	p.failed = errors.Join(p.failed, err)
}

func (p *provider) failure() error {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.failed
}

// close ends what is under way.
func (p *provider) close() error {
	p.stop()
	p.work.Wait()
	for _, s := range p.senders {
		s.Close()
	}
	return nil
}

// args and env are what a member needs to be an instance that webhooks reach.
func (p *provider) args(instance int) []string {
	return []string{"--listen=" + p.addresses[instance], "--answer-within=" + answerWithin.String(), fmt.Sprintf("--instance=%d", instance)}
}

func (p *provider) env() []string {
	return []string{cli.WebhookSecretVariable + "=" + string(p.secret)}
}

// listening counts the instances that can be reached.
func (p *provider) listening(ctx context.Context) (n int) {
	var dialer net.Dialer
	for _, address := range p.addresses {
		if conn, err := dialer.DialContext(ctx, "tcp", address); err == nil {
			n++
			_ = conn.Close()
		}
	}
	return n
}

// byWebhook says that events come to the lane by webhook.
func byWebhook(l lane.Lane) bool { return l.Progress == lane.Webhooks }

// SendToEach sends every event to each instance, by a sender of its own: so that both
// get it at the same moment. It is for lanes behind a webhook.
func (s *Stage) SendToEach(_ context.Context, events ...order.Event) error {
	var own []*webhook.Sender
	for _, address := range s.provider.addresses {
		sender, err := s.provider.sender(senderTimeout, address)
		if err != nil {
			return err
		}
		own = append(own, sender)
	}
	for _, e := range events {
		for _, sender := range own {
			s.provider.post(sender, e.ID, e.Encode())
		}
	}
	return nil
}

// SendImpatiently sends events to the instances in turn, and waits for an answer only so
// long before it sends them again. It is for lanes behind a webhook.
func (s *Stage) SendImpatiently(_ context.Context, timeout time.Duration, events ...order.Event) error {
	impatient, err := s.provider.sender(timeout, s.provider.addresses...)
	if err != nil {
		return err
	}
	for _, e := range events {
		s.provider.post(impatient, e.ID, e.Encode())
	}
	return nil
}
