package cli

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"github.com/jackc/pgx/v5"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/delivered-twice/delivered-twice/internal/order"
	"github.com/delivered-twice/delivered-twice/internal/outbox"
	"github.com/delivered-twice/delivered-twice/internal/pginbox"
	"github.com/delivered-twice/delivered-twice/internal/shortcut"
	"github.com/delivered-twice/delivered-twice/internal/warehouse"
)

// chosenHandlers returns the handlers that --handlers names, and what closes them.
func (p *inboxPipeline) chosenHandlers() (handlers []pginbox.Handler, closeProducer func(), err error) {
	var producer *kgo.Client
	closeProducer = func() {}
	for _, name := range p.handlers {
		h := pginbox.Handler{Name: name}
		switch name {
		case handlerWarehouse:
			if p.publish == publishDirect && producer == nil {
				if producer, err = kgo.NewClient(append(p.client(), kgo.ProducerLinger(0))...); err != nil {
					return nil, nil, err
				}
				closeProducer = producer.Close
			}
			h.Handle = p.pick(producer)
		case handlerLoyalty:
			h.Handle = p.award
		case handlerPayment:
			h.Handle = p.charge
		default:
			closeProducer()
			return nil, nil, Usage(fmt.Errorf("--handlers has %q, must be of %s, %s and %s", name, handlerWarehouse, handlerLoyalty, handlerPayment))
		}
		handlers = append(handlers, h)
	}
	if p.publish != publishNothing && !slices.Contains(p.handlers, handlerWarehouse) {
		return nil, nil, Usage(fmt.Errorf("--publish=%s is done by the handler %s, which --handlers leaves out", p.publish, handlerWarehouse))
	}
	return handlers, closeProducer, nil
}

// pick does the warehouse's work. Where there is an outbox, it also writes the pick
// requests there. Where there is a producer, it sends them, and waits until the broker
// has them, from inside the transaction: what many believe the inbox covers, and it
// doesn't.
func (p *inboxPipeline) pick(producer *kgo.Client) func(context.Context, pgx.Tx, []pginbox.Event) error {
	return func(ctx context.Context, tx pgx.Tx, events []pginbox.Event) error {
		effects, err := effectsOf(events)
		if err != nil {
			return err
		}
		pick := warehouse.Pick
		if p.guard == string(shortcut.Shape) {
			pick = warehouse.PickOnce
		}
		if err := pick(ctx, tx, p.attempt, effects); err != nil || p.publish == publishNothing {
			return err
		}
		requests := make([]*kgo.Record, len(events))
		messages := make([]outbox.Message, len(events))
		for i, e := range events {
			requests[i] = order.Pick(p.output, e.Record, e.ID, effects[i].Event, p.attempt)
			messages[i] = outbox.Message{ID: e.ID, Record: requests[i]}
		}
		if p.hasOutbox() {
			return outbox.Enqueue(ctx, tx, messages...)
		}
		return producer.ProduceSync(ctx, requests...).FirstErr()
	}
}

func (p *inboxPipeline) award(ctx context.Context, tx pgx.Tx, events []pginbox.Event) error {
	effects, err := effectsOf(events)
	if err != nil {
		return err
	}
	return warehouse.Award(ctx, tx, p.attempt, effects)
}

func effectsOf(events []pginbox.Event) ([]warehouse.Effect, error) {
	effects := make([]warehouse.Effect, len(events))
	for i, e := range events {
		effect, err := warehouse.FromRecord(e.Record)
		if errors.Is(err, order.ErrMalformed) {
			err = pginbox.Permanent(err)
		}
		if err != nil {
			return nil, err
		}
		effects[i] = effect
	}
	return effects, nil
}
