package cli

import (
	"context"
	"fmt"
	"net"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/delivered-twice/delivered-twice/internal/order"
	"github.com/delivered-twice/delivered-twice/internal/pginbox"
	"github.com/delivered-twice/delivered-twice/internal/shortcut"
	"github.com/delivered-twice/delivered-twice/internal/webhook"
)

// Flags of --source=webhook.
const (
	flagListen       = "listen"
	flagSignature    = "signature"
	flagAnswerWithin = "answer-within"
)

// WebhookListen is where a webhook is received unless --listen says otherwise.
const WebhookListen = "127.0.0.1:8421"

// WebhookSecretVariable is the environment variable with the secrets that webhooks are
// signed with, commas between.
const WebhookSecretVariable = "WEBHOOK_SECRET"

// webhookFlags are what --source=webhook needs to know.
type webhookFlags struct {
	listen       string
	signature    string
	answerWithin time.Duration
}

// checkWebhook refuses flags that mean nothing with the source, or without it.
func (p *inboxPipeline) checkWebhook(given func(flag string) bool) error {
	if p.source != sourceWebhook {
		for _, flag := range []string{flagListen, flagSignature, flagAnswerWithin} {
			if given(flag) {
				return Usage(fmt.Errorf("--%s is for --source=%s", flag, sourceWebhook))
			}
		}
		return nil
	}
	for _, flag := range []string{"brokers", "input", "output", "group", "session-timeout"} {
		if given(flag) {
			return Usage(fmt.Errorf("--%s does nothing for --source=%s: there is no Kafka", flag, sourceWebhook))
		}
	}
	switch {
	case p.keepsOffsets():
		return Usage(fmt.Errorf("--source=%s has no offsets to store: it goes with --guard=%s", sourceWebhook, guardInbox))
	case p.guard == string(shortcut.AckFirst):
		return Usage(fmt.Errorf("--guard=%s is for --source=%s", p.guard, sourceGroup))
	case p.asyncCommit:
		return Usage(fmt.Errorf("--async-commit would answer for what is not on disk, and the sender does not come again: it is for --source=%s and --source=%s", sourceGroup, sourceShareGroup))
	case p.publish != publishNothing:
		return Usage(fmt.Errorf("--publish=%s needs Kafka: it is for --source=%s and --source=%s", p.publish, sourceGroup, sourceShareGroup))
	case p.answerWithin < time.Millisecond:
		return Usage(fmt.Errorf("--%s is %v, must be at least 1ms", flagAnswerWithin, p.answerWithin))
	}
	_, err := p.verifier()
	return err
}

// verifier returns what checks the signatures. Its errors show no secret.
func (p *inboxPipeline) verifier() (*webhook.Verifier, error) {
	var secrets []webhook.Secret
	for _, s := range split(os.Getenv(WebhookSecretVariable)) {
		secrets = append(secrets, webhook.Secret(s))
	}
	scheme := webhook.Scheme(p.signature)
	switch signed := slices.Contains(webhook.Schemes(), scheme) && scheme != webhook.None; {
	case signed && len(secrets) == 0:
		return nil, Usage(fmt.Errorf("no secret for --%s=%s: set %s to what the sender signs with, or to several with commas between", flagSignature, scheme, WebhookSecretVariable))
	case scheme == webhook.None && len(secrets) > 0:
		return nil, Usage(fmt.Errorf("%s is set, and --%s=%s would not ask for it: unset it, or choose a signature", WebhookSecretVariable, flagSignature, scheme))
	}
	v, err := webhook.NewVerifier(scheme, secrets...)
	if err != nil {
		return nil, Usage(fmt.Errorf("--%s: %w", flagSignature, err))
	}
	return v, nil
}

// webhookSource receives events at an address.
type webhookSource struct {
	receiver *webhook.Receiver
	listen   string
}

func (p *inboxPipeline) webhook(guard openGuard, hook pginbox.Hook) (consumer, error) {
	verifier, err := p.verifier()
	if err != nil {
		return nil, err
	}
	receiver, err := webhook.NewReceiver(webhook.Options{
		Verifier:  verifier,
		Process:   identified(guard.process),
		BatchSize: p.batchSize,
		Patience:  p.answerWithin,
		Hook:      hook,
		Logger:    p.logger(),
	})
	if err != nil {
		return nil, Usage(err)
	}
	return &webhookSource{receiver, p.listen}, nil
}

// identified puts the id of each event where the handlers look for it.
func identified(process func(context.Context, []pginbox.Event) error) func(context.Context, []pginbox.Event) error {
	return func(ctx context.Context, events []pginbox.Event) error {
		for _, e := range events {
			e.Record.Headers = append(e.Record.Headers, kgo.RecordHeader{Key: order.HeaderEventID, Value: []byte(e.ID)})
		}
		return process(ctx, events)
	}
}

// Run listens, says where on stdout, and answers until ctx ends.
func (w *webhookSource) Run(ctx context.Context) error {
	listener, err := net.Listen("tcp", w.listen)
	if err != nil {
		return fmt.Errorf("--%s: %w; choose an address of this machine that nobody uses", flagListen, err)
	}
	fmt.Println(listener.Addr())
	return w.receiver.Serve(ctx, listener)
}

// webhookSteps are the steps of the source in place of a consumer's.
func webhookSteps(steps []pginbox.Step) []pginbox.Step {
	of := map[pginbox.Step]pginbox.Step{pginbox.Polled: webhook.Received, pginbox.Acknowledged: webhook.Answered}
	renamed := slices.Clone(steps)
	for i, s := range steps {
		if own, ok := of[s]; ok {
			renamed[i] = own
		}
	}
	return renamed
}

// schemes are the values of --signature.
func schemes() string {
	var names []string
	for _, s := range webhook.Schemes() {
		names = append(names, string(s))
	}
	return strings.Join(names, ", ")
}
